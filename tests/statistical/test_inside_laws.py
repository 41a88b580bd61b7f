"""Step rules inside SGLang: texts have the loop's law, request by request.

The loop's law is summed exactly over all steps that could be drafted. The tests count the tokens that a pass tells SGLang to
keep; ``tests/sglang/test_inside.py`` shows that SGLang keeps them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import chisquare
from torch import Tensor

from semspec.decoding.sampling import draw, probabilities
from semspec.engines.toy import Toy, ToyEngine
from semspec.rules.logprob import LogProb
from semspec.sglang_plugin.payoff import Payoff, Proposed
from semspec.sglang_plugin.steps import Steps
from semspec.types import Sampling
from tests.support.deep import samples
from tests.support.inside import Asked, drafts_of, run, steps
from tests.support.law import PROMPT, Unit

SURE = 1e-4
SAMPLES = samples(quick=1_000, deep=2_000)
pytestmark = pytest.mark.deep(quick=True)
TOY = Toy(vocabulary=4, seed=3, likeness=0.3)
STOPPING = Toy(vocabulary=4, seed=3, stop=True, likeness=0.3)
CAP, LENGTH, THRESHOLD = 2, 4, -1.6  # in the toy world no step of two tokens ends before its cap


def judged_by(target: ToyEngine, threshold: float) -> Callable[[Unit, Unit], bool]:
    def accept(context: Unit, unit: Unit) -> bool:
        text = (*context, *unit)
        rows = [target.logits[text[i - 2], text[i - 1]] for i in range(len(context), len(text))]
        chances = [row.log_softmax(-1)[t] for row, t in zip(rows, unit, strict=True)]
        return bool(min(chances) >= threshold)

    return accept


def law_of(
    toy: Toy, sampling: Sampling, threshold: float, drafted: float = 1.0
) -> dict[Unit, float]:
    """The draft's step where the rule accepts it; else one of the target's, whatever was drafted.

    ``drafted``: the chance that there is a draft at all.
    """
    models = toy.models()
    target, draft = models["target"], models["draft"]
    accept = judged_by(target, threshold)
    law: Counter[Unit] = Counter()

    def go(output: Unit, chance: float) -> None:
        if len(output) >= LENGTH or (output and output[-1] in target.stop_ids):
            law[output] += chance  # type: ignore[assignment]
            return
        context = (*PROMPT, *output)
        q = draft.law(context, CAP, sampling)
        p = target.law(context, CAP, sampling)
        q = {unit: drafted * own for unit, own in q.items()}
        rejected = 1 - sum(own for unit, own in q.items() if accept(context, unit))
        for unit in set(q) | set(p):
            own = q.get(unit, 0.0) if accept(context, unit) else 0.0
            go((*output, *unit), chance * (own + rejected * p.get(unit, 0.0)))

    go((), 1.0)
    return {output: chance for output, chance in law.items() if chance > 0}


def p_value(
    toy: Toy,
    asked: Steps,
    sampling: Sampling,
    law: Mapping[Unit, float],
    payoff: Any = None,
    together: int = 50,
    away: random.Random | None = None,
    **more: Any,
) -> float:
    """``away``: by its coins requests leave the batch behind a pass and come back."""
    target, drafts = toy.models()["target"], drafts_of(toy, 1 + 2 * CAP)
    if away is not None:

        def interrupted(one: Asked, gained: list[int], rows: Tensor) -> list[int]:
            if away.random() < 0.5:
                drafts.erase_match_state([one.rid])
            return gained

        more["changed"] = interrupted
    if payoff is not None:
        drafts.payoff, drafts.may_drop = payoff, True
        drafts.options = replace(drafts.options, adaptive="steps")
    requests = [
        Asked(str(i), list(PROMPT), LENGTH, asked, sampling, seed=i) for i in range(SAMPLES)
    ]
    outputs: Counter[Unit] = Counter()
    for start in range(0, SAMPLES, together):
        outputs.update(map(tuple, run(drafts, target, requests[start : start + together], **more)))
    assert set(outputs) <= set(law) or more
    common = [o for o, chance in law.items() if chance * SAMPLES >= 5]
    observed = [outputs[o] for o in common]
    expected = [law[o] * SAMPLES for o in common]
    rest = SAMPLES - sum(observed), SAMPLES - sum(expected)
    if rest[1] > 1:
        observed, expected = [*observed, rest[0]], [*expected, rest[1]]
    scale = sum(observed) / sum(expected)
    return float(chisquare(observed, [e * scale for e in expected]).pvalue)


@pytest.mark.parametrize(
    ("toy", "draft_length", "sampling"),
    [
        (TOY, 1, Sampling(0.8)),
        (STOPPING, 1, Sampling(1.2, min_p=0.2)),
        (STOPPING, 2, Sampling(0.8)),
    ],
    ids=["alone", "stops", "two"],
)
def test_steps_have_the_law_of_the_loop(toy: Toy, draft_length: int, sampling: Sampling) -> None:
    law = law_of(toy, sampling, THRESHOLD)
    asked = steps(LogProb(threshold=THRESHOLD), draft_length=draft_length, step_cap=CAP)
    assert p_value(toy, asked, sampling, law) > SURE


@pytest.mark.parametrize("threshold", [THRESHOLD, 0.0])
def test_what_was_drawn_before_an_interruption_is_not_drawn_again(threshold: float) -> None:
    """A loop that begins behind a text has other random numbers than the one that wrote it."""
    sampling = Sampling(0.8)
    law = law_of(TOY, sampling, threshold)
    asked = steps(LogProb(threshold=threshold), step_cap=CAP)
    assert p_value(TOY, asked, sampling, law, away=random.Random(4)) > SURE


def test_a_rule_that_rejects_everything_leaves_the_target_s_law() -> None:
    sampling = Sampling(0.8)
    law = {o: p for o, p in TOY.models()["target"].law(PROMPT, LENGTH, sampling).items() if p > 0}
    asked = steps(LogProb(threshold=0.0), step_cap=CAP)
    assert p_value(TOY, asked, sampling, law) > SURE


class AtTimes(Payoff):
    """Drafts by a coin."""

    def __init__(self) -> None:
        super().__init__()
        self.coins = random.Random(2)

    def pays(self, drafts: Sequence[Proposed]) -> bool:
        return self.coins.random() < 0.5


def test_steps_that_are_not_drafted_are_the_target_s() -> None:
    """Whatever makes that choice looks at the past; a coin for each pass, and each request by itself."""
    sampling = Sampling(0.8)
    asked = steps(LogProb(threshold=THRESHOLD), step_cap=CAP)
    law = law_of(TOY, sampling, THRESHOLD, drafted=0.5)
    assert p_value(TOY, asked, sampling, law, AtTimes(), 1) > SURE
    always = law_of(TOY, sampling, THRESHOLD)
    assert p_value(TOY, asked, sampling, always, AtTimes(), 1) < SURE


def test_a_token_of_the_target_behind_each_kept_step_is_found_at_once() -> None:
    """SGLang's own verification adds one to whatever it keeps: here that is another law."""
    sampling, rng = Sampling(0.8), random.Random(0)
    target = TOY.models()["target"]

    def and_one_more(one: Asked, gained: list[int], rows: Tensor) -> list[int]:
        row = target.logits[tuple([*one.prompt, *one.output, *gained][-2:])]
        return [*gained, draw(probabilities(row, sampling), rng.random())]

    often = -4.0  # most steps pass: what the target writes of a rejected one has its law anyway
    law = law_of(TOY, sampling, often)
    asked = steps(LogProb(threshold=often), step_cap=CAP)
    assert p_value(TOY, asked, sampling, law) > SURE
    assert p_value(TOY, asked, sampling, law, changed=and_one_more) < 1e-12
