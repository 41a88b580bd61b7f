"""The contract of every registered stopper; new ones are tested automatically."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.decoding.stopping import ENDED, SPENT, closing_text, kept_back
from semspec.splitters.paragraph import ParagraphBoundary
from semspec.types import Sampling
from tests.support.deep import samples
from tests.support.examples import (
    DRAFTERS,
    RULE_EXAMPLES,
    TOY,
    bound,
    bound_rule,
    engines,
    examples,
    kit_for,
    splits_of,
)
from tests.support.law import encode, piece
from tests.support.stopping import BUDGET, solved

MODELS = TOY.models()
STOPS = examples("stop")
# a split and a rule's example; None: the target alone
PAIRS: dict[str, tuple[str, str] | None] = {
    "the target alone": None,
    "tokens": ("token", "lossless-0"),
    "steps": ("paragraph", "logprob-0"),
}
STEP_RULES = [name for name, made in RULE_EXAMPLES.items() if "paragraph" in splits_of(made)]


def run_of(
    name: str | None, pair: tuple[str, str] | None, seed: int, temperature: float, budget: int
) -> Any:
    """Solve a problem with a stopper's example, or without; return outcome, stopping and stopper."""
    split, rule = pair or ("paragraph", "lossless-0")
    judges = bound_rule(rule, split, temperature) if pair else None
    drafter = DRAFTERS["lm"].cls()
    kit = kit_for(judges, seed, split=split, sampling=Sampling(temperature))
    stop = None if name is None else bound(STOPS[name], split, temperature)
    models = engines(drafter, judges) if judges else MODELS
    return (*solved(models, kit, (drafter, judges) if judges else None, stop, budget), stop)


TRIED = {
    "seed": st.integers(0, 10_000),
    "budget": st.integers(30, BUDGET),
    "temperature": st.sampled_from([0.0, 0.6, 1.0]),
}


@pytest.mark.parametrize("how", PAIRS)
@pytest.mark.parametrize("name", STOPS)
@settings(max_examples=12, deadline=None)
@given(**TRIED)
def test_a_stop_changes_nothing_before_it_and_leaves_room_for_an_answer(
    name: str, how: str, seed: int, budget: int, temperature: float
) -> None:
    check_stop(name, PAIRS[how], seed, budget, temperature)


@pytest.mark.parametrize("rule", STEP_RULES)
@pytest.mark.parametrize("name", [n for n, made in STOPS.items() if not made.plain])
@pytest.mark.deep(quick=True)
@settings(max_examples=samples(quick=3, deep=8), deadline=None)
@given(**TRIED)
def test_a_stop_changes_nothing_before_it_under_any_rule_for_steps(
    name: str, rule: str, seed: int, budget: int, temperature: float
) -> None:
    check_stop(name, ("paragraph", rule), seed, budget, temperature)


def test_the_rules_that_judge_steps_are_tried() -> None:
    tried = {name.rpartition("-")[0] for name in STEP_RULES}
    assert {"semantic", "judge", "cascade", "glimprouter", "logprob"} <= tried


def check_stop(
    name: str, pair: tuple[str, str] | None, seed: int, budget: int, temperature: float
) -> None:
    outcome, stopping, stop = run_of(name, pair, seed, temperature, budget)
    free, _, _ = run_of(None, pair, seed, temperature, budget)
    assert outcome.tokens == [token for done in outcome.rounds for token in done.tokens]
    assert len(outcome.tokens) <= budget
    assert run_of(name, pair, seed, temperature, budget)[0].tokens == outcome.tokens

    closings = [n for n, done in enumerate(outcome.rounds) if "closed" in done.stop]
    if not stopping.why:
        assert not closings and outcome.tokens == free.tokens
        return
    (at,) = closings
    before = [token for done in outcome.rounds[:at] for token in done.tokens]
    assert before == free.tokens[: len(before)], "the text before a stop depends on the stopper"
    words = encode(closing_text(stop.closing, stopping.at_end))
    assert outcome.rounds[at].tokens == words
    answer = outcome.tokens[len(before) + len(words) :]
    assert answer, "the answer is empty"
    kept = kept_back(stop.closing, budget)
    assert len(answer) >= kept or answer[-1] in MODELS["target"].stop_ids
    if stopping.why == ENDED:
        assert free.tokens[len(before)] in MODELS["target"].stop_ids
    elif stopping.why != SPENT:
        boundary = ParagraphBoundary(piece, 8)
        assert [boundary.feed(token) for token in before][-1] == 0, "it stops within a step"
    asked = [thought for done in outcome.rounds[:at] for thought, _ in done.stop.get("asked", [])]
    assert asked == sorted(set(asked))
    assert all(
        0 <= score <= 1 for done in outcome.rounds for _, score in done.stop.get("asked", [])
    )


@pytest.mark.parametrize("name", [n for n, made in STOPS.items() if not made.plain])
def test_an_example_of_a_stopper_stops(name: str) -> None:
    whys = [run_of(name, PAIRS["steps"], seed, 1.0, BUDGET)[1].why for seed in range(30)]
    decided = sum(why not in {"", SPENT, ENDED} for why in whys)
    assert 3 <= decided, whys
