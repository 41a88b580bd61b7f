"""ConfSpec: the draft model is queried first, and the target only if the draft is unsure."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from semspec.drafters.prompt_lookup import PromptLookup
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.protocols import Setup
from semspec.rules.confspec import ConfSpec
from semspec.rules.judge import BEST
from semspec.types import Answer, Query, Sampling
from tests.support.words import Words, asked, finish


def says(words: Words, **shares: float) -> Answer:
    """An answer in which digits have these probabilities: ``_8=0.75``."""
    ids = [words.encode(f" {name[1:]}")[0] for name in shares]
    logprobs = torch.tensor(list(shares.values())).log()
    return Answer(values={BEST: (torch.tensor([ids]), logprobs[None])})


def test_the_target_is_asked_about_the_steps_that_the_draft_is_unsure_of_alone() -> None:
    words = Words()
    session = ConfSpec(sure=0.9, threshold=7).open(words.kit())
    draft = words.draft(" One.\n\n", " Two.\n\n", " Three.\n\n")
    plan = session.judge(words.context(" Zero.\n\n"), draft)
    first = asked(plan)
    assert (first.model, words.decode(first.tokens)) == ("draft", " One.\n\n ASIDE")
    # .5 * 9 + .5 * 8 = 8.5, over 9: .944, sure enough
    second = asked(plan, says(words, _9=0.5, _8=0.5))
    assert (second.model, words.decode(second.tokens)) == ("draft", " One.\n\n Two.\n\n ASIDE")
    # .75 * 8 + .25 * 4 = 7, over 9: .778, not sure
    third = asked(plan, says(words, _8=0.75, _4=0.25))
    assert (third.model, words.decode(third.tokens)) == ("target", " One.\n\n Two.\n\n ASIDE")
    fourth = asked(plan, says(words, _7=0.6, _1=0.4))  # the likeliest digit is 7: it stays
    assert fourth.model == "draft"
    fifth = asked(plan, says(words, _2=1.0))
    assert fifth.model == "target"
    verdict = finish(plan, says(words, _6=0.9, _9=0.1))
    assert verdict.keep == draft.ends[1]
    assert verdict.handover is not None and verdict.handover.units == 1
    assert verdict.scores == pytest.approx([8.5 / 9, 7 / 9, 2 / 9])
    assert verdict.note == "the target rated 2 of 3 steps"


def test_a_draft_that_is_sure_costs_the_target_nothing() -> None:
    words = Words()
    session = ConfSpec(sure=0.5).open(words.kit())
    draft = words.draft(" One.\n\n")
    plan = session.judge(words.context(), draft)
    query: Query = asked(plan)
    assert query.model == "draft"
    verdict = finish(plan, says(words, _9=1.0))
    assert (verdict.keep, verdict.handover) == (len(draft.tokens), None)


def test_other_drafts_than_a_small_models_are_refused() -> None:
    common: Any = {"engine": Toy(), "split": "paragraph", "sampling": Sampling()}
    with pytest.raises(UserError, match="use draft=lm"):
        ConfSpec().check_setup(Setup(drafter=PromptLookup(), rule=ConfSpec(), **common))


@pytest.mark.parametrize(
    ("options", "words"),
    [({"sure": -0.1}, "give 0 to 1"), ({"threshold": 10}, "0 to 9"), ({"score": "x"}, "digit or")],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ConfSpec(**options)
