"""``python -m semspec.calibrate_risk`` on the embedded pair, and a run that uses its result."""

from __future__ import annotations

from pathlib import Path

import pytest

from semspec.artifacts.risk import RiskCalibration
from semspec.calibration.cascade import certify_cascade
from semspec.cli import calibrate_risk
from semspec.rules.cascade import Cascade
from semspec.rules.logprob import LogProb
from semspec.solver import Solver
from tests.support.pair import configuration


@pytest.mark.deep
def test_the_free_score_is_calibrated_without_a_probe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apart, few = tmp_path / "risk", ("problems=10", "samples=4", "definitions=[3,4]", "quiet=true")
    words = ["score=logprob", f"apart={apart}", *few]
    calibrate_risk.main([*words, f"folder={tmp_path / 'work'}"])
    made = RiskCalibration.load(apart)
    scores, semantic, groups = made.columns
    assert len(scores) == 10 and len(set(groups)) == 10
    assert max(scores) <= 0 and len(set(scores)) > 3
    assert made.config["data"] | {"draft": "embedded/tiny-draft", "seed": 1} == made.config["data"]
    assert {round(s * 4) for s in semantic} <= set(range(5))
    assert not list((tmp_path / "work").rglob("*.safetensors")), "no state is kept for a free score"

    given = ("accept=logprob", f"accept.calibration={apart}", "max_new_tokens=60")
    with Solver(configuration(*given, "accept.risk=0.6", "accept.least=0.2")) as solver:
        assert isinstance(solver.rule, LogProb) and solver.rule.certified is not None
        assert solver.rule.certified.threshold in scores
        problem = next(iter(solver.config.benchmark.problems()))
        (done,) = solver.solve([problem], "speculative")
        threshold = solver.rule.certified.threshold
    judged = [r for r in done.outcome.rounds if r.scores]
    assert judged
    for one in judged:
        assert one.units_kept == int(one.scores[0] >= threshold)
    capsys.readouterr()


@pytest.mark.deep
def test_a_cascade_is_calibrated_measured_and_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apart, few = tmp_path / "risk", ("problems=10", "samples=4", "definitions=[3,4]", "quiet=true")
    words = ["score=cascade", f"apart={apart}", *few, f"folder={tmp_path / 'work'}"]
    calibrate_risk.main(words)
    made = RiskCalibration.load(apart)
    drafts, scores, semantic, groups = made.cascade
    assert len(drafts) == len(scores) == len(set(groups)) == 10
    assert max(drafts) <= 0 and drafts != scores

    asked = {"risk": 0.7, "least": 0.2}
    expected = certify_cascade(drafts, scores, semantic, groups, delta=0.05, **asked)
    given = (f"accept.calibration={apart}", "accept.risk=0.7", "accept.least=0.2")
    with Solver(configuration("accept=cascade", *given, "max_new_tokens=60")) as solver:
        assert isinstance(solver.rule, Cascade) and solver.rule.certified == expected
        problem = next(iter(solver.config.benchmark.problems()))
        (done,) = solver.solve([problem], "speculative")
    judged = [r for r in done.outcome.rounds if r.scores]
    assert judged
    for one in judged:
        unread = one.scores[0] >= expected.sure
        assert (one.note == "unread") == unread
        # a step that stays unread is kept, and costs the target nothing in its round
        assert not unread or (one.units_kept and "target" not in one.passes)
        assert unread or one.passes["target"]
    capsys.readouterr()
