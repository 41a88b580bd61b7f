"""Draw the charts of a report: SVG that the page's style sheet colours, each with a description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semspec.report.html import esc, figure
from semspec.report.rounds import Rounds, Share
from semspec.report.svg import Plot
from semspec.report.terminal import number, seconds
from semspec.results.metrics import quantile

WIDTH, HEIGHT = 360, 250
PARTS = (  # parts of the time, with the classes that colour them
    ("draft", "drafting", "fill0"),
    ("verify", "verifying", "fill2"),
    ("write", "target writing", "fill1"),
    ("overhead", "outside the models", "fill5"),
)


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _plot(title: str, x_label: str, y_label: str, alt: str, **axes: Any) -> Plot:
    size: dict[str, Any] = {"width": WIDTH, "height": HEIGHT, "titled": False}
    return Plot(title, x_label, y_label, alt=alt, **size, **axes)


def _shares(
    title: str, x_label: str, y_label: str, shares: Sequence[Share], alt: str, digits: int = 0
) -> Plot:
    plot = _plot(title, x_label, y_label, alt, y=(0, 1), y_format=percent)
    xs, ys = [s.at for s in shares], [s.share for s in shares]
    tips = [f"{s.at:.{digits}f}: {percent(s.share)} of {s.of:,}" for s in shares]
    plot.line(xs, ys, ink=0)
    plot.points(xs, ys, radius=3.5, tips=tips, y_spread=[s.interval for s in shares], ink=0)
    return plot


def acceptance(found: Rounds, unit: str) -> list[str]:
    """Draw acceptance over the place in the answer and, if drafts are longer than one, within a draft."""
    out = []
    if shares := found.by_output():
        nodes = "nodes of the trees" if found.trees else unit
        alt = f"Of the {nodes} drafted at each place of the answer, {percent(shares[0].share)} were"
        alt += f" kept around token {shares[0].at:.0f}"
        if len(shares) > 1:
            alt += f" and {percent(shares[-1].share)} around token {shares[-1].at:.0f}"
        alt += "; bars are 95 % intervals."
        plot = _shares("Acceptance over the answer", "tokens written before", "kept", shares, alt)
        out.append(figure("Over the answer.", plot.svg(), alt))
    if len(within := found.by_draft()) > 1:
        place = "level of the tree" if found.trees else f"{unit.removesuffix('s')} within the draft"
        alt = f"Drafts were kept to the first {place} in {percent(within[0].share)} of all cases,"
        alt += f" and up to number {len(within)} in {percent(within[-1].share)}."
        plot = _shares("Acceptance within a draft", place, "kept so far", within, alt)
        out.append(figure("Within a draft.", plot.svg(), alt))
    return out


def calibration(found: Rounds) -> str:
    """Draw the share of true steps over the score."""
    if not found.scored:
        return ""
    count, above = len(found.scored), found.auroc()
    alt = f"{count:,} scored steps, equally many in each point; bars are 95 % intervals."
    if above is None:
        alt += " All of them were true." if found.scored[0][1] else " None of them was true."
    else:
        alt += f" AUROC {above:.3f}: how often a true step has a higher score than a false one."
    if found.left_out:
        alt += " Later ones are left out."
    plot = _shares("Truth over the score", "score", "true", found.calibration(), alt, digits=2)
    if all(0 <= score <= 1 for score, _ in found.scored):  # it may be a probability
        plot.x = (0, 1)
        plot.line([0, 1], [0, 1], dashed=True, ink=2)
        alt += " On the dashed line a score is the probability that the step is true."
    return figure("Truth over the score.", plot.svg(), alt)


def speeds(pairs: Sequence[tuple[float, float]]) -> str:
    """Draw the speed-up of each problem, sorted."""
    ratios = sorted(plain / own for plain, own in pairs if own > 0)
    if len(ratios) < 3:
        return ""
    slower = sum(r < 1 for r in ratios)
    shown = [ratios[i * len(ratios) // 400] for i in range(400)] if len(ratios) > 400 else ratios
    alt = (
        f"Half of the problems lie between {number(quantile(ratios, 0.25))} and"
        f" {number(quantile(ratios, 0.75))} times the speed of the target alone;"
        f" {slower:,} of {len(ratios):,} were slower with the draft. The dashed line is the target alone."
    )
    axes: dict[str, Any] = {"x": (0, 1), "y": (0, max(1.0, shown[-1]) * 1.05)}
    names = "Speed-up of each problem", "share of the problems", "times as fast"
    plot = _plot(*names, alt, x_format=percent, **axes)
    places = [(i + 0.5) / len(shown) for i in range(len(shown))]
    plot.points(places, shown, radius=2.5, ink=0)
    plot.line([0, 1], [1, 1], dashed=True, ink=1)
    return figure("Problem by problem.", plot.svg(), alt)


def time_split(result: Mapping[str, Any]) -> str:
    """Draw how a problem's seconds are spent, both modes on one scale."""
    modes = [("target alone", result["plain"]), ("speculative", result)]
    known = [(name, f) for name, f in modes if f and f["time"] and f["latency"]]
    if not known:
        return ""
    longest = max(f["latency"] for _, f in known)
    out, y = [], 4
    for name, f in known:
        out.append(f'<text x="0" y="{y + 10}">{name}, {seconds(f["latency"])} s a problem</text>')
        x = 0.0
        for part, spoken, fill in PARTS:
            wide = WIDTH * f["time"][part] * f["latency"] / longest
            if wide > 0:
                out.append(
                    f'<rect class="{fill} part" x="{x:.1f}" y="{y + 17}" width="{wide:.1f}" height="20">'
                    f"<title>{spoken}: {percent(f['time'][part])}</title></rect>"
                )
            x += wide
        y += 50
    alt = "; ".join(
        f"{name}: " + ", ".join(f"{percent(f['time'][p])} {spoken}" for p, spoken, _ in PARTS)
        for name, f in known
    )
    keys = "".join(
        f'<li><svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true"><rect class="{fill} part"'
        f' width="12" height="12"/></svg> {spoken} '
        + " / ".join(percent(f["time"][part]) for _, f in known)
        + "</li>"
        for part, spoken, fill in PARTS
    )
    drawing = (
        f'<svg viewBox="0 0 {WIDTH} {y - 6}" width="{WIDTH}" height="{y - 6}" font-size="12" role="img"'
        f' aria-label="Time split. {esc(alt)}"><title>Time split</title><desc>{esc(alt)}</desc>'
        + "".join(out)
        + f'</svg><ul class="keys">{keys}</ul>'
    )
    order = " / ".join(name for name, _ in known)
    return figure("Time.", drawing, f"Seconds of a problem, on one scale; shares: {order}.")
