"""Horizontal bars, one per row, or one per row and method; the names of rows, which are long, stand beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interbasin.errors import DataError
from interbasin.outcome.plots.drawing import (
    LEGEND_LINE,
    Box,
    Drawing,
    Scale,
    colour,
    drawable,
    in_two,
    linear,
    logarithmic,
    width_of,
    with_minus,
)

WIDTH = 440.0  # of the bars and their numbers; names stand on both sides
NAMES, LEGEND = 340.0, 340.0  # the most that names of rows and of methods may take
TWO_LINES = 33.0  # the height of a row whose name takes two
BASELINE = "#8c8c8c"

Whisker = tuple[float, float]
Whiskers = Mapping[str, Mapping[str, Whisker]] | Mapping[str, Whisker]


def bar_chart(
    bars: Mapping[str, Mapping[str, float]] | Mapping[str, float],
    *,
    title: str = "",
    x_label: str = "",
    note: str = "",
    log: bool = False,
    whiskers: Whiskers | None = None,
    baseline: str | None = None,
) -> str:
    """A row for each name, with a bar for each method, as SVG.

    Args:
        bars: Method to row to length, or row to length. A row that a method lacks has no bar of it.
        title: What the plot shows.
        x_label: What the lengths measure.
        note: A line below the title.
        log: Whether equal distances are equal ratios; a bar then tells only where it ends.
        whiskers: In the form of ``bars``, the two ends of an interval; a bar may lack one.
        baseline: The row that the others are compared with: it is grey, and a dashed line goes on from its end.

    Raises:
        DataError: if there is no row, none that is called like the baseline, or the whiskers have another form.

    Example:
        >>> "fc1" in bar_chart({"fc1": 0.02, "fc2": 0.1}, title="Alignment error")
        True
    """
    nested = {isinstance(value, Mapping) for value in bars.values()}
    if len(nested) > 1:
        raise DataError("Some bars have methods and some have none; give method: {row: length}, or row: length.")
    by_method: Mapping[str, Any] = bars if nested == {True} else {"": bars}
    methods = {
        str(method): {str(row): float(length) for row, length in lengths.items()}
        for method, lengths in by_method.items()
    }
    rows = list(dict.fromkeys(row for lengths in methods.values() for row in lengths))
    if not rows:
        raise DataError("A bar chart shows rows, and none was given; give name: length.")
    if baseline is not None and baseline not in rows:
        raise DataError(f"The bar chart has no row {baseline!r} to compare with; its rows are {', '.join(rows):.200}.")
    if {isinstance(value, Mapping) for value in (whiskers or {}).values()} - nested:
        raise DataError("The whiskers of a bar chart must have the form of its bars: by method and row, or by row.")
    intervals: Mapping[str, Any] = (whiskers or {}) if nested == {True} else {"": whiskers or {}}
    ends = {
        method: {
            str(row): (float(low), float(high))
            for row, (low, high) in intervals.get(method, {}).items()
            if drawable(low) and drawable(high)
        }
        for method in methods
    }
    lines = {row: in_two(row, NAMES) for row in rows}
    names = min(NAMES, max(width_of(line) for parts in lines.values() for line in parts) + 2)
    methods_width = min(LEGEND, max(map(width_of, methods)) + 48) if len(methods) > 1 else 0.0
    left = 14 + names + 10
    drawing = Drawing(left + WIDTH + 10 + methods_width, 0, title)
    top = drawing.heading(note)
    thick = 14.0 if len(methods) == 1 else 11.0
    each = thick * len(methods) + (8 if len(methods) == 1 else 9)
    if any(len(parts) > 1 for parts in lines.values()):
        each = max(each, TWO_LINES)
    values = [value for lengths in methods.values() for value in lengths.values() if drawable(value)]
    values += [end for whisker in ends.values() for pair in whisker.values() for end in pair]
    scale = logarithmic(values, below=3.0) if log else linear(values, zero=True, around=0.02)
    # Behind the longest bar there is room for its number.
    box = Box(left, top, WIDTH - 62, each * len(rows) + 6)
    drawing.height = max(box.bottom + (54 if x_label else 32), top + LEGEND_LINE * len(methods))
    drawing.frame(box, scale, None, x_label, "")
    if not values:
        drawing.nothing(box)
    for number, row in enumerate(rows):
        middle = box.top + 3 + each * (number + 0.5)
        for place, line in enumerate(lines[row]):
            down = 14 * (place - (len(lines[row]) - 1) / 2)
            drawing.text(box.left - 10, middle + 4 + down, line, names, text_anchor="end")
        for place, (method, lengths) in enumerate(methods.items()):
            if row in lengths:
                at = middle - thick * len(methods) / 2 + thick * place
                fill = BASELINE if row == baseline else colour(place)
                _draw_bar(drawing, box, scale, at, thick, fill, lengths[row], ends[method].get(row))
    if baseline is not None:
        length = next(lengths[baseline] for lengths in methods.values() if baseline in lengths)
        _draw_baseline(drawing, box, length, scale)
    if methods_width:
        drawing.legend(box.right + 62, top - 4, methods_width, list(methods), _draw_key)
    return drawing.svg()


def _draw_bar(
    drawing: Drawing, box: Box, scale: Scale, top: float, thick: float, fill: str, value: float, whisker: Whisker | None
) -> None:
    start = box.left if scale.log else box.x(scale, 0.0)
    size = 11 if thick > 12 else 10
    middle = top + thick / 2
    if not drawable(value) or (scale.log and value <= 0):
        drawing.text(start + 5, middle + size * 0.36, f"{value:.3g}", class_="ib-soft", font_size=size)
        return
    end = box.x(scale, value)
    text = f"{value!r}" if whisker is None else f"{value!r} [{whisker[0]!r}, {whisker[1]!r}]"
    place = {"x": min(start, end), "y": top + 0.5, "width": abs(end - start), "height": thick - 1}
    drawing.add("rect", f"<title>{text}</title>", **place, fill=fill)
    last = max(start, end)
    if whisker is not None:
        low, high = (box.x(scale, end) for end in whisker)
        cap = thick * 0.28
        drawing.line(low, middle, high, middle, class_="ib-whisker", stroke_width=1.2)
        for at in (low, high):
            drawing.line(at, middle - cap, at, middle + cap, class_="ib-whisker", stroke_width=1.2)
        last = max(last, high)
    drawing.text(last + 5, middle + size * 0.36, with_minus(f"{value:.3g}"), class_="ib-soft", font_size=size)


def _draw_baseline(drawing: Drawing, box: Box, value: float, scale: Scale) -> None:
    """From the end of the baseline's bar through all rows."""
    if drawable(value) and (value > 0 or not scale.log):
        at = box.x(scale, value)
        drawing.line(at, box.top, at, box.bottom, class_="ib-baseline", stroke_dasharray="5 4")


def _draw_key(drawing: Drawing, place: int, left: float, middle: float) -> None:
    drawing.add("rect", x=left + 6, y=middle - 6, width=18, height=12, fill=colour(place))
