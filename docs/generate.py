"""Write the parts of the documentation that are made, not typed.

- ``docs/command-line.md`` from the program's own help;
- the tables between ``<!-- table: NAME -->`` and ``<!-- end of table -->`` in README.md and docs/*.md from
  ``benchmarks/results/NAME.json``.

    python docs/generate.py            write them
    python docs/generate.py --check    fail if one is not up to date
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TABLE = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def command_line() -> str:
    """The help of the program and of every command, as a page."""
    os.environ.update(COLUMNS="100", TERMINAL_WIDTH="100", NO_COLOR="1", TERM="dumb")
    from typer.main import get_command
    from typer.testing import CliRunner

    from interbasin.cli import app

    def help_of(*words: str) -> str:
        shown = CliRunner().invoke(app, [*words, "--help"], prog_name="interbasin", terminal_width=100)
        assert shown.exit_code == 0, shown.output
        return "\n".join(line.rstrip() for line in shown.output.strip().splitlines())

    pages = [
        "# The command line",
        "Made by `docs/generate.py` from the program itself. Each command calls one public function of the same name "
        "or purpose; what it prints with `--json` is that function's summary.",
        f"```text\n{help_of()}\n```",
    ]
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        pages += [f"## {name}", f"```text\n{help_of(name)}\n```"]
        for below in getattr(command, "commands", ()):
            pages += [f"### {name} {below}", f"```text\n{help_of(name, below)}\n```"]
    return "\n\n".join(pages) + "\n"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    lines = [" | ".join(columns), " | ".join("---" if i in words else "---:" for i in range(len(columns)))]
    return "\n".join(f"| {line} |" for line in [*lines, *(" | ".join(row) for row in rows)])


def environment(found: dict[str, Any]) -> str:
    where = found["environment"]
    threads = "one thread" if where["threads"] == 1 else f"{where['threads']} threads"
    return f"{where['processor']}, {threads}, torch {where['torch']}, seed {where['seed']}, {where['date'][:10]}."


def polar_summary(found: dict[str, Any]) -> str:
    rows = [
        (name, bar["bar"], _number(bar["found"]), bar["where"] or "-", "met" if bar["met"] else "**not met**")
        for name, bar in found["bars"].items()
    ]
    return table(("bar", "asked", "found", "worst at", ""), rows) + f"\n\n{environment(found)}"


def polar(found: dict[str, Any]) -> str:
    rows = [
        (
            case["key"],
            f"{1e3 * case['seconds']['svd']['best']:.2f}",
            f"{1e3 * case['seconds']['polar']['best']:.2f}",
            f"{case['speed']:.2f}",
            case["path"],
            _number(case["orthogonality"]),
            _number(case["reconstruction"]),
            _number(case["difference"]),
        )
        for case in found["cases"]
    ]
    columns = ("case", "SVD ms", "polar ms", "speed", "path", "‖Q'Q−I‖", "‖QH−A‖/‖A‖", "to the SVD's")
    return table(columns, rows) + f"\n\n{environment(found)}"


def moments(found: dict[str, Any]) -> str:
    times = [
        (
            f"{case['source']} x {case['target']}",
            f"{case['rows']:,}",
            "yes" if case["grams"] else "no",
            f"{case['times']['published']['best']:.3f}",
            f"{case['times']['ours']['best']:.3f}",
            f"{case['ratio']:.2f}",
        )
        for case in found["time"]
    ]
    memory = [
        (f"{case['rows']:,}", _megabytes(case["ours_bytes"]), _megabytes(case["published_bytes"]))
        for case in found["memory"]
    ]
    accuracy = [
        (f"{case['mean']:g}", _number(case["ours"]), _number(case["without_origin"])) for case in found["accuracy"]
    ]
    parts = [
        table(("widths", "rows", "Gram matrices", "float64 first, s", "streamed, s", "ratio"), times),
        "Peak memory above the start, rows arriving in batches (768 x 1024):",
        table(("rows", "streamed, MB", "float64 first, MB"), memory),
        "Relative error of the centred cross-product of float32 rows, by the mean of the rows (their spread is 1):",
        table(("mean", "streamed", "float32 sums without an origin"), accuracy),
        environment(found),
    ]
    return "\n\n".join(parts)


def recording(found: dict[str, Any]) -> str:
    rows = [
        (
            way,
            str(found["products"][way]),
            f"{found['times'][way]['best']:.2f}",
            f"{found['times']['published']['best'] / found['times'][way]['best']:.2f}",
            _megabytes(found["bytes"][way]),
            f"{found['bytes']['published'] / found['bytes'][way]:.1f}",
        )
        for way in ("spaces", "boundaries", "published")
    ]
    columns = ("what is recorded", "products a batch", "seconds", "times as fast", "peak MB", "times less memory")
    return table(columns, rows) + f"\n\n{environment(found)}"


def architectures(found: dict[str, Any]) -> str:
    cases = sorted(found["architectures"], key=lambda case: (case["traced"], case.get("coverage", 0.0)))
    short = [(*wired(case), "; ".join(case["reasons"]).replace("|", "\\|")) for case in cases if case["reasons"]]
    full = [wired(case) for case in found["architectures"] if not case["reasons"]]
    bars, columns = found["bars"], ("architecture", "spaces", "coverage", "check32", "check64", "seconds")
    summary = found["summary"]
    parts = [
        f"{summary['architectures']} architectures: {summary['traced']} can be traced, and {len(full)} meet all bars. "
        f"The median coverage is {summary['median_coverage']:.1%}, the median time "
        f"{summary['median_seconds']:.1f} s.",
        f"**Fall short**: not traced, coverage below {bars['coverage']:g}, or a change above {bars['check32']:g} in "
        f"float32 or {bars['check64']:g} in float64.",
        table((*columns, "because"), short, words=(0, 6)) if short else "None.",
        "**The others**:",
        table(columns, full),
        environment(found),
    ]
    return "\n\n".join(parts)


def wired(case: dict[str, Any]) -> tuple[str, ...]:
    if not case["traced"]:
        return (case["name"], *["-"] * 5)
    return (
        case["name"],
        str(case["spaces"]),
        f"{case['coverage']:.3f}",
        _number(case["check32"]),
        _number(case["check64"]),
        f"{case['seconds']:.1f}",
    )


def wiring_depth(found: dict[str, Any]) -> str:
    rows = [
        (
            case["shape"],
            str(case["depth"]),
            str(case["operators"]),
            f"{case['times']['export']['best']:.2f}",
            f"{case['times']['wire']['best']:.2f}",
            f"{case['ratio']:.2f}",
        )
        for case in found["depth"]
    ]
    columns = ("network", "layers", "operators", "torch.export alone, s", "wiring, s", "ratio")
    return table(columns, rows) + f"\n\n{environment(found)}"


def rebasin_bars(found: dict[str, Any]) -> str:
    rows = [
        (name, bar["bar"], _number(bar["found"]), "met" if bar["met"] else "**not met**")
        for name, bar in found["bars"].items()
    ]
    return table(("bar", "asked", "found", ""), rows)


def rebasin_methods(found: dict[str, Any]) -> str:
    def row(label: str, figures: dict[str, Any]) -> tuple[str, ...]:
        lerp, cycles = figures["lerp"], figures.get("cycles")
        composed = [one["mean"] for name, one in (cycles or {}).items() if name.startswith("cycle_error.")]
        return (
            label,
            str(figures["pairs"]),
            f"{_spread(lerp['start_accuracy'], 100, 2)} %",
            _spread(lerp["start_loss"]),
            _spread(lerp["barrier_original"]),
            _spread(lerp["barrier"]),
            f"{_spread(lerp['middle_accuracy'], 100, 2)} %",
            _spread(figures["slerp"]["barrier_original"]),
            "-" if cycles is None else _number(cycles["cycle_frne"]["mean"]),
            "-" if cycles is None else _range(composed),
            "-" if cycles is None else f"{figures['seconds']['mean']:.1f}",
        )

    columns = (
        "method",
        "pairs",
        "A after alignment",
        "its loss",
        "barrier, original ends",
        "barrier, own ends",
        "middle",
        "SLERP, original ends",
        "FRNE there and back",
        "composed cycle a space",
        "s",
    )
    rows = [row(label, figures) for label, figures in found["methods"].items()]
    return table(columns, rows) + f"\n\n{_pairs(found)} {environment(found)}"


def rebasin_finetuned(found: dict[str, Any]) -> str:
    rows = [
        (
            label,
            str(figures["pairs"]),
            f"{_spread(figures['lerp_finetuned']['start_accuracy'], 100, 2)} %",
            _spread(figures["lerp_finetuned"]["barrier_original"]),
            _spread(figures["lerp_finetuned"]["barrier"]),
            f"{_spread(figures['lerp_finetuned']['middle_accuracy'], 100, 2)} %",
            _spread(figures["slerp_finetuned"]["barrier_original"]),
        )
        for label, figures in found["methods"].items()
    ]
    columns = (
        "method",
        "pairs",
        "A, aligned and fine-tuned",
        "barrier, original ends",
        "barrier, own ends",
        "middle",
        "SLERP, original ends",
    )
    return table(columns, rows) + f"\n\n{_pairs(found)}"


def rebasin_papers(found: dict[str, Any]) -> str:
    words = {None: "-", True: "met", False: "**not met**"}
    rows = [
        (one["where"], one["what"], _number(one["theirs"]), _number(one["ours"]), one["method"], words[one["met"]])
        for one in found["papers"]
    ]
    return table(("where", "what", "theirs", "ours", "by", ""), rows, words=(0, 1, 4, 5))


def rebasin_layers(found: dict[str, Any]) -> str:
    def means(errors: dict[str, Any], prefix: str) -> list[float]:
        return [one["mean"] for name, one in errors.items() if name.startswith(prefix)]

    rows = [
        (
            label,
            *(_number(one) for one in means(figures["errors_pre"], "alignment_error.")),
            *(f"{one:.3f}" for one in means(figures["errors_pre"], "alignment_error_relative.")),
            *(f"{one:.3f}" for one in means(figures["errors_post"], "alignment_error_relative.")),
        )
        for label, figures in found["methods"].items()
        if "errors_pre" in figures
    ]
    if not rows:
        return "Not measured yet."
    layers = range(1, 1 + (len(rows[0]) - 1) // 3)
    kinds = ("before", "before, relative", "behind, relative")
    columns = ("method", *(f"layer {layer}, {kind}" for kind in kinds for layer in layers))
    return table(columns, rows) + f"\n\n{_pairs(found)}"


def rebasin_widths(found: dict[str, Any]) -> str:
    permutation, orthogonal = "permutation-weights", "procrustes-weights coordinate"
    rows = [
        (
            width,
            str(case["pairs"]),
            _spread(case["none"]["lerp"]["barrier_original"]),
            _spread(case[permutation]["lerp"]["barrier_original"]),
            _spread(case[orthogonal]["lerp"]["barrier_original"]),
            f"{_spread(case['none']['lerp']['start_accuracy'], 100, 1)} %",
            f"{_spread(case[orthogonal]['lerp']['start_accuracy'], 100, 1)} %",
            f"{_spread(case[permutation]['lerp']['middle_accuracy'], 100, 1)} %",
            f"{_spread(case[orthogonal]['lerp']['middle_accuracy'], 100, 1)} %",
            _spread(case[permutation]["lerp_finetuned"]["barrier_original"]),
            _spread(case[orthogonal]["lerp_finetuned"]["barrier_original"]),
        )
        for width, case in found["widths"].items()
    ]
    columns = (
        "width",
        "pairs",
        "no alignment",
        "permutations",
        "orthogonal",
        "A",
        "A after orthogonal",
        "middle, permutations",
        "middle, orthogonal",
        "permutations, fine-tuned",
        "orthogonal, fine-tuned",
    )
    return table(columns, rows) + f"\n\n{_pairs(found)}"


def _pairs(found: dict[str, Any]) -> str:
    return (
        f"{found['recipe']['data']}, mean ± standard deviation over pairs of networks, on "
        f"{found['test_images']:,} test images."
    )


def _spread(one: dict[str, float], times: float = 1, digits: int = 3) -> str:
    return f"{times * one['mean']:.{digits}f} ± {times * one['deviation']:.{digits}f}"


def _range(values: Sequence[float]) -> str:
    least, most = _number(min(values)), _number(max(values))
    return least if least == most else f"{least} to {most}"


def merging(found: dict[str, Any]) -> str:
    cases = [
        (
            case["key"],
            _number(case["difference"]),
            f"{case['differing_at_border']} of {case['at_border']}" if case["at_border"] else "-",
            *(f"{case['command_seconds'][name]:.2f}" for name in ("mergekit", "interbasin")),
            f"{case['command_ratio']:.1f}",
            *(f"{case['inside_seconds'][name]:.2f}" for name in ("mergekit", "interbasin")),
            f"{case['inside_ratio']:.2f}",
            *(_megabytes(case["peak_bytes"][name]) for name in ("mergekit", "interbasin")),
        )
        for case in found["cases"]
    ]
    columns = (
        "merge",
        "largest difference",
        "differ at the border",
        "mergekit, s",
        "whole command, s",
        "ratio",
        "mergekit, s",
        "start-up removed, s",
        "ratio",
        "mergekit, MB",
        "peak MB",
    )
    parts = [f"{found['parameters']['small'] / 1e6:.1f} M parameters in float32:", table(columns, cases)]
    if found["growth"]:
        growth = [
            (case["method"], *(_megabytes(case["peak_bytes"][size]) for size in ("small", "large")))
            for case in found["growth"]
        ]
        parts += [
            f"Peak memory of the whole command, two models, and for {found['parameters']['large'] / 1e9:.2f} B "
            "parameters in bfloat16:",
            table(("method", "30 M, MB", "1 B, MB"), growth),
        ]
    return "\n\n".join([*parts, f"mergekit {found['environment']['mergekit'].split()[0]}; {environment(found)}"])


def planted(found: dict[str, Any]) -> str:
    rows = []
    for case in found["cases"]:
        ours, usual = case["ours"], case["usual"]
        left = ours["ratio"] if "ratio" in ours else ours["distance"]
        rows.append(
            (
                case["key"],
                f"{case['parameters'] / 1e6:.1f} M",
                f"{ours['recovered']} of {ours['seeds']}",
                "-" if case["bar"] is None else f"{case['bar']}: {'met' if case['met'] else '**not met**'}",
                f"{_number(left['median'])} / {_number(left['largest'])}"
                + (" of the noise" if "ratio" in ours else ""),
                _number(ours["function"]["largest"]) if "function" in ours else "-",
                f"{ours['seconds']['median']:.2f}",
                "-" if usual is None else f"{usual['recovered']} of {usual['seeds']}",
                "-" if usual is None else f"{usual['seconds']['median']:.2f}",
            )
        )
    columns = (
        "network",
        "parameters",
        "recovered",
        "asked, of 100",
        "distance left, median / most",
        "function half-way, most",
        "s",
        "the usual algorithm",
        "s",
    )
    return table(columns, rows) + f"\n\n{environment(found)}"


def weight_matching_pairs(found: dict[str, Any]) -> str:
    rows = []
    for pair in found["pairs"]:
        for way, label in (("rebasin", "`rebasin` 0.0.47"), ("plain", "plain reference"), ("ours", "interbasin")):
            runs = [one[way] for one in pair["rounds"]]
            whole = [run["whole"] for run in runs if "whole" in run]
            rows.append(
                (
                    f"{pair['seeds'][0]}, {pair['seeds'][1]}",
                    label,
                    f"{pair['before']:.2f}",
                    _range_of([run["after"] for run in runs], ".2f"),
                    f"{min(run['match'] for run in runs):.2f}",
                    f"{min(whole):.2f}" if whole else "-",
                )
            )
    bars = [
        (name, bar["bar"], f"{bar['found']:.4g}", "met" if bar["met"] else "**not met**")
        for name, bar in found["bars"].items()
    ]
    columns = ("seeds", "by", "before", "distance left", "matching, s", "whole call, s")
    parts = [table(columns, rows, words=(0, 1)), table(("bar", "asked", "worst pair", ""), bars), environment(found)]
    return "\n\n".join(parts)


def weight_matching_transformers(found: dict[str, Any]) -> str:
    rows = []
    for case in found["transformers"]:
        peer = case["rebasin"]
        after = f"{peer['answer']}: {peer['after']:.2f}" if "after" in peer else peer["answer"]
        mine = case["ours"]
        rows.append((case["shape"], f"{case['before']:.2f}", after, f"{mine['after']:.2f}", f"{mine['whole']:.1f}"))
    return table(("pair", "before", "`rebasin`", "interbasin", "whole call, s"), rows)


def weight_matching_widths(found: dict[str, Any]) -> str:
    rows = [
        (
            case["kind"],
            str(case["width"]),
            f"{case['times']['plain']['best']:.2f}",
            f"{case['times']['ours']['best']:.2f}",
            f"{case['ratio']:.2f}",
            *(f"{case[name]:.2f}" for name in ("before", "plain", "ours")),
        )
        for case in found["widths"]
    ]
    columns = ("maps", "width", "plain, s", "interbasin, s", "times as fast", "distance before", "plain", "interbasin")
    return table(columns, rows) + f"\n\n{environment(found)}"


def real_pairs(found: dict[str, Any]) -> str:
    parts = []
    for pair in found["pairs"]:
        rows = []
        for way in pair["ways"]:
            options = way["options"]
            words = [way["method"], *([options["variant"]] if "variant" in options else [])]
            folded = ", folded" if not options.get("stay_in_class", True) else ""
            rows.append(
                (
                    " ".join(words) + folded,
                    "-" if "exact" not in way else "yes" if way["exact"] else "no",
                    f"{way['aligned_accuracy']:.1%}" if "aligned_accuracy" in way else "-",
                    f"{way['middle_accuracy']:.1%}",
                    f"{way['middle_loss']:.3f}",
                    f"{way['barrier_original']:.3f}",
                    _number(way.get("distance_after")),
                    f"{way['seconds']:.0f}",
                )
            )
        ends = f"**{pair['pair']}**: {pair['note']} The ends: {pair['source']['accuracy']:.1%} (source) and "
        ends += f"{pair['target']['accuracy']:.1%} (target)."
        if "middle_accuracy_without_reset" in pair:
            ends += f" Half-way without alignment and without a reset: {pair['middle_accuracy_without_reset']:.1%}."
        columns = ("method", "exact", "aligned", "half-way", "loss there", "barrier, original", "distance", "s")
        parts.append(f"{ends}\n\n{table(columns, rows)}")
    return "\n\n".join([*parts, environment(found)])


def _range_of(values: Sequence[float], form: str) -> str:
    least, most = format(min(values), form), format(max(values), form)
    return least if least == most else f"{least} to {most}"


def migration(found: dict[str, Any]) -> str:
    def figure(case: dict[str, Any], key: str) -> str:
        rows = [way for way in case["table"] if way["key"] == key]
        # Of several methods the one that is best at translating documents, not the best of each way.
        row = next((way for way in rows if way["method"] in ("", case["best"])), None)
        return "-" if row is None else "{:.3f} [{:.3f}, {:.3f}]".format(*row["recall"])

    keys = ("keep", "translate", "adapt", "rerank", "keep_rerank", "reembed")
    rows = [
        (case["change"], f"{case['pairs']:,}", case["best"], *(figure(case, key) for key in keys), case["advice"])
        for case in found["cases"]
    ]
    columns = (
        "change of models",
        "pairs",
        "best method",
        "keep old",
        "translate",
        "adapt queries",
        "translate, top 100 anew",
        "keep old, top 100 anew",
        "re-embed all",
        "verdict",
    )
    corpus = found["corpus"]
    head = (
        f"Recall at 10 by labels, with 95 % intervals over {corpus['queries']:,} queries: {corpus['name']}, "
        f"{corpus['documents']:,} documents."
    )
    words = {True: "met", False: "**not met**"}
    bars = "; ".join(
        f"{bar['change']}: {bar['found']}, wanted {' or '.join(bar['wanted'])}: {words[bar['met']]}"
        for bar in found["bars"]
    )
    parts = [head, table(columns, rows, words=(0, 2, 9)), f"Bars: {bars}." if bars else "", environment(found)]
    return "\n\n".join(part for part in parts if part)


MAKERS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "merge-summary": ("merge", polar_summary),
    "merge": ("merge", merging),
    "migration": ("migration", migration),
    "polar-summary": ("polar", polar_summary),
    "polar": ("polar", polar),
    "moments": ("moments", moments),
    "recording": ("recording", recording),
    "architectures": ("wiring", architectures),
    "wiring-depth": ("wiring", wiring_depth),
    "planted": ("planted", planted),
    "weight-matching": ("weight_matching", weight_matching_pairs),
    "weight-matching-transformers": ("weight_matching", weight_matching_transformers),
    "weight-matching-widths": ("weight_matching", weight_matching_widths),
    "real-pairs": ("real_pairs", real_pairs),
    "rebasin-bars": ("orthogonal_rebasin", rebasin_bars),
    "rebasin-methods": ("orthogonal_rebasin", rebasin_methods),
    "rebasin-finetuned": ("orthogonal_rebasin", rebasin_finetuned),
    "rebasin-papers": ("orthogonal_rebasin", rebasin_papers),
    "rebasin-layers": ("orthogonal_rebasin", rebasin_layers),
    "rebasin-widths": ("orthogonal_rebasin", rebasin_widths),
}


def filled(page: str) -> str:
    """A page with its tables made anew."""

    def fill(match: re.Match[str]) -> str:
        question, make = MAKERS[match["name"]]
        if not (RESULTS / f"{question}.json").exists():
            return f"{match[1]}Not measured yet: `python benchmarks/{question}.py` does.\n{match[3]}"
        found = json.loads((RESULTS / f"{question}.json").read_text("utf-8"))
        return f"{match[1]}{make(found)}\n{match[3]}"

    return TABLE.sub(fill, page)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.0f}"


def main() -> None:
    wanted = {ROOT / "docs" / "command-line.md": command_line()}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if path not in wanted:
            wanted[path] = filled(path.read_text("utf-8"))
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not up to date; run: python docs/generate.py", file=sys.stderr)
        raise SystemExit(1 if stale else 0)
    for path in stale:
        path.write_text(wanted[path], "utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
