"""The tables of docs/rivals.md, written from results/rivals.json alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from script_kit import markdown

from rivals.catalogue import OTHER_WEIGHTS, OURS
from rivals.figures import best_of

MARKS = ("<!-- rivals: written by make rivals -->", "<!-- end of rivals -->")
HEADINGS = (
    "",
    "tokens/s [95 %]",
    "over its own plain decoding [95 %]",
    "over semspec's plain decoding [95 %]",
    "tokens per CPU second",
    "tokens per pass",
    "CPU / wall",
    "same text as the reference",
    "same text as its own plain decoding",
)
VERDICTS = {"same": "yes", "rounding": "yes, except at ties", "differs": "**no**"}
Row = Mapping[str, Any]


def text(found: Mapping[str, Any]) -> str:
    """Return the text between the page's marks."""
    return "\n".join(line for part in found["workloads"].values() for line in _workload(part))


def _workload(part: Mapping[str, Any]) -> list[str]:
    rows: list[Row] = part["rows"]
    whole = [row for row in rows if "parity" in row]
    lines = [
        f"### {part['title']}",
        "",
        f"{part['problems']} problems, answers of at most {part['limit']} tokens, greedy, {part['repeats']} timed"
        f" rounds. {_machine(found=part)}",
        "",
        *markdown(HEADINGS, [_cells(row) for row in whole]),
        "",
        *_standing(whole),
        *[line for row in whole for line in _parted(row)],
        *[
            f"- {name(row)} could not be measured: {error}"
            for row in rows
            for error in row["errors"]
        ],
    ]
    return [*lines, ""]


def _machine(found: Mapping[str, Any]) -> str:
    machine = found["provenance"]["machine"]
    used = ", ".join(
        f"{rival} ({', '.join(f'{package} {version}' for package, version in versions.items())})"
        for rival, versions in found["versions"].items()
    )
    return f"{machine['cpu']}, one thread. Versions: {used}."


def name(row: Row) -> str:
    return f"{row['rival']}, {row['kind'] or 'plain'}"


def _cells(row: Row) -> list[str]:
    parity = row["parity"]
    same = f"{parity['same']} of {parity['of']}"
    if parity["reference"] == "rounding":
        same += "; the others differ at ties"
    return [
        name(row),
        _interval(row, "tokens_per_second", ".0f"),
        _interval(row, "over_own_plain", ".2f", "x") if row["kind"] else "",
        _interval(row, "over_our_plain", ".2f", "x"),
        f"{row['tokens_per_cpu_second']:.0f}",
        "" if row["tokens_per_pass"] is None else f"{row['tokens_per_pass']:.2f}",
        f"{row['cpu_per_wall']:.2f}",
        same,
        VERDICTS[parity["own"]] if row["kind"] else "",
    ]


def _interval(row: Row, field: str, form: str, unit: str = "") -> str:
    value, interval = row[field], row[f"{field}_interval"]
    if value is None:
        return ""
    shown = format(value, form) + unit
    return (
        shown if interval is None else f"{shown} [{', '.join(format(x, form) for x in interval)}]"
    )


def _standing(rows: Sequence[Row]) -> list[str]:
    """Return a sentence on which engines are faster than semspec, plain and at best."""
    plain = {row["rival"]: row for row in rows if not row["kind"]}
    best = {rival: row for rival in plain if (row := best_of(rows, rival)) is not None}
    lines = []
    for what, own in (("without drafts", plain), ("at its fastest", best)):
        if OURS not in own:
            continue
        ours = own[OURS]
        ahead = sorted((r for r in own.values() if r["tokens_per_second"] > ours["tokens_per_second"]),
                       key=lambda r: -r["tokens_per_second"])  # fmt: skip
        says = f"- semspec {what} ({ours['kind'] or 'plain'}): {ours['tokens_per_second']:.0f} tokens/s. "
        if not ahead:
            behind = max((r for r in own.values() if r is not ours), key=lambda r: r["tokens_per_second"], default=None)  # fmt: skip
            says += "No engine is faster" + (
                f"; the next is {_with_rate(behind)}." if behind else "."
            )
        else:
            says += f"**Faster**: {'; '.join(_with_rate(r) for r in ahead)}."
        lines.append(says)
    return lines


def _with_rate(row: Row) -> str:
    other = " (quantised weights)" if row["rival"] in OTHER_WEIGHTS else ""
    return f"{name(row)}{other}, at {row['tokens_per_second']:.0f}"


def _parted(row: Row) -> list[str]:
    """Return a line about texts that differ from the reference's other than by a tie."""
    parity, example = row["parity"], row["parity"]["example"]
    if parity["reference"] != "differs" or example is None:
        return []
    says = f"- {name(row)}: texts that differ from the reference: {parity['of'] - parity['same']} of {parity['of']}"
    if example["tokens"]:
        (ours, own), (a, b) = example["tokens"], example["log_probabilities"]
        says += (
            f". In {example['problem']}, after {example['parts']} tokens, it writes token {own}, which has log-probability {b:.3f}"
            f" under the reference, where the reference writes token {ours} ({a:.3f})"
        )
    return [f"{says}."]
