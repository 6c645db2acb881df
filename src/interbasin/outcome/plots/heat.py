"""A matrix as coloured cells: the similarity of every layer of one network to every layer of another."""

from __future__ import annotations

import math
from collections.abc import Sequence

from interbasin.errors import DataError
from interbasin.outcome.plots.drawing import (
    Box,
    Drawing,
    Scale,
    drawable,
    linear,
    width_of,
    with_minus,
    without_common_start,
)
from interbasin.text import for_markup

# Cividis: from dark blue to yellow, growing evenly lighter, and the same to people who see no red or no green.
CIVIDIS = bytes.fromhex("00224e 123570 3b496c 575d6d 707173 8a8678 a59c74 c3b369 e1cc55 fee838")  # red, green, blue
LARGEST, SMALLEST = 46.0, 4.0  # the side of a cell, in pixels
PLOT = 480.0  # the side of the whole, if its cells may be so large
LABELS = 190.0  # the most that a name takes
WRITTEN = 12  # a matrix of at most so many rows and columns has its numbers written into the cells


def heat_map(
    matrix: Sequence[Sequence[float]],
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    note: str = "",
    low: float | None = None,
    high: float | None = None,
) -> str:
    """A matrix as SVG, its first row on top.

    Args:
        matrix: Rows of numbers: lists, an array or a tensor. What is not finite is grey.
        rows: Their names, from top to bottom.
        columns: Their names, from left to right.
        title: What the plot shows.
        x_label: What the columns are.
        y_label: What the rows are.
        note: A line below the title.
        low: The number that has the darkest colour; by default the smallest.
        high: The number that has the lightest; by default the largest.

    Raises:
        DataError: if it is no matrix, or names and numbers differ in their counts.

    Example:
        >>> heat_map([[1.0, 0.2], [0.3, 0.9]], rows=["a", "b"], columns=["c", "d"], low=0, high=1).count("<rect")
        ...     # four cells, the paper and the bar of colours
        70
    """
    cells = [[float(number) for number in row] for row in matrix]
    wide = len(cells[0]) if cells else 0
    if not wide or any(len(row) != wide for row in cells):
        raise DataError("A heat map shows a matrix, and this has no cells, or rows of different lengths; give one.")
    names = down, across = _names(rows, len(cells), "rows"), _names(columns, wide, "columns")
    if max(map(width_of, (*down, *across))) > LABELS:
        down, across = without_common_start(down), without_common_start(across)
    finite = [number for row in cells for number in row if drawable(number)] or [0.0, 1.0]
    least, most = min(finite) if low is None else low, max(finite) if high is None else high
    scale = linear((least, most), around=0.0, count=4)
    side = max(SMALLEST, min(LARGEST, PLOT / max(wide, len(cells))))
    drawing = Drawing(0, 0, title)
    below, beside = min(LABELS, max(map(width_of, across))), min(LABELS, max(map(width_of, down)))
    slanted = below > side - 4
    left = 14 + beside + 10 + (22 if y_label else 0)
    drawing.width = max(left + side * wide + 110, 380.0)
    top = drawing.heading(note)
    box = Box(left, top, side * wide, side * len(cells))
    named = box.bottom + (14 + below if slanted else 24)
    drawing.height = max(named + (26 if x_label else 0) + 8, top + 150)
    for at, row in enumerate(cells):
        for place, value in enumerate(row):
            name = f"{names[0][at]}, {names[1][place]}"
            _draw_cell(drawing, box, at, place, side, value, scale.share(value), name)
    _draw_labels(drawing, box, side, across, down, beside, slanted)
    if x_label:
        drawing.text(box.left + box.width / 2, named + 20, x_label, drawing.width, text_anchor="middle")
    if y_label:
        drawing.upright_text(20, box.top + box.height / 2, y_label, max(box.height, 160))
    _draw_scale(drawing, box, scale)
    return drawing.svg()


def _names(given: Sequence[str] | None, count: int, what: str) -> list[str]:
    names = [str(name) for name in (range(count) if given is None else given)]
    if len(names) != count:
        raise DataError(f"The matrix has {count} {what} and {len(names)} names of {what}; give a name for each.")
    return names


def _draw_cell(
    drawing: Drawing, box: Box, row: int, column: int, side: float, value: float, share: float, name: str
) -> None:
    x, y = box.left + column * side, box.top + row * side
    finite = drawable(value)
    look = {"fill": _colour(share)} if finite else {"class_": "ib-none"}
    look["shape_rendering"] = "crispEdges"  # no hair lines where two cells share a pixel
    size = side - 1 if side > 20 else side
    drawing.add("rect", f"<title>{for_markup(name)}: {value:.4g}</title>", x=x, y=y, width=size, height=size, **look)
    if box.width <= WRITTEN * side and box.height <= WRITTEN * side and side >= 30:
        ink = "#fff" if finite and share < 0.6 else "#111"
        number = f"{value:.2f}" if abs(value) < 100 else f"{value:.2g}"
        words = with_minus(number) if finite else "–"
        # As a style, which is stronger than the rule that makes letters light on dark paper.
        drawing.text(
            x + side / 2 - 0.5, y + side / 2 + 4, words, text_anchor="middle", font_size=12, style=f"fill:{ink}"
        )


def _draw_labels(
    drawing: Drawing, box: Box, side: float, across: list[str], down: list[str], beside: float, slanted: bool
) -> None:
    every = math.ceil(14 / side)  # where cells are smaller than letters, some names are left out
    for place in range(0, len(down), every):
        y = box.top + (place + 0.5) * side + 4
        drawing.text(box.left - 8, y, down[place], beside, text_anchor="end", class_="ib-soft", font_size=12)
    for place in range(0, len(across), every):
        x = box.left + (place + 0.5) * side
        if slanted:
            drawing.upright_text(x + 4, box.bottom + 10, across[place], LABELS, "end", class_="ib-soft", font_size=12)
        else:
            drawing.text(x, box.bottom + 18, across[place], text_anchor="middle", class_="ib-soft", font_size=12)


def _draw_scale(drawing: Drawing, box: Box, scale: Scale) -> None:
    """The colours beside the matrix, with numbers."""
    bar = Box(box.right + 22, box.top, 16, max(min(box.height, 240.0), 120.0))
    steps = 64
    for step in range(steps):
        area = {
            "x": bar.left,
            "y": bar.bottom - (step + 1) * bar.height / steps,
            "width": 16,
            "height": bar.height / steps,
        }
        drawing.add("rect", **area, shape_rendering="crispEdges", fill=_colour(step / (steps - 1)))
    drawing.add("rect", x=bar.left, y=bar.top, width=16, height=bar.height, fill="none", class_="ib-axis")
    for tick, label in zip(scale.ticks, scale.labels, strict=True):
        drawing.text(bar.right + 7, bar.y(scale, tick) + 4, label, class_="ib-soft", font_size=12)


def _colour(share: float) -> str:
    place = min(max(share, 0.0), 1.0) * (len(CIVIDIS) // 3 - 1)
    first = min(int(place), len(CIVIDIS) // 3 - 2)
    darker, lighter = CIVIDIS[3 * first : 3 * first + 3], CIVIDIS[3 * first + 3 : 3 * first + 6]
    return "#" + bytes(round(a + (b - a) * (place - first)) for a, b in zip(darker, lighter, strict=True)).hex()
