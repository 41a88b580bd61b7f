"""Draw small plots as SVG text, without a plotting library: points, lines and bars over two axes.

plot = Plot("calibration", "score", "true", x=(0, 1), y=(0, 1))
plot.line([0, 1], [0, 1], dashed=True)
plot.points(xs, ys, label="test")
text = plot.svg()

Colours are attributes that a style sheet can override by the elements' classes: the same plot works as a file of its own
and in a page with a dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from html import escape as escaped
from typing import Any

from semspec.storage.screen import visible

COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#475569")
Range = tuple[float, float]
Values = Sequence[float]
Place = Callable[[float], float]  # from a value to a place on the page


def escape(text: str) -> str:
    """Escape a text for XML: markup and control characters are displayed, not interpreted."""
    return escaped(visible(text), quote=True)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return round numbers that cover a range."""
    if not high > low:
        return [low]
    raw = (high - low) / wanted
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class _Series:
    """The marks drawn in one colour."""

    kind: str
    xs: list[float]
    ys: list[float]
    label: str = ""
    radius: float = 3.0
    dashed: bool = False
    names: Sequence[str] = ()  # of points, shown beside them
    tips: Sequence[str] = ()  # of points, shown when the pointer rests on them
    y_spread: Sequence[Range] = ()  # intervals of points
    x_spread: Sequence[Range] = ()
    below: bool = False  # names are below the points, if the axis leaves room
    ink: int | None = None  # number of the colour; None: the next one


@dataclass
class Plot:
    """A plot with two linear axes (x may be logarithmic)."""

    title: str
    x_label: str
    y_label: str
    _: KW_ONLY
    x: Range | None = None
    y: Range | None = None
    log_x: bool = False
    width: int = 420
    height: int = 320
    titled: bool = True  # else the title is only part of the description
    alt: str = ""  # describes the plot in words
    x_format: Callable[[float], str] = "{:g}".format
    y_format: Callable[[float], str] = "{:g}".format
    _series: list[_Series] = field(default_factory=list, init=False)

    def points(self, xs: Values, ys: Values, label: str = "", **marks: Any) -> None:
        """Draw points; ``marks`` are fields of ``_Series``: names, tips and intervals one for each point."""
        self._add("points", xs, ys, label, **marks)

    def line(self, xs: Values, ys: Values, label: str = "", **marks: Any) -> None:
        self._add("line", xs, ys, label, **marks)

    def bars(self, xs: Values, heights: Values, label: str = "") -> None:
        """Draw bars from 0, each as wide as the gap to its neighbour."""
        self._add("bars", xs, heights, label)

    def _add(self, kind: str, xs: Values, ys: Values, label: str, **marks: Any) -> None:
        assert len(xs) == len(ys), label
        kept = [i for i in range(len(xs)) if math.isfinite(xs[i]) and math.isfinite(ys[i])]
        for name in ("names", "tips", "y_spread", "x_spread"):
            if marks.get(name):
                marks[name] = [marks[name][i] for i in kept]
        own = [float(xs[i]) for i in kept], [float(ys[i]) for i in kept]
        self._series.append(_Series(kind, *own, label, **marks))

    def svg(self) -> str:
        """Return the whole plot as SVG."""
        xs = [self._scale(v) for s in self._series for v in (*s.xs, *_ends(s.x_spread))]
        ys = [v for s in self._series for v in (*s.ys, *_ends(s.y_spread))]
        if any(s.kind == "bars" for s in self._series):
            ys.append(0.0)
        given = None if self.x is None else (self._scale(self.x[0]), self._scale(self.x[1]))
        x, y = given or _range(xs), self.y or _range(ys)
        left, right = 56, self.width - 18
        top, bottom = 30 if self.titled else 14, self.height - 44

        def px(value: float) -> float:
            return left + (self._scale(value) - x[0]) / (x[1] - x[0]) * (right - left)

        def py(value: float) -> float:
            return bottom - (value - y[0]) / (y[1] - y[0]) * (bottom - top)

        whole = escape(f"{self.title}. {self.alt}".rstrip(" ."))
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
            f' width="{self.width}" height="{self.height}" font-family="sans-serif"'
            f' font-size="11" role="img" aria-label="{whole}">',
            f"<title>{escape(self.title)}</title>",
            f"<desc>{escape(self.alt)}</desc>" if self.alt else "",
            f'<rect class="paper" width="{self.width}" height="{self.height}" fill="#fff"/>',
        ]
        if self.titled:
            out.append(
                f'<text x="{self.width / 2:g}" y="18" text-anchor="middle" font-size="13">'
                f"{escape(self.title)}</text>"
            )
        for value in ticks(*y):
            at = py(value)
            out.append(f'<path class="grid" d="M{left} {at:.1f}H{right}" stroke="#e2e8f0"/>')
            named = escape(self.y_format(value))
            out.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{named}</text>')
        # a logarithmic axis has its few values as ticks
        for value in sorted({round(10**v, 9) for v in xs}) if self.log_x else ticks(*x):
            at = px(value)
            out.append(f'<path class="axis" d="M{at:.1f} {bottom}v4" stroke="#64748b"/>')
            named = escape(self.x_format(value))
            out.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{named}</text>')
        inks = [i if s.ink is None else s.ink for i, s in enumerate(self._series)]
        for series, ink in zip(self._series, inks, strict=True):
            out += _draw(series, ink % len(COLOURS), px, py, bottom)
        out.append(
            f'<path class="axis" d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#64748b"/>'
            f'<text x="{(left + right) / 2:g}" y="{self.height - 10}" text-anchor="middle">'
            f"{escape(self.x_label)}</text>"
            f'<text transform="translate(14 {(top + bottom) / 2:g}) rotate(-90)"'
            f' text-anchor="middle">{escape(self.y_label)}</text>'
        )
        labelled = [(i, s.label) for i, s in zip(inks, self._series, strict=True) if s.label]
        for row, (number, label) in enumerate(labelled):
            at, colour = top + 12 + 15 * row, number % len(COLOURS)
            out.append(
                f'<rect class="fill{colour}" x="{left + 8}" y="{at - 8}" width="9" height="9"'
                f' fill="{COLOURS[colour]}"/><text x="{left + 22}" y="{at}">{escape(label)}</text>'
            )
        return "\n".join([*filter(None, out), "</svg>\n"])

    def _scale(self, value: float) -> float:
        return math.log10(value) if self.log_x else value


def _range(values: list[float]) -> Range:
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = (high - low) * 0.05 or abs(high) * 0.05 or 0.5
    return low - room, high + room


def _ends(spread: Sequence[Range]) -> list[float]:
    return [end for one in spread for end in one]


def _draw(series: _Series, colour: int, px: Place, py: Place, bottom: float) -> list[str]:
    ink = COLOURS[colour]
    placed = [(px(a), py(b)) for a, b in zip(series.xs, series.ys, strict=True)]
    if not placed:
        return []
    if series.kind == "line":
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in placed)
        dash = ' stroke-dasharray="5 4"' if series.dashed else ""
        look = f'fill="none" stroke="{ink}" stroke-width="2"{dash}'
        return [f'<polyline class="stroke{colour}" points="{path}" {look}/>']
    if series.kind == "bars":
        zero = py(0.0)
        gap = min((b[0] - a[0] for a, b in zip(placed, placed[1:], strict=False)), default=20.0)
        wide = max(abs(gap) * 0.8, 1.0)
        return [
            f'<rect class="fill{colour}" x="{a - wide / 2:.1f}" y="{min(b, zero):.1f}"'
            f' width="{wide:.1f}" height="{abs(zero - b):.1f}" fill="{ink}" fill-opacity="0.8"/>'
            for a, b in placed
        ]
    return _points(series, colour, placed, px, py, bottom)


def _points(
    series: _Series, colour: int, placed: list[Range], px: Place, py: Place, bottom: float
) -> list[str]:
    ink, out = COLOURS[colour], []
    bars = [
        f"M{a:.1f} {py(low):.1f}V{py(high):.1f}"
        for (a, _), (low, high) in zip(placed, series.y_spread, strict=False)
    ] + [
        f"M{px(low):.1f} {b:.1f}H{px(high):.1f}"
        for (_, b), (low, high) in zip(placed, series.x_spread, strict=False)
    ]
    if bars:
        look = f'stroke="{ink}" stroke-width="1.5" stroke-opacity="0.6"'
        out.append(f'<path class="stroke{colour}" d="{"".join(bars)}" {look}/>')
    opacity = 0.5 if not (series.names or series.tips or series.y_spread) else 1
    circles = []
    for number, (a, b) in enumerate(placed):
        tip = f"<title>{escape(series.tips[number])}</title>" if series.tips else ""
        end = f">{tip}</circle>" if tip else "/>"
        circles.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{series.radius:g}"{end}')
    group = f'<g class="fill{colour}" fill="{ink}" fill-opacity="{opacity:g}">'
    out.append(f"{group}{''.join(circles)}</g>")
    anchor = "start" if series.below else "middle"
    for (a, b), name in zip(placed, series.names, strict=False):
        under = b + series.radius + 12
        at = under if series.below and under <= bottom - 3 else b - series.radius - 3
        text = f'<text class="name" x="{a:.1f}" y="{at:.1f}" text-anchor="{anchor}">'
        out.append(f"{text}{escape(name)}</text>")
    return out
