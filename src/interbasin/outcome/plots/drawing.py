"""What all plots share: SVG elements, colours, letters, the frame with its axes, and the legend.

The colours are those of Okabe and Ito, which people with any kind of colour vision tell apart, without their yellow,
which is lost on white; lines and points differ in shape too. Where the reader prefers dark pages, the paper is dark.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

from interbasin.outcome.plots.scales import Scale

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c8c", "#a08000")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
SIZE, TITLE = 13, 15  # letters, in pixels
LEGEND_LINE = 21
STYLE = (
    ".ib-plot text{fill:#1f2328}.ib-plot .ib-soft{fill:#59636e}.ib-plot .ib-paper{fill:#fff}"
    ".ib-plot .ib-grid{stroke:#e1e5ea}.ib-plot .ib-axis{stroke:#818b98}.ib-plot .ib-none{fill:#d1d9e0}"
    ".ib-plot .ib-whisker{stroke:#1f2328}.ib-plot .ib-baseline{stroke:#818b98}"
    "@media(prefers-color-scheme:dark){.ib-plot text{fill:#e6edf3}.ib-plot .ib-soft{fill:#9aa4af}"
    ".ib-plot .ib-paper{fill:#15191f}.ib-plot .ib-grid{stroke:#2b323b}.ib-plot .ib-axis{stroke:#6b7683}"
    ".ib-plot .ib-none{fill:#3a424c}.ib-plot .ib-whisker{stroke:#e6edf3}.ib-plot .ib-baseline{stroke:#9aa4af}}"
)
# Widths of letters in the widest of the common sans-serif fonts: what fits there fits everywhere.
_NARROW, _WIDE = "iIjl.,:;|!'()[]{}ft r/", "mwMW@%—"


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


@dataclass
class Drawing:
    """A plot that is being drawn."""

    width: float
    height: float
    title: str
    parts: list[str] = field(default_factory=list)

    def add(self, name: str, content: str = "", /, **attributes: float | str) -> None:
        """One element; underscores in names of attributes are hyphens, and ``class_`` is class."""
        told = "".join(
            f" {key.rstrip('_').replace('_', '-')}={quoteattr(value if isinstance(value, str) else number(value))}"
            for key, value in attributes.items()
            if value != ""
        )
        self.parts.append(f"<{name}{told}>{content}</{name}>" if content else f"<{name}{told}/>")

    def text(self, x: float, y: float, words: str, most: float | None = None, **attributes: float | str) -> None:
        """Words at a place; those wider than ``most`` are cut in the middle, and whole where the mouse rests."""
        shown = words if most is None else shortened(words, most)
        whole = f"<title>{escape(words)}</title>" if shown != words else ""
        self.add("text", whole + escape(shown), x=x, y=y, **attributes)

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
                self.add("line", x1=box.left, x2=box.right, y1=at, y2=at, class_="ib-grid", stroke="#e1e5ea")
                self.text(box.left - 8, at + 4, label, class_="ib-soft", text_anchor="end")
        if x is not None:
            for tick, label in zip(x.ticks, x.labels, strict=True):
                at = box.x(x, tick)
                self.add("line", x1=at, x2=at, y1=box.top, y2=box.bottom, class_="ib-grid", stroke="#e1e5ea")
                self.text(at, box.bottom + 18, label, class_="ib-soft", text_anchor="middle")
        axis = {"class_": "ib-axis", "stroke": "#818b98"}
        self.add("line", x1=box.left, x2=box.left, y1=box.top, y2=box.bottom, **axis)
        self.add("line", x1=box.left, x2=box.right, y1=box.bottom, y2=box.bottom, **axis)
        if x_label:
            self.text(box.left + box.width / 2, box.bottom + 40, x_label, box.width, text_anchor="middle")
        if y_label:
            middle = box.top + box.height / 2
            self.text(
                18, middle, y_label, box.height, text_anchor="middle", transform=f"rotate(-90 18 {number(middle)})"
            )

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
            corners = {
                2: ((0, -1.25), (1.1, 0.85), (-1.1, 0.85)),
                3: ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
                4: ((0, 1.25), (1.1, -0.85), (-1.1, -0.85)),
            }[kind]
            points = " ".join(f"{number(x + size * a)},{number(y + size * b)}" for a, b in corners)
            self.add("polygon", points=points, **attributes)

    def nothing(self, box: Box) -> None:
        """What stands where there is nothing to draw."""
        self.text(
            box.left + box.width / 2,
            box.top + box.height / 2,
            "no finite values",
            class_="ib-soft",
            text_anchor="middle",
        )

    def svg(self) -> str:
        """The plot as one self-contained file."""
        size = f"{number(self.width)} {number(self.height)}"
        wide, high = size.split()
        label = quoteattr(_without_controls(self.title) or "plot")
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="ib-plot" viewBox="0 0 {size}" width="{wide}" '
            f'height="{high}" role="img" aria-label={label} '
            f"font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\" font-size=\"{SIZE}\">"
        )
        paper = '<rect class="ib-paper" width="100%" height="100%" fill="#fff"/>'
        body = "\n".join([head, f"<style>{STYLE}</style>", paper, *self.parts, "</svg>"])
        return _without_controls(body) + "\n"


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


def width_of(words: str, size: float = SIZE) -> float:
    """About how wide words are, in pixels."""
    return size * sum(map(_width, words))


def _width(letter: str) -> float:
    if letter in _NARROW:
        return 0.37
    if ord(letter) > 0x2E80:
        return 1.0
    return 0.92 if letter in _WIDE else 0.7 if letter.isupper() else 0.62


def shortened(words: str, most: float) -> str:
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
    levels = zip(*(one[:-1] for one in parts), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda level: len(set(level)) == 1, levels))
    return [".".join(one[shared:]) for one in parts]


def _without_controls(text: str) -> str:
    """XML has no way to write control characters, not even escaped."""
    return "".join(
        one for one in text if one in "\n\t" or (ord(one) >= 32 and not 0xD800 <= ord(one) <= 0xDFFF)
    ).translate(dict.fromkeys(itertools.chain(range(0x7F, 0xA0), (0xFFFE, 0xFFFF))))
