"""``interbasin inspect``: the spaces of a network, what can move in them, and what cannot and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from interbasin.cli.options import NetworkOptions, command, output_option
from interbasin.cli.output import Terminal, foreign_code


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
    from interbasin.cli.inspected import Inspection, check_wiring
    from interbasin.outcome import Stopwatch
    from interbasin.storage import refuse_what_is_in_the_way
    from interbasin.wiring import wire

    if output is not None:
        refuse_what_is_in_the_way(output, ("wiring",), force=force)
    watch, figures = Stopwatch(), None
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
                figures = check_wiring(loaded, wiring, seed=seed, each=each)
    if output is not None:
        wiring.save(output, force=force)
    inspection = Inspection(loaded, wiring, figures, tensors, everything, output)
    summary = {**inspection.summary(), "seed": seed, "seconds": watch.timings}
    seconds = "; ".join(f"{stage} {duration:.1f} s" for stage, duration in watch.timings.items())
    terminal.result(summary, inspection.show, [*inspection.remarks(), f"{seconds}."])
