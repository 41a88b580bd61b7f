"""The free log-probability score with a requested risk: the source of its threshold, and refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from semspec.artifacts.probe import Probe
from semspec.artifacts.risk import RiskCalibration
from semspec.cli import calibrate_risk
from semspec.config import drawn_by
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.models.location import KnownModels, ModelConfig, ModelFacts
from semspec.protocols import Run
from semspec.rules.logprob import THRESHOLD, LogProb
from semspec.rules.lossless import Lossless
from semspec.training.probes.compose import build
from semspec.types import Sampling
from tests.support.binding import run_of
from tests.support.law import toy_kit
from tests.support.pair import configuration
from tests.support.runs import text

SHIPPED = "embedded/risk-tiny-target-logprob"
TINY = ModelConfig(path="embedded/tiny-target")
HOW = {"temperature": 0.6, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "draft": "embedded/tiny-draft"}


@pytest.fixture(scope="module")
def models() -> KnownModels:
    return KnownModels({"target": (TINY, text().fingerprint)})


@pytest.fixture(scope="module")
def columns() -> dict[str, torch.Tensor]:
    """400 steps from -10 to 0; wrong ones below -3."""
    scores = torch.linspace(-10, 0, 400)
    return {"scores": scores, "semantic": (scores > -3).float(), "groups": torch.arange(400)}


@pytest.fixture(scope="module")
def made(
    models: KnownModels,
    columns: dict[str, torch.Tensor],
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    folder = tmp_path_factory.mktemp("risk") / "risk"
    RiskCalibration.of_logprobs(models["target"], "paragraph", columns, {}, HOW).save(folder)
    return str(folder)


def test_the_threshold_comes_from_the_steps_that_are_named(models: KnownModels, made: str) -> None:
    rule = LogProb(calibration=made, risk=0.1).bind(run_of(models, "paragraph", 0.6))
    assert rule.certified is not None
    assert -3.5 < rule.certified.threshold < -2.9
    assert rule.certified.bound <= 0.1
    engine = Toy(vocabulary=4).models()["target"]  # of its kit a session keeps no more than numbers
    kit = toy_kit(Lossless(), engine, Sampling(0.6), 0)
    assert rule.open(kit).threshold == rule.certified.threshold
    assert LogProb().open(kit).threshold == THRESHOLD
    strict = LogProb(calibration=made, risk=0.1, least=0.5, confidence=0.999)
    surer = strict.bind(run_of(models, "paragraph", 0.6))
    assert surer.certified is not None
    assert surer.certified.threshold > rule.certified.threshold


def test_without_a_calibration_the_constant_stands(models: KnownModels) -> None:
    rule = LogProb()
    assert rule.level == THRESHOLD == -4.0  # until the pair is measured
    assert rule.bind(run_of(models, "paragraph", 0.6)) is rule
    assert rule.asked_risk() == {}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"calibration": "x"}, "accept.calibration=FOLDER_OR_REPO and accept.risk= go together"),
        ({"risk": 0.05}, "accept.calibration=FOLDER_OR_REPO and accept.risk= go together"),
        ({"confidence": 0.9}, "accept.least and accept.confidence are of a guarantee"),
        ({"least": 0.1}, "accept.least and accept.confidence are of a guarantee"),
        ({"calibration": "x", "risk": 0.05, "threshold": -3.0},
         "accept.threshold=-3 and accept.calibration, which sets it: give one of them"),
        ({"calibration": "x", "risk": 1.0}, "accept.risk=1.0: give more than 0, less than 1"),
        ({"calibration": "x", "risk": 0.1, "confidence": 0.0}, "accept.confidence=0.0: give more"),
        ({"calibration": "x", "risk": 0.1, "least": 2.0}, "accept.least=2.0: give more than 0"),
    ],
)  # fmt: skip
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=re.escape(told)):
        LogProb(**options)


def test_too_small_a_risk_is_refused(models: KnownModels, made: str) -> None:
    with pytest.raises(UserError, match=r"accept\.risk=0\.001 cannot be certified from 400"):
        LogProb(calibration=made, risk=0.001).bind(run_of(models, "paragraph", 0.6))


def bound(made: str, *overrides: str) -> Any:
    """The rule of a run, bound to the embedded target."""
    given = ("accept=logprob", f"accept.calibration={made}", "accept.risk=0.1")
    config = configuration(*given, *overrides)
    run = Run(
        models=KnownModels({"target": (TINY, text().fingerprint)}),
        split=config.split,
        sampling=config.sampling,
        drafts=drawn_by(config.draft),
    )
    return config.accept.bind(run)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (("top_p=0.5",), "logprob guarantees was measured at top_p=1, not 0.5: run it as"),
        (("top_k=3",), "logprob guarantees was measured at top_k=0, not 3: run it as"),
        (("draft=prompt_lookup",), "on drafts of embedded/tiny-draft, not of prompt_lookup: run"),
        (("draft=lm", "draft.model.path=embedded/tiny-copier"),
         "on drafts of embedded/tiny-draft, not of embedded/tiny-copier: run"),
    ],
)  # fmt: skip
def test_a_guarantee_holds_only_for_runs_that_draw_alike(
    made: str, other: tuple[str, ...], says: str
) -> None:
    bound(made)
    with pytest.raises(UserError, match=re.escape(says)):
        bound(made, *other)
    bound(made, *other, "accept.allow_mismatch=true")


def test_the_way_to_another_sampling_is_a_command(made: str) -> None:
    with pytest.raises(UserError) as refused:
        bound(made, "top_p=0.5")
    found = re.search(r"calibrate_risk (score=logprob .*) apart=FOLDER", str(refused.value))
    assert found is not None
    words = found[1].split()
    assert words[1:3] == ["model.path=embedded/tiny-target", "split=paragraph"]
    given = build(words[1:])
    assert calibrate_risk.drawn(given) == HOW | {"top_p": 0.5}
    assert (given.model.path, given.split) == ("embedded/tiny-target", "paragraph")


def test_another_temperature_split_or_model_is_refused(models: KnownModels, made: str) -> None:
    rule = LogProb(calibration=made, risk=0.1)
    with pytest.raises(UserError, match=r"for 0\.6 to 0\.6, not for 1"):
        rule.bind(run_of(models, "paragraph", 1.0))
    with pytest.raises(UserError, match="not split=sentence"):
        rule.bind(run_of(models, "sentence", 0.6))
    other = ModelFacts("owner/other", None, "", 24, 128, "f" * 64)
    with pytest.raises(UserError, match="trained for embedded/tiny-target, the model is owner/oth"):
        rule.bind(run_of({"target": other}, "paragraph", 0.6))
    loose = LogProb(calibration=made, risk=0.1, allow_mismatch=True)
    assert loose.bind(run_of({"target": other}, "sentence", 1.0)).certified is not None


def test_a_calibration_of_another_score_is_refused(
    models: KnownModels, made: str, tmp_path: Path
) -> None:
    """Also with allow_mismatch: the scales differ."""
    probe = Probe.load("embedded/probe-tiny-target-plus")
    own = {"scores": torch.rand(9), "semantic": torch.rand(9), "groups": torch.arange(9)}
    RiskCalibration.of(probe, own, {}).save(tmp_path / "probe's")
    rule = LogProb(calibration=str(tmp_path / "probe's"), risk=0.1, allow_mismatch=True)
    with pytest.raises(UserError, match="holds scores of the probe probe-tiny-target-plus: use it"):
        rule.bind(run_of(models, "paragraph", 0.6))
    config = configuration(
        "accept=semantic_risk", f"accept.calibration={made}", "accept.allow_mismatch=true"
    )
    with pytest.raises(UserError, match="lowest log-probabilities, no probe's scores: use it with"):
        config.accept.bind(run_of(models, "paragraph", 0.6))


def test_an_artifact_names_either_its_probe_or_its_score(
    models: KnownModels, columns: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    def saved(**config: Any) -> Path:
        made = RiskCalibration.of_logprobs(models["target"], "paragraph", columns, {}, HOW)
        made.config = {k: v for k, v in (made.config | config).items() if v is not None}
        made.save(tmp_path / "risk")
        return tmp_path / "risk"

    assert RiskCalibration.load(saved()).free
    probe = {"name": "some", "digest": "0"}
    with pytest.raises(UserError, match="it names either its probe or its score"):
        RiskCalibration.load(saved(probe=probe))
    with pytest.raises(UserError, match="it names either its probe or its score"):
        RiskCalibration.load(saved(score=None))
    with pytest.raises(UserError, match="scores are no probabilities"):
        RiskCalibration.load(saved(score=None, probe=probe))
    positive = columns | {"scores": columns["scores"] + 1}
    made = RiskCalibration.of_logprobs(models["target"], "paragraph", positive, {}, HOW)
    made.save(tmp_path / "risk")
    with pytest.raises(UserError, match="scores are no log-probabilities"):
        RiskCalibration.load(tmp_path / "risk")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["score=mean"], "score=mean: give probe or logprob or cascade"),
        (["score=logprob"], "give the calibration's folder"),
        (["score=logprob", "measure=true"], "or with measure=true to read: apart=FOLDER"),
        (["score=logprob", "apart=x", "probe=y"], "uses no probe: leave probe= and out= out"),
        (["score=logprob", "out=x"], "uses no probe: leave probe= and out= out"),
        ([], "probe=FOLDER, or score=logprob"),
    ],
)
def test_mistakes_of_the_command_end_in_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        calibrate_risk.main(words)
    shown = capsys.readouterr().err
    assert stopped.value.code == 2
    assert says in shown and shown.count("\n") == 1


def test_the_shipped_steps_certify_what_their_card_says(models: KnownModels) -> None:
    given = RiskCalibration.load(SHIPPED)
    assert given.free
    for risk in calibrate_risk.RISKS:
        rule = LogProb(calibration=SHIPPED, risk=risk).bind(run_of(models, "paragraph", 0.6))
        assert rule.certified is not None
        assert rule.certified.threshold == given.config["metrics"][f"threshold_{risk:g}"]
        assert rule.certified.bound <= risk
