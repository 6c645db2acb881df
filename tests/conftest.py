"""What every test shares: hypothesis profiles, one thread a worker, and the folder of data sets that are not ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tests.profiles  # noqa: F401  (before any test is made)
import torch
from tests.fresh import Starter, starting

# Two workers, each with a pool as wide as the machine, would spend their time waiting for one another.
torch.set_num_threads(1)


def missing_data(names: tuple[str, ...]) -> str | None:
    """Why the data sets ``names`` cannot be read here, or None if they can."""
    folder = os.environ.get("INTERBASIN_DATA")
    if not folder:
        return "INTERBASIN_DATA is not set; it names the folder that holds the data sets"
    if not Path(folder).is_dir():
        return f"INTERBASIN_DATA names {folder!r}, which is not a folder"
    absent = [name for name in names if not (Path(folder) / name).exists()]
    return f"the folder that INTERBASIN_DATA names has no {', '.join(absent)}" if absent else None


# Libraries of networks take seconds to import each; a test imports them when it runs.
HEAVY = {"accelerate", "lancedb", "peft", "ray", "timm", "torchvision", "transformers"}
IMPORTED_WHILE_COLLECTING = pytest.StashKey[set[str]]()


@pytest.hookimpl(tryfirst=True)  # before the tests that -m leaves out are taken away
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
        for mark in item.iter_markers("local_data"):
            item.add_marker(pytest.mark.slow)  # so that `make test` is the same on every machine
            if reason := missing_data(mark.args):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[IMPORTED_WHILE_COLLECTING] = HEAVY & set(sys.modules)


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    """What tests write need not survive a loss of power, and small files cost little but the wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def local_data() -> Path:
    """The folder of data sets that are not part of the repository."""
    if reason := missing_data(()):
        pytest.skip(reason)
    return Path(os.environ["INTERBASIN_DATA"])


@pytest.fixture(scope="session")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    """Runs programs in processes of their own, which need not wait for torch and print as on a plain terminal."""
    plain = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    environment = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"} | plain
    # What the libraries of networks import too, and which has nothing to do with torchvision.
    imports = ("torch._dynamo", "scipy.optimize")
    with starting(tmp_path_factory.mktemp("printed"), *imports, environment=environment) as found:
        yield found
