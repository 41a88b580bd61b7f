"""Build the report of a sweep: all jobs in one plane of quality and speed, and in one table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from semspec.report import jobs as grouping
from semspec.report import terminal, words
from semspec.report.html import breakable, clipped, esc, figure, notes, page, save, section, table
from semspec.report.jobs import Group
from semspec.report.origin import origin
from semspec.report.page import REPORT
from semspec.report.runs import Run, jobs_planned, read_sweep, unlike_machines
from semspec.report.svg import Plot
from semspec.results.attempts import answers_of
from semspec.results.records import RunFolder
from semspec.results.seeds import averages
from semspec.results.significance import ALPHA, holm
from semspec.storage.provenance import without_folders

Adjusted = Sequence[float | None]  # p-values of all jobs
PARTS = (
    ("plane", "Quality and speed"),
    ("table", "Jobs"),
    ("seeds", "Averages over seeds"),
    ("origin", "Origin"),
)


def write_sweep(folder: Path, out: Path | None = None) -> Path:
    """Write the report of a folder of runs, by default into it; return its path."""
    place = out or folder / REPORT
    return save(place, sweep_page(folder, read_sweep(folder), place.parent))


def sweep_page(folder: Path, runs: Sequence[Run], beside: Path | None = None) -> str:
    """Return the page of a folder of runs; links start from ``beside``, by default that folder."""
    beside = beside or folder
    groups = grouping.comparable(list(enumerate(runs, 1)))
    shared, names = grouping.shared_options(runs)
    adjusted = holm([run.result["pass_at_1_p"] for run in runs])
    planes, tables = [], []
    for title, group in groups.items():
        heading = f"<h3>{esc(title)}</h3>" if len(groups) > 1 else ""
        plane = _plane(group)
        planes += [heading, plane] if plane else []
        tables += [heading, _jobs(group, names, adjusted, beside)]
    lead = (
        "Speed is relative to the target alone on the same problems in the same run. <strong>Bold</strong> jobs are on the"
        " Pareto front. A star: pass@1 differs from that of the target alone (McNemar, p below 0.05 after Holm's"
        f" correction for {sum(p is not None for p in adjusted)} comparisons)."
    )
    body = [
        _head(folder, runs, groups, shared),
        section("plane", "Quality and speed", planes),
        section("table", "Jobs", tables, lead),
        _over_seeds(runs, names),
        section("origin", "Origin", [_origins(runs)]),
    ]
    return page(f"{folder.name}: semspec report", "report of a sweep", body, PARTS)


def _plane(group: Group) -> str:
    shown = grouping.placed(group)
    if not shown:
        return ""
    front, alone = grouping.pareto(group), grouping.quality_alone(group)
    alt = f"{_counted(len(shown))}, numbered as in the table; bars are 95 % intervals. "
    best = [(number, run.result["speedup"], run.result["pass_at_1"]) for number, run in front]
    names = ", ".join(f"{number} ({speed:.2f}×, {quality:.3f})" for number, speed, quality in best)
    line = "The dashed line is the Pareto front: none of the finished jobs is better in both"
    alt += f"{line}: {names}." if front else "No finished job is better than the target alone."
    drawn = (
        _drawn(shown, front, alone, alt, width, height).replace("<svg ", f'<svg class="{kind}" ', 1)
        for kind, width, height in (("wide", 720, 420), ("narrow", 360, 320))
    )
    return figure("Quality over speed.", "".join(drawn), esc(alt))


def _drawn(
    shown: Sequence[grouping.Placed],
    front: Group,
    alone: float | None,
    alt: str,
    width: int,
    height: int,
) -> str:
    ends = [end for _, run, _, _ in shown for end in run.result["pass_at_1_interval"]]
    ends += [alone] if alone is not None else []
    low, high = min(ends), max(ends)
    room = max(0.02, (high - low) * 0.06)
    plot = Plot(
        "Quality over speed",
        "speed-up over the target alone",
        "pass@1",
        y=(max(0.0, low - room), min(1.0, high) + room),
        width=width,
        height=height,
        titled=False,
        alt=alt,
        x_format="{:g}×".format,
        y_format="{:.2f}".format,
    )
    best = {number for number, _ in front}
    for ink, radius, on_front in ((5, 4, False), (0, 5, True)):
        jobs = [p for p in shown if (p[0] in best) == on_front]
        plot.points(
            [speed for _, _, speed, _ in jobs],
            [quality for _, _, _, quality in jobs],
            radius=radius,
            names=[str(number) for number, *_ in jobs],
            tips=[f"{n}: {run.name}, {s:.2f}×, pass@1 {q:.3f}" for n, run, s, q in jobs],
            y_spread=[run.result["pass_at_1_interval"] for _, run, _, _ in jobs],
            x_spread=[run.result["speedup_interval"] or (s, s) for _, run, s, _ in jobs],
            ink=ink,
        )
    if alone is not None:
        plot.points([1.0], [alone], radius=5, names=["target alone"], below=True, ink=1)
    corners = [(run.result["speedup"], run.result["pass_at_1"]) for _, run in front]
    if corners:
        xs, ys = [corners[0][0]], [corners[0][1]]
        for x, y in corners[1:]:  # a step down to the next faster job's quality
            xs += [xs[-1], x]
            ys += [y, y]
        plot.line(xs, ys, dashed=True, ink=0)
    return plot.svg()


def _jobs(group: Group, short: Sequence[str], adjusted: Adjusted, beside: Path) -> str:
    head = ("job", "speed-up [95 %]", "pass@1 [95 %]", "lost / won", "accepted", "tau", "tokens/s", "problems")  # fmt: skip
    rows, front = [], {number for number, _ in grouping.pareto(group)}
    for number, run in group:
        r = run.result
        name = breakable(short[number - 1])
        if link := _link(run, beside):
            name = f'<a href="{quote(link)}">{name}</a>'
        name = f"{number}.&nbsp;{name}"
        if not run.finished:
            state = f"{run.state}: {run.error}" if run.error else run.state
            name += f'<br><small class="state">{clipped(state, 300)}</small>'
        lost, won = r["only_plain_correct"], r["only_speculative_correct"]
        cells = (
            (r["speedup"], f"{terminal.number(r['speedup'], 2, '×')} {terminal.interval(r['speedup_interval'])}"),
            (r["pass_at_1"], f"{terminal.number(r['pass_at_1'], 3)}{_star(adjusted[number - 1])} {terminal.interval(r['pass_at_1_interval'])}"),
            (None, "-" if lost is None else f"{lost} / {won}"),
            (r["acceptance_rate"], terminal.percent(r["acceptance_rate"])),
            (r["accept_length"], terminal.number(r["accept_length"])),
            (r["tokens_per_second"], terminal.number(r["tokens_per_second"], 1)),
            (run.done, f"{run.done:,}"),
        )  # fmt: skip
        keyed = (("" if v is None else f' data-value="{v:.6g}"', text) for v, text in cells)
        inside = "".join(f"<td{key}>{text}</td>" for key, text in keyed)
        on = ' class="front"' if number in front else ""
        rows.append(f'<tr{on}><th scope="row" data-value="{number}">{name}</th>{inside}</tr>')
    empty = table(head, [], "Jobs")
    filled = "<tbody>\n" + "\n".join(rows)
    return empty.replace("<table>", '<table class="jobs">').replace("<tbody>\n", filled)


def _over_seeds(runs: Sequence[Run], short: Sequence[str]) -> str:
    """Return the section with a row for each group of jobs that differ only in their seeds; "" without any."""
    named = zip(short, runs, strict=True)
    found = averages((name, RunFolder(run.folder)) for name, run in named if run.finished)
    if not found:
        return ""
    head = ("jobs", "speed-up [95 %]", "pass@1 [95 %]", "target alone", "accepted [95 %]", "problems")  # fmt: skip
    rows = []
    for one in found:
        r = one.figures
        alone = (r["plain"] or {}).get("pass_at_1")
        rows.append((
            breakable(one.name),
            f"{terminal.number(r['speedup'], 2, '×')} {terminal.interval(r['speedup_interval'])}",
            f"{terminal.number(r['pass_at_1'], 3)} {terminal.interval(r['pass_at_1_interval'])}",
            terminal.number(alone, 3),
            terminal.share(r["acceptance_rate"], r["acceptance_rate_interval"]),
            f"{r['problems']:,} ({answers_of(r):,} answers)",
        ))  # fmt: skip
    lead = (
        "Finished jobs that differ only in their seeds. Each problem is averaged over its seeds first, and intervals are"
        " over problems: more seeds on the same problems say less than as many new problems would."
    )
    title = "Averages over seeds"
    return section("seeds", title, [table(head, rows, title)], lead)


def _link(run: Run, beside: Path) -> str:
    """Return the link to a run's own page, or "" if there is none or it would reveal this machine's folders."""
    page, start = (run.folder / REPORT).resolve(), beside.resolve()
    if not page.is_file() or os.path.commonpath([page, start]) == page.anchor:
        return ""
    return Path(os.path.relpath(page, start)).as_posix()


def _counted(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"


def _star(p: float | None) -> str:
    if p is None or p >= ALPHA:
        return ""
    return f'<abbr title="differs from the target alone, {words.p_value(p)} after Holm">*</abbr>'


def _head(
    folder: Path, runs: Sequence[Run], groups: Mapping[str, Group], shared: Sequence[str]
) -> str:
    words = " ".join(map(without_folders, shared))
    given = f'<p class="method"><code>{esc(words)}</code></p>' if words else ""
    states = Counter(run.state for run in runs)
    counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    planned = jobs_planned(folder) or 0
    whole = f"{len(runs)} of {_counted(planned)}" if planned > len(runs) else _counted(len(runs))
    no_plane = not any(map(grouping.placed, groups.values()))
    open_ones = [run for run in runs if not run.finished]
    unlike = any(len({r.done for _, r in group if r.finished}) > 1 for group in groups.values())
    apart, machines = len(groups) > 1, unlike_machines(runs)
    remarks = {
        "no job has both a speed-up and graded answers, so there is no chart of the two": no_plane,
        "not all jobs are finished: the figures of the others cover the problems solved so far": open_ones,
        "the jobs solved different numbers of problems: compare with care": unlike,
        "jobs with another target, engine or benchmark are shown separately: their figures cannot be compared": apart,
        "the jobs ran on different machines: each speed-up is over the target on the same machine": machines,
    }
    return (
        f'<div class="head"><h1>{breakable(folder.name)}</h1>{given}'
        f'<p class="target">{whole}: {esc(counts)}</p>{notes([r for r, holds in remarks.items() if holds])}</div>'
    )


def _origins(runs: Sequence[Run]) -> str:
    last = max(runs, key=lambda run: str(run.provenance.get("started") or ""))
    return f"<p>The job that started last, {esc(last.name)}:</p>{origin(last)}"
