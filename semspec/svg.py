"""Small plots as SVG text: points, lines and bars over two axes; no plotting library needed.

plot = Plot("calibration", "said", "true", x=(0, 1), y=(0, 1))
plot.line([0, 1], [0, 1], dashed=True)
plot.points(xs, ys, label="test")
text = plot.svg()
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#475569")
Range = tuple[float, float]


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers that cover a range."""
    if not high > low:
        return [low]
    raw = (high - low) / wanted
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


class Plot:
    """Two linear axes (x may be logarithmic) and what is drawn between them."""

    def __init__(
        self,
        title: str,
        x_label: str,
        y_label: str,
        *,
        x: Range | None = None,
        y: Range | None = None,
        log_x: bool = False,
        width: int = 420,
        height: int = 320,
    ) -> None:
        self.title, self.x_label, self.y_label = title, x_label, y_label
        self.x, self.y, self.log_x = x, y, log_x
        self.width, self.height = width, height
        self._series: list[tuple[str, list[float], list[float], str, dict[str, object]]] = []

    def points(
        self, xs: Sequence[float], ys: Sequence[float], label: str = "", radius: float = 3.0
    ) -> None:
        self._add("points", xs, ys, label, radius=radius)

    def line(
        self, xs: Sequence[float], ys: Sequence[float], label: str = "", dashed: bool = False
    ) -> None:
        self._add("line", xs, ys, label, dashed=dashed)

    def bars(self, xs: Sequence[float], heights: Sequence[float], label: str = "") -> None:
        """Bars from 0, each as wide as the gap to its neighbour."""
        self._add("bars", xs, heights, label)

    def _add(
        self, kind: str, xs: Sequence[float], ys: Sequence[float], label: str, **more: object
    ) -> None:
        pairs = [
            (float(a), float(b))
            for a, b in zip(xs, ys, strict=True)
            if math.isfinite(a) and math.isfinite(b)
        ]
        self._series.append((kind, [a for a, _ in pairs], [b for _, b in pairs], label, more))

    def _range(self, given: Range | None, values: list[float]) -> Range:
        if given is not None:
            return given
        low, high = min(values, default=0.0), max(values, default=1.0)
        room = (high - low) * 0.05 or abs(high) * 0.05 or 0.5
        return low - room, high + room

    def svg(self) -> str:
        """The whole plot."""
        xs = [self._scale(v) for s in self._series for v in s[1]]
        ys = [v for s in self._series for v in s[2]]
        if any(s[0] == "bars" for s in self._series):
            ys.append(0.0)
        given = None if self.x is None else (self._scale(self.x[0]), self._scale(self.x[1]))
        x, y = self._range(given, xs), self._range(self.y, ys)
        left, right, top, bottom = 56, self.width - 14, 30, self.height - 44

        def px(value: float) -> float:
            return left + (self._scale(value) - x[0]) / (x[1] - x[0]) * (right - left)

        def py(value: float) -> float:
            return bottom - (value - y[0]) / (y[1] - y[0]) * (bottom - top)

        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
            f' width="{self.width}" height="{self.height}" font-family="sans-serif"'
            ' font-size="11">',
            f'<rect width="{self.width}" height="{self.height}" fill="#fff"/>',
            f'<text x="{self.width / 2:g}" y="18" text-anchor="middle" font-size="13">'
            f"{escape(self.title)}</text>",
        ]
        for value in ticks(*y):
            at = py(value)
            out.append(f'<path d="M{left} {at:.1f}H{right}" stroke="#e2e8f0"/>')
            out.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>')
        for value in self._x_ticks(x, xs):
            at = px(value)
            out.append(f'<path d="M{at:.1f} {bottom}v4" stroke="#64748b"/>')
            out.append(
                f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>'
            )
        for number, (kind, own_x, own_y, _, more) in enumerate(self._series):
            colour = COLOURS[number % len(COLOURS)]
            placed = [(px(a), py(b)) for a, b in zip(own_x, own_y, strict=True)]
            out += self._draw(kind, placed, colour, py(0.0), more)
        out.append(
            f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#64748b"/>'
            f'<text x="{(left + right) / 2:g}" y="{self.height - 10}" text-anchor="middle">'
            f"{escape(self.x_label)}</text>"
            f'<text transform="translate(14 {(top + bottom) / 2:g}) rotate(-90)"'
            f' text-anchor="middle">{escape(self.y_label)}</text>'
        )
        named = [(i, s[3]) for i, s in enumerate(self._series) if s[3]]
        for row, (number, label) in enumerate(named):
            at, colour = top + 12 + 15 * row, COLOURS[number % len(COLOURS)]
            out.append(
                f'<rect x="{left + 8}" y="{at - 8}" width="9" height="9" fill="{colour}"/>'
                f'<text x="{left + 22}" y="{at}">{escape(label)}</text>'
            )
        return "\n".join([*out, "</svg>\n"])

    def _scale(self, value: float) -> float:
        return math.log10(value) if self.log_x else value

    def _x_ticks(self, x: Range, values: list[float]) -> list[float]:
        if self.log_x:  # the values themselves: there are few of them
            return sorted({round(10**v, 9) for v in values})
        return ticks(*x)

    @staticmethod
    def _draw(
        kind: str,
        placed: list[tuple[float, float]],
        colour: str,
        zero: float,
        more: dict[str, object],
    ) -> list[str]:
        if not placed:
            return []
        if kind == "points":
            circles = "".join(
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{more["radius"]}"/>' for a, b in placed
            )
            return [f'<g fill="{colour}" fill-opacity="0.5">{circles}</g>']
        if kind == "line":
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in placed)
            dash = ' stroke-dasharray="5 4"' if more["dashed"] else ""
            return [
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
            ]
        gap = min((b[0] - a[0] for a, b in zip(placed, placed[1:], strict=False)), default=20.0)
        wide = max(abs(gap) * 0.8, 1.0)
        return [
            f'<rect x="{a - wide / 2:.1f}" y="{min(b, zero):.1f}" width="{wide:.1f}"'
            f' height="{abs(zero - b):.1f}" fill="{colour}" fill-opacity="0.8"/>'
            for a, b in placed
        ]
