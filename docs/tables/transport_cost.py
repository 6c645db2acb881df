"""The tables of what transport costs."""

from __future__ import annotations

from typing import Any

from tables.markdown import environment, megabytes, number, table

WAYS = {
    "theseus": "Theseus by spaces, traces and all",
    "modules": "Theseus by modules, traces and all",
    "published": "the published procedure",
    "regression": "regression",
    "distil": "distillation, {steps} steps",
}


def bars(results: dict[str, Any]) -> str:
    rows = [
        (
            name,
            f"{'>=' if bar['least'] else '<='} {bar['bar']:g}",
            number(bar["value"]),
            "met" if bar["met"] else "**not met**",
        )
        for name, bar in results["bars"].items()
    ]
    return table(("bar", "asked", "found", ""), rows) + f"\n\n{environment(results)}"


def ways(results: dict[str, Any]) -> str:
    """Time and memory of everything that was measured on the pair of vision transformers."""
    rows = []
    for part in ("pair", "regression"):
        for way, taken in results.get(part, {}).get("times", {}).items():
            name = WAYS[way].format(steps=results[part].get("steps_timed"))
            held = results[part]["bytes"].get(way)
            rows.append((name, number(taken["best"]), number(taken["median"]), megabytes(held)))
    return table(("way", "best, s", "median, s", "peak, MB"), rows) if rows else "Not measured yet."


def growth(results: dict[str, Any]) -> str:
    if "width" not in results:
        return "Not measured yet."
    part = results["width"]
    rows = [
        (
            width,
            *(number(row["times"][way]["best"]) for way in ("theseus", "distil")),
            *(megabytes(row["bytes"][way]) for way in ("theseus", "distil")),
        )
        for width, row in part["rows"].items()
    ]
    steps = f"{part['steps']} distillation steps"
    return table(("target's width", "Theseus, s", f"{steps}, s", "Theseus, MB", f"{steps}, MB"), rows)


def memory(results: dict[str, Any]) -> str:
    """What is held at once: more inputs, weights on disk, and a LoRA."""
    samples = results.get("samples", {})
    returned = samples.get("bytes_without_gaps", {})
    rows = [
        (
            f"recording {count} batches of 32 images",
            megabytes(held),
            f"without gaps in the heap: {megabytes(returned[count])}" if count in returned else "",
        )
        for count, held in samples.get("bytes", {}).items()
    ]
    if "disk" in results:
        part = results["disk"]
        beside = f"said before: {megabytes(part['estimate'])}; {part['passes']} passes over the data"
        rows.append((f"{megabytes(part['weights'])} MB of weights, on disk", megabytes(part["peak"]), beside))
    names = {"factors": "one block as factors", "all_factors": "all blocks as factors", "dense": "one block, dense"}
    for way, held in results.get("lora", {}).get("bytes", {}).items():
        rows.append((f"a LoRA of rank {results['lora']['rank']}, {names[way]}", megabytes(held), ""))
    return table(("what", "peak, MB", ""), rows, words=(0, 2)) if rows else "Not measured yet."


MAKERS = {
    f"transport-cost-{name}": ("transport_cost", make)
    for name, make in (("bars", bars), ("ways", ways), ("growth", growth), ("memory", memory))
}
