"""A run over SGLang servers measures what queries cost there, and drafts by it (``adaptive=true``)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from semspec.decoding.costs import READ, Costs
from tests.support.processes import finished
from tests.support.sglang_servers import Pair

OPTIONS = ("split=token", "temperature=0", "problems=4", "max_new_tokens=160", "quiet=true")

pytestmark = pytest.mark.deep


def run(servers: Pair, folder: Path, *options: str) -> list[dict[str, Any]]:
    """Solve the problems over servers; return the problems with their rounds of drafting."""
    given = (*servers.overrides, *OPTIONS, *options, f"hydra.run.dir={folder}")
    done = finished([sys.executable, "-m", "semspec.run", *given])
    assert done.returncode == 0, done.stderr
    lines = (folder / "problems.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def table(folder: Path) -> Costs:
    return Costs.of(json.loads((folder / "costs.json").read_text(encoding="utf-8"))["costs"])


def drafts(folder: Path) -> list[tuple[str, int, list[int]]]:
    """Return what was drafted in each round with a draft, by problem."""
    rounds = map(json.loads, (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines())
    return [
        (one["id"], one["round"], one["drafted"])
        for one in rounds
        if one["mode"] == "speculative" and one["drafted"]
    ]


def test_each_request_has_a_price_and_lookups_that_bring_nothing_are_given_up(
    servers: Pair, tmp_path: Path
) -> None:
    solved = run(servers, tmp_path, "draft=suffix", "accept=greedy")
    costs = table(tmp_path)
    asked = costs.seconds("target", READ, 1)
    assert asked is not None and (token := costs.token()) is not None
    assert asked > 1.5 * token, "a request costs more than a token of a long row"
    assert sum(one["rounds"] for one in solved) < 0.2 * sum(one["tokens"] for one in solved)
    for one in solved:
        assert one["text"] == one["plain"]["text"]


def test_drafts_of_a_model_pay_and_a_recorded_table_repeats_them(
    servers: Pair, tmp_path: Path
) -> None:
    measured, *again = (tmp_path / name for name in ("measured", "again", "and-again"))
    solved = run(servers, measured, "draft=lm", "accept=logprob")
    drafted, tokens = (sum(one[name] for one in solved) for name in ("kept_tokens", "tokens"))
    assert drafted > tokens / 2
    for folder in again:
        run(servers, folder, "draft=lm", "accept=logprob", f"costs={measured}")
    first, second = map(drafts, again)
    assert first and first == second
