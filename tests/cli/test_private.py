"""What a command makes of private files is private: nobody may read it who may not read all inputs."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.cli.test_frame import run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="permissions of files")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).standard_normal((40, 4))
    np.save("old.npy", rows.astype("float32"))
    np.save("new.npy", rows[:, ::-1].astype("float32"))
    for name in ("a", "b"):
        save_file({"w": torch.ones(2, 2)}, f"{name}.safetensors")
        os.chmod(f"{name}.safetensors", 0o644)
    os.chmod("old.npy", 0o644)
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes_in(path: Path) -> set[int]:
    paths = [path, *path.rglob("*")]
    return {stat.S_IMODE(each.stat().st_mode) for each in paths}


@pytest.mark.parametrize(
    "words, private, output",
    [
        (("fit", "old.npy", "new.npy", "-o", "out"), "old.npy", "out"),
        (("translate", "fit", "old.npy", "new.npy", "-o", "out", "--method", "procrustes"), "new.npy", "out"),
        (("merge", "a.safetensors", "b.safetensors", "-o", "out.safetensors"), "b.safetensors", "out.safetensors"),
        (("merge", "a.safetensors", "b.safetensors", "-o", "out"), "a.safetensors", "out"),
    ],
    ids=["fit", "translate fit", "merge to a file", "merge to a folder"],
)
def test_what_comes_of_a_private_input_is_private(words, private, output):
    os.chmod(private, 0o600)
    done = run(*words, "--quiet")
    assert done.exit_code == 0, done.stderr
    assert modes_in(Path(output)) <= {0o600, 0o700}
    os.chmod(private, 0o644)
    assert run(*words, "--quiet", "--force").exit_code == 0
    assert modes_in(Path(output)) <= {0o644, 0o755}
    mask = os.umask(0)
    os.umask(mask)
    assert mask == 0o022  # as it was


@pytest.mark.parametrize("output", ["out.npy", "out.npz"])
def test_translated_rows_are_as_private_as_their_source(output):
    assert run("translate", "fit", "old.npy", "new.npy", "-o", "map", "--method", "procrustes").exit_code == 0
    for mode in (0o600, 0o640, 0o644):
        os.chmod("old.npy", mode)
        done = run("translate", "apply", "map", "old.npy", "-o", output, "--quiet", "--force")
        assert done.exit_code == 0 and modes_in(Path(output)) == {mode}, done.stderr
