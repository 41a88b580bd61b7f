"""Tables of arms, one row each, with intervals; for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from semspec.errors import UserError
from semspec.results import bound
from semspec.results.attempts import counted

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]


def _figure(name: str, form: str = ".2f", scale: float = 1, unit: str = "") -> Callable[[Row], str]:
    """Return a function that formats a figure; "" if it is None."""
    return lambda row: "" if row[name] is None else format(scale * row[name], form) + unit


def _interval(name: str, form: str, scale: float = 1, unit: str = "") -> Callable[[Row], str]:
    """Return a function that formats a figure with its interval: ``0.98 [0.97, 0.99]``."""

    def written(row: Row) -> str:
        value, interval = _figure(name, form, scale, unit)(row), row.get(f"{name}_interval")
        if not value or interval is None:  # one problem has no interval
            return value
        low, high = (format(scale * end, form) for end in interval)
        return f"{value} [{low}, {high}]"

    return written


def _quality(row: Row) -> str:
    return _interval("pass_at_1", ".2f")(row) + (" \\*" if row.get("differs") else "")


def _over(row: Row) -> str:
    return _interval("speedup", ".2f", unit="x")(row["over"]) if "over" in row else ""


def _reuse(part: str) -> Callable[[Row], str]:
    """Return a function that formats a part of ``reuse.figures``: one figure, or several shares."""

    def written(row: Row) -> str:
        found = (row["reuse"] or {}).get(part)
        if isinstance(found, Mapping):
            return " / ".join(f"{share:.2f}" for share in found.values())
        return "" if found is None else f"{found:.2f}"

    return written


def _sides(row: Row) -> str:
    """Return the shares of kept tokens by the bound's side that kept them, and the share of rare ones."""
    kept = (row.get("bound") or {}).get("kept")
    if kept is None:
        return ""
    shares = " / ".join(f"{kept[side]:.2f}" for side in bound.SIDES)
    return f"{shares} of {kept['nodes']:,}, {kept['rare']:.2f} rare"


def _milliseconds(row: Row) -> str:
    seconds = row["seconds_per_round"]
    return ", ".join(f"{1000 * (seconds[p] or 0):.0f}" for p in ("draft", "verify", "write"))


def _where_known(name: str, written: Callable[[Row], str]) -> Callable[[Row], str]:
    """Wrap ``written`` for a figure that some rows lack."""
    return lambda row: written({name: None, **row})


COLUMNS: dict[str, Column] = {  # by the name used in experiments
    "problems": (
        "problems",
        lambda row: counted(row) if "answers" in row else str(row["problems"]),
    ),
    "pass_at_1": ("pass@1 [95 %]", _interval("pass_at_1", ".3f")),
    "starred": ("pass@1 [95 %]", _quality),
    "gain": ("change, points", _interval("gain", "+.1f", 100)),
    "lost_won": ("lost / won", lambda row: f"{row['lost']} / {row['won']}"),
    "recovered": (
        "gap closed [95 %]",
        _where_known("recovered", _interval("recovered", ".0f", 100, " %")),
    ),
    "speedup": ("speed-up [95 %]", _interval("speedup", ".2f", unit="x")),
    "speedup_median": ("median", _figure("speedup_median", unit="x")),
    "ms_a_token": ("ms per token", _figure("ms_a_token", ".1f")),
    "speedup_a_token": ("speed-up per token [95 %]", _interval("speedup_a_token", ".2f", unit="x")),
    "over": ("over its counterpart [95 %]", _over),
    "acceptance": ("accepted", _figure("acceptance", ".0f", 100, " %")),
    "accept_length": ("tau", _figure("accept_length")),
    "tokens_per_target_pass": ("tokens per target pass", _figure("tokens_per_target_pass")),
    "cost_model": ("cost model", _figure("cost_model", unit="x")),
    "target_share": ("written by target", _figure("target_share", ".0f", 100, " %")),
    "target_passes": (
        "target passes",
        _where_known("target_passes", _figure("target_passes", ".0f")),
    ),
    "draft_passes": ("draft passes", _where_known("draft_passes", _figure("draft_passes", ".0f"))),
    "auroc": ("AUROC", _where_known("auroc", _figure("auroc"))),
    "kept_right": (
        "right steps kept",
        _where_known("kept_right", _figure("kept_right", ".0f", 100, " %")),
    ),
    "kept_wrong": (
        "wrong steps kept",
        _where_known("kept_wrong", _figure("kept_wrong", ".0f", 100, " %")),
    ),
    "overhead": ("time outside passes", _figure("overhead", ".1f", 100, " %")),
    "found": ("found", _reuse("found")),
    "origin": ("origin", _reuse("origin")),
    "reuse_rate": ("reuse rate", _reuse("rate")),
    "reuse_length": ("length", _reuse("length")),
    "round_ms": ("ms per round without writing", _figure("round_ms", ".0f")),
    "round_speedup": ("round speed-up [95 %]", _interval("round_speedup", ".2f", unit="x")),
    "shown": ("drafted tokens per draft pass", _figure("drafted_tokens_per_draft_pass")),
    "round_parts": ("ms per round: draft, verify, write", _milliseconds),
    "other_share": ("not the likeliest", _figure("other_share", ".3f")),
    "js_mean": ("mean JS, kept", _figure("js_mean", ".4f")),
    "js_other": ("mean JS, not the likeliest", _figure("js_other", ".3f")),
    "coverage": ("JS <= U", _interval("coverage", ".2f")),
    "thinking_saved": ("thinking saved", _figure("thinking_saved", ".0f", 100, " %")),
    "stop_harm": ("made wrong by stopping [95 %]", _interval("stop_harm", ".3f")),
    "pruned": ("rho", _where_known("pruned", _figure("pruned", ".1f", 100, " %"))),
    "sides": ("by embedding / logit / both", _sides),
}


def table(rows: Sequence[Row], names: Sequence[str], title: str) -> Table:
    shown = Table(title=title, title_justify="left")
    shown.add_column("", no_wrap=True)  # a row's name, whole, for whoever searches for it
    columns = [COLUMNS[name] for name in names]
    for heading, _ in columns:
        shown.add_column(heading, justify="right")
    for row in rows:
        shown.add_row(row["config"], *(write(row) for _, write in columns))
    return shown


def markdown(rows: Sequence[tuple[str, Row]], names: Sequence[str]) -> list[str]:
    """Return the lines of a table with one row for each (name, figures)."""
    columns = [COLUMNS[name] for name in names]
    headings = [heading for heading, _ in columns]
    lines = [f"| | {' | '.join(headings)} |", "|---" * (len(names) + 1) + "|"]
    for name, row in rows:
        lines.append(" | ".join([f"| {name}", *(write(row) for _, write in columns)]) + " |")
    return lines


def between(page: str, marks: tuple[str, str], text: str, name: str) -> str:
    """Return a page with the text between its marks replaced; raise UserError if a mark is missing."""
    before, found, rest = page.partition(marks[0])
    _, ended, after = rest.partition(marks[1])
    if not found or not ended:
        raise UserError(
            f"{name} has no {marks[0]} ... {marks[1]}: put both lines where the table shall be"
        )
    return f"{before}{marks[0]}\n{text}\n{marks[1]}{after}"
