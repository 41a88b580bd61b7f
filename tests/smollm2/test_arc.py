"""ARC-Decode on real text: its own calibration, and an audit of the tokens that the rule accepted."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from semspec.artifacts.arc_calibration import ArcCalibration
from semspec.cli.audit import main as audit
from semspec.cli.calibrate import main as calibrate
from tests.support.smollm2 import OPTIONS, PATH

QUESTIONS = (
    "Why is the sky blue?",
    "Describe a walk through a forest in autumn.",
    "How do I boil an egg?",
    "Write a short letter to a friend who has moved to another city.",
    "What does a carpenter do?",
    "Explain how a bicycle works.",
)


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("arc")
    asked = work / "questions.jsonl"
    asked.write_text("".join(json.dumps({"question": q}) + "\n" for q in QUESTIONS))
    out = work / "arc"
    calibrate(
        [
            *("model=smollm2-135m", "draft=none", "temperatures=0.6", "source=jsonl"),
            *(f"data={asked}", "chains=answers", f"problems={len(QUESTIONS)}", "positions=12"),
            *("max_new_tokens=64", f"folder={work / 'work'}", f"out={out}", "quiet=true"),
        ]
    )
    return out


def test_a_calibration_on_real_text_knows_its_model(calibration: Path) -> None:
    made = ArcCalibration.load(calibration)
    assert made.config["model"]["id"] == PATH
    assert (made.config["model"]["layers"], made.config["model"]["width"]) == (30, 576)
    (setting,) = made.settings
    assert setting.temperature == 0.6 and 0 < setting.constants.tau < math.inf
    card = (calibration / "README.md").read_text()
    assert "base_model: HuggingFaceTB/SmolLM2-135M-Instruct" in card


def test_an_audit_measures_what_was_kept(calibration: Path, tmp_path: Path) -> None:
    kept = {}
    for theta in (
        "0.5",
        "2",
    ):  # no score is above 1: the second one keeps what the lossless rule keeps
        out = tmp_path / f"{theta}.json"
        audit(
            [
                *(*OPTIONS, "draft=suffix", "split=token", "accept=arc", f"theta={theta}"),
                *(f"calibration={calibration}", "temperature=0.6", "top_p=1", "problems=2"),
                *("max_new_tokens=60", "quiet=true", f"out={out}"),
            ]
        )
        kept[theta] = json.loads(out.read_text())["kept"]
    for told in kept.values():
        figures = told["all kept"]
        assert figures["tokens"] > 10
        assert 0 <= figures["js_mean"] <= figures["js_p99"] <= math.log(2)
        assert 0 <= figures["coverage_interval"][0] <= figures["coverage"] <= 1
    assert kept["2"]["of these, by the bound"]["tokens"] == 0
