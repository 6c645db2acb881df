"""What all plots share: axes, SVG elements, colours, letters, the frame and the legend.

The colours are those of Okabe and Ito, which people with any kind of colour vision tell apart, without their yellow,
which is lost on white; lines and points differ in shape too. Where the reader prefers dark pages, the paper is dark.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from interbasin.text import for_markup, printable

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c8c", "#a08000")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
SIZE, TITLE = 13, 15  # letters, in pixels
LEGEND_LINE = 21
# Class -> property, and its value on light and on dark paper. Letters without a class are those of "text".
LOOKS = {
    "text": ("fill", "#1f2328", "#e6edf3"),
    "ib-soft": ("fill", "#59636e", "#9aa4af"),
    "ib-paper": ("fill", "#fff", "#15191f"),
    "ib-grid": ("stroke", "#e1e5ea", "#2b323b"),
    "ib-axis": ("stroke", "#818b98", "#6b7683"),
    "ib-none": ("fill", "#d1d9e0", "#3a424c"),
    "ib-whisker": ("stroke", "#1f2328", "#e6edf3"),
    "ib-baseline": ("stroke", "#818b98", "#9aa4af"),
}
# Widths of letters in the widest of the common sans-serif fonts: what fits there fits everywhere.
_NARROW, _WIDE = "iIjl.,:;|!'()[]{}ft r/", "mwMW@%—"


# ---------------------------------------------------------------------- axes

LARGEST = 1e280  # beyond, an axis around a number, with room on both sides, may have infinite ends
SMALLEST = 1e-290  # below, the steps between ticks vanish
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Scale:
    """One axis, from ``low`` to ``high``."""

    low: float
    high: float
    ticks: tuple[float, ...]  # the numbers that are marked
    labels: tuple[str, ...]  # what is written beside each
    log: bool = False  # whether equal distances are equal ratios

    def share(self, value: float) -> float:
        """How far along the axis a number stands: 0 at its beginning, 1 at its end."""
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            return (math.log10(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)


def drawable(value: float) -> bool:
    """Whether a number has a place on an axis."""
    return -LARGEST < value < LARGEST


def linear(values: Iterable[float], *, around: float = 0.05, zero: bool = False, count: int = 5) -> Scale:
    """An axis that holds the finite ones of ``values``, with about ``count`` ticks.

    ``around`` is the free space at both ends, as a share of the range. With ``zero`` it holds zero and nothing beyond.
    """
    finite = [value if abs(value) > SMALLEST else 0.0 for value in values if math.isfinite(value)]
    finite = finite or [0.0, 1.0]
    if zero:
        finite.append(0.0)
    low, high = min(finite), max(finite)
    # A range that rounding makes is no range: it would get ticks that all read alike.
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        half = abs(low) / 2 or 0.5
        low, high = low - half, high + half
        if zero and not any(finite):
            low = 0.0
    free = around * (high - low)
    begins, ends = (zero and low == 0.0), (zero and high == 0.0)
    low, high = low - (0 if begins else free), high + (0 if ends else free)
    step = _step((high - low) / count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = tuple(place * step for place in range(first, last + 1))
    return Scale(low, high, ticks, _labels(ticks, step))


def logarithmic(values: Iterable[float], *, below: float = 1.2, above: float = 1.2) -> Scale:
    """An axis of equal ratios that holds the positive ones of ``values``; free space by the factors at its two ends."""
    finite = [value for value in values if 0 < value < LARGEST] or [1.0]
    low, high = max(min(finite) / below, 1e-307), max(finite) * above
    if high < 10 * low:  # less than a decade is told better by more of it
        middle = math.sqrt(low) * math.sqrt(high)
        low, high = middle / 3.3, middle * 3.3
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first < 3:
        powers = range(first - 1, last + 1)
        marks = [(factor, power) for power in powers for factor in (1, 2, 5) if low <= factor * 10.0**power <= high]
    else:
        marks = [(1, power) for power in range(first, last + 1, math.ceil((last - first) / 8))]
    return Scale(low, high, tuple(factor * 10.0**power for factor, power in marks), _ratio_labels(marks), log=True)


def with_ticks(scale: Scale, ticks: Iterable[float]) -> Scale:
    """The same axis with ticks at given numbers, those of them that lie on it."""
    inside = tuple(sorted({float(tick) for tick in ticks if scale.low <= tick <= scale.high}))
    labels = (f"{tick:,.0f}" if tick == round(tick) and tick < 1e15 else f"{tick:.4g}" for tick in inside)
    return replace(scale, ticks=inside, labels=tuple(map(with_minus, labels)))


def _ratio_labels(marks: list[tuple[int, int]]) -> tuple[str, ...]:
    if all(-4 < power < 5 for _, power in marks):
        return tuple(f"{factor * 10.0**power:.{max(0, -power)}f}" for factor, power in marks)
    raised = [(factor, "10" + str(power).translate(SUPERSCRIPTS)) for factor, power in marks]
    return tuple(power if factor == 1 else f"{factor}·{power}" for factor, power in raised)


def _step(rough: float) -> float:
    """The nearest of 1, 2 and 5 times a power of ten, upwards."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _labels(ticks: tuple[float, ...], step: float) -> tuple[str, ...]:
    largest = max((abs(tick) for tick in ticks), default=0.0)
    if largest >= 1e5 or 0 < largest < 1e-3:
        digits = max(0, math.floor(math.log10(largest)) - math.floor(math.log10(step) + 1e-9))
        parts = [f"{tick:.{digits}e}".split("e") for tick in ticks]
        labels = (f"{mantissa}e{int(power)}" for mantissa, power in parts)
        return tuple(
            "0" if abs(tick) < step / 2 else with_minus(text) for tick, text in zip(ticks, labels, strict=True)
        )
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return tuple(with_minus(f"{0.0 if abs(tick) < step / 2 else tick:.{digits}f}") for tick in ticks)


def with_minus(text: str) -> str:
    """A number with the sign for minus in place of the hyphen."""
    return text.replace("-", "−")


# ---------------------------------------------------------------------- paper


@dataclass(frozen=True)
class Box:
    """A rectangle on the paper."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def x(self, scale: Scale, value: float) -> float:
        """Where a number stands on the horizontal axis."""
        return self.left + scale.share(value) * self.width

    def y(self, scale: Scale, value: float) -> float:
        """Where a number stands on the vertical axis, which grows upwards."""
        return self.bottom - scale.share(value) * self.height


def plot_area(drawing: Drawing, top: float, legend: float, y: Scale, x_label: str, y_label: str) -> Box:
    """The rectangle between two axes: what labels and a legend of that width leave of the paper."""
    left = 20 + max(map(width_of, y.labels), default=0) + (20 if y_label else 0)
    width = drawing.width - left - 22 - (legend + 14 if legend else 0)
    return Box(left, top, width, drawing.height - top - (54 if x_label else 32))


@dataclass
class Drawing:
    """A plot that is being drawn."""

    width: float
    height: float
    title: str
    parts: list[str] = field(default_factory=list)

    def add(self, name: str, content: str = "", /, **attributes: float | str) -> None:
        """One element; underscores in names of attributes are hyphens, and ``class_`` is class."""
        look = LOOKS.get(str(attributes.get("class_")))
        if look and name != "text":  # for readers that ignore style sheets
            attributes.setdefault(*look[:2])
        text = "".join(
            f' {key.rstrip("_").replace("_", "-")}="{for_markup(value if isinstance(value, str) else number(value))}"'
            for key, value in attributes.items()
            if value != ""
        )
        self.parts.append(f"<{name}{text}>{content}</{name}>" if content else f"<{name}{text}/>")

    def line(self, x1: float, y1: float, x2: float, y2: float, **attributes: float | str) -> None:
        """A straight line."""
        self.add("line", x1=x1, x2=x2, y1=y1, y2=y2, **attributes)

    def text(self, x: float, y: float, words: str, most: float | None = None, **attributes: float | str) -> None:
        """Words at a place; those wider than ``most`` are cut in the middle, and whole where the mouse rests."""
        words = printable(words)  # before it is cut: what is spelled out is longer
        shown = words if most is None else shorten(words, most)
        whole = f"<title>{for_markup(words)}</title>" if shown != words else ""
        self.add("text", whole + for_markup(shown), x=x, y=y, **attributes)

    def upright_text(
        self, x: float, y: float, words: str, most: float, anchor: str = "middle", **attributes: float | str
    ) -> None:
        """Words that run upwards."""
        turn = f"rotate(-90 {number(x)} {number(y)})"
        self.text(x, y, words, most, text_anchor=anchor, transform=turn, **attributes)

    def heading(self, note: str) -> float:
        """The title, and a line below it; how much room they took."""
        top = 12.0
        if self.title:
            top += TITLE
            self.text(14, top, self.title, self.width - 28, font_size=TITLE, font_weight="600")
        if note:
            top += SIZE + 6
            self.text(14, top, note, self.width - 28, class_="ib-soft", font_size=SIZE - 1)
        return top + 14

    def frame(self, box: Box, x: Scale | None, y: Scale | None, x_label: str, y_label: str) -> None:
        """Grid lines, ticks, the two axes and what they are called."""
        if y is not None:
            for tick, label in zip(y.ticks, y.labels, strict=True):
                at = box.y(y, tick)
                self.line(box.left, at, box.right, at, class_="ib-grid")
                self.text(box.left - 8, at + 4, label, class_="ib-soft", text_anchor="end")
        if x is not None:
            for tick, label in zip(x.ticks, x.labels, strict=True):
                at = box.x(x, tick)
                self.line(at, box.top, at, box.bottom, class_="ib-grid")
                self.text(at, box.bottom + 18, label, class_="ib-soft", text_anchor="middle")
        self.line(box.left, box.top, box.left, box.bottom, class_="ib-axis")
        self.line(box.left, box.bottom, box.right, box.bottom, class_="ib-axis")
        if x_label:
            self.text(box.left + box.width / 2, box.bottom + 40, x_label, box.width, text_anchor="middle")
        if y_label:
            self.upright_text(18, box.top + box.height / 2, y_label, box.height)

    def legend(self, left: float, top: float, most: float, names: Sequence[str], key: Key) -> None:
        """A line for each name: what ``key`` draws, and the name."""
        for place, name in enumerate(names):
            middle = top + 10 + place * LEGEND_LINE
            key(self, place, left, middle)
            self.text(left + 34, middle + 4, name, most - 34)

    def shape(self, place: int, x: float, y: float, size: float, **attributes: float | str) -> None:
        """The mark of the series at ``place``: a disc, a square, a triangle, a diamond or a triangle on its head."""
        kind = place % 5
        if kind == 0:
            self.add("circle", cx=x, cy=y, r=size, **attributes)
        elif kind == 1:
            self.add("rect", x=x - size * 0.9, y=y - size * 0.9, width=size * 1.8, height=size * 1.8, **attributes)
        else:
            corners = (
                ((0, -1.25), (1.1, 0.85), (-1.1, 0.85)),
                ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
                ((0, 1.25), (1.1, -0.85), (-1.1, -0.85)),
            )[kind - 2]
            self.add("polygon", points=points((x + size * a, y + size * b) for a, b in corners), **attributes)

    def nothing(self, box: Box) -> None:
        """What stands where there is nothing to draw."""
        x, y = box.left + box.width / 2, box.top + box.height / 2
        self.text(x, y, "no finite values", class_="ib-soft", text_anchor="middle")

    def svg(self) -> str:
        """The plot as one self-contained file."""
        size = f"{number(self.width)} {number(self.height)}"
        wide, high = size.split()
        label = for_markup(self.title) or "plot"
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="ib-plot" viewBox="0 0 {size}" width="{wide}" '
            f'height="{high}" role="img" aria-label="{label}" '
            f"font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\" font-size=\"{SIZE}\">"
        )
        paper = '<rect class="ib-paper" width="100%" height="100%" fill="#fff"/>'
        style = f"<style>{_rules(1)}@media(prefers-color-scheme:dark){{{_rules(2)}}}</style>"
        return "\n".join([head, style, paper, *self.parts, "</svg>"]) + "\n"


Key = Callable[[Drawing, int, float, float], None]


def colour(place: int) -> str:
    """The colour of the series at ``place``."""
    return COLOURS[place % len(COLOURS)]


def dash(place: int) -> str:
    """Its dashes: when the colours begin anew, the lines are drawn otherwise."""
    return DASHES[place // len(COLOURS) % len(DASHES)]


def number(value: float) -> str:
    """A position, to a hundredth of a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def points(corners: Iterable[tuple[float, float]]) -> str:
    """Positions as polygons and polylines take them."""
    return " ".join(f"{number(x)},{number(y)}" for x, y in corners)


def _rules(column: int) -> str:
    """The style sheet on light (1) or dark (2) paper."""
    return "".join(
        f".ib-plot {'' if name == 'text' else '.'}{name}{{{look[0]}:{look[column]}}}" for name, look in LOOKS.items()
    )


def width_of(words: str, size: float = SIZE) -> float:
    """About how wide words are, in pixels."""
    return size * sum(map(_width, printable(words)))


def _width(letter: str) -> float:
    if letter in _NARROW:
        return 0.37
    if ord(letter) > 0x2E80:
        return 1.0
    return 0.92 if letter in _WIDE else 0.7 if letter.isupper() else 0.62


def shorten(words: str, most: float) -> str:
    """Words that fit into ``most`` pixels: long names differ at both ends, so the middle is cut out."""
    if width_of(words) <= most:
        return words
    for kept in range(len(words) - 1, 1, -1):
        shorter = f"{words[: kept // 2]}…{words[len(words) - (kept - kept // 2) :]}"
        if width_of(shorter) <= most:
            return shorter
    return "…"


def in_two(words: str, most: float) -> list[str]:
    """Words on one line, or on two where they are wider than ``most``: broken behind a comma, or else at a blank.

    Example:
        >>> in_two("translate, re-embed the top 100, procrustes, standardised", 340)
        ['translate, re-embed the top 100,', 'procrustes, standardised']
    """
    if width_of(words) <= most:
        return [words]
    places = [place for place, letter in enumerate(words) if letter == " " and 0 < place < len(words) - 1]
    halves = [[words[:place], words[place + 1 :]] for place in places]
    fitting = [two for two in halves if two[0].endswith(",") and max(map(width_of, two)) <= most]
    return min(fitting or halves, key=lambda two: max(map(width_of, two)), default=[words])


def without_common_start(names: Sequence[str]) -> list[str]:
    """Names with dots in them, without the parts that all of them begin with.

    Example:
        >>> without_common_start(["model.layers.0.mlp", "model.layers.1.mlp"])
        ['0.mlp', '1.mlp']
    """
    parts = [name.split(".") for name in names]
    # The last part stays, so that no name is empty.
    levels = zip(*(name[:-1] for name in parts), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda level: len(set(level)) == 1, levels))
    return [".".join(name[shared:]) for name in parts]
