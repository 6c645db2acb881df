"""How a table of misuses is written and checked.

A row is a sentence, a call, the class of the error it must raise, and one keyword of the message. Calls take what they
misuse from `the`, which makes each network, array or file when a row first asks for it and remembers what it was like.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import signal
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

import interbasin as ib
from interbasin.errors import InterbasinError

# Documented names that do not stand in the contract's first line, each with the module that holds it: what moves is
# mended here, and nowhere else in the tables.
HOMES = {
    "interbasin.cli": ("app",),
    "interbasin.datasets": ("load_digits", "open_data", "read_pairs", "splits_of"),
    "interbasin.datasets.arrays": ("read_idx",),
    "interbasin.datasets.generated": ("write_data",),
    "interbasin.datasets.labels": ("read_labels",),
    "interbasin.vectors": ("moments_of_files", "open_vectors", "paired_batches"),
    "interbasin.jobs.translate": (
        "Card",
        "evaluate_translation",
        "fit_translation",
        "match_threshold",
        "pool_rows",
        "recalibrate",
        "translate_vectors",
    ),
    "interbasin.activations": ("Recording", "Tokens", "standing"),
    "interbasin.batch_norm": ("repair", "reset_batch_norm"),
    "interbasin.checkpoints": ("open_checkpoint", "write_checkpoint"),
    "interbasin.models": ("load_model",),
    "interbasin.wiring.folding": ("folding_of", "save_folded"),
    "interbasin.outcome.plots": ("bar_chart", "heat_map", "line_chart", "scatter_chart"),
}
OF_ONE_ROW = "row-"  # how the folders of files begin that one row alone uses
SECRET = "hunter2"  # the password in every address of the tables, which no message may repeat
LIMIT = 60  # seconds after which a call counts as one that hangs
PLAIN = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "OMP_NUM_THREADS": "1"}


class Names:
    """The documented names, imported when a row first uses them."""

    def __getattr__(self, name: str) -> Any:
        for module, names in HOMES.items():
            if name in names:
                return getattr(importlib.import_module(module), name)
        raise AttributeError(f"{name} is not among the documented names of the tables")


class Shelf:
    """What the rows share: each thing is made once, when it is first taken, and must stay as it was made."""

    folder: Path

    def __init__(self) -> None:
        self._makers: dict[str, Callable[[], Any]] = {}
        self._things: dict[str, Any] = {}
        self._prints: dict[str, str] = {}
        self._taken: set[str] = set()

    def keeps(self, maker: Callable[[], Any]) -> Callable[[], Any]:
        """Register a function: what it returns is on the shelf under its name."""
        assert maker.__name__ not in self._makers, f"two things on the shelf are called {maker.__name__}"
        self._makers[maker.__name__] = maker
        return maker

    def clear(self) -> None:
        """Forget everything that was made, and remove its files."""
        self._things.clear()
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def __getattr__(self, name: str) -> Any:
        if name not in self._things:
            if name not in self._makers:
                raise AttributeError(f"there is no {name} on the shelf of the tables")
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(zlib.crc32(name.encode()))
                self._things[name] = self._makers[name]()
            self._prints[name] = fingerprint(self._things[name])
        self._taken.add(name)
        return self._things[name]

    def files(self, contents: Mapping[str, Any]) -> Path:
        """A new folder with these files, for one row alone; `write_file` says how they are written."""
        folder = self.folder / f"{OF_ONE_ROW}{len(self._things)}"
        for name, content in contents.items():
            write_file(folder / name, content)
        self._things[folder.name], self._prints[folder.name] = folder, fingerprint(folder)
        self._taken.add(folder.name)
        return folder

    def file(self, name: str, content: Any) -> Path:
        """A new file in a folder of its own, for one row alone."""
        return self.files({name: content}) / name

    def changed(self, folder: Path, name: str, content: Any) -> Path:
        """A folder of `files` in which one file is written anew; None removes it."""
        write_file(folder / name, content) if content is not None else (folder / name).unlink()
        self._prints[folder.name] = fingerprint(folder)
        return folder

    def copy(self, folder: Path) -> Path:
        """A copy of a folder, for one row alone."""
        return self.files({str(path.relative_to(folder)): path.read_bytes() for path in files_in(folder)})

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Whatever is taken meanwhile is afterwards as it was, and no file lies beside those of the shelf."""
        self._taken.clear()
        yield
        taken = sorted(self._taken)
        assert [name for name in taken if fingerprint(self._things[name]) != self._prints[name]] == []
        if any(isinstance(self._things[name], Path) for name in taken):  # whoever was given no path cannot reach it
            roots = {thing for thing in self._things.values() if isinstance(thing, Path)}
            assert [path for path in files_in(self.folder) if not roots & {path, *path.parents}] == []
        for name in taken:
            if name.startswith(OF_ONE_ROW):
                shutil.rmtree(self._things.pop(name))


the = Shelf()
public = Names()


def write_file(path: Path, content: Any) -> None:
    """Write bytes and text as they are, anything else as the ending of the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, "utf-8")
    elif path.suffix == ".safetensors":
        safetensors.torch.save_file(content, path)
    elif path.suffix in (".pt", ".bin"):
        torch.save(content, path)
    elif path.suffix == ".npy":
        np.save(path, content)
    elif path.suffix == ".npz":
        np.savez(path, **content)
    elif path.suffix == ".parquet":
        table = content if isinstance(content, pyarrow.Table) else pyarrow.table(content)
        pyarrow.parquet.write_table(table, path)
    else:
        path.write_text(json.dumps(content), "utf-8")


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir())


def fingerprint(thing: Any) -> str:
    """A digest of everything in ``thing`` that a call could change."""
    digest = hashlib.blake2b()
    _feed(digest.update, thing)
    return digest.hexdigest()


def _feed(update: Callable[[bytes], object], thing: Any) -> None:
    update(type(thing).__qualname__.encode())
    if isinstance(thing, torch.Tensor):
        update(f"{thing.dtype}{tuple(thing.shape)}{thing.requires_grad}".encode())
        dense = thing.device.type != "meta" and thing.layout is torch.strided and not thing.is_quantized
        if dense and not torch.nn.parameter.is_lazy(thing):
            update(thing.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(thing, np.ndarray):
        update(f"{thing.dtype}{thing.shape}".encode() + thing.tobytes())
    elif isinstance(thing, torch.nn.Module):
        modules = dict(thing.named_modules())
        hooks = {name: (len(one._forward_hooks), len(one._forward_pre_hooks)) for name, one in modules.items()}
        _feed(update, [{name: one.training for name, one in modules.items()}, hooks])
        _feed(update, dict(thing.named_parameters()) | dict(thing.named_buffers()))
    elif isinstance(thing, Path):
        for path in files_in(thing) if thing.is_dir() else [thing]:
            update(str(path).encode() + (path.read_bytes() if path.is_file() else b""))
    elif isinstance(thing, dict):
        _feed(update, list(thing.items()))
    elif isinstance(thing, list | tuple):
        for part in thing:
            _feed(update, part)
    elif isinstance(thing, ib.PairedMoments):
        _feed(update, [thing.count, thing.batches, thing.cross() if thing.count else None])
    elif isinstance(thing, str | int | float | bool | None):
        update(repr(thing).encode())


class Misuse(NamedTuple):
    """One call that must be refused."""

    sentence: str
    call: Callable[[], object]
    error: type[Exception]
    keyword: str

    def check(self) -> None:
        """The call raises exactly this error, in one sentence with the keyword; no input changes, no file is left."""
        with the.unchanged(), time_limit(), pytest.raises(self.error) as caught:
            self.call()
        message = str(caught.value)
        assert type(caught.value) is self.error, f"{type(caught.value).__name__}: {message}"
        assert self.keyword in message and SECRET not in message, message
        if issubclass(self.error, InterbasinError):
            assert message == message.strip() and message.endswith((".", "?")) and "\n" not in message, message
        assert files_in(Path.cwd()) == []


class WrongCommand(NamedTuple):
    """One command that must be refused: with exit code 1 by us, or with 2 by the parser of its options."""

    sentence: str
    words: Callable[[], Iterable[object]]
    code: int
    keyword: str

    def check(self) -> None:
        """The command ends with this code and one sentence on stderr; no file changes and none is left."""
        with the.unchanged(), time_limit():
            words = [str(word) for word in self.words()]
            done = CliRunner().invoke(public.app, words, env=PLAIN)
        assert done.exit_code == self.code, done.stdout + done.stderr
        assert done.stdout == "" and "Traceback" not in done.stderr, done.stdout + done.stderr
        if self.code == 1:
            assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1, done.stderr
        assert self.keyword in " ".join(done.stderr.split()) and SECRET not in done.stderr, done.stderr
        assert files_in(Path.cwd()) == []


def misuses(*rows: tuple[str, Callable[[], object], type[Exception], str]) -> pytest.MarkDecorator:
    """The rows of a table, as the argument ``misuse`` of a test."""
    return _parametrised([Misuse(*row) for row in rows])


def wrong_commands(*rows: tuple[str, Callable[[], Iterable[object]], int, str]) -> pytest.MarkDecorator:
    """The rows of a table of commands, as the argument ``misuse`` of a test."""
    return _parametrised([WrongCommand(*row) for row in rows])


def _parametrised(rows: list[Any]) -> pytest.MarkDecorator:
    sentences = [row.sentence for row in rows]
    twice = {sentence for sentence in sentences if sentences.count(sentence) > 1}
    assert not twice, f"two rows of one table are called {twice}"
    return pytest.mark.parametrize("misuse", [pytest.param(row, id=row.sentence) for row in rows])


class HangError(BaseException):
    """A call took so long that it counts as one that never ends; no handler of ordinary errors catches it."""


@contextmanager
def time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise HangError(f"the call did not end within {LIMIT} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
