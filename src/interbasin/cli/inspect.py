"""``interbasin inspect``: the spaces of a network, what can move in them, and what cannot and why."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interbasin.cli.inspected import Seen, dtype_name
from interbasin.cli.output import Debug, Json, Output, Quiet, foreign_code, number, shortened
from interbasin.text import plural

if TYPE_CHECKING:
    from torch import nn

    from interbasin.models import LoadedModel
    from interbasin.wiring import Wiring


def inspect(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder or hub id of transformers, a PEFT adapter folder, timm:NAME[@weights], or "
            "package.module:factory[@weights].",
        ),
    ],
    inputs: Annotated[
        Path | None,
        typer.Option(help="Example inputs: .npy, .npz, .pt or .safetensors; named arrays are keyword arguments."),
    ] = None,
    input_shape: Annotated[
        str | None, typer.Option(help="Shape of example inputs to draw, batch first: 1,3,224,224.")
    ] = None,
    base: Annotated[str | None, typer.Option(help="MODEL that an adapter belongs to, if not the one it names.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the code that comes with a folder of transformers.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict/--no-strict", help="Refuse weights that the network has no use for.")
    ] = True,
    seed: Annotated[
        int, typer.Option(help="Of the check's maps, and of inputs and weights where none were given.")
    ] = 0,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Carry the network through random maps and compare its outputs.")
    ] = True,
    each: Annotated[bool, typer.Option("--each", help="Also check a space at a time.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="Also show what every tensor writes and reads.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="List every space, fixed ones too, with the reason for its group.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder to save the wiring to, for Wiring.load.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier wiring in OUTPUT.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
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
    words = Output.of(ctx, json=json, quiet=quiet, debug=debug)
    shape = _shape(input_shape)
    if each and not check:
        raise typer.BadParameter("asks for the check a space at a time, and --no-check for none.", param_hint="--each")
    from interbasin.models import load_model
    from interbasin.storage import refuse_what_is_in_the_way
    from interbasin.wiring import wire

    if output is not None:
        refuse_what_is_in_the_way(output, ("wiring",), force=force)
    clock = _Clock()
    with words.progress("Loading, wiring, checking", 3) as done, foreign_code():
        loaded = load_model(
            model,
            inputs=inputs,
            input_shape=shape,
            base=base,
            strict=strict,
            trust_remote_code=trust_remote_code,
            seed=seed,
        )
        batch = loaded.require_inputs()
        clock.took("load")
        done(1)
        wiring = wire(loaded.model, batch)
        clock.took("wire")
        done(2)
        change, checks, dtype = _checked(loaded, wiring, seed, each) if check else (None, None, None)
        if check:
            clock.took("check")
    if output is not None:
        wiring.save(output, force=force)
    seen = Seen(loaded, wiring, change, checks, dtype, tensors, everything, output)
    words.result({**seen.summary(), "seed": seed, "seconds": clock.seconds}, seen.show)
    _remark(words, seen, clock.seconds)


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(
            f"takes sizes with commas between them, as 1,3,224,224, and got {shortened(repr(text))}.",
            param_hint="--input-shape",
        ) from error


class _Clock:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def took(self, what: str) -> None:
        now = time.perf_counter()
        self.seconds[what], self.last = now - self.last, now


def _checked(loaded: LoadedModel, wiring: Wiring, seed: int, each: bool) -> tuple[float, dict[str, float] | None, str]:
    """The check's figure, the same a space at a time if asked, and the precision they were made in."""
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

    dtypes = {one.dtype for one in model.parameters() if one.is_floating_point()}
    if not dtypes & {torch.float16, torch.bfloat16}:
        return model, batch, dtype_name(max(dtypes, key=lambda one: -one.itemsize, default=torch.float32))
    cast = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda one: one.float() if one.is_floating_point() else one, batch
    )
    return copy.deepcopy(model).float(), cast, "float32"


def _remark(words: Output, seen: Seen, seconds: Mapping[str, float]) -> None:
    if seen.is_suspicious:
        words.remark(
            f"Warning: the check's figure, {number(seen.change)}, is more than {seen.check_dtype} rounds: maps that "
            "should change nothing changed the outputs. This is a bug worth reporting, with the network's code; --each "
            "tells which space it is."
        )
    if seen.loaded.was_training:
        words.remark("The factory returned the network in training mode; it is shown in evaluation mode.")
    if seen.wiring.unknown:
        words.remark(
            "An operator is taught by one small function: see 'Add an operator' in CONTRIBUTING.md, or report its name."
        )
    if seen.loaded.unused:
        words.remark(
            f"This network has no use for {plural(len(seen.loaded.unused), 'tensor')} of the weights (--no-strict)."
        )
    words.remark("; ".join(f"{what} {taken:.1f} s" for what, taken in seconds.items()) + ".")
