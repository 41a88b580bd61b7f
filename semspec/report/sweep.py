"""The report of a sweep: all jobs in one plane of quality and speed, and in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from semspec import terminal
from semspec.provenance import without_folders
from semspec.report import words
from semspec.report.html import esc, figure, notes, page, section, table
from semspec.report.page import REPORT, origin
from semspec.report.runs import SAME_PROBLEMS, SAME_TARGET, Run, sweep_state
from semspec.svg import Plot

PARTS = (("plane", "Quality and speed"), ("table", "Jobs"), ("origin", "Origin"))
Group = list[tuple[int, Run]]  # numbered as in the table


def sweep_page(folder: Path, runs: Sequence[Run]) -> str:
    """The page of a folder of runs."""
    numbered = list(enumerate(runs, 1))
    groups = comparable(numbered)
    adjusted = words.holm([run.result["pass_at_1_p"] for run in runs])
    planes, tables = [], []
    for told, group in groups.items():
        heading = f"<h3>{esc(told)}</h3>" if len(groups) > 1 else ""
        plane = _plane(group)
        planes += [heading, plane] if plane else []
        front = {number for number, _ in pareto(group)}
        marks = {number: adjusted[number - 1] for number, _ in group}
        tables += [heading, _jobs(group, front, marks)]
    lead = (
        "Speed is against the target alone on the same problems in the same run. <strong>Bold</strong> jobs are on the"
        " front. A star: pass@1 differs from the target's alone (McNemar, p below 0.05 after Holm's"
        f" correction for {sum(p is not None for p in adjusted)} comparisons)."
    )
    body = [
        _head(folder, runs, groups),
        section("plane", "Quality and speed", planes),
        section("table", "Jobs", tables, lead),
        section("origin", "Origin", [_origins(runs)]),
    ]
    return page(f"{folder.name}: semspec report", "report of a sweep", body, PARTS)


def comparable(numbered: Group) -> dict[str, Group]:
    """Jobs by what must be the same where quality and speed are compared: target, engine, problems."""
    groups: dict[str, Group] = {}
    for number, run in numbered:
        told = run.of((*SAME_TARGET, *SAME_PROBLEMS))
        name = ", ".join(
            f"{key.removeprefix('plugins.')}={without_folders(str(value))}"
            for key, value in told.items()
            if value is not None
        )
        groups.setdefault(name or "configuration unknown", []).append((number, run))
    shared = (
        set.intersection(*(set(name.split(", ")) for name in groups)) if len(groups) > 1 else set()
    )
    short: dict[str, Group] = {}
    for name, group in groups.items():  # what all have in common says nothing
        own = ", ".join(part for part in name.split(", ") if part not in shared)
        short.setdefault(own or name, []).extend(group)
    return short


def _placed(group: Group) -> list[tuple[int, Run, float, float]]:
    """Jobs with a place in the plane: number, run, speed-up, pass@1."""
    return [
        (number, run, run.result["speedup"], run.result["pass_at_1"])
        for number, run in group
        if run.result["speedup"] is not None and run.result["pass_at_1"] is not None
    ]


def pareto(group: Group) -> list[tuple[int, Run]]:
    """Finished jobs that none beats in both quality and speed, the target alone included."""
    placed = [p for p in _placed(group) if p[1].finished]
    alone = _alone(group)
    best = alone if alone is not None else -1.0
    front = []
    for number, run, speed, quality in placed:
        beaten = any(
            (s >= speed and q >= quality) and (s > speed or q > quality)
            for other, _, s, q in placed
            if other != number
        )
        if not beaten and not (speed <= 1 and quality <= best):
            front.append((number, run, speed))
    return [(number, run) for number, run, _ in sorted(front, key=lambda f: f[2])]


def _alone(group: Group) -> float | None:
    """pass@1 of the target alone, of the job that has most of it."""
    known = [run.result["plain"] for _, run in group if run.result["plain"]]
    graded = [f for f in known if f["graded"]]
    best = max(graded, key=lambda f: f["graded"], default=None)
    return None if best is None else float(best["pass_at_1"])


def _plane(group: Group) -> str:
    placed = _placed(group)
    if not placed:
        return ""
    front = pareto(group)
    alone = _alone(group)
    told = f"{len(placed)} jobs, numbered as in the table; bars are 95 % intervals. "
    names = ", ".join(
        f"{number} ({run.result['speedup']:.2f}×, {run.result['pass_at_1']:.3f})"
        for number, run in front
    )
    told += (
        f"The dashed line is the Pareto front: none of the finished jobs is better in both: {names}."
        if front
        else "No finished job is better than the target alone."
    )
    return figure(
        "Quality over speed.",
        _drawn(placed, front, alone, told, 720, 420, "wide")
        + _drawn(placed, front, alone, told, 360, 320, "narrow"),
        esc(told),
    )


def _drawn(
    placed: Sequence[tuple[int, Run, float, float]],
    front: Sequence[tuple[int, Run]],
    alone: float | None,
    told: str,
    width: int,
    height: int,
    kind: str,
) -> str:
    intervals = [run.result["pass_at_1_interval"] for _, run, _, _ in placed]
    low = min([*(i[0] for i in intervals), *([alone] if alone is not None else [])])
    high = max([*(i[1] for i in intervals), *([alone] if alone is not None else [])])
    room = max(0.02, (high - low) * 0.06)
    plot = Plot(
        "Quality over speed",
        "speed-up over the target alone",
        "pass@1",
        y=(max(0.0, low - room), min(1.0, high) + room),
        width=width,
        height=height,
        titled=False,
        told=told,
        x_format=lambda v: f"{v:g}×",
    )
    best = {number for number, _ in front}
    inside = [p for p in placed if p[0] not in best]
    outside = [p for p in placed if p[0] in best]
    for jobs, label in ((outside, "on the front"), (None, "the target alone"), (inside, "others")):
        if jobs is None:
            known = [] if alone is None else [alone]
            plot.points([1.0] * len(known), known, label if known else "", radius=5)
            continue
        plot.points(
            [p[2] for p in jobs],
            [p[3] for p in jobs],
            label if jobs else "",
            radius=5 if jobs is outside else 4,
            names=[str(p[0]) for p in jobs],
            tips=[f"{p[0]}: {p[1].name}, {p[2]:.2f}×, pass@1 {p[3]:.3f}" for p in jobs],
            y_spread=[p[1].result["pass_at_1_interval"] for p in jobs],
            x_spread=[p[1].result["speedup_interval"] or (p[2], p[2]) for p in jobs],
        )
    corners = [(run.result["speedup"], run.result["pass_at_1"]) for _, run in front]
    if corners:
        xs, ys = [corners[0][0]], [corners[0][1]]
        for x, y in corners[1:]:  # down where the next better speed begins
            xs += [xs[-1], x]
            ys += [y, y]
        plot.line(xs, ys, dashed=True)
    return plot.svg().replace("<svg ", f'<svg class="{kind}" ', 1)


def _jobs(group: Group, front: set[int], marks: Mapping[int, float | None]) -> str:
    head = ("job", "state", "speed-up [95 %]", "pass@1 [95 %]", "lost / won", "accepted", "tau", "by the target", "tok/s", "problems")  # fmt: skip
    rows = []
    for number, run in group:
        r = run.result
        link = run.folder / REPORT
        name = f"{number}. {esc(run.name)}"
        if link.is_file() and run.job:
            name = f'{number}. <a href="{quote(run.job)}/{REPORT}">{esc(run.name)}</a>'
        star = _star(marks[number])
        state = esc(run.state) + (f"<br><small>{esc(run.error[:200])}</small>" if run.error else "")
        sides = "-" if r["only_plain_correct"] is None else f"{r['only_plain_correct']} / {r['only_speculative_correct']}"  # fmt: skip
        cells = (
            (
                r["speedup"],
                f"{terminal.number(r['speedup'], 2, '×')} {terminal.interval(r['speedup_interval'])}",
            ),
            (
                r["pass_at_1"],
                f"{terminal.number(r['pass_at_1'], 3)}{star} {terminal.interval(r['pass_at_1_interval'])}",
            ),
            (None, sides),
            (r["acceptance_rate"], terminal.percent(r["acceptance_rate"])),
            (r["accept_length"], terminal.number(r["accept_length"])),
            (r["target_share"], terminal.percent(r["target_share"])),
            (r["tokens_per_second"], terminal.number(r["tokens_per_second"], 1)),
            (run.done, f"{run.done:,}"),
        )
        inside = "".join(
            f"<td{'' if value is None else f' data-value={chr(34)}{value:.6g}{chr(34)}'}>{text}</td>"
            for value, text in cells
        )
        on = ' class="front"' if number in front else ""
        rows.append(
            f'<tr{on}><th scope="row" data-value="{number}">{name}</th>'
            f'<td class="words">{state}</td>{inside}</tr>'
        )
    empty = table(head, [], "Jobs")
    return empty.replace("<table>", '<table class="jobs">').replace(
        "<tbody>\n", "<tbody>\n" + "\n".join(rows)
    )


def _star(p: float | None) -> str:
    if p is None or p >= words.ALPHA:
        return ""
    return f'<abbr title="differs from the target alone, {words.p_value(p)} after Holm">*</abbr>'


def _head(folder: Path, runs: Sequence[Run], groups: Mapping[str, Group]) -> str:
    states = Counter(run.state for run in runs)
    told = ", ".join(f"{count} {state}" for state, count in states.most_common())
    own = sweep_state(folder)
    total = own.get("total")
    known = f" of {total}" if isinstance(total, int) and total > len(runs) else ""
    remarks = []
    if any(not run.finished for run in runs):
        remarks.append(
            "not all jobs are finished: figures of the others are of the problems so far"
        )
    if len({run.done for run in runs if run.finished}) > 1:
        remarks.append("the jobs solved different numbers of problems: compare with care")
    if len(groups) > 1:
        remarks.append(
            "jobs with another target, engine or benchmark stand apart: their figures do not compare"
        )
    machines = {_machine(run) for run in runs if run.provenance}
    if len(machines) > 1:
        remarks.append(
            "the jobs ran on different machines: speed-ups are each against the target on its own"
        )
    return (
        f'<div class="head"><h1>{esc(folder.name)}</h1>'
        f'<p class="target">{len(runs)}{known} jobs: {esc(told)}</p>{notes(remarks)}</div>'
    )


def _machine(run: Run) -> str:
    machine = run.provenance.get("machine") or {}
    return str({name: machine.get(name) for name in ("cpu", "gpus", "threads")})


def _origins(runs: Sequence[Run]) -> str:
    last = max(runs, key=lambda run: str(run.provenance.get("started") or ""))
    shared = f"<p>Of the job that began last, {esc(last.name)}:</p>"
    return shared + origin(last)
