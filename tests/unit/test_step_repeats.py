"""A draft that repeats itself: the effect of ``max_repeats`` in the loop, by paragraphs and by sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from semspec.decoding.pace import Steady
from semspec.drafters.lm import LanguageModel
from semspec.driver import Driver
from semspec.engines.toy import ToyEngine
from semspec.loop import Speculation, speculate
from semspec.rules.logprob import LogProb
from semspec.types import Outcome, Role
from tests.support.words import Words

LOOPED = "repeats an earlier step"
ENDS = {"paragraph": "\n\n", "sentence": ""}
STEP, OWN = " So it is four then.", " So we try nine instead."


class Pair:
    """Two toy models that know one step each, word by word: the draft's, and the target's own."""

    def __init__(self, split: str, step: str = STEP) -> None:
        self.words, self.split = Words(), split
        self.step, self.own = (self.words.encode(text + ENDS[split]) for text in (step, OWN))
        self.prompt = self.words.encode("Q:")
        self.engines: dict[Role, ToyEngine] = {
            "draft": self._knowing(self.step, first=self.step[0]),
            # in a step that is not its own it goes on with the end of its own
            "target": self._knowing(self.own, first=self.own[0], lost=self.own[3]),
        }

    def _knowing(self, step: list[int], first: int, lost: int | None = None) -> ToyEngine:
        size = len(self.words.pieces)
        following = torch.full((size,), first if lost is None else lost)
        following[[*self.prompt, self.step[-1], self.own[-1]]] = first
        following[step[:-1]] = torch.tensor(step[1:])
        logits = torch.zeros(size, size, size)
        logits[:, range(size), following] = 9.0
        return ToyEngine(logits)

    def solve(self, max_repeats: int, length: int = 1, cap: int = 99) -> Outcome:
        kit = self.words.kit(split=self.split, max_repeats=max_repeats)
        kit = replace(kit, stop_ids=frozenset())
        context = self.words.context()
        drafter, rule = LanguageModel().open(kit), LogProb(threshold=-99).open(kit)
        plan = speculate(Speculation(context, kit, 60, drafter, rule, Steady(length, cap)))
        ((done),) = Driver(dict(self.engines)).run([(context, plan)])
        return done.value

    def said(self, outcome: Outcome) -> str:
        return self.words.decode(outcome.tokens)


@pytest.mark.parametrize("split", ENDS)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_step_is_written_only_as_often_as_allowed(split: str, length: int) -> None:
    pair = Pair(split)
    step, own = (text + ENDS[split] for text in (STEP, OWN))
    outcome = pair.solve(2, length)
    text = pair.said(outcome)
    assert text.startswith(step * 2 + own), "the third time the target writes a step of its own"
    assert text.count(STEP) == 2
    notes = [r.note for r in outcome.rounds if r.handed]
    assert len(notes) >= 5 and set(notes) == {LOOPED}
    assert pair.said(pair.solve(3, length)).startswith(step * 3 + own)
    free = pair.solve(0, length)
    assert pair.said(free).count(STEP) == 60 // len(pair.step), "nothing but the draft's"
    assert not any(r.note for r in free.rounds)


@pytest.mark.parametrize("split", ENDS)
@pytest.mark.parametrize("cap", [1, 2, 3, 4, 5, 6])
def test_a_step_that_is_drafted_in_parts_is_compared_whole(split: str, cap: int) -> None:
    """Also where a draft ends with a sentence and nothing has revealed that yet."""
    pair = Pair(split)
    outcome = pair.solve(2, cap=cap)
    assert pair.said(outcome).startswith((STEP + ENDS[split]) * 2)
    assert pair.said(outcome).count(STEP) == 2
    assert any(r.note == LOOPED for r in outcome.rounds)


@pytest.mark.parametrize("split", ENDS)
def test_a_step_of_four_tokens_can_be_a_loop(split: str) -> None:
    """Four tokens, of which a sentence's first is in the context before the others are drafted."""
    four = {"paragraph": " So it is.", "sentence": " So it is four."}[split]
    pair = Pair(split, four)
    assert len(pair.step) == 4 and pair.said(pair.solve(2)).count(four) == 2
    three = {"paragraph": " So it.", "sentence": " So it is."}[split]
    pair = Pair(split, three)
    assert len(pair.step) == 3 and pair.said(pair.solve(2)).count(three) == 20
