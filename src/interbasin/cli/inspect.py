"""``interbasin inspect``: the spaces of a network, what can move in them, and what cannot and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from interbasin.cli.inspected import Seen, dtype_name
from interbasin.cli.options import NetworkOptions, command, output_option
from interbasin.cli.output import Terminal, foreign_code, number
from interbasin.text import plural

if TYPE_CHECKING:
    from torch import nn

    from interbasin.models import LoadedModel
    from interbasin.wiring import Wiring


@command
def inspect(
    terminal: Terminal,
    *,
    model: Annotated[
        str,
        Argument(
            metavar="MODEL",
            help="A folder or hub id of transformers, a PEFT adapter folder, timm:NAME[@weights], or "
            "package.module:factory[@weights].",
        ),
    ],
    inputs: Annotated[
        Path | None,
        Option(help="Example inputs: .npy, .npz, .pt or .safetensors; named arrays are keyword arguments."),
    ] = None,
    base: Annotated[str | None, Option(help="MODEL that an adapter belongs to, if not the one it names.")] = None,
    network_options: NetworkOptions,
    seed: Annotated[int, Option(help="Of the check's maps, and of inputs and weights where none were given.")] = 0,
    check: Annotated[
        bool, Option("--check/--no-check", help="Carry the network through random maps and compare its outputs.")
    ] = True,
    each: Annotated[bool, Option("--each", help="Also check each space by itself.")] = False,
    tensors: Annotated[bool, Option("--tensors", help="Also show what every tensor writes and reads.")] = False,
    everything: Annotated[
        bool, Option("--all", help="List every space, fixed ones too, with the reason for its group.")
    ] = False,
    output: Annotated[Path | None, output_option("Folder to save the wiring to, for Wiring.load.")] = None,
    force: Annotated[bool, Option("--force", help="Replace an earlier wiring in OUTPUT.")] = False,
) -> None:
    """Show the spaces of MODEL: their widths, the maps that change nothing, and what is fixed and why.

    The network is traced on one batch of example inputs; no architecture is known by name. The check then carries it
    through random maps that should change nothing, and tells how much its outputs changed. Spaces that are alike in
    layers that repeat share a line, as blocks.{0..11}.mlp.fc1.

    Examples:
      interbasin inspect timm:resnet18
      interbasin inspect folder-of-transformers --each --json
      interbasin inspect my.networks:small@weights.safetensors --input-shape 1,3,32,32 --tensors -o wiring
    """
    if each and not check:
        raise typer.BadParameter("asks for the check of each space, and --no-check for none.", param_hint="--each")
    from interbasin.outcome import Stopwatch
    from interbasin.storage import refuse_what_is_in_the_way
    from interbasin.wiring import wire

    if output is not None:
        refuse_what_is_in_the_way(output, ("wiring",), force=force)
    watch = Stopwatch()
    change = checks = dtype = None
    with terminal.progress("Loading, wiring, checking", 3) as done, foreign_code():
        with watch("load"):
            loaded = network_options.load(model, seed=seed, inputs=inputs, base=base)
            batch = loaded.require_inputs()
        done(1)
        with watch("wire"):
            wiring = wire(loaded.model, batch)
        done(2)
        if check:
            with watch("check"):
                change, checks, dtype = _check(loaded, wiring, seed, each)
    if output is not None:
        wiring.save(output, force=force)
    seen = Seen(loaded, wiring, change, checks, dtype, tensors, everything, output)
    summary = {**seen.summary(), "seed": seed, "seconds": watch.timings}
    terminal.result(summary, seen.show, _remarks(seen, watch.timings))


def _check(loaded: LoadedModel, wiring: Wiring, seed: int, each: bool) -> tuple[float, dict[str, float] | None, str]:
    """The check's figure, the same for each space if asked, and the precision they were made in."""
    import warnings

    model, batch, dtype = _precise(loaded.model, loaded.require_inputs())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the network's own code warns of is no news about its wiring
        change = wiring.check(model, batch, seed=seed)
        return change, wiring.check(model, batch, seed=seed, each=True) if each else None, dtype


def _precise(model: nn.Module, batch: Any) -> tuple[nn.Module, Any, str]:
    """A network and its inputs; in float32 if it is in a half type, whose own rounding would drown the figure."""
    import copy

    import torch

    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if not dtypes & {torch.float16, torch.bfloat16}:
        return model, batch, dtype_name(min(dtypes, key=lambda dtype: dtype.itemsize, default=torch.float32))
    cast = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.float() if tensor.is_floating_point() else tensor, batch
    )
    return copy.deepcopy(model).float(), cast, "float32"


def _remarks(seen: Seen, seconds: Mapping[str, float]) -> Iterator[str]:
    if seen.is_suspicious:
        yield (
            f"Warning: the check's figure, {number(seen.change)}, is more than {seen.check_dtype} rounds: maps that "
            "should change nothing changed the outputs. This is a bug worth reporting, with the network's code; --each "
            "tells which space it is."
        )
    if seen.loaded.was_training:
        yield "The factory returned the network in training mode; it is shown in evaluation mode."
    if seen.wiring.unknown:
        yield (
            "An operator is taught by one small function: see 'Add an operator' in CONTRIBUTING.md, or report its name."
        )
    if seen.loaded.unused:
        yield f"This network has no use for {plural(len(seen.loaded.unused), 'tensor')} of the weights (--no-strict)."
    yield "; ".join(f"{stage} {taken:.1f} s" for stage, taken in seconds.items()) + "."
