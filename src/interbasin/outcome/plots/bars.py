"""Bars that lie: one a row, or one a row and method; names of spaces are long, and lie too."""

from __future__ import annotations

from collections.abc import Mapping

from interbasin.errors import DataError
from interbasin.outcome.plots.drawing import LEGEND_LINE, Box, Drawing, colour, width_of
from interbasin.outcome.plots.scales import Scale, drawable, linear, logarithmic

__all__ = ["bar_chart"]

WIDTH = 440.0  # of the bars and their numbers; names stand on both sides
NAMES, LEGEND = 340.0, 340.0  # the most that names of rows and of methods may take


def bar_chart(
    bars: Mapping[str, Mapping[str, float]] | Mapping[str, float],
    *,
    title: str = "",
    x_label: str = "",
    note: str = "",
    log: bool = False,
) -> str:
    """A row for each name, with a bar for each method, as SVG.

    Args:
        bars: Method to row to length, or row to length. A row that a method lacks has no bar of it.
        title: What the plot shows.
        x_label: What the lengths measure.
        note: A line below the title.
        log: Whether equal distances are equal ratios; a bar then tells only where it ends.

    Raises:
        DataError: if there is no row.

    Example:
        >>> "fc1" in bar_chart({"fc1": 0.02, "fc2": 0.1}, title="Alignment error")
        True
    """
    methods = _methods(bars)
    rows = list(dict.fromkeys(row for one in methods.values() for row in one))
    if not rows:
        raise DataError("A bar chart shows rows, and none was given; give name: length.")
    names = min(NAMES, max(map(width_of, rows)) + 2)
    methods_width = min(LEGEND, max(map(width_of, methods)) + 48) if len(methods) > 1 else 0.0
    left = 14 + names + 10
    drawing = Drawing(left + WIDTH + 10 + methods_width, 0, title)
    top = drawing.heading(note)
    thick = 14.0 if len(methods) == 1 else 11.0
    each = thick * len(methods) + (8 if len(methods) == 1 else 9)
    values = [value for one in methods.values() for value in one.values() if drawable(value)]
    scale = logarithmic(values, below=3.0) if log else linear(values, zero=True, around=0.02)
    # Behind the longest bar there is room for its number.
    box = Box(left, top, WIDTH - 62, each * len(rows) + 6)
    drawing.height = max(box.bottom + (54 if x_label else 32), top + LEGEND_LINE * len(methods))
    drawing.frame(box, scale, None, x_label, "")
    if not values:
        drawing.nothing(box)
    start = box.left if log else box.x(scale, 0.0)
    for number, row in enumerate(rows):
        middle = box.top + 3 + each * (number + 0.5)
        drawing.text(box.left - 10, middle + 4, row, names, text_anchor="end")
        for place, lengths in enumerate(methods.values()):
            if row in lengths:
                at = middle - thick * len(methods) / 2 + thick * place
                _bar(drawing, box, start, at, thick, place, lengths[row], scale)
    if methods_width:
        drawing.legend(box.right + 62, top - 4, methods_width, list(methods), _key)
    return drawing.svg()


def _methods(bars: Mapping[str, Mapping[str, float]] | Mapping[str, float]) -> dict[str, dict[str, float]]:
    if all(isinstance(one, Mapping) for one in bars.values()):
        return {
            str(method): {str(row): float(length) for row, length in one.items()}  # type: ignore[union-attr]
            for method, one in bars.items()
        }
    if any(isinstance(one, Mapping) for one in bars.values()):
        raise DataError("Some bars have methods and some have none; give method: {row: length}, or row: length.")
    return {"": {str(row): float(length) for row, length in bars.items()}}  # type: ignore[arg-type]


def _bar(
    drawing: Drawing, box: Box, start: float, top: float, thick: float, place: int, value: float, scale: Scale
) -> None:
    size = 11 if thick > 12 else 10
    middle = top + thick / 2 + size * 0.36
    if not drawable(value) or (scale.log and value <= 0):
        drawing.text(start + 5, middle, f"{value:.3g}", class_="ib-soft", font_size=size)
        return
    end = box.x(scale, value)
    drawing.add(
        "rect",
        f"<title>{value!r}</title>",
        x=min(start, end),
        y=top + 0.5,
        width=abs(end - start),
        height=thick - 1,
        fill=colour(place),
    )
    drawing.text(max(start, end) + 5, middle, f"{value:.3g}".replace("-", "−"), class_="ib-soft", font_size=size)


def _key(drawing: Drawing, place: int, left: float, middle: float) -> None:
    drawing.add("rect", x=left + 6, y=middle - 6, width=18, height=12, fill=colour(place))
