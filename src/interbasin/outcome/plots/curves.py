"""Curves on one pair of axes, and points of several groups on one plane."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from interbasin.errors import DataError
from interbasin.outcome.plots.drawing import (
    LEGEND_LINE,
    Box,
    Drawing,
    Scale,
    colour,
    dash,
    drawable,
    linear,
    logarithmic,
    plot_area,
    points,
    width_of,
    with_ticks,
)

LINES = 520.0, 420.0  # the size of a line chart, without the names, which stand to the right
LEGEND = 340.0  # the most that these names may take
SMALL = 11  # letters beside points
MARKS = 6  # about so many per curve
SCATTER = 760.0, 520.0  # the size of a scatter chart, with its names
SCATTER_LEGEND = 200.0
MOST = 1500  # points per group; more only make the file larger and the picture fuller

Point = tuple[float, float]
Curve = list[Point | None]  # None where it is broken
Positions = tuple[Sequence[float], Sequence[float]]  # from left to right, and upwards


def line_chart(
    series: Mapping[str, Positions],
    *,
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    note: str = "",
    log: bool = False,
    log_x: bool = False,
    x_ticks: Sequence[float] | None = None,
    bands: Mapping[str, Positions] | None = None,
    labels: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Curves, each with a name, as SVG.

    Args:
        series: Name to its horizontal and its vertical positions. A curve is broken where a number is not finite.
        title: What the plot shows.
        x_label: What runs from left to right.
        y_label: What grows upwards.
        note: A line below the title.
        log: Whether equal heights are equal ratios; numbers that are not positive are then left out.
        log_x: The same from left to right.
        x_ticks: What is marked on the horizontal axis, where that is not to be chosen.
        bands: Name of a curve to the lower and the upper ends of an interval around it, one for each position.
        labels: Name of a curve to what is written beside its points, one for each; where there is no room, none is.

    Raises:
        DataError: if there is no curve, one has more positions of one kind than of the other, or a band or labels have
            no curve or are not as many.

    Example:
        >>> line_chart({"none": ([0, 0.5, 1], [0.1, 1.9, 0.1]), "aligned": ([0, 0.5, 1], [0.1, 0.1, 0.1])})[:4]
        '<svg'
    """
    curves = {str(name): _points(name, *pair, log, log_x) for name, pair in series.items()}
    if not curves:
        raise DataError("A line chart shows curves, and none was given; give name: (x, y).")
    names = min(LEGEND, max(map(width_of, curves)) + 48) if len(curves) > 1 else 0.0
    drawing = Drawing(LINES[0] + (names or 180.0), LINES[1], title)
    top = drawing.heading(note)
    drawing.height = max(drawing.height, top + LEGEND_LINE * len(curves))
    edges = {str(name): _edges(name, pair, series, log, log_x) for name, pair in (bands or {}).items()}
    lines = [*curves.values(), *(edge for pair in edges.values() for edge in pair)]
    shown = [point for line in lines for point in line if point is not None]
    across, up = [point[0] for point in shown], [point[1] for point in shown]
    # Beside points at the very edge there would be no room for labels.
    room = 1.3 if labels else 1.0
    x = logarithmic(across, below=room, above=room) if log_x else linear(across, around=0.05 if labels else 0.0)
    y = logarithmic(up) if log else linear(up)
    box = plot_area(drawing, top, names, y, x_label, y_label)
    if x_ticks is not None:
        x = _spread_ticks(with_ticks(x, x_ticks), box)
    drawing.frame(box, x, y, x_label, y_label)
    if not shown:
        drawing.nothing(box)
    for place, name in enumerate(curves):
        if name in edges:
            _shade(drawing, place, edges[name], box, x, y)
    for place, curve in enumerate(curves.values()):
        _draw(drawing, place, curve, box, x, y)
    _write_labels(drawing, curves, labels or {}, box, x, y)
    if names:
        drawing.legend(box.right + 18, top - 4, names, list(curves), _draw_line_key)
    return drawing.svg()


def _write_labels(
    drawing: Drawing, curves: Mapping[str, Curve], labels: Mapping[str, Sequence[str]], box: Box, x: Scale, y: Scale
) -> None:
    """Words around points, wherever no other word, point or line stands."""
    taken: list[tuple[float, ...]] = []
    for run in (run for curve in curves.values() for run in _runs(curve)):
        corners = [(box.x(x, a), box.y(y, b)) for a, b in run]
        taken += [(a - 5, b - 5, a + 5, b + 5) for a, b in corners]
        for (a, b), (c, d) in itertools.pairwise(corners):
            steps = max(1, int(math.hypot(c - a, d - b) / 3))
            between = [(a + (c - a) * step / steps, b + (d - b) * step / steps) for step in range(steps)]
            taken += [(left - 1, top - 1, left + 1, top + 1) for left, top in between]
    for name, words in labels.items():
        if name not in curves or len(words) != len(curves[name]):
            raise DataError(
                f"There are {len(words)} labels for the curve {name!r}, which has {len(curves.get(name, []))} points; "
                "give one for each."
            )
        for word, point in zip(words, curves[name], strict=True):
            if point is None:
                continue
            a, b, wide = box.x(x, point[0]), box.y(y, point[1]), width_of(word, SMALL)
            for left, base in (
                *((a + 8, b + 4), (a - 8 - wide, b + 4), (a + 6, b + 15), (a - 6 - wide, b - 7)),
                *((a + 6, b - 7), (a - 6 - wide, b + 15), (a - wide / 2, b - 9), (a - wide / 2, b + 18)),
            ):
                room = left, base - SMALL + 2, left + wide, base + 2
                inside = box.left < room[0] and room[2] < box.right and box.top < room[1] and room[3] < box.bottom
                if inside and not any(_overlap(room, other) for other in taken):
                    drawing.text(left, base, word, class_="ib-soft", font_size=SMALL)
                    taken.append(room)
                    break


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _points(name: str, across: Sequence[float], up: Sequence[float], log: bool, log_x: bool) -> Curve:
    across, up = [float(x) for x in across], [float(y) for y in up]
    if len(across) != len(up):
        raise DataError(f"The curve {name!r} has {len(across)} positions and {len(up)} heights; give as many of both.")
    return [
        (x, y) if drawable(x) and drawable(y) and (y > 0 or not log) and (x > 0 or not log_x) else None
        for x, y in zip(across, up, strict=True)
    ]


def _edges(name: str, band: Positions, series: Mapping[str, Positions], log: bool, log_x: bool) -> tuple[Curve, Curve]:
    """The lower and the upper edge of a band; both are broken where one is."""
    if name not in series:
        raise DataError(f"There is a band for {name!r} and no curve of that name; its curves are {', '.join(series)}.")
    across = series[name][0]
    below = _points(f"{name}, lower end of its band", across, band[0], log, log_x)
    above = _points(f"{name}, upper end of its band", across, band[1], log, log_x)
    for place, pair in enumerate(zip(below, above, strict=True)):
        if None in pair:
            below[place] = above[place] = None
    return below, above


def _shade(drawing: Drawing, place: int, edges: tuple[Curve, Curve], box: Box, x: Scale, y: Scale) -> None:
    for low, high in zip(*map(_runs, edges), strict=True):
        corners = points((box.x(x, a), box.y(y, b)) for a, b in [*high, *reversed(low)])
        drawing.add("polygon", points=corners, fill=colour(place), fill_opacity=0.18, class_="ib-band")


def _spread_ticks(scale: Scale, box: Box) -> Scale:
    """Without ticks whose labels would stand in the next one; the last stays."""
    kept: list[tuple[float, str]] = []
    free = math.inf  # to the left of the tick that was kept before
    for tick, label in reversed(list(zip(scale.ticks, scale.labels, strict=True))):
        at, half = box.x(scale, tick), width_of(label) / 2
        if at + half <= free:
            kept.insert(0, (tick, label))
            free = at - half - 6
    return replace(scale, ticks=tuple(tick for tick, _ in kept), labels=tuple(label for _, label in kept))


def _runs(curve: Curve) -> Iterator[list[Point]]:
    run: list[Point] = []
    for point in [*curve, None]:
        if point is not None:
            run.append(point)
        elif run:
            yield run
            run = []


def _draw(drawing: Drawing, place: int, curve: Curve, box: Box, x: Scale, y: Scale) -> None:
    look: dict[str, float | str] = {
        "stroke": colour(place),
        "stroke_width": 2,
        "stroke_linejoin": "round",
        "stroke_dasharray": dash(place),
    }
    for run in _runs(curve):
        if len(run) > 1:
            corners = points((box.x(x, a), box.y(y, b)) for a, b in run)
            drawing.add("polyline", points=corners, fill="none", **look)
    # Marks stand at other points of each curve, so that curves that lie on one another are seen to.
    every = max(1, len(curve) // MARKS)
    for position, point in enumerate(curve):
        alone = point is not None and not any(
            0 <= near < len(curve) and curve[near] is not None for near in (position - 1, position + 1)
        )
        if point is not None and (alone or position % every == place % every):
            drawing.shape(place, box.x(x, point[0]), box.y(y, point[1]), 3.2, fill=colour(place))


def _draw_line_key(drawing: Drawing, place: int, left: float, middle: float) -> None:
    drawing.line(left, middle, left + 26, middle, stroke=colour(place), stroke_width=2, stroke_dasharray=dash(place))
    drawing.shape(place, left + 13, middle, 3.2, fill=colour(place))


def scatter_chart(
    groups: Mapping[str, Sequence[Sequence[float]]],
    *,
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    note: str = "",
) -> str:
    """Points in groups, each with a name, a colour and a shape, as SVG; both axes have the same scale.

    Args:
        groups: Name to points, each a pair: a list, an array or a tensor of shape ``(n, 2)``. Of many, every so-many-th
            is drawn, and the note says so.
        title: What the plot shows.
        x_label: What runs from left to right.
        y_label: What grows upwards.
        note: A line below the title.

    Raises:
        DataError: if there is no group, or something is not a pair.

    Example:
        >>> scatter_chart({"A": [[0.0, 1.0]], "B": [[1.0, 0.0]]}).count("<circle")
        2
    """
    pairs = {str(name): _pairs(name, group) for name, group in groups.items()}
    if not pairs:
        raise DataError("A scatter chart shows groups of points, and none was given; give name: points.")
    thinned = {name: group[:: -(-len(group) // MOST) or 1] for name, group in pairs.items()}
    if thinned != pairs:
        largest = max(pairs, key=lambda name: len(pairs[name]))
        some = f"{len(thinned[largest]):,} of the {len(pairs[largest]):,} points of {largest} are shown"
        note = f"{note}; {some}" if note else some
    drawing = Drawing(*SCATTER, title)
    top = drawing.heading(note)
    drawing.height = max(drawing.height, top + LEGEND_LINE * len(pairs))
    shown = [point for group in thinned.values() for point in group]
    names = min(SCATTER_LEGEND, max(map(width_of, pairs)) + 44) if len(pairs) > 1 else 0.0
    box = plot_area(drawing, top, names, linear((y for _, y in shown), count=6), x_label, y_label)
    x, y = _equal_scales(shown, box)
    drawing.frame(box, x, y, x_label, y_label)
    if not shown:
        drawing.nothing(box)
    # A point of each group in turn, so that no group lies on top of all others.
    for turn in itertools.zip_longest(*thinned.values()):
        for place, point in enumerate(turn):
            if point is not None:
                at = box.x(x, point[0]), box.y(y, point[1])
                drawing.shape(place, *at, 2.6, fill=colour(place), fill_opacity=0.6)
    if names:
        drawing.legend(box.right + 18, top - 4, names, list(pairs), _draw_point_key)
    return drawing.svg()


def _pairs(name: str, group: Sequence[Sequence[float]]) -> list[Point]:
    rows = [[float(number) for number in row] for row in group]
    wrong = next((len(row) for row in rows if len(row) != 2), None)
    if wrong is not None:
        raise DataError(
            f"The points of {name!r} are pairs, found one of {wrong} numbers; give an array of shape (n, 2)."
        )
    return [(x, y) for x, y in rows if drawable(x) and drawable(y)]


def _equal_scales(shown: Sequence[Point], box: Box) -> tuple[Scale, Scale]:
    """Two axes with the same scale, so that distances on the paper are distances."""
    x, y = linear(point[0] for point in shown), linear(point[1] for point in shown)
    unit = max((x.high - x.low) / box.width, (y.high - y.low) / box.height)
    return _widen(x, unit * box.width), _widen(y, unit * box.height)


def _widen(scale: Scale, length: float) -> Scale:
    middle = (scale.low + scale.high) / 2
    return linear((middle - length / 2, middle + length / 2), around=0.0, count=6)


def _draw_point_key(drawing: Drawing, place: int, left: float, middle: float) -> None:
    drawing.shape(place, left + 15, middle, 4.5, fill=colour(place))
