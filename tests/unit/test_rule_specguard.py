"""SpecGuard: where the draft model attended while it wrote, and how confident it was."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from semspec.drafters.lm import LanguageModel
from semspec.driver import Driver
from semspec.engines.hf import Hf
from semspec.errors import UserError
from semspec.models.location import ModelConfig
from semspec.rules.specguard import SpecGuard, grounding
from semspec.types import LOGPROBS, Context, Draft, Room, Sampling
from tests.support.words import Words, finish


def test_the_two_signals_are_joined_by_hand() -> None:
    """A prompt of two tokens and steps of two: positions 0 to 4, the last token's row is never drawn from."""
    words, rule = Words(), SpecGuard(beta=0.25, threshold=0.5)
    draft = words.draft(" One.\n\n", " Two.\n\n")
    weights = torch.tensor(
        [
            [0.5, 0.5, 0.0, 0.0, 0.0],  # the first token was drawn from here: all before the step
            [0.1, 0.3, 0.6, 0.0, 0.0],  # .4 of it before the step
            [0.2, 0.2, 0.2, 0.4, 0.0],  # before the second step
            [0.0, 0.1, 0.1, 0.0, 0.8],  # .2 of it
        ]
    )
    assert grounding(weights[:2], 2) == pytest.approx(0.4)
    assert grounding(weights[2:], 4) == pytest.approx(0.2)
    logprobs = torch.tensor([0.9, 0.8, 0.4, 0.9]).log()
    draft.evidence = {LOGPROBS: logprobs, rule.attention: weights[None]}
    verdict = finish(rule.open(words.kit()).judge(words.context(" a b"), draft))
    # .25 * .4 + .75 * .8 = .7 and .25 * .2 + .75 * .4 = .35
    assert verdict.scores == pytest.approx([0.7, 0.35])
    assert verdict.keep == draft.ends[0] and verdict.handover is not None


def test_scores_are_those_of_transformers_attention() -> None:
    """A step is drafted by the embedded draft model; its scores are worked out from transformers' own pass."""
    folder = ModelConfig(path="embedded/tiny-draft").fetch()
    slow = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()
    rule = SpecGuard(layers=2, beta=0.5)
    rng = random.Random(3)
    context = Context(1, [rng.randrange(5, 60) for _ in range(20)])
    words = Words()
    words.pieces = [f" w{i}" for i in range(slow.config.vocab_size)]
    kit = replace(words.kit(sampling=Sampling(1.0)), evidence=rule.evidence(), rng=rng)
    plan = LanguageModel().open(kit).draft(context, Room(9, 1, 9))
    (done,) = Driver({"draft": Hf(device="cpu").load(str(folder))}).run([(context, plan)])
    draft = done.value
    assert isinstance(draft, Draft) and len(draft.tokens) == 9
    verdict = finish(rule.open(words.kit()).judge(context, draft))
    ids = torch.tensor([[*context.tokens, *draft.tokens]])
    with torch.inference_mode():
        out = slow(ids, output_attentions=True)
    # averaged over the last two layers and all heads
    attention = torch.stack(out.attentions[-2:]).mean((0, 1, 2))
    rows = [19 + t for t in range(9)]
    held = min(float(attention[row, :20].sum()) for row in rows)
    logprobs = out.logits[0].log_softmax(-1)
    sure = min(float(logprobs[row, ids[0, row + 1]]) for row in rows)
    expected = 0.5 * held + 0.5 * float(torch.tensor(sure).exp())
    assert verdict.scores == pytest.approx([expected], abs=1e-4)


def test_what_was_copied_is_left_to_the_target() -> None:
    words = Words()
    session = SpecGuard(threshold=0.0).open(words.kit())
    verdict = finish(session.judge(words.context(), words.draft(" One.\n\n")))
    assert verdict.keep == 0 and verdict.handover is not None


@pytest.mark.parametrize("options", [{"threshold": 1.5}, {"beta": -0.1}, {"layers": 0}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        SpecGuard(**options)
