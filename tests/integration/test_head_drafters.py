"""The shipped heads on the embedded pair write the target's own text in fewer passes."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from semspec.solver import Solver
from tests.support.pair import configuration

COMMON = ("temperature=0", "split=token", "benchmark.seed=77", "plain=true")
WAYS: dict[str, tuple[tuple[str, ...], float]] = {
    "eagle3 chain": (("draft=eagle3", "draft.tree=chain", "draft_length=4"), 3.0),
    "eagle3 tree": (("draft=eagle3", "draft.tree_nodes=16"), 3.5),
    "medusa tree": (("draft=medusa", "draft.tree_nodes=16"), 1.5),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("accept", ["lossless", "greedy"])
def test_greedy_text_is_the_targets_own(way: str, accept: str) -> None:
    arguments, least = WAYS[way]
    config = configuration(*COMMON, f"accept={accept}", *arguments)
    problems = list(islice(config.benchmark.problems(), 2))
    with Solver(config) as solver:
        plain = [s.outcome for s in solver.solve(problems, "plain", budget=80)]
        fast = [s.outcome for s in solver.solve(problems, "speculative", budget=80)]
    assert [o.tokens for o in fast] == [o.tokens for o in plain]
    rounds = [r for o in fast for r in o.rounds if r.drafted]
    gained = sum(len(r.kept) + len(r.written) for r in rounds) / len(rounds)
    assert gained > least, f"{way}: {gained:.2f} tokens a verification"


def test_the_targets_own_steps_are_written_with_a_head() -> None:
    """nested=eagle3: after a handover there are positions that it never saw, and asks for."""
    options = ["split=paragraph", "accept=random", "accept.rate=0.5", "temperature=0"]
    config = configuration(*options, "nested=eagle3", "benchmark.seed=77")
    plain: Any = configuration(*options, "benchmark.seed=77")
    texts = []
    for one in (config, plain):
        with Solver(one) as solver:
            problems = list(islice(one.benchmark.problems(), 1))
            (solved,) = solver.solve(problems, "speculative", budget=120)
            texts.append(solved.text)
            nested = sum(r.nested_kept for r in solved.outcome.rounds)
        assert (nested > 10) == (one is config)
    assert texts[0] == texts[1]
