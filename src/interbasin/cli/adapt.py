"""``interbasin adapt``: a pre-trained network on a modality that it has never seen, and whether that helps."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from interbasin._version import __version__
from interbasin.cli.adapted import name_model, show_result
from interbasin.cli.options import (
    DATA,
    MODEL,
    DataReader,
    Force,
    InputOptions,
    NetworkOptions,
    Seed,
    command,
    numbers,
    output_option,
)
from interbasin.cli.output import Terminal, foreign_code
from interbasin.cli.state import state_beside
from interbasin.cli.target_data import TargetReader


@dataclass(frozen=True)
class TrainingOptions:
    """How every method is trained; all methods alike."""

    steps: Annotated[
        int | None,
        Option(min=1, help="Steps of supervised training; by default ten passes over the samples, from 150 to 2000."),
    ] = None
    batch_size: Annotated[int | None, Option(min=1, help="Samples in each step.  [default: 16]")] = None
    rate: Annotated[
        float | None,
        Option(
            help="Learning rate of new parts. Tried as it is and three times as large; scratch as it is and at 0.3 of "
            "it.  [default: 0.001]"
        ),
    ] = None
    body_rate: Annotated[float | None, Option(help="Learning rate of the body.  [default: 0.0003]")] = None
    decay: Annotated[float | None, Option(help="Weight decay.  [default: 0.01]")] = None
    optimiser: Annotated[str | None, Option(help="adamw, adam or sgd.  [default: adamw]")] = None
    accumulate: Annotated[
        int | None, Option(min=1, help="Batches whose mean gradient makes one step.  [default: 1]")
    ] = None
    patience: Annotated[
        int | None,
        Option(
            min=1,
            help="End the final training after so many looks in a row without a lower loss on --valid; there are 20. "
            "By default all steps are taken.",
        ),
    ] = None
    body: Annotated[
        str | None,
        Option(help="What is trained of the body: everything, frozen (nothing) or lora.  [default: everything]"),
    ] = None
    rank: Annotated[int | None, Option(min=1, help="Rank of that LoRA.  [default: 8]")] = None
    regularise: Annotated[
        float | None, Option(help="Weight of alignment and distortion during supervised training.  [default: 0]")
    ] = None
    align_steps: Annotated[int | None, Option(min=1, help="Steps of stage 1, the alignment.  [default: 40]")] = None
    start: Annotated[
        str | None,
        Option(
            help="Where stage 1 begins: at the embedder as it is made (rule), with mean outputs like the source's "
            "(means), or with these where positions correspond (auto).  [default: auto]"
        ),
    ] = None
    omega: Annotated[
        float | None, Option(help="How fast the source's head may change, when it is recalibrated.  [default: 0.3]")
    ] = None
    head_loss: Annotated[
        str | None,
        Option(
            help="The loss whose change that is: entropy of the head's answers, or cross-entropy with one-hot labels. "
            "[default: entropy]"
        ),
    ] = None
    schedule: Annotated[
        str | None, Option(help="Of stage 1: joint, or sequential as in the paper.  [default: joint]")
    ] = None
    distortion_steps: Annotated[
        int | None,
        Option(min=1, help="Last steps of a sequential schedule, which are for the labels.  [default: one in 15]"),
    ] = None
    features: Annotated[
        str | None,
        Option(
            help="What stage 1 aligns: the pooled output of the body, or the mean output of the embedder. "
            "[default: body]"
        ),
    ] = None
    solver: Annotated[
        str | None, Option(help="Of the distance between features: exact or sinkhorn.  [default: exact]")
    ] = None
    precision: Annotated[str | None, Option(help="bf16 or fp16 for mixed precision.")] = None

    def arguments(self) -> dict[str, Any]:
        """Those that were given."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class ProxyOptions:
    """How data are read; all but the columns is for the proxy."""

    column: Annotated[str | None, Option(help="Column of a .parquet, or key of a .jsonl file.")] = None
    label_column: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Column of the labels in a .csv or .parquet file, or a folder of datasets; by default label, or of a "
            ".csv file label, y, target or class.",
        ),
    ] = None
    proxy_label_column: Annotated[
        str | None, Option(metavar="NAME", help="That of --proxy, where it differs from --label-column.")
    ] = None
    mean: Annotated[
        str | None, Option(help="Mean to subtract from images of --proxy, in [0, 1]: one number, or one per channel.")
    ] = None
    std: Annotated[str | None, Option(help="Deviation to divide them by: one number, or one per channel.")] = None
    tokenizer: Annotated[
        str | None, Option(help="Folder whose tokenizer makes tokens of text of --proxy; by default that of SOURCE.")
    ] = None
    max_length: Annotated[int | None, Option(min=1, help="At most so many tokens per text.")] = None

    def open(self, proxy: str, **about: Any) -> DataReader:
        """The proxy, for SOURCE."""
        options = dict(vars(self))
        options["label_column"] = options.pop("proxy_label_column") or self.label_column
        return InputOptions(**options).open(proxy, **about)


@command
def adapt(
    terminal: Terminal,
    *,
    source: Annotated[
        str,
        Argument(metavar="SOURCE", help=f"The pre-trained network: {MODEL}; a factory may return interbasin.Source."),
    ],
    proxy: Annotated[str, Option(help=f"Labelled data of SOURCE's own modality: {DATA}.")],
    data: Annotated[str, Option(help="Labelled data of the new modality: inputs are arrays of numbers.")],
    output: Annotated[Path, output_option("Folder for the model, the table of methods, the bound and the verdict.")],
    unlabelled: Annotated[str | None, Option(help="More inputs of the new modality, for the alignment.")] = None,
    valid: Annotated[
        str | None,
        Option(help="Labelled data to hold out, instead of a part of --data; of an .npz file x_valid and y_valid."),
    ] = None,
    test: Annotated[
        str | None,
        Option(
            help="Labelled data to report on; they decide nothing. Of an .npz file x_test and y_test are taken, if it "
            "has them, so that it may be that of --data."
        ),
    ] = None,
    shape: Annotated[
        str | None,
        Option(help="Shape of one input of the new modality, if the file has another: 1,96 for signals in rows of 96."),
    ] = None,
    task: Annotated[
        str, Option(help="What labels are: classification, multilabel, regression or dense (fields).")
    ] = "classification",
    method: Annotated[
        str, Option(help="One of those above; auto takes naive unless another is better by a standard error.")
    ] = "auto",
    predictor: Annotated[
        str | None,
        Option(help="Of methods that align: transport, head, or auto: the lower held-out loss.  [default: auto]"),
    ] = None,
    compare: Annotated[bool, Option("--compare", help="Run all methods, in one table.")] = False,
    minutes: Annotated[
        float | None, Option(help="Begin no more methods after so many minutes; notes say which were left out.")
    ] = None,
    metric: Annotated[
        str | None,
        Option(help="What errors are measured by; by default error, map or nrmse, by the task."),
    ] = None,
    preset: Annotated[
        str | None, Option(help="Settings of the paper's tables 8 and 9 by name, such as ecg or pde-burgers.")
    ] = None,
    tensorboard: Annotated[
        Path | None,
        Option(metavar="DIR", help="Folder for TensorBoard's files, one folder in it for each training and stage 1."),
    ] = None,
    training_options: TrainingOptions,
    limit: Annotated[int | None, Option(min=1, help="At most so many samples of each DATA, drawn with --seed.")] = None,
    proxy_options: ProxyOptions,
    network_options: NetworkOptions,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Fine-tune SOURCE on a modality that it has never seen, and say whether pre-training helps there at all.

    Methods, with their papers (docs/references.bib):

    {methods of adapt}

    auto runs raw-linear, nearest, random-body, linear-probe, scratch, naive and recraft; any other method is run beside
    raw-linear, nearest, scratch and naive, without which there is no verdict. Methods are compared on samples that they
    were not trained on: below 500 in five folds, else on one fifth. The method that is taken is then fitted to all.

    The last line is the verdict: transfer, align, scratch, simple-model or too-few, each with its reason. Whichever it
    is, the command has done its work, and its exit code is 0.

    Inputs of the new modality have the shape (features,), (channels, length) or (channels, height, width). SOURCE is
    divided into embedder, body and head by itself, if it is a vision transformer, Swin or ResNet, an encoder of text or
    an nn.Sequential; else name a factory that returns interbasin.Source(embedder, body, head).

    Labels may be names; they mean the same in --data, --valid and --test, and the model keeps them (classes).

    OUTPUT holds model.safetensors and adaptation.json, which interbasin.jobs.adapt.load_adapted reads; verdict.txt,
    tables (.csv, table.json), plots (.svg) and outcome.json. What is done is kept beside OUTPUT until that is there: a
    command that was interrupted or killed goes on when it is given again.

    Examples:
      interbasin adapt timm:vit_tiny_patch16_224@vit.safetensors --proxy photos --data ecg.npz -o adapted
      interbasin adapt my.nets:small@a.safetensors --proxy digits --data ecg.npz --test test.npz --compare -o adapted
      interbasin adapt roberta --proxy questions.jsonl --data burgers.npz --task dense --body lora --minutes 30 -o out
      interbasin adapt my.nets:source --proxy digits --data signals.npz --shape 1,96 --method recraft --json -o out
    """
    sizes = numbers(shape, "--shape", int, "1,96")
    terminal.require_free(output, force=force)  # before torch is imported, which takes seconds
    from interbasin.jobs.adapt import METHODS, Source
    from interbasin.jobs.adapt import adapt as fit
    from interbasin.jobs.adapt.job import require_packages
    from interbasin.jobs.adapt.result import summarize_row, summarize_verdict

    if method != "auto":
        method = METHODS[method].name
    require_packages(method, is_compared=compare, body=training_options.body)
    with terminal.status("Loading"), foreign_code():
        loaded = network_options.load(source, seed=seed)
        parts = Source.of(loaded.model)
        own = proxy_options.open(proxy, model=source, like=loaded.inputs, seed=seed)
        own_batches = own.read(own.part_if_any("train"), limit)
        target = TargetReader(limit, proxy_options.column, proxy_options.label_column, sizes, seed)
        train = target.read(data, "train")
        more = {name: None if text is None else target.read(text, name) for name, text in _others(valid, test)}
        plain = None if unlabelled is None else target.read(unlabelled, "train", labelled=False)
    with state_beside(output, "was run") as state:
        with terminal.trainings("Adapting") as (tell, show_step), foreign_code():
            result = fit(
                parts,
                own_batches,
                train,
                valid=more["valid"],
                test=more["test"],
                unlabelled=plain,
                task=task,
                method=method,
                predictor=predictor,
                compare=compare,
                seed=seed,
                metric=metric,
                classes=(target.classes or None) if task == "classification" else None,
                minutes=minutes,
                preset=preset,
                state=state.folder / _digest(terminal.request),
                tensorboard=tensorboard,
                progress=tell,
                on_step=show_step,
                **training_options.arguments(),
            )
        state.is_complete = True
        request = {name: value for name, value in terminal.request.items() if name not in result.request}
        inputs = terminal.inputs("source", "proxy", "data", "unlabelled", "valid", "test")
        outcome = result.save(output, inputs=inputs, request=request, force=force)
    use = name_model(source, output, result.method)
    summary = {
        **outcome.summary(),
        "output": str(output),
        "method": result.method,
        "trial": result.trial,
        "classes": result.request["classes"],
        "verdict": summarize_verdict(result.verdict),
        "table": [summarize_row(row) for row in result.table],
        "use": use,
    }
    # Notes stand before the verdict, which comes last.
    terminal.result(summary, lambda console: show_result(console, terminal, outcome, result, output, use))


def _others(valid: str | None, test: str | None) -> tuple[tuple[str, str | None], ...]:
    return ("valid", valid), ("test", test)


def _digest(request: Any) -> str:
    """A name for what was asked, so that what another request left does not stand in the way.

    Files that were changed since, and another version, make it another request.
    """
    known = {name: value for name, value in request.items() if name not in ("output", "minutes", "tensorboard")}
    paths = [Path(value) for value in known.values() if isinstance(value, str)]
    stamps = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.is_file()]
    known = {**known, "files": stamps, "version": __version__}
    return hashlib.sha256(json.dumps(known, default=str, sort_keys=True).encode()).hexdigest()[:16]
