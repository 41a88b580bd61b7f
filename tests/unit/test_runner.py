"""The order in which a run solves its problems, and what it counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from semspec import in_turn, runner
from semspec.protocols import BenchmarkProblem
from semspec.results.records import Mode, RunFolder
from semspec.runner import execute
from semspec.solver import Solution, Solver
from tests.support.pair import configuration

WARM, LIMIT = 6, 14  # tokens: one can be told from the other


@pytest.mark.parametrize(("concurrency", "count"), [(1, 3), (2, 5)])
def test_modes_take_turns_and_the_warm_up_is_in_no_line(
    concurrency: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same problems in the same run, neither always first: what speed-ups rest on."""
    calls: list[tuple[str, tuple[str, ...], int | None]] = []
    outcomes: dict[tuple[str, str], Solution] = {}

    class Recorded(Solver):
        def solve(
            self, problems: Sequence[BenchmarkProblem], mode: Mode, budget: int | None = None
        ) -> Iterator[Solution]:
            calls.append((mode, tuple(p.id for p in problems), budget))
            for done in super().solve(problems, mode, budget):
                if budget is None:
                    outcomes[done.problem.id, mode] = done
                else:
                    assert len(done.outcome.tokens) <= budget
                yield done

    monkeypatch.setattr(runner, "Solver", Recorded)
    monkeypatch.setattr(in_turn, "WARM_UP_TOKENS", WARM)
    options = ("draft=prompt_lookup", "accept=greedy", "split=token", "temperature=0", "quiet=true")
    sizes = (f"problems={count}", f"max_new_tokens={LIMIT}", f"concurrency={concurrency}")
    config = configuration(*options, *sizes)
    result = execute(config, {"accept": "greedy"}, tmp_path)

    ids = [
        problem.id for problem, _ in zip(config.benchmark.problems(), range(count), strict=False)
    ]
    groups = [tuple(ids[i : i + concurrency]) for i in range(0, count, concurrency)]
    turns = [
        [("plain", group), ("speculative", group)][:: -1 if number % 2 else 1]
        for number, group in enumerate(groups)
    ]
    warm = [("plain", (ids[0],), WARM), ("speculative", (ids[0],), WARM)]
    assert calls == [*warm, *((mode, group, None) for turn in turns for mode, group in turn)]

    folder = RunFolder(tmp_path)
    lines = list(folder.problem_lines())
    assert [line["id"] for line in lines] == ids
    for line in lines:
        for mode, solve in (("plain", line["plain"]), ("speculative", line)):
            outcome = outcomes[line["id"], mode].outcome
            assert solve["tokens"] == len(outcome.tokens)
            if concurrency == 1:  # beside others: a share of the group's
                assert solve["wall"] == pytest.approx(outcome.seconds)
            rounds = list(folder.round_lines(line["id"], mode))
            assert len(rounds) == len(outcome.rounds)
        assert line["tokens"] == line["plain"]["tokens"] == LIMIT > WARM
    assert result["problems"] == result["plain"]["problems"] == count

    (start,) = folder.starts()  # told before the engine set its threads
    assert start["machine"]["threads"] is None
    assert json.loads((tmp_path / "result.json").read_text())["provenance"]["machine"]["threads"]
