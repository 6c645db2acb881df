"""``interbasin transport``: the fine-tune of one network, for another."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from interbasin.cli.options import (
    DATA,
    MODEL,
    Force,
    InputOptions,
    NetworkOptions,
    Seed,
    command,
    numbers,
    output_option,
)
from interbasin.cli.output import Terminal, foreign_code
from interbasin.cli.paired_data import read_for_both
from interbasin.cli.state import state_beside
from interbasin.cli.transport_memory import MemoryOptions, move_on_disk, refuse_with_memory
from interbasin.cli.transport_training import TrainOptions, read_training, require_train_data, train
from interbasin.cli.transported import is_adapter, name_results, show_plan, show_result, summarize_plan, without_nan

LOGITS = "logits"


@dataclass(frozen=True)
class SeveralOptions:
    """Several fine-tunes of one base."""

    also: Annotated[
        list[str] | None,
        Option(metavar="TUNED", help="Another fine-tune of SOURCE, merged with TUNED; may be given several times."),
    ] = None
    merge: Annotated[str, Option(help="How they are merged: task-arithmetic, a weighted sum, or ties.")] = (
        "task-arithmetic"
    )
    merge_weights: Annotated[
        str | None, Option(help="Weights of TUNED and of each --also, with commas between them; 1 by default.")
    ] = None
    density: Annotated[
        float | None, Option(help="For --merge ties: the share of every update that is kept, 0.5 by default.")
    ] = None

    def __post_init__(self) -> None:
        self.weights()

    def weights(self) -> list[float] | None:
        return numbers(self.merge_weights, "--merge-weights", float, "1,0.5")

    def arguments(self) -> dict[str, Any]:
        """What the job takes."""
        return {"merge": self.merge, "merge_weights": self.weights(), "density": self.density}


@command
def transport(
    terminal: Terminal,
    *,
    source: Annotated[str, Argument(metavar="SOURCE", help=f"The base that was fine-tuned: {MODEL}.")],
    tuned: Annotated[
        str,
        Argument(
            metavar="TUNED",
            help="Its fine-tune: a folder of a LoRA of PEFT, a MODEL, a file of its weights, or what an earlier "
            "transport left.",
        ),
    ],
    target: Annotated[str, Argument(metavar="TARGET", help="The base that gets it: a MODEL, of other widths or not.")],
    data: Annotated[str, Option(help=f"Inputs of the task; labels are not looked at: {DATA}.")],
    output: Annotated[Path | None, output_option("Folder for the update, the account and the verdict.")] = None,
    method: Annotated[
        str, Option(help="One of those above; auto takes the one that explains most on held-out inputs.")
    ] = "auto",
    variant: Annotated[str | None, Option(help="Variant of the method, as listed above; by default its first.")] = None,
    scale: Annotated[
        str | None,
        Option(
            help="theseus: none, or rms, each map times the ratio of the activations' sizes. By default rms with auto, "
            "else none."
        ),
    ] = None,
    alpha: Annotated[
        str | None,
        Option(
            help="How much of the update: a number, or auto, by held-out inputs. By default auto with auto, else 1."
        ),
    ] = None,
    validate: Annotated[
        str | None, Option(help="Labelled DATA to choose by instead, and to see what the fine-tune is worth.")
    ] = None,
    generic: Annotated[
        str | None, Option(help="DATA of the kind TARGET was trained on: a regression keeps its answers there.")
    ] = None,
    generic_target: Annotated[
        str, Option(help="What --generic aims at: keep, TARGET's own activations, or tuned, those of TUNED.")
    ] = "keep",
    generic_weight: Annotated[
        float | None,
        Option(help="Weight of --generic, all together, relative to --data; more keeps more.  [default: 0.5]"),
    ] = None,
    front: Annotated[
        bool, Option("--front", help="Also measure what is learned and forgotten over several weights of --generic.")
    ] = False,
    front_weights: Annotated[
        str | None, Option(help="These weights, with commas between them, for --front: 0.1,1,10.")
    ] = None,
    outputs: Annotated[
        str,
        Option(help="Whether an output means the same in both networks: shared, own, or auto: shared if of one shape."),
    ] = "auto",
    readout: Annotated[
        str | None,
        Option(
            help="Outputs -> logits: package.module:function, or logits, if outputs are logits as they are. Without, "
            "outputs named logits are, and others are compared by squares."
        ),
    ] = None,
    heads: Annotated[
        str, Option(help="matched: a map for each head; free: maps mix them; auto: matched where numbers are equal.")
    ] = "auto",
    depth: Annotated[
        str,
        Option(
            help="How blocks are paired where depths differ: cka, even, interpolate (new blocks in a shallower SOURCE, "
            "as in the paper; not for regression) or auto: cka."
        ),
    ] = "auto",
    tokens: Annotated[
        str, Option(help="Where numbers of tokens differ: interpolate2d, interpolate or mean.")
    ] = "interpolate2d",
    centered: Annotated[bool, Option("--centered/--uncentered", help="Look at activations about their means.")] = True,
    unobserved: Annotated[
        str, Option(help="Directions that the data do not show: complete (norms are kept) or drop.")
    ] = "complete",
    as_lora: Annotated[int | None, Option(min=1, help="Write a LoRA of this rank, whatever the method gives.")] = None,
    model: Annotated[
        bool, Option("--model", help="Also write TARGET with the update, with its configuration and tokenizer.")
    ] = False,
    compare: Annotated[bool, Option("--compare", help="Also try the baselines and controls, in one table.")] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show what would move, what the data show and what it costs; write nothing.")
    ] = False,
    memory_options: MemoryOptions,
    several_options: SeveralOptions,
    train_options: TrainOptions,
    limit: Annotated[int, Option(min=1, help="At most so many samples of each DATA, drawn with --seed.")] = 2000,
    input_options: InputOptions,
    network_options: NetworkOptions,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Give TARGET the fine-tune of SOURCE, without training, labels or gradients.

    Methods, with their variants and their papers (docs/references.bib):

    {methods of transport}

    A quarter of the inputs is held out, to choose by and to judge by. The last line is a verdict: copy, transport,
    train (a start for training), stay (with TUNED) or do-not, each with its reason; it is no error if it is do-not.
    Where DATA come in parts, train is taken.

    OUTPUT holds adapter, which PEFT loads, if the update is of low rank, else update.safetensors; verdict.txt, tables
    of all that was moved and seen (.csv), plots (.svg) and outcome.json; with --model also model, and with --then-train
    trained and both curves. What was recorded and fitted is kept beside OUTPUT until it is there: a command that was
    interrupted or killed goes on from that when it is given again.

    --memory SIZE is for networks that are larger than memory: weights stay in their safetensors files, DATA are read
    once for as many spaces as SIZE allows, and the update is written tensor by tensor. What that takes is printed
    first. Nothing is judged then, and OUTPUT holds no verdict.

    Examples:
      interbasin transport old old-lora new --data task.jsonl -o moved
      interbasin transport old old-lora new --data task.jsonl --dry-run
      interbasin transport old old-tuned new --data task.jsonl --generic web.txt --front --as-lora 16 -o moved
      interbasin transport old old-tuned new --data task.jsonl --memory 8GB -o moved
      interbasin transport old lora-1 new --also lora-2 --merge ties --data task.jsonl -o moved
      interbasin transport old tuned new --data a.jsonl --then-train 300 --train-data b.jsonl --validate c.jsonl -o out
      interbasin transport my.nets:small@a my.nets:small@tuned my.nets:wide@b --data task.npz --readout logits -o moved
    """
    from interbasin.jobs.transport import METHODS, plan_transport
    from interbasin.jobs.transport import transport as move

    if output is None and not dry_run:
        raise typer.BadParameter("says where results go; give it, or --dry-run.", param_hint="-o")
    if method != "auto":
        METHODS[method].variant(variant)
    memory = memory_options.bytes()
    refuse_with_memory(terminal, memory_options)
    amount = _amount(alpha)
    weights = numbers(front_weights, "--front-weights", float, "0.1,1,10") or front or None
    require_train_data(train_options, validate)
    if not dry_run:
        terminal.require_free(output, force=force)
    with terminal.status("Loading") as tell, foreign_code():
        in_files = memory is not None
        loaded, other = (network_options.load(name, seed=seed, in_files=in_files) for name in (source, target))
        logits = None if readout is None else _readout(readout)
        batches = {
            name: None
            if text is None
            else read_for_both(text, limit, input_options, source, target, loaded.inputs, seed)
            for name, text in (("data", data), ("validate", validate), ("generic", generic))
        }
        training = read_training(train_options, input_options, source, target, loaded.inputs, seed)
        names = (tuned, *(several_options.also or ()))
        fine_tunes = [_fine_tune(name, network_options, seed, in_files) for name in names]
        common: dict[str, Any] = {
            "outputs": outputs,
            "centered": centered,
            "tokens": tokens,
            "unobserved": unobserved,
            "heads": heads,
            "depth": depth,
            **several_options.arguments(),
        }
        shared: dict[str, Any] = {
            "method": method,
            "variant": variant,
            "generic": batches["generic"],
            "seed": seed,
            "progress": tell,
            **common,
        }
        weight: dict[str, Any] = {} if generic_weight is None else {"generic_weight": generic_weight}
        if dry_run and memory is None:
            plan = plan_transport(loaded.model, fine_tunes, other.model, batches["data"], **shared)
    about: dict[str, Any] = {
        "like": other.checkpoint,
        "base": os.path.abspath(target) if os.path.exists(target) else target,
        "inputs": {
            **terminal.inputs("source", "tuned", "target", "data", "validate", "generic", "train_data"),
            **{f"also-{place}": name for place, name in enumerate(several_options.also or (), 1)},
        },
        "model": model,
        "force": force,
    }
    if memory is not None:
        arguments = loaded.model, fine_tunes, other.model, batches["data"], output
        options = common | about | {"alpha": 1.0 if amount is None else amount, "scale": scale or "none"}
        with contextlib.nullcontext() if output is None or dry_run else state_beside(output) as state:
            place = None if state is None else state.folder
            move_on_disk(terminal, arguments, target, memory=memory, dry_run=dry_run, state=place, **options)
        return
    if dry_run:
        terminal.result(summarize_plan(plan), lambda console: show_plan(console, terminal, plan))
        return
    assert output is not None
    with state_beside(output) as state:
        with terminal.status("Transporting") as tell, foreign_code():
            result = move(
                loaded.model,
                fine_tunes,
                other.model,
                batches["data"],
                alpha=amount,
                scale=scale,
                readout=logits,
                validate=batches["validate"],
                generic_target=generic_target,
                front=weights,
                as_lora=as_lora,
                compare=compare,
                state=state.folder,
                **weight,
                **{**shared, "progress": tell},
            )
        state.is_complete = True  # what may still fail is training, and should not cost the transport
        if training is not None:
            own = None if readout in (None, LOGITS) else logits
            result = train(terminal, result, training, batches["validate"], train_options, own, seed)
        known = {*result.request, "dry_run"}
        asked = {name: value for name, value in terminal.request.items() if name not in known}
        outcome = result.save(output, request=asked, **about)
    networks = {"model": model, "trained": result.trained is not None}
    usable = name_results(output, target, low_rank=result.delta.is_low_rank, networks=networks)
    verdict = {**asdict(result.verdict), "text": str(result.verdict)}
    more = {
        "output": str(output),
        "verdict": verdict,
        "candidates": {name: dict(row) for name, row in result.candidates.items()},
        "compared": [without_nan(asdict(row)) for row in result.compared],
        "front": [without_nan(asdict(row)) for row in result.front],
        "warm_start": None if result.trained is None else result.trained.summarize(),
        "use": usable,
    }
    # Notes stand before the verdict, which comes last.
    terminal.result(
        {**outcome.summary(), **more}, lambda console: show_result(console, terminal, outcome, result, output, usable)
    )


# ---------------------------------------------------------------------- what was given


def _amount(alpha: str | None) -> float | str | None:
    if alpha is None or alpha == "auto":
        return alpha
    try:
        return float(alpha)
    except ValueError as error:
        raise typer.BadParameter(f"takes a number, or auto, and got {alpha!r}.", param_hint="--alpha") from error


def _readout(name: str) -> Any:
    from interbasin.models.from_factory import import_function

    return (lambda found: found) if name == LOGITS else import_function(name, "readout")


def _fine_tune(tuned: str, network_options: NetworkOptions, seed: int, in_files: bool) -> Any:
    """The fine-tune: a path, which is read tensor by tensor, or a network that has to be built."""
    if os.path.exists(os.path.expanduser(tuned)) and not network_options.trust_remote_code:
        return tuned
    return tuned if is_adapter(tuned) else network_options.load(tuned, seed=seed, in_files=in_files).model
