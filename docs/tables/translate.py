"""Tables of translating."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tables.markdown import bars, environment, megabytes, number, spread, table


def migration(results: dict[str, Any]) -> str:
    def figure(case: dict[str, Any], key: str) -> str:
        rows = [way for way in case["table"] if way["key"] == key]
        # Of several methods the one that is best at translating documents, not the best of each way.
        row = next((way for way in rows if way["method"] in ("", case["best"])), None)
        return "-" if row is None else "{:.3f} [{:.3f}, {:.3f}]".format(*row["recall"])

    keys = ("keep", "translate", "adapt", "rerank", "keep_rerank", "reembed")
    rows = [
        (case["change"], f"{case['pairs']:,}", case["best"], *(figure(case, key) for key in keys), case["advice"])
        for case in results["cases"]
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
    corpus = results["corpus"]
    head = (
        f"Recall at 10 by labels, with 95 % intervals over {corpus['queries']:,} queries: {corpus['name']}, "
        f"{corpus['documents']:,} documents."
    )
    words = {True: "met", False: "**not met**"}
    bars = "; ".join(
        f"{bar['change']}: {bar['found']}, wanted {' or '.join(bar['wanted'])}: {words[bar['met']]}"
        for bar in results["bars"]
    )
    parts = [head, table(columns, rows, words=(0, 2, 9)), f"Bars: {bars}." if bars else "", environment(results)]
    return "\n\n".join(part for part in parts if part)


def stitching(results: dict[str, Any]) -> str:
    parts = []
    for case in results["stitching"]:
        native = case["native_mean"]
        rows = [
            (
                name.replace("absolute", "none, cut or filled with zeros"),
                f"{spread(figures)}",
                f"{figures['least']:.3f}",
                f"{figures['mean'] / native:.3f}",
                f"{of_the_poorer(figures, case['native']):.3f}",
            )
            for name, figures in sorted(case["accuracy"].items(), key=lambda item: -item[1]["mean"])
        ]
        own = ", ".join(f"{name} {figures['mean']:.3f}" for name, figures in case["native"].items())
        chosen = ", ".join(f"{name} {count}" for name, count in case["chosen_by_auto"].items())
        parts += [
            f"**{case['data']}**: {case['pairs']} ordered pairs, {case['seeds']} seeds, {case['anchors']} anchors; "
            f"heads on their own encoder {native:.3f} ({own}). The paper's delta is {case['delta']}, the best one on "
            f"validation data {case['best_delta']}. Auto chose {chosen}.",
            table(("translation", "accuracy", "worst", "of native", "of the poorer native"), rows),
        ]
    return "\n\n".join([*parts, environment(results)])


def of_the_poorer(figures: dict[str, Any], native: dict[str, Any]) -> float:
    """Accuracy over that of the poorer of both encoders with a head of its own, which is what a map can bring over."""
    shares = [
        pair["mean"] / min(native[encoder]["mean"] for encoder in key.split(" -> "))
        for key, pair in figures["pairs"].items()
    ]
    return sum(shares) / len(shares)


def sensitivity(results: dict[str, Any]) -> str:
    parts = []
    for case in results["sensitivity"]:
        omega = case["omegas"].index(8)
        rows = [
            (
                f"{delta:g}",
                f"{case['anchors_kept'][omega][place]:.0f}",
                number(case["condition"][omega][place]),
                *(f"{case[name][omega][place]:.3f}" for name in ("cosine_within", "cosine_between", "accuracy")),
            )
            for place, delta in enumerate(case["deltas"])
        ]
        parts += [
            f"**{case['data']}**, omega 8. Over all omegas and deltas, reconstruction and accuracy correlate "
            f"{case['correlation_cosine_accuracy']:.2f} (paper: .7), condition number and anchors "
            f"{case['correlation_condition_anchors']:.2f} (paper: .93).",
            table(("delta", "anchors kept", "condition", "cosine within", "cosine between", "accuracy"), rows),
        ]
    return "\n\n".join(parts)


def decoders(results: dict[str, Any]) -> str:
    case = results["decoders"]
    names = list(next(iter(case["pairs"].values())))
    rows = [
        (pair, *(f"{errors[name]:.1f}" for name in names), f"{case['native'][pair.split(' -> ')[1]]:.1f}")
        for pair, errors in case["pairs"].items()
    ]
    return table(("latents", *names, "its own latents"), rows) + f"\n\n{environment(results)}"


def languages(results: dict[str, Any]) -> str:
    case = results["languages"]
    parts = []
    for way, figures in case["ways"].items():
        rows = [
            (name, *(f"{row[kind]:.3f}" if kind in row else "-" for kind in ("cosine", "centred", "top1")))
            for name, row in figures.items()
        ]
        columns = ("translation", "cosine", "about the mean", f"found first of {case['captions']:,}")
        parts += [f"**{way}**, {case['anchors']:,} anchors:", table(columns, rows)]
    return "\n\n".join(parts)


def modalities(results: dict[str, Any]) -> str:
    case = results["modalities"]
    names = case["encoders"]
    parts = []
    for method, rows in case["tables"].items():
        means, spreads = case["marginal_means"][method], case["deviations"][method]
        shown = [
            (
                name,
                *(f"{value:.3f} ± {spreads[place][other]:.3f}" for other, value in enumerate(rows[place])),
                f"{means['encoding from'][name]:.3f}",
            )
            for place, name in enumerate(names)
        ]
        shown.append(("mean into", *(f"{means['decoding into'][name]:.3f}" for name in names), ""))
        columns = ("encoder", *(f"head of {name}" for name in names), "mean from")
        parts += [f"**{method}**, {case['anchors']:,} anchors, {case['seeds']} seeds:", table(columns, shown)]
    return "\n\n".join(parts)


def scale(results: dict[str, Any]) -> str:
    case = results["scale"]
    factors = case["layers"]["factors"]
    layers = [
        (f"`{module}`", f"{length:.1f}", *(f"{value:.3f}" for value in values))
        for module, length, values in zip(
            case["layers"]["modules"], case["layers"]["mean_norms"], case["layers"]["accuracy"], strict=True
        )
    ]
    heads = [(name, *(f"{value:.3f}" for value in values)) for name, values in case["activations"]["accuracy"].items()]
    lengths = [
        (name, f"{norm['mean']:.2f}", f"{norm['deviation'] / norm['mean']:.3f}", f"{norm['skewness']:.2f}")
        for name, norm in case["norms"].items()
    ]
    times = [f"x {factor:g}" for factor in factors]
    return "\n\n".join(
        [
            f"Rows of one layer set to one length, {case['layers']['untouched']:.3f} if left alone:",
            table(("layer", "mean length", *times), layers),
            "Inputs of MLPs on an encoder set to one length:",
            table(("activation", *times), heads),
            "Lengths of encodings:",
            table(("encoder", "mean", "deviation over mean", "skewness"), lengths),
        ]
    )


def speed(results: dict[str, Any]) -> str:
    applied = [
        (
            case["method"],
            f"{case['rows']:,}",
            *(f"{case['rows_per_second'][name]:,.0f}" for name in ("product", "npy", "parquet")),
            *(f"{case['share'][name]:.2f}" for name in ("npy", "parquet")),
            *(f"{case['finishing'][name]:.1f}" for name in ("npy", "parquet")),
        )
        for case in results["apply"]
    ]
    columns = (
        "method",
        "rows",
        "bare product, rows/s",
        "`.npy`, rows/s",
        "Parquet, rows/s",
        "share, `.npy`",
        "share, Parquet",
        "flush `.npy`, s",
        "flush Parquet, s",
    )
    peak = [
        (kind, *(f"{int(rows):,}: {megabytes(count)} MB" for rows, count in peaks["bytes"].items()))
        for kind, peaks in results["memory"].items()
    ]
    parts = [
        bars(results),
        table(columns, applied),
        "Peak memory above the start, for a quarter of the rows and for all:",
        table(("store", "a quarter", "all"), peak),
        environment(results),
    ]
    return "\n\n".join(parts)


def mixed_tables(results: dict[str, Any]) -> str:
    words = ("two models", "possible", "one model")
    parts = []
    for title, said in (("Tables of one model", "one model"), ("Tables of two models", "two models")):
        rows = [(name, *(str(counts.get(word, 0)) for word in words)) for name, counts in results[said].items()]
        parts += [f"{title}, and what is said of them:", table(("vectors", *words), rows)]
    return "\n\n".join([*parts, environment(results)])


MAKERS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "migration": ("migration", migration),
    "mixed-tables": ("mixed_tables", mixed_tables),
    "stitching-bars": ("stitching", bars),
    "stitching": ("stitching", stitching),
    "stitching-sensitivity": ("stitching", sensitivity),
    "crossing-decoders": ("crossing", decoders),
    "crossing-languages": ("crossing", languages),
    "crossing-modalities": ("crossing", modalities),
    "crossing-scale": ("crossing", scale),
    "translate-speed": ("translate_speed", speed),
}
