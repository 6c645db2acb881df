"""Tables of adapt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tables.markdown import bars_with_places, environment, number, range_of, spread, table

TARGETS = {
    "rotated-patches": "planted patches",
    "merged-labels": "planted labels",
    "ecg200": "ECG200",
    "ecg5000": "ECG5000",
    "advection": "advection",
    "burgers": "Burgers",
    "reaction-diffusion": "reaction-diffusion",
    "darcy-16": "Darcy-16",
    "burgers-16": "Burgers-16",
}
SOURCES = {
    "mnist-vit": "MNIST ViT",
    "cifar-resnet": "CIFAR ResNet-20",
    "crepe-tiny": "CREPE tiny",
    "minilm": "MiniLM",
}


def place_of(entry: Mapping[str, Any]) -> str:
    return f"{TARGETS.get(entry['target'], entry['target'])}, {entry['labels'] or 'all'}"


def of_source(results: dict[str, Any], source: str) -> list[dict[str, Any]]:
    return [entry for entry in results["settings"] if entry["source"] == source]


def names_in(entries: list[dict[str, Any]], part: str) -> list[str]:
    return list(dict.fromkeys(name for entry in entries for name in entry[part]))


def sources_of(results: dict[str, Any]) -> list[str]:
    known = {entry["source"] for entry in results["settings"]}
    return [source for source in SOURCES if source in known]


def errors(results: dict[str, Any]) -> str:
    """A table for each source: methods by target and number of labels, specialists below."""
    parts = []
    for source in sources_of(results):
        entries = of_source(results, source)
        rows = []
        for part in ("methods", "specialists"):
            for name in names_in(entries, part):
                cells = [entry[part].get(name, {}).get("error_test") for entry in entries]
                title = f"specialist: {name}" if part == "specialists" else f"`{name}`"
                rows.append((title, *(spread(cell) if cell else "" for cell in cells)))
        seeds = sorted({entry["seeds"] for entry in entries})
        counts = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[-1])
        words = "1 seed" if counts == "1" else f"{counts} seeds"
        parts += [f"**{SOURCES[source]}**, {words}.", table(("", *map(place_of, entries)), rows)]
    return "\n\n".join([*parts, environment(results)])


def differences(results: dict[str, Any]) -> str:
    """Test error above naive's: mean and deviation over seeds, and in how many seeds an interval tells them apart."""
    parts = []
    for source in sources_of(results):
        entries = of_source(results, source)
        rows = []
        for name in names_in(entries, "methods"):
            cells = [entry["methods"].get(name, {}).get("above_naive") for entry in entries]
            if any(cells):
                rows.append((f"`{name}`", *(_difference(cell) for cell in cells)))
        parts += [f"**{SOURCES[source]}**", table(("", *map(place_of, entries)), rows)]
    return "\n\n".join([*parts, environment(results)])


def _difference(cell: Mapping[str, Any] | None) -> str:
    if not cell:
        return ""
    seeds_apart = f" ({cell['better']} better, {cell['worse']} worse)" if "better" in cell else ""
    deviation = f" ± {cell['deviation']:.3f}" if cell["seeds"] > 1 else ""
    return f"{cell['mean']:+.3f}{deviation}{seeds_apart}"


def ranks(results: dict[str, Any]) -> str:
    held = results["overall"]
    rows = []
    for name, rank in sorted(held.get("ranks", {}).items(), key=lambda item: item[1]):
        above = held["above_naive"].get(name)
        interval = f"{above['value']:+.3f} [{above['low']:+.3f}, {above['high']:+.3f}]" if above else "-"
        rows.append((f"`{name}`", f"{rank:.2f}", str(held["wins"][name]), interval))
    auto = held.get("above_naive", {}).get("auto")
    if auto:
        rows.append(("`auto`", "-", "-", f"{auto['value']:+.3f} [{auto['low']:+.3f}, {auto['high']:+.3f}]"))
    head = f"{held.get('cells', 0)} cells; the interval is a bootstrap over cells."
    return "\n\n".join([head, table(("", "average rank", "wins", "error above naive's"), rows), environment(results)])


def times(results: dict[str, Any]) -> str:
    """Seconds of one fit, by stage, and as a share of ORCA's."""
    if not results["times"]:
        return "Not measured yet: `python benchmarks/cross_modal.py --only times` does."
    rows = []
    for entry in results["times"]:
        for row in entry["rows"]:
            seconds = row["seconds"]
            stages = [number(seconds.get(stage)) for stage in ("alignment", "training")]
            place = (SOURCES.get(entry["source"], entry["source"]), place_of(entry), f"`{row['method']}`")
            rows.append((*place, *stages, number(sum(seconds.values())), number(row["share_of_orca"])))
    columns = ("source", "target, labels", "method", "alignment", "training", "all", "of `orca`'s")
    return "\n\n".join([table(columns, rows, words=(0, 1, 2)), environment(results)])


def cost(results: dict[str, Any]) -> str:
    """Hours of all cells of a kind, and what they come to where two run at a time."""
    if not results.get("cost"):
        return "Not summed up yet: `python benchmarks/cross_modal.py --summary` does."
    kinds = {"table": "tables of methods", "stage-one": "stage 1 by itself", "longer": "ten times the steps"}
    rows = []
    for entry in results["cost"]:
        processor, clock = entry["process_seconds"] / 3600, entry["seconds"] / 3600
        both = range_of([processor / 2, clock / 2], ".1f")
        name = kinds.get(entry["kind"], entry["kind"])
        rows.append((name, str(entry["cells"]), f"{processor:.2f}", f"{clock:.2f}", both))
    columns = ("cells", "number", "hours of the processor", "hours of the clock, summed", "hours with two at a time")
    return "\n\n".join([table(columns, rows), environment(results)])


def verdicts(results: dict[str, Any]) -> str:
    held = results["verdicts"]
    choices = "; ".join(f"{name}: {count}" for name, count in held["choices"].items())
    head = (
        f"Test data agree with {held['agree']} of {held['cells']} verdicts ({choices}): the interval of the best row "
        "of the verdict's group reaches down to that of the winner. By the one row that the verdict named, they agree "
        f"with {held['agree_by_name']}."
    )
    rows = [
        (SOURCES.get(cell["source"], cell["source"]), place_of(cell), str(cell["seed"]), cell["choice"], cell["winner"])
        for cell in held["disagree"]
    ]
    shown = table(("source", "target, labels", "seed", "verdict", "lowest test error"), rows, words=(0, 1, 3, 4))
    return "\n\n".join([head, *([shown] if rows else []), environment(results)])


def bounds(results: dict[str, Any]) -> str:
    """Both forms of the bound over all rows that have one, and by setting for recraft."""
    held = results["bounds"]
    lines = []
    for form, title in (("bound", "the paper's form"), ("bound_direct", "the direct form")):
        if form in held:
            cells = held[form]
            valid, below = f"{cells['valid']} of {cells['rows']}", f"{cells['below_entropy']} of {cells['rows']}"
            lines.append((title, valid, below, number(cells["median_ratio"])))
    columns = ("", "valid", "below the labels' entropy", "median of bound / loss")
    terms = ("fa", "fa_floor", "fld", "fld_crossed", "tf", "err_source", "err_target", "label_entropy")
    rows = []
    for entry in results["settings"]:
        terms_of_recraft = entry["methods"].get("recraft", {}).get("bound")
        if terms_of_recraft:
            values = [number(terms_of_recraft.get(name)) for name in (*terms, "bound", "bound_direct")]
            rows.append((SOURCES.get(entry["source"], entry["source"]), place_of(entry), *values))
    by_task = table(("source", "target, labels", *terms, "bound", "direct"), rows, words=(0, 1))
    return "\n\n".join([table(columns, lines), by_task, environment(results)])


def gaps(results: dict[str, Any]) -> str:
    """Pearson's r of semantic gap and target error, every run; errors with transported labels after stage 1."""
    rows = []
    for entry in results["stage_one"]:
        for name in entry["error"]:
            error = f"{entry['error_before'][name]:.3f} to {entry['error'][name]:.3f}"
            terms, from_rule, _ = name.partition(" from the rule")
            start = "the rule's embedder" if from_rule else "matched means" if entry["matched"][name] else "as it is"
            cells = (place_of(entry), str(entry["seed"]), terms.upper().replace("+", " + "), start)
            rows.append((*cells, number(entry["correlations"][name]), error, number(entry["fld"][name])))
    columns = ("target, labels", "seed", "aligned by", "from", "Pearson's r", "error before and after", "FLD after")
    sources = dict.fromkeys(SOURCES.get(entry["source"], entry["source"]) for entry in results["stage_one"])
    targets = dict.fromkeys(TARGETS.get(entry["target"], entry["target"]) for entry in results["stage_one"])
    runs = f"{len(rows)} runs: {' and '.join(sources)} on {', '.join(targets)}."
    return "\n\n".join([table(columns, rows, words=(0, 2, 3)), runs, environment(results)])


def omega(results: dict[str, Any]) -> str:
    """Means over seeds: omega, the price for it on the proxy, and what it does to the target."""
    groups: dict[tuple[str, float], list[dict[str, float]]] = {}
    for entry in results["stage_one"]:
        for row in entry["omega"]:
            groups.setdefault((place_of(entry), row["omega"]), []).append(row)
    rows = []
    for (place, requested), held in groups.items():
        fields = ("proxy_accuracy", "proxy_loss", "error")
        accuracy, loss, error = (sum(row[name] for row in held) / len(held) for name in fields)
        rows.append((place, number(requested), f"{accuracy:.3f}", number(loss), f"{error:.3f}"))
    columns = ("target, labels", "omega", "proxy accuracy", "proxy loss", "target error")
    return table(columns, rows) + f"\n\n{environment(results)}"


def longer(results: dict[str, Any]) -> str:
    rows = [
        (
            SOURCES.get(each["source"], each["source"]),
            place_of(each),
            str(each["steps"]),
            *(spread(each[name]) for name in ("scratch", "naive")),
        )
        for each in results["longer"]
    ]
    if not rows:
        return "Not measured yet: `python benchmarks/cross_modal.py --only longer` does."
    columns = ("source", "target, labels", "steps", "`scratch`", "`naive`")
    return table(columns, rows, words=(0, 1)) + f"\n\n{environment(results)}"


def bars(results: dict[str, Any]) -> str:
    parts = [bars_with_places(results)]
    if results["not_measured"]:
        parts.append(f"Not measured yet: {'; '.join(results['not_measured'])}.")
    counts = [f"{name} {count}" for name, count in results["missing"].items() if count]
    parts.append(f"Cells that were not run: {', '.join(counts) or 'none'}.")
    return "\n\n".join(parts)


def exact_transport(results: dict[str, Any]) -> str:
    rows = []
    for case in results["cases"]:
        best = {name: 1000 * times["best"] for name, times in case["seconds"].items()}
        accuracy = f"{100 * case['sinkhorn_error']:.2f} %"
        rows.append((case["key"], f"{best['exact']:.0f}", f"{best['sinkhorn']:.0f}", f"{case['speed']:.1f}", accuracy))
    heads = ("rows x rows x width", "exact, ms", "log-Sinkhorn of POT, ms", "ratio", "its value is off by")
    return "\n\n".join([table(heads, rows), environment(results)])


MAKERS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    f"adapt-{name}": ("cross_modal", make)
    for name, make in (
        ("bars", bars),
        ("errors", errors),
        ("differences", differences),
        ("ranks", ranks),
        ("times", times),
        ("cost", cost),
        ("verdicts", verdicts),
        ("bounds", bounds),
        ("gaps", gaps),
        ("omega", omega),
        ("longer", longer),
    )
} | {"adapt-exact-transport": ("optimal_transport", exact_transport)}
