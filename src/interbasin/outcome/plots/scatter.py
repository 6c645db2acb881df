"""Points of several groups on one plane: activations of two networks, seen along their principal directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from interbasin.errors import DataError
from interbasin.outcome.plots.drawing import LEGEND_LINE, Box, Drawing, colour, width_of
from interbasin.outcome.plots.scales import Scale, drawable, linear

WIDTH, HEIGHT = 760.0, 520.0
LEGEND = 200.0
MOST = 1500  # points of a group; more only make the file larger and the picture fuller


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
    points = {str(name): _points(name, group) for name, group in groups.items()}
    if not points:
        raise DataError("A scatter chart shows groups of points, and none was given; give name: points.")
    thinned = {name: group[:: -(-len(group) // MOST) or 1] for name, group in points.items()}
    if any(len(thinned[name]) < len(points[name]) for name in points):
        largest = max(points, key=lambda name: len(points[name]))
        note = "; ".join(
            filter(
                None, [note, f"{len(thinned[largest]):,} of the {len(points[largest]):,} points of {largest} are shown"]
            )
        )
    drawing = Drawing(WIDTH, HEIGHT, title)
    top = drawing.heading(note)
    drawing.height = max(HEIGHT, top + LEGEND_LINE * len(points))
    shown = [point for group in thinned.values() for point in group]
    names = min(LEGEND, max(map(width_of, points)) + 44) if len(points) > 1 else 0.0
    rough = linear((y for _, y in shown), count=6)
    left = 20 + max(map(width_of, rough.labels), default=0) + (20 if y_label else 0)
    box = Box(
        left, top, WIDTH - left - 22 - (names + 14 if names else 0), drawing.height - top - (54 if x_label else 32)
    )
    x, y = _alike(shown, box)
    drawing.frame(box, x, y, x_label, y_label)
    if not shown:
        drawing.nothing(box)
    # A point of each group in turn, so that no group lies on top of all others.
    for number in range(max(map(len, thinned.values()))):
        for place, group in enumerate(thinned.values()):
            if number < len(group):
                at = box.x(x, group[number][0]), box.y(y, group[number][1])
                drawing.shape(place, *at, 2.6, fill=colour(place), fill_opacity=0.6)
    if names:
        drawing.legend(box.right + 18, top - 4, names, list(points), _key)
    return drawing.svg()


def _points(name: str, group: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    rows = [[float(one) for one in row] for row in group]
    wrong = next((len(row) for row in rows if len(row) != 2), None)
    if wrong is not None:
        raise DataError(
            f"The points of {name!r} are pairs, found one of {wrong} numbers; give an array of shape (n, 2)."
        )
    return [(x, y) for x, y in rows if drawable(x) and drawable(y)]


def _alike(points: Sequence[tuple[float, float]], box: Box) -> tuple[Scale, Scale]:
    """Two axes with the same scale, so that distances on the paper are distances."""
    x, y = linear(one for one, _ in points), linear(one for _, one in points)
    unit = max((x.high - x.low) / box.width, (y.high - y.low) / box.height)
    return _widened(x, unit * box.width), _widened(y, unit * box.height)


def _widened(scale: Scale, length: float) -> Scale:
    middle = (scale.low + scale.high) / 2
    return linear((middle - length / 2, middle + length / 2), around=0.0, count=6)


def _key(drawing: Drawing, place: int, left: float, middle: float) -> None:
    drawing.shape(place, left + 15, middle, 4.5, fill=colour(place))
