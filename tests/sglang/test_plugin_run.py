"""SemanticSpec end to end: both probes inside SGLang decide as they do beside the hf engine."""

from __future__ import annotations

from itertools import islice

import pytest

from semspec.probes.inside import Inside
from semspec.solver import Solution, Solver
from tests.support import sglang_env
from tests.support.pair import configuration

PROBLEMS, LIMIT = 2, 120
SERVER = {**sglang_env.ENGINE_ARGUMENTS, "skip_tokenizer_init": True}


def solved(*overrides: str) -> dict[str, Solution]:
    made = configuration(
        *("accept=semantic", "temperature=0", f"max_new_tokens={LIMIT}", "draft_length=2"),
        *("concurrency=2", *overrides),
    )
    problems = list(islice(made.benchmark.problems(), PROBLEMS))
    with Solver(made) as solver:
        inside = made.engine.__class__.__name__ == "Sglang"
        assert isinstance(solver.rule.target, Inside) == inside
        assert isinstance(solver.rule.draft, Inside) == inside
        return {s.problem.id: s for s in solver.solve(problems, "speculative")}


def test_the_same_steps_are_accepted_for_the_same_scores() -> None:
    arguments = ",".join(f"{name}: {str(value).lower()}" for name, value in SERVER.items())
    expected = solved("engine=hf")
    found = solved("engine=sglang", f"+engine.server_args={{{arguments}}}")
    rejected = 0
    for problem, own in expected.items():
        rounds = found[problem].outcome.rounds
        assert [r.drafted for r in rounds] == [r.drafted for r in own.outcome.rounds]
        assert [r.kept for r in rounds] == [r.kept for r in own.outcome.rounds]
        for one, other in zip(rounds, own.outcome.rounds, strict=True):
            assert one.scores == pytest.approx(other.scores, abs=1e-4)
            rejected += len(one.kept) < len(one.drafted)
        assert found[problem].outcome.tokens == own.outcome.tokens
    assert rejected  # there was something to decide
