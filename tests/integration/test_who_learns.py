"""Which solvers of a server learn together, and which rounds a pace is told of."""

from __future__ import annotations

from itertools import islice

import pytest

from semspec.decoding.budget import Adaptive
from semspec.decoding.budget_steps import AdaptiveSteps
from semspec.decoding.stopping import Stopping
from semspec.drafters.lm import LanguageModel
from semspec.loop import UNASKED, Speculation, speculate
from semspec.rules.lossless import Lossless
from semspec.solver import Solver
from semspec.splitters.token import TokenBoundary
from semspec.stops.none import NoStop
from semspec.types import Round
from tests.support.costs import economy, table
from tests.support.pair import configuration
from tests.support.words import Words, asked


def test_requests_with_another_rule_or_sampling_learn_apart() -> None:
    config = configuration("draft=tiny", "accept=logprob", "adaptive=true", "nested=lm")
    with Solver(config) as solver:
        for changes in ({"temperature": 0.2}, {"top_p": 0.9}):
            other = solver.variant(**changes)
            for who, mine in solver.pacing.economies.items():
                theirs = other.pacing.economies[who]
                assert theirs.beliefs is not mine.beliefs and theirs.costs is mine.costs
            assert other.variant(seed=3).pacing is other.pacing
        for changes in ({"seed": 3}, {"max_new_tokens": 9}):
            assert solver.variant(**changes).pacing is solver.pacing


def test_with_a_seed_nested_drafts_have_a_fixed_length_too() -> None:
    config = configuration("draft=tiny", "accept=logprob", "adaptive=true", "nested=lm")
    with Solver(config) as solver:
        steady = solver.steady()
        assert (solver.nested_length, steady.nested_length) == (16, 5)
        assert steady.nested_length == steady.config.lengths["nested_length"]


def test_the_target_s_own_answer_is_no_step_of_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is written in one piece, many times as long as a step."""
    told: list[Round] = []
    observe = AdaptiveSteps.observe

    def telling(pace: AdaptiveSteps, done: Round) -> None:
        told.append(done)
        observe(pace, done)

    monkeypatch.setattr(AdaptiveSteps, "observe", telling)
    config = configuration("accept=random", "accept.rate=1", "answer_by=target", "adaptive=true", "problems=2")  # fmt: skip
    with Solver(config) as solver:
        problems = list(islice(config.benchmark.problems(), 2))
        solved = list(solver.solve(problems, "speculative"))
        said = ["".join(map(solver.text.piece, s.outcome.tokens)) for s in solved]
    rounds = [done for s in solved for done in s.outcome.rounds]
    assert all("</think>\n\n" in text for text in said)
    assert len(told) == len(rounds) - len(solved), "the last round of each is the answer"


@pytest.mark.parametrize("by_token", [True, False])
@pytest.mark.parametrize("asks", [True, False])
def test_a_stopper_is_asked_while_the_drafter_rests(by_token: bool, asks: bool) -> None:
    """What the target writes past the thinking's end is dropped, so it does not write many steps in a row."""
    words = Words()
    kit = words.kit(boundary=TokenBoundary) if by_token else words.kit()
    stopping = Stopping.of(NoStop(), "none", kit, kit.boundary, 400)
    if asks:
        stopping.boundary, stopping.thought.thinks = words.kit().boundary(), True
    one = economy(table(passing=1.0, fed=0.1, units=0.5), 0.05)
    one.written = one.drafted = 20.0
    one.bank = -20.0
    pace = (Adaptive if by_token else AdaptiveSteps)(economy=one, longest=1, cap=512)
    one.beliefs.learn([((), True)])
    for _ in range(200):
        one.beliefs.learn([(("before", "1", "1"), False), (("before", "1", "new"), False)])
    drafter = LanguageModel().open(kit)
    problem = Speculation(words.context(), kit, 500, drafter, Lossless().open(kit), pace, stopping=stopping)  # fmt: skip
    query = asked(speculate(problem))
    assert query.generate is not None and query.purpose == "write"
    row = query.generate.limit if by_token else query.generate.units
    assert row == (UNASKED if by_token else 1) if asks else row > UNASKED
