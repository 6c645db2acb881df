"""Several curves on one pair of axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from interbasin.errors import DataError
from interbasin.outcome.plots.drawing import LEGEND_LINE, Box, Drawing, colour, dash, number, width_of
from interbasin.outcome.plots.scales import Scale, drawable, linear, logarithmic, marked

WIDTH, HEIGHT = 520.0, 420.0  # without the names, which stand to the right
LEGEND = 340.0  # the most that names may take
MARKS = 6  # about so many a curve
ENDS = ("lower end", "upper end")


def line_chart(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    note: str = "",
    log: bool = False,
    log_x: bool = False,
    x_ticks: Sequence[float] | None = None,
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
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

    Raises:
        DataError: if there is no curve, one has more positions of one kind than of the other, or a band has no curve.

    Example:
        >>> line_chart({"none": ([0, 0.5, 1], [0.1, 1.9, 0.1]), "aligned": ([0, 0.5, 1], [0.1, 0.1, 0.1])})[:4]
        '<svg'
    """
    curves = {str(name): _points(name, *pair, log, log_x) for name, pair in series.items()}
    if not curves:
        raise DataError("A line chart shows curves, and none was given; give name: (x, y).")
    names = min(LEGEND, max(map(width_of, curves)) + 48) if len(curves) > 1 else 0.0
    drawing = Drawing(WIDTH + (names or 180.0), HEIGHT, title)
    top = drawing.heading(note)
    drawing.height = max(HEIGHT, top + LEGEND_LINE * len(curves))
    edges = {str(name): _edges(name, pair, series, log, log_x) for name, pair in (bands or {}).items()}
    points = [point for curve in curves.values() for point in curve if point is not None]
    points += [point for pair in edges.values() for edge in pair for point in edge if point is not None]
    across = [one for one, _ in points]
    x = logarithmic(across, below=1.0, above=1.0) if log_x else linear(across, around=0.0)
    y = logarithmic(one for _, one in points) if log else linear(one for _, one in points)
    left = 20 + max(map(width_of, y.labels), default=0) + (20 if y_label else 0)
    box = Box(
        left,
        top,
        drawing.width - left - 22 - (names + 14 if names else 0),
        drawing.height - top - (54 if x_label else 32),
    )
    if x_ticks is not None:
        x = _spaced(marked(x, x_ticks), box)
    drawing.frame(box, x, y, x_label, y_label)
    if not points:
        drawing.nothing(box)
    for place, name in enumerate(curves):
        if name in edges:
            _shade(drawing, place, *edges[name], box, x, y)
    for place, curve in enumerate(curves.values()):
        _draw(drawing, place, curve, box, x, y)
    if names:
        drawing.legend(box.right + 18, top - 4, names, list(curves), _key)
    return drawing.svg()


Point = tuple[float, float]


def _points(
    name: str, across: Sequence[float], up: Sequence[float], log: bool, log_x: bool = False
) -> list[Point | None]:
    """The points of a curve; None where it is broken."""
    across, up = [float(one) for one in across], [float(one) for one in up]
    if len(across) != len(up):
        raise DataError(
            f"The curve {name!r} has {len(across)} positions and {len(up)} heights; give as many of the one as of the "
            "other."
        )
    return [
        (one, other)
        if drawable(one) and drawable(other) and (other > 0 or not log) and (one > 0 or not log_x)
        else None
        for one, other in zip(across, up, strict=True)
    ]


def _edges(
    name: str,
    band: tuple[Sequence[float], Sequence[float]],
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    log: bool,
    log_x: bool,
) -> tuple[list[Point | None], list[Point | None]]:
    """The lower and the upper edge of a band; both are broken where one is."""
    if name not in series:
        raise DataError(f"There is a band for {name!r} and no curve of that name; its curves are {', '.join(series)}.")
    across = series[name][0]
    below, above = (
        _points(f"{name}, {end} of its band", across, edge, log, log_x) for end, edge in zip(ENDS, band, strict=True)
    )
    for place, pair in enumerate(zip(below, above, strict=True)):
        if None in pair:
            below[place] = above[place] = None
    return below, above


def _shade(
    drawing: Drawing,
    place: int,
    below: Sequence[Point | None],
    above: Sequence[Point | None],
    box: Box,
    x: Scale,
    y: Scale,
) -> None:
    for low, high in zip(_runs(below), _runs(above), strict=True):
        corners = [*high, *reversed(low)]
        path = " ".join(f"{number(box.x(x, one))},{number(box.y(y, other))}" for one, other in corners)
        drawing.add("polygon", points=path, fill=colour(place), fill_opacity=0.18, class_="ib-band")


def _spaced(scale: Scale, box: Box) -> Scale:
    """Without ticks whose labels would stand in the next one; the last stays."""
    kept: list[tuple[float, str]] = []
    free = math.inf  # to the left of the tick that was kept before
    for tick, label in reversed(list(zip(scale.ticks, scale.labels, strict=True))):
        at, half = box.x(scale, tick), width_of(label) / 2
        if at + half <= free:
            kept.insert(0, (tick, label))
            free = at - half - 6
    return replace(scale, ticks=tuple(tick for tick, _ in kept), labels=tuple(label for _, label in kept))


def _runs(curve: Sequence[Point | None]) -> Iterator[list[Point]]:
    run: list[Point] = []
    for point in [*curve, None]:
        if point is not None:
            run.append(point)
        elif run:
            yield run
            run = []


def _draw(drawing: Drawing, place: int, curve: Sequence[Point | None], box: Box, x: Scale, y: Scale) -> None:
    look: dict[str, float | str] = {
        "stroke": colour(place),
        "stroke_width": 2,
        "stroke_linejoin": "round",
        "stroke_dasharray": dash(place),
    }
    for run in _runs(curve):
        path = " ".join(f"{number(box.x(x, one))},{number(box.y(y, other))}" for one, other in run)
        if len(run) > 1:
            drawing.add("polyline", points=path, fill="none", **look)
    # Marks stand at other points of each curve, so that curves that lie on one another are seen to.
    every = max(1, len(curve) // MARKS)
    for position, point in enumerate(curve):
        alone = point is not None and not any(
            0 <= near < len(curve) and curve[near] is not None for near in (position - 1, position + 1)
        )
        if point is not None and (alone or position % every == place % every):
            drawing.shape(place, box.x(x, point[0]), box.y(y, point[1]), 3.2, fill=colour(place))


def _key(drawing: Drawing, place: int, left: float, middle: float) -> None:
    drawing.add(
        "line",
        x1=left,
        x2=left + 26,
        y1=middle,
        y2=middle,
        stroke=colour(place),
        stroke_width=2,
        stroke_dasharray=dash(place),
    )
    drawing.shape(place, left + 13, middle, 3.2, fill=colour(place))
