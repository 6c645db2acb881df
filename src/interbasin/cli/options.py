"""The options that commands share, each declared once, and how a command takes a group of them as one argument."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from interbasin.cli.methods import describe_methods
from interbasin.cli.output import Terminal, shorten

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from interbasin.datasets import Batches
    from interbasin.models import LoadedModel
    from interbasin.statistics import PairedMoments
    from interbasin.vectors import Vectors

MODEL = "a folder or hub id of transformers, timm:NAME[@weights] or package.module:factory[@weights]"
DATA = (
    "digits, a folder of images, of idx files or of datasets, or a .txt, .jsonl, .npz, .npy, .csv, .tsv, .h5, .mat or "
    ".parquet file"
)
VECTORS = ".npy, .npz or .parquet"

OUTPUTS = ("output", "statistics", "state", "maps")  # parameters that name what is written

Seed = Annotated[int, Option(help="Seed of everything that is drawn at random.")]
SeedFromZero = Annotated[int, Option(min=0, help="Seed of everything that is drawn at random.")]
Force = Annotated[bool, Option("--force", help="Replace an earlier outcome in OUTPUT.")]


def output_option(text: str) -> Any:
    """The option ``-o``, with its help."""
    return Option("-o", "--output", help=text)


# ---------------------------------------------------------------------- how a command is made of groups


@dataclass(frozen=True)
class Flags:
    """What every command takes, and the program itself before the command's name."""

    json: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False
    quiet: Annotated[bool, Option("--quiet", "-q", help="No progress bars and no remarks.")] = False
    debug: Annotated[bool, Option("--debug", help="Show a traceback when something fails.")] = False


def command(function: Callable[..., None]) -> Callable[..., None]:
    """What typer runs for a command ``function(terminal, *, ...)``.

    A parameter whose type is a dataclass is a group: its fields become options of the command, in its place. The
    `Flags` follow behind all others. ``{methods of JOB}`` in the docstring becomes the list of these methods.
    """
    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    groups: dict[str, Any] = {item.name: item.annotation for item in own if is_dataclass(item.annotation)}
    parameters = [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for parameter in own:
        parameters += _parameters_of(groups[parameter.name]) if parameter.name in groups else [parameter]
    parameters += _parameters_of(Flags)

    def run(ctx: typer.Context, **values: Any) -> None:
        terminal = Terminal.of(ctx, _take(Flags, values))
        inputs = list(_paths_in(value for name, value in values.items() if name not in OUTPUTS))
        members = {name: group(**_take(group, values)) for name, group in groups.items()}
        with as_private_as(inputs):
            function(terminal, **values, **members)

    run.__name__, run.__module__ = function.__name__, function.__module__
    text = re.sub(r"\{methods of (\w+)\}", lambda job: describe_methods(job[1]), function.__doc__ or "")
    run.__doc__ = keep_lines(text)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _paths_in(values: Iterable[object]) -> Iterator[str]:
    """The files and folders that the words of a command name: as they are, behind the @ of a MODEL, or as a store."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _paths_in(value)
        elif isinstance(value, str | Path):
            word = str(value)
            parts = (word, word.rpartition("@")[2], word.partition("://")[2].partition("?")[0])
            yield from (part for part in parts if part and "\0" not in part and os.path.exists(part))


@contextlib.contextmanager
def as_private_as(inputs: Sequence[str]) -> Iterator[None]:
    """While the block lasts, what is written can be read by nobody who may not read all inputs."""
    if not inputs:
        yield
        return
    from interbasin.outcome.hashes import narrowest_mode

    closed = 0o666 & ~narrowest_mode(inputs)
    before = os.umask(0o777)
    # Who may not read the files of a folder may not enter it.
    os.umask(before | closed | (closed & 0o444) >> 2)
    try:
        yield
    finally:
        os.umask(before)


def keep_lines(text: str) -> str:
    """Help in which the examples keep their lines; typer fills other paragraphs."""
    return text.replace("    Examples:\n", "    \b\n    Examples:\n")


def _parameters_of(group: Any) -> list[inspect.Parameter]:
    fields = inspect.signature(group, eval_str=True).parameters.values()
    return [field.replace(kind=inspect.Parameter.KEYWORD_ONLY) for field in fields]


def _take(group: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Take the fields of a group out of the values."""
    return {field.name: values.pop(field.name) for field in fields(group)}


def numbers(text: str | None, option: str, kind: Callable[[str], Any] = float, like: str = "") -> list[Any] | None:
    """The numbers of an option, with commas between them; ``kind`` is int or float, ``like`` an example."""
    if text is None:
        return None
    try:
        return [kind(number) for number in text.split(",")]
    except ValueError as error:
        what = "whole numbers" if kind is int else "numbers"
        example = f", as {like}" if like else ""
        message = f"takes {what} with commas between them{example}, and got {shorten(repr(text))}."
        raise typer.BadParameter(message, param_hint=option) from error


def size(text: str | None, option: str, like: str) -> int | None:
    """The bytes that an option names; ``like`` is an example.

    Example:
        >>> size("8GB", "--memory", "8GB"), size("1.5 MiB", "--memory", "8GB"), size("4096", "--memory", "8GB")
        (8000000000, 1572864, 4096)
    """
    if text is None:
        return None
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?\s*", text, re.IGNORECASE)
    count = (
        0
        if parts is None
        else float(parts[1]) * (1024 if parts[3] else 1000) ** " kmgt".index((parts[2] or " ").lower())
    )
    if count < 1:
        message = f"takes a size, as {like} or 500MB, and got {shorten(repr(text))}."
        raise typer.BadParameter(message, param_hint=option)
    return int(count)


# ---------------------------------------------------------------------- networks


@dataclass(frozen=True)
class NetworkOptions:
    """How networks are loaded."""

    input_shape: Annotated[
        str | None, Option(help="Shape of the inputs, batch first, where the network does not tell: 1,3,224,224.")
    ] = None
    trust_remote_code: Annotated[
        bool, Option("--trust-remote-code", help="Run the code that comes with a folder of transformers.")
    ] = False
    strict: Annotated[bool, Option("--strict/--no-strict", help="Refuse weights that a network has no use for.")] = True

    def __post_init__(self) -> None:
        self.sizes()

    def sizes(self) -> list[int] | None:
        """The sizes that ``--input-shape`` names."""
        return numbers(self.input_shape, "--input-shape", int, "1,3,224,224")

    def load(
        self, model: str, *, seed: int, inputs: Path | None = None, base: str | None = None, in_files: bool = False
    ) -> LoadedModel:
        """The network that a MODEL string names, in memory, or with its weights left in their files."""
        from interbasin.models import load_model

        return load_model(
            model,
            inputs=inputs,
            input_shape=self.sizes(),
            base=base,
            strict=self.strict,
            trust_remote_code=self.trust_remote_code,
            seed=seed,
            in_files=in_files,
        )


def model_in(like: str, folder: str) -> str | None:
    """What to write as MODEL for a network like ``like`` whose weights lie in ``folder``; None if nothing builds it.

    Example:
        >>> model_in("my.networks:small@a.safetensors", "out"), model_in("timm:resnet18", "out")
        ('my.networks:small@out', 'timm:resnet18@out')
    """
    # As `parse_model` reads it, without what that imports: a merge has no torch.
    if ":" in like and not os.path.exists(like):
        return f"{like.partition('@')[0]}@{folder}"
    return folder if os.path.exists(os.path.join(folder, "config.json")) else None


# ---------------------------------------------------------------------- data


@dataclass(frozen=True)
class ImageOptions:
    """How a DATA string is read for a network of images."""

    batch_size: Annotated[int, Option(min=1, help="Samples per batch.")] = 64
    column: Annotated[str | None, Option(help="Column of a .parquet, or key of a .jsonl file.")] = None
    label_column: Annotated[
        str | None, Option(help="Column of a .csv or .parquet file that has the labels; none if none has.")
    ] = None
    mean: Annotated[
        str | None, Option(help="Mean to subtract, of images in [0, 1]: one number, or one per channel.")
    ] = None
    std: Annotated[str | None, Option(help="Deviation to divide them by: one number, or one per channel.")] = None

    def __post_init__(self) -> None:
        numbers(self.mean, "--mean")
        numbers(self.std, "--std")

    def open(self, data: str, *, model: str, like: Any, seed: int) -> DataReader:
        """The data for the network ``model``, whose tokenizer cuts text and whose inputs are like ``like``."""
        options = vars(self) | {"mean": numbers(self.mean, "--mean"), "std": numbers(self.std, "--std")}
        tokenizer = options.get("tokenizer") or _tokenizer_of(model)
        return DataReader(
            data, {**options, "tokenizer": tokenizer, "like": like, "seed": seed, "tokens_as_labels": None}
        )


@dataclass(frozen=True)
class InputOptions(ImageOptions):
    """How a DATA string is read for a network of images or of text."""

    tokenizer: Annotated[
        str | None,
        Option(help="Folder whose tokenizer makes tokens of text; by default that of the first network."),
    ] = None
    max_length: Annotated[int | None, Option(min=1, help="At most so many tokens per text.")] = None


@dataclass(frozen=True)
class DataOptions(InputOptions):
    """How a DATA string is read for any network."""

    scale: Annotated[bool, Option("--scale/--no-scale", help="Bring eight-bit numbers from 0...255 to 0...1.")] = True


@dataclass(frozen=True)
class DataReader:
    """Data that a command reads, part by part."""

    data: str
    options: Mapping[str, Any]  # the arguments of `interbasin.datasets.open_data`

    def part_if_any(self, name: str) -> str | None:
        """The name of a part (``"train"``, ``"test"``) if the data come in parts, else None: all of them."""
        from interbasin.datasets import splits_of

        return name if name in splits_of(self.data) else None

    def read(self, part: str | None, limit: int | None = None) -> Batches:
        """Batches of one part, or of at most ``limit`` samples of it, drawn with the seed."""
        from interbasin.datasets import open_data

        return open_data(self.data, split=part, limit=limit, draw=True, **self.options)


def _tokenizer_of(model: str) -> str | None:
    """Where the tokenizer of a network is, if it is one of transformers."""
    from interbasin.models import parse_model

    name = parse_model(model)
    return name.name if name.kind in ("folder", "hub", "adapter") else None


# ---------------------------------------------------------------------- vectors

SourceVectors = Annotated[Path, Argument(metavar="SOURCE", help=f"Vectors of the source space: {VECTORS}.")]
TargetVectors = Annotated[
    Path, Argument(metavar="TARGET", help="Vectors of the target space, row by row the same items.")
]
TargetColumn = Annotated[
    str | None, Option("--target-column", help="Column of TARGET, where it differs from that of SOURCE.")
]
VectorColumn = Annotated[str | None, Option(help="Column of .parquet files, or array of .npz files.")]
Metric = Annotated[str | None, Option(help="How vectors are compared: cosine, dot or l2.")]


def read_matrix(path: Path, column: str | None = None) -> NDArray[Any]:
    """All vectors of a file: of a ``.npy`` file mapped into memory, of others read."""
    import numpy as np

    from interbasin.vectors import default_rows_per_batch, open_vectors

    opened = open_vectors(path, column=column if path.suffix.lower() != ".npy" else None)
    if opened.format == "npy":
        mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped
    return np.concatenate(list(opened.batches(default_rows_per_batch(opened.width))))


@dataclass(frozen=True)
class StatisticsOptions:
    """How the statistics of two files of vectors are collected."""

    column: Annotated[
        str | None, Option("--column", help="Column of a .parquet file or array of a .npz file, for both files.")
    ] = None
    target_column: TargetColumn = None
    rows_per_batch: Annotated[
        int | None,
        Option("--rows-per-batch", min=1, help="Rows that are in memory at once; by default about 64 MiB."),
    ] = None
    statistics: Annotated[
        Path | None,
        Option(
            "--statistics",
            help="Folder for the statistics: an interrupted run resumes there, a later one does not read the files.",
        ),
    ] = None

    def collect(
        self, terminal: Terminal, source: Path, target: Path, *, grams: bool
    ) -> tuple[Vectors, Vectors, PairedMoments]:
        """Open two files and stream their moments, with a progress bar."""
        from interbasin.vectors import moments_of_files, open_vectors

        kept = None if self.statistics is None else f" in {self.statistics}"
        with terminal.progress_of_rows("Reading rows", kept) as report:
            x = open_vectors(source, column=self.column)
            y = open_vectors(target, column=self.target_column or self.column)
            # Kept statistics should serve every fit; without them a Gram matrix is collected only where it is used.
            grams = grams or self.statistics is not None or x.width > y.width
            moments = moments_of_files(
                x,
                y,
                grams=grams,
                rows_per_batch=self.rows_per_batch,
                keep=self.statistics,
                progress=lambda done: report(done, x.rows),
            )
        return x, y, moments
