"""Several curves on one pair of axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from interbasin.errors import DataError
from interbasin.outcome.plots.drawing import LEGEND_LINE, Box, Drawing, colour, dash, number, width_of
from interbasin.outcome.plots.scales import Scale, drawable, linear, logarithmic

__all__ = ["line_chart"]

WIDTH, HEIGHT = 520.0, 420.0  # without the names, which stand to the right
LEGEND = 340.0  # the most that names may take
MARKS = 6  # about so many a curve


def line_chart(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    note: str = "",
    log: bool = False,
) -> str:
    """Curves, each with a name, as SVG.

    Args:
        series: Name to its horizontal and its vertical positions. A curve is broken where a number is not finite.
        title: What the plot shows.
        x_label: What runs from left to right.
        y_label: What grows upwards.
        note: A line below the title.
        log: Whether equal heights are equal ratios; numbers that are not positive are then left out.

    Raises:
        DataError: if there is no curve, or one has more positions of one kind than of the other.

    Example:
        >>> line_chart({"none": ([0, 0.5, 1], [0.1, 1.9, 0.1]), "aligned": ([0, 0.5, 1], [0.1, 0.1, 0.1])})[:4]
        '<svg'
    """
    curves = {str(name): _points(name, *pair, log) for name, pair in series.items()}
    if not curves:
        raise DataError("A line chart shows curves, and none was given; give name: (x, y).")
    names = min(LEGEND, max(map(width_of, curves)) + 48) if len(curves) > 1 else 0.0
    drawing = Drawing(WIDTH + (names or 180.0), HEIGHT, title)
    top = drawing.heading(note)
    drawing.height = max(HEIGHT, top + LEGEND_LINE * len(curves))
    points = [point for curve in curves.values() for point in curve if point is not None]
    x = linear((one for one, _ in points), around=0.0)
    y = logarithmic(one for _, one in points) if log else linear(one for _, one in points)
    left = 20 + max(map(width_of, y.labels), default=0) + (20 if y_label else 0)
    box = Box(
        left,
        top,
        drawing.width - left - 22 - (names + 14 if names else 0),
        drawing.height - top - (54 if x_label else 32),
    )
    drawing.frame(box, x, y, x_label, y_label)
    if not points:
        drawing.nothing(box)
    for place, curve in enumerate(curves.values()):
        _draw(drawing, place, curve, box, x, y)
    if names:
        drawing.legend(box.right + 18, top - 4, names, list(curves), _key)
    return drawing.svg()


Point = tuple[float, float]


def _points(name: str, across: Sequence[float], up: Sequence[float], log: bool) -> list[Point | None]:
    """The points of a curve; None where it is broken."""
    across, up = [float(one) for one in across], [float(one) for one in up]
    if len(across) != len(up):
        raise DataError(
            f"The curve {name!r} has {len(across)} positions and {len(up)} heights; give as many of the one as of the "
            "other."
        )
    return [
        (one, other) if drawable(one) and drawable(other) and (other > 0 or not log) else None
        for one, other in zip(across, up, strict=True)
    ]


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
