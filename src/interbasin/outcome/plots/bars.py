"""Horizontal bars, one per row, or one per row and method; the names of rows, which are long, stand beside them."""

from __future__ import annotations

from collections.abc import Mapping

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
        DataError: if there is no row, or none that is called like the baseline.

    Example:
        >>> "fc1" in bar_chart({"fc1": 0.02, "fc2": 0.1}, title="Alignment error")
        True
    """
    methods = _methods(bars)
    rows = list(dict.fromkeys(row for one in methods.values() for row in one))
    if not rows:
        raise DataError("A bar chart shows rows, and none was given; give name: length.")
    if baseline is not None and baseline not in rows:
        raise DataError(f"The bar chart has no row {baseline!r} to compare with; its rows are {', '.join(rows):.200}.")
    ends = _ends(whiskers, methods)
    lines = {row: in_two(row, NAMES) for row in rows}
    names = min(NAMES, max(width_of(line) for one in lines.values() for line in one) + 2)
    methods_width = min(LEGEND, max(map(width_of, methods)) + 48) if len(methods) > 1 else 0.0
    left = 14 + names + 10
    drawing = Drawing(left + WIDTH + 10 + methods_width, 0, title)
    top = drawing.heading(note)
    thick = 14.0 if len(methods) == 1 else 11.0
    each = thick * len(methods) + (8 if len(methods) == 1 else 9)
    if any(len(one) > 1 for one in lines.values()):
        each = max(each, TWO_LINES)
    values = [value for one in methods.values() for value in one.values() if drawable(value)]
    values += [value for one in ends.values() for pair in one.values() for value in pair]
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
        for place, line in enumerate(lines[row]):
            down = 14 * (place - (len(lines[row]) - 1) / 2)
            drawing.text(box.left - 10, middle + 4 + down, line, names, text_anchor="end")
        for place, (method, lengths) in enumerate(methods.items()):
            if row in lengths:
                at = middle - thick * len(methods) / 2 + thick * place
                fill = BASELINE if row == baseline else colour(place)
                _draw_bar(drawing, box, start, at, thick, fill, lengths[row], ends[method].get(row), scale)
    if baseline is not None:
        _draw_baseline(drawing, box, next(one[baseline] for one in methods.values() if baseline in one), scale)
    if methods_width:
        drawing.legend(box.right + 62, top - 4, methods_width, list(methods), _draw_key)
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


def _ends(whiskers: Whiskers | None, methods: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, Whisker]]:
    """For each method, the whiskers of the rows that can be drawn."""
    found: dict[str, dict[str, Whisker]] = {method: {} for method in methods}
    for name, given in (whiskers or {}).items():
        for row, (low, high) in given.items() if isinstance(given, Mapping) else [(name, given)]:
            method = name if isinstance(given, Mapping) else ""
            if method in found and drawable(low) and drawable(high):
                found[method][str(row)] = float(low), float(high)
    return found


def _draw_bar(
    drawing: Drawing,
    box: Box,
    start: float,
    top: float,
    thick: float,
    fill: str,
    value: float,
    whisker: Whisker | None,
    scale: Scale,
) -> None:
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
