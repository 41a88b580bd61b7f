"""The contract of every stopper in the registry: a new one is tested without being named."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec import registry
from semspec.decoding.stopping import ENDED, SPENT, closing_text, kept_back
from semspec.engines.toy import Toy
from semspec.models.location import EXAMPLE, EXAMPLE_VOCABULARY
from semspec.protocols import Run
from semspec.splitters.paragraph import ParagraphBoundary
from semspec.types import Sampling
from tests.support.law import encode, piece, toy_kit
from tests.support.stopping import BUDGET, solved

TOY = Toy(vocabulary=EXAMPLE_VOCABULARY, stop=True)
MODELS = TOY.models()
PAIRS = {
    "the target alone": None,
    "tokens": ("token", "lossless"),
    "steps": ("paragraph", "logprob"),
}


def new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="semspec-example-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


EXAMPLES = {
    f"{name}-{number}": made
    for name, plugin in registry.plugins("stop").items()
    for number, made in enumerate(plugin.cls.example(new_folder()))
}


def bound(made: Any, split: str, temperature: float) -> Any:
    run = Run(
        models={"target": EXAMPLE, "draft": EXAMPLE},
        split=split,
        sampling=Sampling(temperature),
        offers=TOY.offers,
        drafts="draft",
    )
    return made.bind(run)


def run_of(name: str | None, how: str, seed: int, temperature: float, budget: int) -> Any:
    known = PAIRS[how]
    split, rule = known or ("paragraph", "lossless")
    pair = known and (registry.plugin("drafter", "lm").cls(), registry.plugin("accept", rule).cls())
    kit = toy_kit(pair[1] if pair else None, MODELS["target"], Sampling(temperature), seed, split)
    stop = None if name is None else bound(EXAMPLES[name], split, temperature)
    return (*solved(MODELS, kit, pair or None, stop, budget), stop)


@pytest.mark.parametrize("how", PAIRS)
@pytest.mark.parametrize("name", EXAMPLES)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    budget=st.integers(30, BUDGET),
    temperature=st.sampled_from([0.0, 0.6, 1.0]),
)
def test_a_stop_changes_nothing_before_it_and_leaves_room_for_an_answer(
    name: str, how: str, seed: int, budget: int, temperature: float
) -> None:
    outcome, stopping, stop = run_of(name, how, seed, temperature, budget)
    free, _, _ = run_of(None, how, seed, temperature, budget)
    assert outcome.tokens == [token for done in outcome.rounds for token in done.tokens]
    assert len(outcome.tokens) <= budget
    assert run_of(name, how, seed, temperature, budget)[0].tokens == outcome.tokens

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


@pytest.mark.parametrize("name", [n for n, made in EXAMPLES.items() if not made.plain])
def test_an_example_of_a_stopper_stops(name: str) -> None:
    whys = [run_of(name, "steps", seed, 1.0, BUDGET)[1].why for seed in range(30)]
    decided = sum(why not in {"", SPENT, ENDED} for why in whys)
    assert 3 <= decided, whys
