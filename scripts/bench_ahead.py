"""Drafting ahead where it can gain something: each model on a server of its own, in a process of its own.

    python -m semspec.launch accept=logprob start=true both_args="..."      # two servers
    python scripts/bench_ahead.py --target-url http://127.0.0.1:30000 --draft-url http://127.0.0.1:30001 \\
        [--temperature 0.6] [--problems 24] [--tokens 96] [--out runs/ahead.jsonl]

Every problem is solved by every configuration in turn. Without salvage, which needs distributions that a server
does not give. ``--show FILE...`` prints tables of what is there and writes docs/ahead.json; see survey.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from survey import Line, Survey, told, with_interval

from semspec.results.metrics import ratio_interval

MAIN = {
    "plain": ("draft=none", "accept=logprob"),
    "logprob": ("accept=logprob",),
    "logprob, ahead": ("accept=logprob", "ahead=true"),
}


def milliseconds(row: dict[str, Any]) -> str:
    seconds = row["seconds_per_round"]
    return ", ".join(f"{1000 * (seconds[p] or 0):.0f}" for p in ("draft", "verify", "write"))


def faster(row: dict[str, Any]) -> str:
    return with_interval("round_speedup", ".2f")(row) if row["round_speedup"] else ""


class Rounds(Survey):
    """Adds what a round takes without the target's own writing, which is as long as steps are unlucky."""

    def summary(self, lines: Sequence[Line]) -> list[Line]:
        rows = super().summary(lines)
        took = {(x["config"], x["id"]): _round(x) for x in lines}
        for row in rows:
            row["round_speedup"] = row["round_ms"] = None
            if not row["acceptance"]:  # all of it is the target's writing
                continue
            ids = [i for name, i in took if name == row["config"] and (self.baseline, i) in took]
            pairs = [(took[self.baseline, i], took[row["config"], i]) for i in ids]
            row["round_ms"] = 1000 * sum(own for _, own in pairs) / len(pairs)
            row["round_speedup"] = sum(p for p, _ in pairs) / sum(own for _, own in pairs)
            row["round_speedup_interval"] = ratio_interval(pairs)
        return rows


def _round(line: Line) -> float:
    seconds: float = line["seconds"] - line["write_seconds"]
    return seconds / line["rounds"]


SURVEY = Rounds(
    main=MAIN,
    few={},
    columns=(
        ("problems", lambda row: str(row["problems"])),
        ("speed-up over logprob [95 %]", with_interval("speedup", ".2f")),
        ("median", told("speedup_median", ".2f")),
        ("ms a round without writing", told("round_ms", ".0f")),
        ("faster [95 %]", faster),
        ("accepted", lambda row: f"{100 * row['acceptance']:.0f} %"),
        ("drafted and shown", told("drafted_tokens_per_draft_pass", ".2f")),
        ("ms a round: draft, verify, write", milliseconds),
    ),
    seed=20261208,  # of the problems: neither trained, calibrated nor evaluated on before
    json=Path("docs/ahead.json"),
    baseline="logprob",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], add_help=False)
    parser.add_argument("--target-url")
    parser.add_argument("--draft-url")
    parser.add_argument(
        "--tokens", type=int, default=512, help="of a problem: fewer measure speed alone"
    )
    given, rest = parser.parse_known_args()
    if not {"--show", "-h", "--help"} & set(rest) and not (given.target_url and given.draft_url):
        parser.error("name two servers with --target-url and --draft-url")
    common = (
        "engine=sglang",
        f"engine.target_url={given.target_url}",
        f"engine.draft_url={given.draft_url}",
        f"max_new_tokens={given.tokens}",
    )
    replace(SURVEY, common=common).main_program(__doc__, rest)


if __name__ == "__main__":
    sys.exit(main())
