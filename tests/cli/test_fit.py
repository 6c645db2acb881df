"""``interbasin fit``: files in, a folder out, or one sentence and no folder."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tests.cli.test_frame import failed, run, two_files  # noqa: F401  (two_files is the fixture `files`)
from tests.test_storage import left_in

from interbasin import PairedMoments, fit, maps
from interbasin.cli.methods import names
from interbasin.vectors import moments as vector_moments

METHODS = names("fit")
OUTPUT = ["fit.json", "map.json", "map.safetensors"]


def parse(text: str) -> dict:
    return json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


def save_as(extension: str, path, array):
    path = path.with_suffix(extension)
    if extension == ".npz":
        np.savez(path, x=array, other=array[:, :1])
    elif extension == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table({"x": list(array), "id": np.arange(len(array))}), path)
    else:
        np.save(path, array)
    return path


def test_the_methods_offered_are_the_fits_there_are():
    assert fit.names() == METHODS


def test_every_option_of_every_fit_is_offered():
    shown = run("fit", "--help").stdout
    options = {option for name in fit.names() for option in fit.describe(name).options}
    wanted = {"--" + option.replace("_", "-") for option in options - {"objective", "start", "rank_tolerance"}}
    assert [option for option in sorted(wanted) if option not in shown] == []


@pytest.mark.parametrize("extension", [".npy", ".npz", ".parquet"])
def test_every_format_gives_the_same_map(extension, files, tmp_path):
    x, y = (np.load(path) for path in files)
    paths = save_as(extension, tmp_path / "x", x), save_as(extension, tmp_path / "y", y)
    done = run("fit", *paths, "-o", tmp_path / "out", "--json", "--quiet")
    assert done.exit_code == 0, done.stderr
    expected = fit.procrustes(PairedMoments.of(x, y, grams=False))
    assert np.allclose(maps.load(tmp_path / "out").matrix.numpy(), expected.map.matrix.numpy(), atol=1e-6)
    assert parse(done.stdout)["rows"] == 200


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("affine", [False, True])
def test_every_method_writes_what_it_prints(method, affine, files, tmp_path):
    flags = ("--affine",) if affine else ()
    done = run("fit", *files, "--method", method, *flags, "-o", tmp_path / "out", "--json", "--quiet")
    assert done.exit_code == 0, done.stderr
    printed = parse(done.stdout)
    written = json.loads((tmp_path / "out" / "fit.json").read_text("utf-8"))
    assert left_in(tmp_path / "out") == OUTPUT
    assert written == written | {key: value for key, value in printed.items() if key != "output"}
    assert printed["request"] == {
        "source": str(files[0]),
        "source_column": None,
        "target": str(files[1]),
        "target_column": None,
        "method": method,
        "affine": affine,
    }
    found = maps.load(tmp_path / "out")
    assert found.kind == printed["map"] == ("affine" if affine else printed["map"])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_tells_people_how_good_it_is(method, files, tmp_path):
    done = run("fit", *files, "--method", method, "-o", tmp_path / "out", "--quiet")
    assert done.exit_code == 0 and method in done.stdout
    residual = next(line for line in done.stdout.splitlines() if line.strip().startswith("residual"))
    assert residual.split()[1] != "-", "the residual is not known"


GIVEN = {
    "centered": ("--uncentered", False),
    "scale": ("--scale", True),
    "unobserved": ("--unobserved=drop", "drop"),
    "signed": ("--signed", True),
    "match": ("--match=correlation", "correlation"),
    "ridge": ("--ridge=0.5", 0.5),
    "power": ("--power=0.25", 0.25),
    "temperature": ("--temperature=0.5", 0.5),
    "tolerance": ("--tolerance=0.001", 0.001),
    "steps": ("--steps=7", 7),
    "seed": ("--seed=5", 5),
}


@pytest.mark.parametrize("option", GIVEN)
@pytest.mark.parametrize("method", METHODS)
def test_options_reach_their_fit_and_no_other(method, option, files, tmp_path):
    flag, value = GIVEN[option]
    done = run("fit", *files, "--method", method, flag, "-o", tmp_path / "out", "--quiet")
    if option in fit.describe(method).options:
        assert done.exit_code == 0, done.stderr
        written = json.loads((tmp_path / "out" / "fit.json").read_text("utf-8"))
        assert written["request"][option] == value
    else:
        assert f"{method} has no option {option!r}" in failed(done)
        assert left_in(tmp_path) == ["a.npy", "b.npy"]


# Files


def test_columns_may_differ(files, tmp_path):
    x = np.load(files[0])
    np.savez(tmp_path / "both.npz", old=x, new=2 * x)
    both = tmp_path / "both.npz"
    command = ("fit", both, both, "--column", "old", "--target-column", "new", "--method", "least-squares", "--quiet")
    assert run(*command, "-o", tmp_path / "out").exit_code == 0
    assert np.allclose(maps.load(tmp_path / "out").matrix.numpy(), 2 * np.eye(4))


# The output


def test_an_output_that_exists_is_refused_before_anything_is_read(files, tmp_path):
    assert run("fit", *files, "-o", tmp_path / "out", "--quiet").exit_code == 0
    first = maps.load(tmp_path / "out")
    sentence = failed(run("fit", "missing.npy", "missing.npy", "-o", tmp_path / "out"))
    assert "exists already" in sentence and "--force" in sentence
    command = ("fit", *files, "--method", "assignment", "-o", tmp_path / "out", "--quiet")
    failed(run(*command))
    assert maps.load(tmp_path / "out") == first
    assert run(*command, "--force").exit_code == 0
    assert maps.load(tmp_path / "out").kind == "permutation" and left_in(tmp_path / "out") == OUTPUT


def test_an_output_that_is_not_ours_is_refused_even_by_force(files, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("dear", "utf-8")
    sentence = failed(run("fit", "missing.npy", "missing.npy", "-o", tmp_path / "out", "--force"))
    assert "did not write" in sentence
    assert left_in(tmp_path / "out") == ["letter.txt"]
    assert "a file of that name" in failed(run("fit", *files, "-o", files[0], "--force"))


@pytest.mark.parametrize("name", ["out[v2]", "out[bold]", "out[/v2]", "out [red]x"])
def test_the_name_of_the_output_is_shown_as_it_is(name, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("fit", *files, "-o", name, "--quiet")
    assert done.exit_code == 0, done.stderr
    assert name in done.stdout


def test_an_interrupt_while_reading_leaves_no_output(files, tmp_path, monkeypatch):
    stopping = type("Stopping", (vector_moments.PairedMoments,), {"update": interrupted})
    monkeypatch.setattr(vector_moments, "PairedMoments", stopping)
    done = run("fit", *files, "-o", tmp_path / "out", "--quiet")
    assert done.exit_code == 130 and left_in(tmp_path) == ["a.npy", "b.npy"]


def interrupted(*arguments, **keywords):
    raise KeyboardInterrupt


# Remarks


def test_a_fit_that_saw_too_little_says_so(files, tmp_path):
    for path in files:
        np.save(path, np.load(path)[:3])
    done = run("fit", *files, "-o", tmp_path / "out")
    assert done.exit_code == 0 and "rank-deficient" in done.stdout
    assert "give more rows" in " ".join(done.stderr.split())


def test_means_that_are_not_carried_are_remarked_on(files, tmp_path):
    np.save(files[1], np.load(files[1]) + 10)
    assert "--affine" in run("fit", *files, "-o", tmp_path / "one").stderr
    assert "--affine" not in run("fit", *files, "-o", tmp_path / "two", "--affine").stderr


def test_steps_are_shown_where_there_are_some(files, tmp_path):
    assert "steps" in run("fit", *files, "--method", "stiefel", "-o", tmp_path / "out", "--quiet").stdout


def test_what_is_not_known_is_null_and_not_a_broken_number(files, tmp_path):
    done = run("fit", *files, "--method", "sinkhorn", "-o", tmp_path / "out", "--json", "--quiet")
    printed = parse(done.stdout)
    assert printed["residual"] is None or math.isfinite(printed["residual"])
    parse((tmp_path / "out" / "fit.json").read_text("utf-8"))
