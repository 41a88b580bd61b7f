"""Thresholds taken from steps that are published beside a probe, not in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from semspec import calibrate_risk
from semspec.artifacts.probe import Probe
from semspec.artifacts.risk import RiskCalibration
from semspec.errors import UserError
from semspec.lock import is_locked
from semspec.models import KnownModels, ModelConfig
from semspec.probes.begun import at_work
from semspec.rules.semantic_risk import SemanticRisk

PLUS = "embedded/probe-tiny-target-plus"


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe.load(PLUS)


@pytest.fixture
def columns() -> dict[str, torch.Tensor]:
    """400 steps, the better the higher the score; wrong ones below .3."""
    scores = torch.linspace(0, 1, 400)
    return {"scores": scores, "semantic": (scores > 0.3).float(), "groups": torch.arange(400)}


def test_the_threshold_comes_from_the_steps_that_are_named(
    probe: Probe, columns: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    RiskCalibration.of(probe, columns, {"threshold_0.05": 0.3}).save(tmp_path / "risk")
    target = ModelConfig(path="embedded/tiny-target")
    models = KnownModels({"target": (target, probe.config["model"]["tokenizer"])})
    rule = SemanticRisk(calibration=str(tmp_path / "risk"), risk=0.05)
    prepared = rule.prepare(models, "paragraph", 0.6)
    assert 0.2 < prepared.certified.threshold < 0.35
    assert prepared.certified.bound <= 0.05
    own = SemanticRisk(risk=0.05).prepare(models, "paragraph", 0.6)
    assert own.certified.steps != prepared.certified.steps
    with pytest.raises(UserError, match="not for 1"):
        rule.prepare(models, "paragraph", 1.0)


def test_steps_of_another_probe_are_refused(
    probe: Probe, columns: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    other = Probe.load("embedded/probe-tiny-target-paper")
    made = RiskCalibration.of(other, columns, {})
    with pytest.raises(UserError, match="was made with the probe probe-tiny-target-paper"):
        made.check_probe(probe, allow_mismatch=False)
    made.check_probe(probe, allow_mismatch=True)
    made.check_probe(other, allow_mismatch=False)


def test_what_is_no_probability_is_refused(
    probe: Probe, columns: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    columns["scores"] = columns["scores"] * 2
    RiskCalibration.of(probe, columns, {}).save(tmp_path / "risk")
    with pytest.raises(UserError, match="scores are no probabilities"):
        RiskCalibration.load(tmp_path / "risk")


def test_its_folder_is_held_while_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"probe={PLUS}", f"folder={tmp_path}", f"apart={tmp_path / 'risk'}"]
    with at_work(tmp_path), pytest.raises(SystemExit) as stopped:
        calibrate_risk.main(words)
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"semspec: {tmp_path} is in use by process")
    assert told.count("\n") == 1

    held = list[bool]()

    def no_step(*_: object) -> None:
        held.append(is_locked(tmp_path))
        raise UserError("no step was drafted")

    monkeypatch.setattr(calibrate_risk, "sampled", no_step)
    with pytest.raises(SystemExit):
        calibrate_risk.main(words)
    assert held == [True]
    assert not is_locked(tmp_path)
    with pytest.raises(SystemExit):
        calibrate_risk.main([*words, "measure=yes"])
    assert "measure=yes: give true or false" in capsys.readouterr().err
