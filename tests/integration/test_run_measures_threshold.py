"""A run on an unmeasured pair measures its threshold, stores it, reuses it, and resumes with the same one."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

from semspec.artifacts.threshold import MeasuredThreshold
from semspec.calibration.threshold import OWN_REJECTED
from semspec.config import build, compose
from semspec.rules.logprob import LogProb
from semspec.runner import execute
from semspec.solver import Solver
from tests.support.pair import DRAFT, configuration


@pytest.fixture(scope="module")
def weaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded draft with noise on its weights."""
    folder = tmp_path_factory.mktemp("drafts") / "weaker"
    shutil.copytree(DRAFT, folder)
    (folder / "manifest.json").unlink()
    drawn = torch.Generator().manual_seed(0)
    weights = {
        name: weight
        if weight.ndim < 2
        else (
            weight.float() + torch.randn(weight.shape, generator=drawn) * weight.float().std() * 0.1
        ).to(weight.dtype)
        for name, weight in load_file(folder / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_a_run_measures_its_threshold_and_goes_on_with_it(
    tmp_path: Path,
    weaker: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SEMSPEC_CACHE", str(tmp_path / "cache"))
    # a target of two layers, so that it takes seconds
    pair = ["model.path=embedded/tiny-draft", "draft=lm", f"draft.model.path={weaker}"]
    words = [*pair, "accept=logprob", "accept.warm_up=1600", "concurrency=4", "problems=2"]
    words += ["max_new_tokens=160", "plain=false", "transcript=false", "adaptive=false"]

    def run(name: str, *more: str) -> tuple[str, Path]:
        composed, folder = compose([*words, *more]), tmp_path / name
        plain = OmegaConf.to_container(composed, resolve=True)
        assert isinstance(plain, dict)
        execute(build(composed), {str(k): v for k, v in plain.items()}, folder)
        return " ".join(capsys.readouterr().out.split()), folder

    said, folder = run("first")
    assert "measuring one (at most 1600 tokens of the target, once; accept.warm_up)" in said
    (place,) = (tmp_path / "cache" / "thresholds").iterdir()
    made = MeasuredThreshold.load(place)
    threshold = made.config["threshold"]
    assert len(made.tensors["own"]) >= 40 and made.config["data"]["tokens"] < 1600 + 4 * 200
    assert -8 < threshold < 0 and made.config["metrics"]["own_rejected"] <= OWN_REJECTED
    assert made.config["score_temperature"] == 0.6
    assert f"threshold {threshold:.2f} at temperature 0.6, measured now on" in said
    kept = json.loads((folder / "measured.json").read_text())
    assert kept["chosen"]["threshold"] == pytest.approx(threshold)
    judged = [json.loads(line) for line in (folder / "rounds.jsonl").open()]
    assert any(r["scores"] for r in judged)
    for r in judged:
        repeated = r["note"] == "repeats an earlier step"
        for unit, score in enumerate(r["scores"]):
            assert repeated or (score >= threshold) == (unit < r["units_kept"])

    again, _ = run("second")
    assert (
        "measuring" not in again
        and f"threshold {threshold:.2f} at temperature 0.6, measured before on" in again
    )

    # killed behind its first problem, and what was measured is gone from the cache
    shutil.rmtree(tmp_path / "cache")
    lines = (folder / "problems.jsonl").read_text().splitlines(keepends=True)
    (folder / "problems.jsonl").write_text(lines[0])
    (folder / "result.json").unlink()
    resumed, _ = run("first")
    assert (
        "measuring" not in resumed
        and f"threshold {threshold:.2f} at temperature 0.6, measured" in resumed
    )
    assert not (tmp_path / "cache").exists()
    assert json.loads((folder / "measured.json").read_text()) == kept

    by_hand, other = run("by-hand", "accept.threshold=-4")
    assert "threshold -4, uncalibrated for this pair" in by_hand
    assert not (other / "measured.json").exists()


def test_a_run_does_not_learn_from_its_measuring_that_drafts_are_in_vain(
    tmp_path: Path, weaker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a threshold is measured nothing of any draft is kept; ``adaptive=true`` then drafted nothing in the run."""
    monkeypatch.setenv("SEMSPEC_CACHE", str(tmp_path / "cache"))
    pair = ["model.path=embedded/tiny-draft", "draft=lm", f"draft.model.path={weaker}"]
    config = configuration(*pair, "accept=logprob", "accept.warm_up=1600", "adaptive=true")
    with Solver(config) as solver:
        economy, fresh = solver.pacing.economies["draft"], solver._pacing().economies["draft"]
        solver.measure(list(islice(config.benchmark.problems(), 4)))
        assert isinstance(solver.rule, LogProb) and solver.rule.chosen is not None
        assert solver.rule.chosen.drafted_steps >= 40
        assert solver.pacing.economies["draft"] is economy
        assert economy.told() == fresh.told()
