"""Tables of re-basin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tables.markdown import bars, environment, number, range_of, range_of_numbers, spread, table


def rebasin_methods(results: dict[str, Any]) -> str:
    def row(label: str, figures: dict[str, Any]) -> tuple[str, ...]:
        lerp, cycles = figures["lerp"], figures.get("cycles")
        composed = [error["mean"] for name, error in (cycles or {}).items() if name.startswith("cycle_error.")]
        return (
            label,
            str(figures["pairs"]),
            f"{spread(lerp['start_accuracy'], 100, 2)} %",
            spread(lerp["start_loss"]),
            spread(lerp["barrier_original"]),
            spread(lerp["barrier"]),
            f"{spread(lerp['middle_accuracy'], 100, 2)} %",
            spread(figures["slerp"]["barrier_original"]),
            "-" if cycles is None else number(cycles["cycle_frne"]["mean"]),
            "-" if cycles is None else range_of_numbers(composed),
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
    rows = [row(label, figures) for label, figures in results["methods"].items()]
    return table(columns, rows) + f"\n\n{_pairs(results)} {environment(results)}"


def rebasin_finetuned(results: dict[str, Any]) -> str:
    rows = [
        (
            label,
            str(figures["pairs"]),
            f"{spread(figures['lerp_finetuned']['start_accuracy'], 100, 2)} %",
            spread(figures["lerp_finetuned"]["barrier_original"]),
            spread(figures["lerp_finetuned"]["barrier"]),
            f"{spread(figures['lerp_finetuned']['middle_accuracy'], 100, 2)} %",
            spread(figures["slerp_finetuned"]["barrier_original"]),
        )
        for label, figures in results["methods"].items()
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
    return table(columns, rows) + f"\n\n{_pairs(results)}"


def rebasin_papers(results: dict[str, Any]) -> str:
    words = {None: "-", True: "met", False: "**not met**"}
    rows = [
        (
            figure["where"],
            figure["what"],
            number(figure["theirs"]),
            number(figure["ours"]),
            figure["method"],
            words[figure["met"]],
        )
        for figure in results["papers"]
    ]
    return table(("where", "what", "theirs", "ours", "by", ""), rows, words=(0, 1, 4, 5))


def rebasin_layers(results: dict[str, Any]) -> str:
    def means(errors: dict[str, Any], prefix: str) -> list[float]:
        return [error["mean"] for name, error in errors.items() if name.startswith(prefix)]

    rows = [
        (
            label,
            *(number(error) for error in means(figures["errors_pre"], "alignment_error.")),
            *(f"{error:.3f}" for error in means(figures["errors_pre"], "alignment_error_relative.")),
            *(f"{error:.3f}" for error in means(figures["errors_post"], "alignment_error_relative.")),
        )
        for label, figures in results["methods"].items()
        if "errors_pre" in figures
    ]
    if not rows:
        return "Not measured yet."
    layers = range(1, 1 + (len(rows[0]) - 1) // 3)
    kinds = ("before", "before, relative", "behind, relative")
    columns = ("method", *(f"layer {layer}, {kind}" for kind in kinds for layer in layers))
    return table(columns, rows) + f"\n\n{_pairs(results)}"


def rebasin_widths(results: dict[str, Any]) -> str:
    permutation, orthogonal = "permutation-weights", "procrustes-weights coordinate"
    rows = [
        (
            width,
            str(case["pairs"]),
            spread(case["none"]["lerp"]["barrier_original"]),
            spread(case[permutation]["lerp"]["barrier_original"]),
            spread(case[orthogonal]["lerp"]["barrier_original"]),
            f"{spread(case['none']['lerp']['start_accuracy'], 100, 1)} %",
            f"{spread(case[orthogonal]['lerp']['start_accuracy'], 100, 1)} %",
            f"{spread(case[permutation]['lerp']['middle_accuracy'], 100, 1)} %",
            f"{spread(case[orthogonal]['lerp']['middle_accuracy'], 100, 1)} %",
            spread(case[permutation]["lerp_finetuned"]["barrier_original"]),
            spread(case[orthogonal]["lerp_finetuned"]["barrier_original"]),
        )
        for width, case in results["widths"].items()
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
    return table(columns, rows) + f"\n\n{_pairs(results)}"


def _pairs(results: dict[str, Any]) -> str:
    return (
        f"{results['recipe']['data']}, mean ± standard deviation over pairs of networks, on "
        f"{results['test_images']:,} test images."
    )


def planted(results: dict[str, Any]) -> str:
    rows = []
    for case in results["cases"]:
        ours, usual = case["ours"], case["usual"]
        left = ours["ratio"] if "ratio" in ours else ours["distance"]
        rows.append(
            (
                case["key"],
                f"{case['parameters'] / 1e6:.1f} M",
                f"{ours['recovered']} of {ours['seeds']}",
                "-" if case["bar"] is None else f"{case['bar']}: {'met' if case['met'] else '**not met**'}",
                f"{number(left['median'])} / {number(left['largest'])}" + (" of the noise" if "ratio" in ours else ""),
                number(ours["function"]["largest"]) if "function" in ours else "-",
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
    return table(columns, rows) + f"\n\n{environment(results)}"


def weight_matching_pairs(results: dict[str, Any]) -> str:
    rows = []
    for pair in results["pairs"]:
        for way, label in (("rebasin", "`rebasin` 0.0.47"), ("plain", "plain reference"), ("ours", "interbasin")):
            runs = [round_[way] for round_ in pair["rounds"]]
            whole = [run["whole"] for run in runs if "whole" in run]
            rows.append(
                (
                    f"{pair['seeds'][0]}, {pair['seeds'][1]}",
                    label,
                    f"{pair['before']:.2f}",
                    range_of([run["after"] for run in runs], ".2f"),
                    f"{min(run['match'] for run in runs):.2f}",
                    f"{min(whole):.2f}" if whole else "-",
                )
            )
    bars = [
        (name, bar["bar"], f"{bar['found']:.4g}", "met" if bar["met"] else "**not met**")
        for name, bar in results["bars"].items()
    ]
    columns = ("seeds", "by", "before", "distance left", "matching, s", "whole call, s")
    parts = [table(columns, rows, words=(0, 1)), table(("bar", "asked", "worst pair", ""), bars), environment(results)]
    return "\n\n".join(parts)


def weight_matching_transformers(results: dict[str, Any]) -> str:
    rows = []
    for case in results["transformers"]:
        peer = case["rebasin"]
        after = f"{peer['answer']}: {peer['after']:.2f}" if "after" in peer else peer["answer"]
        mine = case["ours"]
        rows.append((case["shape"], f"{case['before']:.2f}", after, f"{mine['after']:.2f}", f"{mine['whole']:.1f}"))
    return table(("pair", "before", "`rebasin`", "interbasin", "whole call, s"), rows)


def weight_matching_widths(results: dict[str, Any]) -> str:
    rows = [
        (
            case["kind"],
            str(case["width"]),
            f"{case['times']['plain']['best']:.2f}",
            f"{case['times']['ours']['best']:.2f}",
            f"{case['ratio']:.2f}",
            *(f"{case[name]:.2f}" for name in ("before", "plain", "ours")),
        )
        for case in results["widths"]
    ]
    columns = ("maps", "width", "plain, s", "interbasin, s", "times as fast", "distance before", "plain", "interbasin")
    return table(columns, rows) + f"\n\n{environment(results)}"


def real_pairs(results: dict[str, Any]) -> str:
    parts = []
    for pair in results["pairs"]:
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
                    number(way.get("distance_after")),
                    f"{way['seconds']:.0f}",
                )
            )
        ends = f"**{pair['pair']}**: {pair['note']} The ends: {pair['source']['accuracy']:.1%} (source) and "
        ends += f"{pair['target']['accuracy']:.1%} (target)."
        if "middle_accuracy_without_reset" in pair:
            ends += f" Half-way without alignment and without a reset: {pair['middle_accuracy_without_reset']:.1%}."
        columns = ("method", "exact", "aligned", "half-way", "loss there", "barrier, original", "distance", "s")
        parts.append(f"{ends}\n\n{table(columns, rows)}")
    return "\n\n".join([*parts, environment(results)])


MAKERS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "planted": ("planted", planted),
    "weight-matching": ("weight_matching", weight_matching_pairs),
    "weight-matching-transformers": ("weight_matching", weight_matching_transformers),
    "weight-matching-widths": ("weight_matching", weight_matching_widths),
    "real-pairs": ("real_pairs", real_pairs),
    "rebasin-bars": ("orthogonal_rebasin", bars),
    "rebasin-methods": ("orthogonal_rebasin", rebasin_methods),
    "rebasin-finetuned": ("orthogonal_rebasin", rebasin_finetuned),
    "rebasin-papers": ("orthogonal_rebasin", rebasin_papers),
    "rebasin-layers": ("orthogonal_rebasin", rebasin_layers),
    "rebasin-widths": ("orthogonal_rebasin", rebasin_widths),
}
