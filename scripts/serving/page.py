"""The figures of the server as tables of docs/measurements/serving.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from script_kit import markdown

from serving.overhead import KINDS, OVERHEAD
from serving.setups import TABLES

MARKS = "<!-- serving: written by make serving -->", "<!-- end of serving -->"
OVERHEAD_HEADINGS = (
    "answer length",
    "delivery",
    "questions",
    "ms without a server, median",
    "ms added, median",
    "added to the total time [95 %]",
)
HEADINGS = (
    "clients",
    "",
    "tokens/s",
    "over the target alone [95 %]",
    "first token, s: median (90th percentile)",
    "right answers",
)


def text(found: Mapping[str, Any]) -> str:
    """Return the text between the page's marks."""
    machine = found["provenance"]["machine"]
    lines = []
    if over := found.get(OVERHEAD):
        lines += ["**What the server adds** to the same run without a server, one answer at a time" + _of(over[0]) + ":", ""]  # fmt: skip
        lines += [*markdown(OVERHEAD_HEADINGS, [_over_cells(one) for one in over]), ""]
    older = " (for tables measured earlier, see there)" * any("revision" in row for row in found["load"])  # fmt: skip
    lines += [f"Machine: {machine['cpu']}, {machine['cores']} cores{older}. {_turns(found['load'])}.", ""]  # fmt: skip
    for name, table in TABLES.items():
        if rows := [row for row in found["load"] if row["table"] == name]:
            lines += [
                f"**{table.title}**; questions per client and turn: {_asked(rows)}"
                + _revisions(rows),
                "",
                *markdown(HEADINGS, [_cells(row) for row in rows]),
                "",
            ]
    if found["lacking"]:
        lines += [f"Not measured: {'; '.join(found['lacking'])}."]
    return "\n".join(lines).rstrip("\n")


def _of(one: Mapping[str, Any]) -> str:
    """Return the note on a table that was not measured again."""
    return f" (measured at revision {_earlier(one)})" if "revision" in one else ""


def _earlier(one: Mapping[str, Any]) -> str:
    """Return the revision that figures were measured at, and on which machine."""
    return f"{one['revision'][:10]} on {one['machine']}"


def _revisions(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the note on the rows of a table that were not measured again."""
    of = {row["clients"]: _earlier(row) if "revision" in row else "" for row in rows}
    if len(set(of.values())) == 1:
        return _of(rows[0])
    notes = (
        f"{' and '.join(str(n) for n, own in of.items() if own == earlier)} clients at {earlier}"
        for earlier in dict.fromkeys(of.values())
        if earlier
    )
    return f" (measured at an earlier revision: {'; '.join(notes)})"


def with_earlier(found: dict[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return figures that include the rows not measured again, each with its revision and machine."""
    if before is None:
        return found
    made = before["provenance"]
    earlier = {"revision": made["git"]["revision"], "machine": made["machine"]["cpu"]}
    measured = {(row["table"], row["clients"]) for row in found["load"]}
    rows = [
        {**earlier, **row}
        for row in before["load"]
        if (row["table"], row["clients"]) not in measured
    ]
    names = list(TABLES)
    load = sorted(
        [*found["load"], *rows], key=lambda row: (names.index(row["table"]), row["clients"])
    )
    over = found[OVERHEAD] or [{**earlier, **row} for row in before.get(OVERHEAD, [])]
    known = {f"{row['table']}, {row['clients']} clients" for row in rows}
    lacking = [
        part
        for part in found["lacking"]
        if part.partition(":")[0] not in known and not (over and part.startswith(OVERHEAD))
    ]
    return {**found, OVERHEAD: over, "load": load, "lacking": lacking}


def _asked(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many questions each client asked in a turn, from the number of answers."""
    asked = {row["answers"] // (row["turns"] * row["clients"]) for row in rows}
    return " to ".join(str(n) for n in sorted({min(asked), max(asked)}))


def _turns(rows: Sequence[Mapping[str, Any]]) -> str:
    counts = {row["turns"] for row in rows}
    if len(counts) < 2:
        return f"{max(counts, default=0)} turns"
    return f"{min(counts)} to {max(counts)} turns"


def _over_cells(over: Mapping[str, Any]) -> list[str]:
    ends = (100 * (end - 1) for end in over["ratio_interval"])
    return [
        f"{over['length']} tokens" if over["length"] else "until the model stops",
        KINDS[over["kind"]],
        f"{over['problems']}, each {over['turns']} times",
        f"{1000 * over['seconds']:.0f}",
        f"{over['milliseconds']:+.1f}",
        f"{100 * (over['ratio'] - 1):+.1f} % [{', '.join(f'{end:+.1f}' for end in ends)}]",
    ]


def _cells(row: Mapping[str, Any]) -> list[str]:
    ends = row["ratio_interval"]
    spoken = f"{row['ratio']:.2f}x" + (f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "")
    return [
        str(row["clients"]),
        row["arm"],
        f"{row['tokens_per_second']:.0f}",
        "" if row["arm"] == "target alone" else spoken,
        f"{row['first']:.2f} ({row['first_p90']:.2f})",
        f"{row['right']:.2f} of {row['answers']}",
    ]
