"""Describe an experiment before it runs, and show its tables beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from semspec.cli.reproduce_figures import Results, cell
from semspec.jobs.experiments import NAMES, SHARES, Cell, Experiment, Job, Scale
from semspec.report.terminal import DASH, number, percent, seconds, table_of


def plan_of(
    experiment: Experiment, scale: str, todo: Sequence[Job], first: Sequence[str] = ()
) -> list[Text]:
    """Describe what will be run, what it costs, and the commands to run ``first``."""
    setting = experiment.scale(scale)
    lines = [Text(experiment.title, "bold")]
    lines += [Text(f"first: {command}", "dim") for command in dict.fromkeys([*setting.first, *first])]  # fmt: skip
    if scale == "real":
        for block in setting.blocks:
            known = [job.hours for job in todo if job.block == block]
            lines.append(Text(f"{block}: {len(known)} runs, {_hours(known)}"))
        lines.append(
            Text(
                "GPU hours follow from the paper's seconds per problem, on its hardware and engine; they include"
                " the target's interleaved runs but not probes; engine=hf takes longer.",
                "dim",
            )
        )
        hours = _hours([job.hours for job in todo])
        lines.append(Text(f"in all: {len(todo)} runs, {hours}", "bold"))
    else:
        turns = ", those of a block in turn" if experiment.arms else ""
        lines.append(Text(f"{len(todo)} runs on {experiment.models}{turns}"))
    return lines + notes(setting)


def notes(setting: Scale) -> list[Text]:
    return [Text(f"note: {note}", "dim") for note in setting.notes]


def _hours(known: Sequence[float | None]) -> str:
    if None in known:
        return "GPU hours unknown (the paper gives no times)"
    return f"about {sum(filter(None, known)):,.0f} GPU hours"


def beside(experiment: Experiment, scale: str, found: Results) -> RenderableType:
    """Return the paper's table beside ours for each block; our other blocks follow the first one's."""
    setting = experiment.scale(scale)
    names = [*setting.rows, *(row for rows in experiment.figures.values() for row in rows)]
    rows = list(dict.fromkeys(names))

    def measured(block: str) -> Table:
        known = [(row, found[block][row]) for row in rows if row in found[block]]
        cells = {r: [cell(experiment, r, own.get(c)) for c in setting.columns] for r, own in known}
        return _table(f"here: {block}", experiment, list(setting.columns), cells)

    others = [block for block in found if block not in experiment.figures]
    parts: list[RenderableType] = []
    for block, published in experiment.figures.items():
        cells = {row: experiment.published(block, row) for row in rows if row in published}
        tables = [_table(f"paper: {block}", experiment, list(experiment.real.columns), cells)]
        if block in found:
            tables.append(measured(block))
        while others:
            tables.append(measured(others.pop(0)))
        parts.append(Columns(tables, padding=(0, 3)))
    parts += [measured(block) for block in others]
    parts += [Text(f"paper: {claim}", "dim") for claim in experiment.claims]
    sizes = {r["problems"] for b in found.values() for row in b.values() for r in row.values()}
    if sizes and min(sizes) < 100 and not experiment.trains:  # trained probes have no intervals
        note = (
            "problems per cell: small differences may be chance; the file below has the intervals"
        )
        parts.append(Text(f"note: {min(sizes)} {note}", "dim"))
    return Group(*parts)


def _table(
    title: str, experiment: Experiment, columns: Sequence[str], cells: Mapping[str, Sequence[Cell]]
) -> Table:
    table = table_of("", "", *columns, words=2, title=title, title_justify="left")
    for column in table.columns[2:]:
        column.no_wrap = True
    metrics = experiment.table
    for row, listed in cells.items():
        shown = ("\n".join(_figure(m, cell.get(m)) for m in metrics) for cell in listed)
        table.add_row(row, Text("\n".join(NAMES[m] for m in metrics), "dim"), *shown)
    return table


def _figure(metric: str, value: float | None) -> str:
    if metric == "latency" and value is not None:
        return seconds(value) if value < 10 else f"{value:.1f}"
    if metric.startswith("speedup"):
        return number(value, 2, "x")
    if metric in ("draft_to_verify", "pruned") or metric.startswith("kept.all kept.coverage"):
        return DASH if value is None else f"{100 * value:.1f} %"
    if metric.startswith(SHARES) and metric != "reuse.length":
        return percent(value)
    if metric.startswith("kept."):
        return number(value, 4)
    if metric.endswith(".rows"):
        return number(value, 0)
    return number(value, 3 if metric == "pass_at_1" else 1 if "second" in metric else 2)
