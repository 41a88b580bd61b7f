"""Thresholds from steps that are published beside a probe instead of in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from semspec.artifacts.probe import Probe
from semspec.artifacts.risk import RiskCalibration
from semspec.calibration.risk import certify
from semspec.cli import calibrate_risk
from semspec.config import drawn_by
from semspec.errors import UserError
from semspec.jobs.stages import hold
from semspec.models.location import KnownModels, ModelConfig
from semspec.protocols import Run
from semspec.rules.semantic_risk import SemanticRisk
from semspec.solver import Solver
from semspec.storage.lock import is_locked
from semspec.training.probes.compose import build
from tests.support.binding import run_of
from tests.support.pair import configuration

PLUS = "embedded/probe-tiny-target-plus"
TOKENIZER = Probe.load(PLUS).config["model"]["tokenizer"]


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
    prepared = rule.bind(run_of(models, "paragraph", 0.6))
    assert 0.2 < prepared.certified.threshold < 0.35
    assert prepared.certified.bound <= 0.05
    own = SemanticRisk(risk=0.05).bind(run_of(models, "paragraph", 0.6))
    assert own.certified.steps != prepared.certified.steps
    for confidence in (0.5, 0.95, 0.999):
        by = SemanticRisk(calibration=str(tmp_path / "risk"), risk=0.05, confidence=confidence)
        held = by.bind(run_of(models, "paragraph", 0.6)).certified
        steps = (column.tolist() for column in columns.values())
        assert held == certify(*steps, risk=0.05, least=0.05, delta=1 - confidence)
        assert (held.steps > prepared.certified.steps) == (confidence < 0.95)
        assert (held.steps < prepared.certified.steps) == (confidence > 0.95)
    with pytest.raises(UserError, match="not for 1"):
        rule.bind(run_of(models, "paragraph", 1.0))


def test_steps_of_another_probe_are_refused(
    probe: Probe, columns: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    other = Probe.load("embedded/probe-tiny-target-paper")
    made = RiskCalibration.of(other, columns, {})
    with pytest.raises(UserError, match="was made with the probe probe-tiny-target-paper"):
        made.check_score(probe, allow_mismatch=False)
    made.check_score(probe, allow_mismatch=True)
    made.check_score(other, allow_mismatch=False)


def test_scores_that_are_no_probabilities_are_refused(
    probe: Probe, columns: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    columns["scores"] = columns["scores"] * 2
    RiskCalibration.of(probe, columns, {}).save(tmp_path / "risk")
    with pytest.raises(UserError, match="scores are no probabilities"):
        RiskCalibration.load(tmp_path / "risk")


def test_the_command_locks_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"probe={PLUS}", f"folder={tmp_path}", f"apart={tmp_path / 'risk'}"]
    with hold(tmp_path), pytest.raises(SystemExit) as stopped:
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


def bound(*overrides: str) -> Any:
    """The rule of a run, bound to the embedded target."""
    config = configuration(*overrides)
    run = Run(
        models=KnownModels({"target": (ModelConfig(path="embedded/tiny-target"), TOKENIZER)}),
        split=config.split,
        sampling=config.sampling,
        drafts=drawn_by(config.draft),
    )
    return config.accept.bind(run)


RISK = ("accept=semantic_risk",)
ARC = (
    "accept=arc_certified",
    "split=token",
    "temperature=1",
    "accept.js=0.692",
)  # above nearly all


@pytest.mark.parametrize("given", [RISK, ARC], ids=["semantic_risk", "arc_certified"])
@pytest.mark.parametrize(
    ("other", "says"),
    [
        (("top_p=0.5",), "measured at top_p=1, not 0.5: run with"),
        (("top_k=3",), "measured at top_k=0, not 3: run with"),
        (("min_p=0.05",), "measured at min_p=0, not 0.05: run with"),  # which older ones do not record
        (("draft=prompt_lookup",), "on drafts of embedded/tiny-draft, not of prompt_lookup: run"),
        (("draft=lm", "draft.model.path=embedded/tiny-copier", "top_p=0.9"),
         "at top_p=1, not 0.9 and on drafts of embedded/tiny-draft, not of embedded/tiny-copier:"),
    ],
)  # fmt: skip
def test_a_guarantee_holds_only_for_runs_that_draw_alike(
    given: tuple[str, ...], other: tuple[str, ...], says: str
) -> None:
    bound(*given)
    with pytest.raises(UserError, match=re.escape(says)):
        bound(*given, *other)
    bound(*given, *other, "accept.allow_mismatch=true")


def test_the_way_to_another_sampling_is_a_command() -> None:
    options = "top_k=0 top_p=0.5 draft=lm draft.model.path=embedded/tiny-draft"
    command = f"probe=embedded/probe-tiny-target-plus temperature=0.6 {options} apart=FOLDER"
    with pytest.raises(UserError, match=command):
        bound(*RISK, "top_p=0.5")
    given = calibrate_risk.drawn(build(["temperature=0.6", *options.split()]))
    own = {"temperature": 0.6, "draft": "embedded/tiny-draft"}
    assert given == own | {"top_k": 0, "top_p": 0.5, "min_p": 0.0}
    with pytest.raises(UserError, match=options.replace("draft=lm", "min_p=0.1 draft=lm")):
        bound(*RISK, "top_p=0.5", "min_p=0.1")
    with pytest.raises(
        UserError, match="run with the settings of the calibration, or set"
    ):  # who has no model
        bound(*RISK, "draft=prompt_lookup")


def test_a_run_asks_whether_the_guarantee_holds() -> None:
    with pytest.raises(
        UserError, match=r"guarantee of accept=semantic_risk was measured at top_p=1"
    ):
        Solver(configuration(*RISK, "top_p=0.5"))
    nested = ("nested=lm", "nested_accept=arc_certified", "nested_accept.js=0.692")
    with pytest.raises(
        UserError, match=r"guarantee of accept=arc_certified was measured at top_p=1"
    ):
        Solver(configuration("accept=logprob", "temperature=1", "top_p=0.5", *nested))


def test_the_sampling_is_recorded_with_the_steps(
    probe: Probe, columns: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    words = ["draft=tiny", "temperature=1", "top_p=0.8", "min_p=0.1", "chains=mixed"]
    how = calibrate_risk.drawn(build(words))
    own = {"temperature": 1.0, "draft": "embedded/tiny-draft"}
    assert how == own | {"top_k": 0, "top_p": 0.8, "min_p": 0.1}
    RiskCalibration.of(probe, columns, {}, how).save(tmp_path / "risk")
    named = f"accept.calibration={tmp_path / 'risk'}"
    bound(*RISK, named, "temperature=1", "top_p=0.8", "min_p=0.1")
    with pytest.raises(UserError, match=r"min_p=0\.1, not 0"):
        bound(*RISK, named, "temperature=1", "top_p=0.8")
    with pytest.raises(UserError, match=r"top_p=0\.8, not 1"):
        bound(*RISK, named, "temperature=1")
    with pytest.raises(UserError, match="for 1 to 1, not for 0"):
        bound(*RISK, named)
    RiskCalibration.of(probe, columns, {}).save(
        tmp_path / "older"
    )  # nothing is known, nothing held
    bound(*RISK, f"accept.calibration={tmp_path / 'older'}", "draft=prompt_lookup")


def test_the_way_to_another_temperature_is_a_command() -> None:
    with pytest.raises(
        UserError, match=r"calibrate_risk probe=embedded/probe-tiny-target-plus temp"
    ):
        bound(*RISK, "temperature=1")
    with pytest.raises(UserError, match="hold at 0: use accept=semantic_plus"):
        bound(*RISK, "temperature=0")
