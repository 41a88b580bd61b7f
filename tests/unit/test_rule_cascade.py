"""The cascade: steps that the draft is sure of are not verified, and one risk covers both thresholds."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from semspec.artifacts.risk import RiskCalibration
from semspec.calibration.cascade import SETTLED, certify_cascade, quantile_above
from semspec.calibration.risk import certify, upper_bound
from semspec.cli import calibrate_risk
from semspec.cli.calibrate_risk import Judged
from semspec.errors import UserError
from semspec.models.location import EXAMPLE
from semspec.rules.cascade import Cascade, CascadeSession
from semspec.rules.logprob import LogProb
from semspec.splitters.token import TokenBoundary
from semspec.types import LOGPROBS, PROBS, Answer, Draft, Verdict
from tests.support.binding import run_of
from tests.support.words import Words, asked, finish


def thought(draft: Draft, *logprobs: float) -> Draft:
    draft.evidence = {LOGPROBS: torch.tensor(logprobs)}
    return draft


def test_a_step_that_the_draft_is_sure_of_stays_unread() -> None:
    words = Words()
    draft = thought(words.draft(" One two.\n\n"), -0.1, -0.6, -0.2)
    session = Cascade(sure=-0.7).open(words.kit())
    verdict = finish(session.judge(words.context(), draft))
    assert (verdict.keep, verdict.handover) == (3, None)
    assert verdict.scores == [pytest.approx(-0.6)] and verdict.note == "unread"


def test_the_target_reads_a_draft_once_if_the_draft_was_unsure_of_any_step() -> None:
    words = Words()
    units = " One.\n\n", " Two.\n\n", " Three.\n\n"
    draft = thought(words.draft(*units), -0.1, -0.1, -0.9, -0.1, -3.0, -0.1)

    def judged(session: CascadeSession, *logprobs: float) -> Verdict:
        plan = session.judge(words.context(), draft)
        query = asked(plan)
        assert (query.model, list(query.tokens)) == ("target", draft.tokens)
        assert query.reads == (LOGPROBS,)
        return finish(plan, Answer(values={LOGPROBS: torch.tensor(logprobs)}))

    session = Cascade(sure=-0.7, threshold=-4.0).open(words.kit())
    verdict = judged(session, -3.9, 0.0, -3.9, 0.0, -9.0, 0.0)
    assert verdict.keep == draft.ends[1]
    assert verdict.handover is not None and verdict.scores == pytest.approx([-0.1, -0.9, -3.0])
    # of what it has read the target alone decides, also where the draft was sure
    assert judged(session, -9.0, 0.0, -3.9, 0.0, -9.0, 0.0).keep == 0
    # a certificate is over all steps of which the draft is sure, read or not
    certified = CascadeSession(words.kit(), -0.7, -4.0, certified=True)
    assert judged(certified, -9.0, 0.0, -3.9, 0.0, -9.0, 0.0).keep == draft.ends[1]


def test_a_draft_of_tokens_is_unread_as_a_whole_or_read_as_a_whole() -> None:
    """With ``split=token`` each token is a step: one doubt has the target judge all of them, and write the next."""
    words = Words()
    kit = replace(words.kit(), boundary=TokenBoundary, salvage=True)
    text = words.draft(" One two three")
    tokens = text.tokens

    def drafted(*logprobs: float) -> Draft:
        return thought(Draft(list(tokens), list(range(1, len(tokens) + 1))), *logprobs)

    session = Cascade(sure=-1.0).open(kit)
    unread = finish(session.judge(words.context(), drafted(-0.9, -0.1, -0.9)))
    assert (unread.keep, unread.note) == (3, "unread")
    plan = session.judge(words.context(), drafted(-0.9, -0.1, -1.1))
    assert set(asked(plan).reads) == {LOGPROBS, PROBS}
    other = (tokens[1] + 1) % len(words.pieces)
    rows = torch.zeros(4, len(words.pieces))
    rows[0, tokens[0]] = rows[1, other] = rows[2, tokens[2]] = rows[3, 0] = 1.0
    answer = Answer(values={LOGPROBS: torch.tensor([-0.1, -9.0, -0.1]), PROBS: rows})
    verdict = finish(plan, answer)
    # the second is refused though the draft was sure of it; the target's token comes from the same pass
    assert (verdict.keep, verdict.write) == (1, [other])


def test_what_was_copied_is_read() -> None:
    words = Words()
    plan = Cascade().open(words.kit()).judge(words.context(), words.draft(" One.\n\n"))
    assert asked(plan).model == "target"


# ---- the risk over the whole cascade --------------------------------------------------------------------


def steps(count: int, seed: int = 0) -> tuple[list[float], list[float], list[float], list[int]]:
    """Steps of which a tenth is wrong; the draft's score tells them less well than the target's."""
    rng = random.Random(seed)
    wrong = [rng.random() < 0.1 for _ in range(count)]
    drafts = [-rng.expovariate(0.2 if bad else 2.0) for bad in wrong]
    scores = [-rng.expovariate(0.08 if bad else 3.0) for bad in wrong]
    return drafts, scores, [0.0 if bad else 0.9 for bad in wrong], list(range(count))


def test_quantiles_settle_ties_together_or_not_at_all() -> None:
    assert quantile_above([-3, -1, -2, -4], 0.5) == -2
    assert (
        quantile_above([-3, -1, -1, -1], 0.5) == SETTLED
    )  # three are tied, and two may be settled
    assert quantile_above([-3, -1, -1, -2], 0.5) == -1
    assert quantile_above([-3, -1], 0) == SETTLED
    assert quantile_above([-1, -1], 1) == -1


def test_a_cascade_is_certified_by_hand() -> None:
    """80 steps, one of each problem: 40 that the draft is sure of, all right, and 40 of which half are wrong.

    Half of the wrong ones the draft is least sure of, so that .9 and .75 settle wrong ones.
    """
    drafts = [-0.1] * 40 + [-2.0] * 20 + [-1.0] * 20
    scores = [-5.0] * 40 + [-1.0] * 20 + [-8.0] * 20
    semantic = [0.9] * 60 + [0.0] * 20
    found = certify_cascade(drafts, scores, semantic, list(range(80)), risk=0.12, least=0.05)
    # the draft's quantile at a half; then the target's 20 right ones, and none of the wrong ones
    assert (found.sure, found.threshold) == (-0.1, -1.0)
    assert (found.settled, found.accepted, found.steps, found.wrong) == (0.5, 0.75, 60, 0)
    # a fifth of delta for a share, a third of that for a sequence
    assert found.bound == upper_bound(0, 60, 0.05 / 5 / 3)
    assert found.work == pytest.approx(0.5 + 16 * 0.25)


def test_without_settled_steps_it_is_the_target_s_threshold() -> None:
    drafts, scores, semantic, groups = steps(600)
    unsure = [-1.0] * len(drafts)  # all tied: nothing can be settled
    found = certify_cascade(unsure, scores, semantic, groups, risk=0.05, least=0.05)
    alone = certify(scores, semantic, groups, risk=0.05, least=0.05, delta=0.05 / 5)
    assert (found.settled, found.threshold, found.bound) == (0.0, alone.threshold, alone.bound)


def test_the_asked_risk_is_kept_as_often_as_promised() -> None:
    """Calibrations over and over, each measured on many fresh steps: at most one in twenty may fail."""
    fresh = list(zip(*steps(8_000, seed=-1)[:3], strict=True))
    failed = 0
    for seed in range(40):
        found = certify_cascade(*steps(600, seed), risk=0.05, least=0.05)
        assert found.settled > 0, "nothing was spared the target's pass"
        kept = [true for own, score, true in fresh if own >= found.sure or score >= found.threshold]
        failed += sum(true < 0.05 for true in kept) > 0.05 * len(kept)
    assert failed <= 5  # P(more) < 1.5 % if one in twenty fails


def test_a_risk_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(UserError, match=r"cannot be certified"):
        certify_cascade(*steps(30), risk=0.01, least=0.05)


# ---- the artifact -----------------------------------------------------------------------------------------


def calibration(folder: Path, cascade: bool = True) -> str:
    drafts, scores, semantic, groups = (torch.tensor(column) for column in steps(600))
    columns = {"scores": scores, "semantic": semantic, "groups": groups}
    how = {"temperature": 0.6, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "draft": "d"}
    columns |= {"drafts": drafts} if cascade else {}
    RiskCalibration.of_logprobs(EXAMPLE, "paragraph", columns, {}, how).save(folder)
    return str(folder)


def test_the_card_has_both_thresholds_of_each_risk() -> None:
    drafts, scores, semantic, groups = steps(600)
    judged = Judged(scores, semantic, groups, {}, {}, EXAMPLE, "paragraph", drafts)
    found = calibrate_risk._thresholds(judged, 0.05)
    for risk in calibrate_risk.RISKS:
        both = certify_cascade(drafts, scores, semantic, groups, risk=risk, least=0.05)
        assert found[f"threshold_{risk:g}"] == both.threshold
        assert found[f"sure_{risk:g}"] == both.sure
    assert len(found) == 2 * len(calibrate_risk.RISKS)
    few = Judged(scores[:9], semantic[:9], groups[:9], {}, {}, EXAMPLE, "paragraph", drafts[:9])
    assert set(calibrate_risk._thresholds(few, 0.05).values()) == {None}, "too few for any risk"


def test_thresholds_come_from_the_calibration_that_is_named(tmp_path: Path) -> None:
    place, run = calibration(tmp_path / "made"), run_of({"target": EXAMPLE}, "paragraph", 0.6)
    bound = Cascade(calibration=place, risk=0.05).bind(run)
    expected = certify_cascade(*RiskCalibration.load(place).cascade, risk=0.05, least=0.05)
    assert bound.levels == (expected.sure, expected.threshold)
    assert bound.asked_risk() == {"risk_asked": 0.05, "risk_least": 0.05}
    assert "certified by" in bound.origin() and "uncalibrated" in Cascade().origin()
    with pytest.raises(UserError, match="not for 1"):
        Cascade(calibration=place, risk=0.05).bind(run_of({"target": EXAMPLE}, "paragraph", 1.0))


def test_the_target_s_steps_serve_the_free_score_too(tmp_path: Path) -> None:
    run = run_of({"target": EXAMPLE}, "paragraph", 0.6)
    place = calibration(tmp_path / "made")
    found = LogProb(calibration=place, risk=0.05).bind(run).certified
    assert found == certify(*RiskCalibration.load(place).columns, risk=0.05, least=0.05)
    other = calibration(tmp_path / "other", cascade=False)
    with pytest.raises(UserError, match="score=cascade"):
        Cascade(calibration=other, risk=0.05).bind(run)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sure": 0.1}, "above 0"),
        ({"threshold": float("nan")}, "above 0"),
        ({"risk": 0.05}, "only together"),
        ({"calibration": "x", "risk": 0.05, "sure": -1}, "leave accept.sure="),
        ({"least": 0.1}, "these need accept.calibration="),
        ({"calibration": "x", "risk": 2.0}, "above 0 and below 1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Cascade(**options)
