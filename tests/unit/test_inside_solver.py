"""A solver over an engine that runs the loop itself, without SGLang: one query per problem, the same rounds as ever.

The engine here is engine=hf, which runs the package's loop on the embedded pair when it is given a whole problem.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from semspec.decoding.slices import sliced
from semspec.driver import Driver
from semspec.engines.hf import Hf
from semspec.errors import UserError
from semspec.loop import speculate
from semspec.sglang_plugin import protocol, rounds
from semspec.solver import Solution, Solver
from semspec.types import Answer, Context, Outcome, Query, What
from tests.support.pair import configuration

USUAL = ("temperature=0", "max_new_tokens=64", "accept=logprob", "draft=tiny", "split=paragraph")
LIKE = ("salvage=true", "nested=lm", "step_cap=64")
THERE = {
    "version": "1",
    "draft": "embedded/tiny-draft",
    "split": "paragraph",
    "width": 64,
    "rules": ["logprob"],
    "probes": {"target": "", "draft": ""},
}


class Alone:
    """A target that knows a loop by itself: that of a solver over both models."""

    def __init__(self, engine: Any, other: Solver) -> None:
        self.engine, self.other, self.inside = engine, other, THERE
        self.asked: list[Any] = []
        self.served, self.away, self.ended = "", 0, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        return [self._whole(query) for query in queries]

    def _whole(self, query: Query) -> Answer:
        ask = query.generate
        if ask is None or ask.inside is None:
            (answer,) = self.engine.answer([query])
            return answer  # type: ignore[no-any-return]
        self.asked.append(ask.inside)
        context = Context(10_000 + len(self.asked), query.context.tokens)
        problem = self.other.speculation(context, "0", "", ask.limit, [])
        (done,) = self.other.driver.run([(context, speculate(problem))])
        outcome: Outcome = done.value
        at, told = 0, []
        for one in outcome.rounds:
            told.append(json.loads(json.dumps(rounds.whole(one, at))))
            at += len(one.tokens)
        found = rounds.read({protocol.ROUNDS: told}, outcome.tokens)
        return Answer(tokens=outcome.tokens, finish="limit", rounds=found)


@pytest.fixture(scope="module")
def outside() -> Iterator[Solver]:
    with Solver(configuration(*USUAL, *LIKE)) as solver:
        yield solver


def solver_of(outside: Solver, monkeypatch: pytest.MonkeyPatch, inside: Any, *more: str) -> Solver:
    load = Hf.load
    monkeypatch.setattr(Hf, "inside", inside, raising=False)
    monkeypatch.setattr(Hf, "reaches", lambda self, role: role == "target")

    def loaded(
        self: Hf, folder: str, revision: Any = None, role: str = "target", probes: Any = ()
    ) -> Any:
        made = load(self, folder, revision, role, probes)
        return Alone(made, outside) if role == "target" else made

    monkeypatch.setattr(Hf, "load", loaded)
    return Solver(configuration(*USUAL, *more))


def solutions(solver: Solver, count: int = 2) -> list[Solution]:
    problems = list(islice(solver.config.benchmark.problems(), count))
    return list(solver.solve(problems, "speculative"))


def test_a_problem_is_one_question_and_its_rounds_are_kept(
    outside: Solver, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = solutions(outside)
    with solver_of(outside, monkeypatch, "auto", "max_repeats=3") as solver:
        found = solutions(solver)
        target: Any = solver.engines["target"]
        assert set(solver.engines) == {"target"} and len(target.asked) == 2
        assert target.asked[0] == {
            "accept": "logprob",
            "threshold": -4.0,
            "draft_length": 1,
            "nested_length": 5,
            "step_cap": 64,
            "max_repeats": 3,
        }
        assert solver.served == {"target's server": "inside it embedded/tiny-draft"}
        for one, other in zip(found, expected, strict=True):
            assert one.outcome.tokens == other.outcome.tokens and one.text == other.text
            assert one.outcome.rounds == [
                replace(done, seconds=mine.seconds, draft_seconds=mine.draft_seconds)
                for mine, done in zip(one.outcome.rounds, other.outcome.rounds, strict=True)
            ]
        problem = next(iter(solver.config.benchmark.problems()))
        assert [r.tokens for r in solver.stream(problem)] == [
            done.tokens for done in expected[0].outcome.rounds
        ]
        # in slices, as semspec.serve asks: it stays one question
        context, prompt = solver._context(problem)
        plan = speculate(solver.speculation(context, "0", prompt, 64, []))
        (done,) = Driver(solver.engines).run([(context, sliced(plan, 3))])
        assert done.value.tokens == expected[0].outcome.tokens and len(target.asked) == 4
        loose = solver.variant(
            draft_length=2, accept=configuration(*USUAL, "accept.threshold=-1").accept
        )
        assert solutions(loose, 1) and target.asked[-1]["threshold"] == -1.0
        with pytest.raises(UserError, match="inside the target's server, and accept=random"):
            solver.variant(accept=configuration("accept=random", "draft=tiny").accept)
        alone = list(solver.solve([problem], "plain"))
        assert len(alone[0].outcome.rounds) == 1 and len(target.asked) == 5


TOKENS = ("accept=lossless", "split=token", "draft_length=5")


def test_tokens_are_verified_by_a_server_that_drafts_and_the_rule_reads_nothing(
    outside: Solver, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [one.outcome.tokens for one in solutions(outside)]
    with solver_of(outside, monkeypatch, "auto", *TOKENS) as solver:
        target: Any = solver.engines["target"]
        found = solutions(solver)
        assert target.asked == [{"accept": "lossless"}] * 2 and set(solver.engines) == {"target"}
        # the engine of this file always writes by its own loop; nothing of it is judged again
        assert [one.outcome.tokens for one in found] == expected
    monkeypatch.undo()
    monkeypatch.setattr(Hf, "offers", Hf.offers - {What.PROBS})
    monkeypatch.setattr(Hf, "verifies", lambda self, setup: (True, ""))
    with pytest.raises(UserError, match="only a server that drafts can verify tokens losslessly"):
        solver_of(outside, monkeypatch, "auto", *TOKENS, "answer_by=target")


def test_true_refuses_what_auto_leaves_to_the_loop_outside(
    outside: Solver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="inside=true: the server's steps are split by"):
        solver_of(outside, monkeypatch, True, "split=sentence")
    monkeypatch.undo()
    monkeypatch.setattr(Hf, "reaches", lambda self, role: True)
    for inside, more in (("auto", ("split=sentence",)), (False, ())):
        with solver_of(outside, monkeypatch, inside, *more) as solver:
            assert solver.inside is None and set(solver.engines) == {"target", "draft"}
        monkeypatch.undo()
