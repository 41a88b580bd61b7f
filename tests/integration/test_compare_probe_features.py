"""`scripts/compare_probe_features.py` on a small sampling: the held-out problems and the figures."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semspec.errors import UserError
from semspec.jobs.stages import hold
from semspec.report.progress import Steps
from semspec.report.terminal import Screen
from semspec.training.probes.compose import build
from semspec.training.probes.metrics import auroc
from semspec.training.probes.pipeline import sampled
from semspec.training.probes.sample import FOLDER
from semspec.training.probes.shards import read_samples
from tests.support.probes import options

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import compare_probe_features as script


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sampled") / "run"
    more = ("draft=tiny", "chains=world", "drafted=4", "features=paper", "problems=20")
    with hold(folder):
        sampled(build(options(folder, *more)), folder, Steps(Screen(file=io.StringIO(), width=100)))
    return folder


def ran(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Callable[[], int]:
    monkeypatch.setattr(sys, "argv", ["compare_probe_features.py", *arguments])
    return script.main


def test_each_drafted_step_is_held_out_once(samples: Path) -> None:
    known = script.Samples(samples)
    variant = script.variants(known.layers)[0]
    rows = known.rows(variant)
    parts = list(script.held_out(rows, variant, known.config, 7))
    held = sorted(i for test, _ in parts for i in test)
    assert held == [i for i in range(len(rows)) if not rows.own[i]] and len(held) == 20 * 4
    assert all(len(test) == len(score) for test, score in parts)
    assert all(0 < x < 1 for _, score in parts for x in score), "scores are probabilities"


def test_the_table_holds_right_steps_against_wrong_ones(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    out = tmp_path / "features.json"
    label = "log-probabilities alone, 32 - 16"
    assert ran(monkeypatch, "--samples", str(samples), "--only", label, "--out", str(out))() == 0
    shown = capsys.readouterr().out
    assert f"| {label} | " in shown and "| *lowest log-probability, no training* | " in shown
    found: list[dict[str, Any]] = script.read(out)["rows"]
    known = script.Samples(samples)
    # by hand, from the samples themselves; the world's chains have no mistakes
    right, lowest, seen = [], [], dict[str, int]()
    for sample in read_samples(samples / FOLDER):
        at = seen[sample.context] = seen.get(sample.context, -1) + 1
        if sample.writer != "own":
            right.append(known.right[sample.context][at])
            lowest.append(min(sample.logprobs))
    assert found[-1]["steps"] == len(right) and found[-1]["wrong"] == right.count(0.0) > 0
    by_hand = auroc(np.array(lowest), np.array(right))
    assert found[-1]["auroc"] == pytest.approx(by_hand) and 0 < found[0]["auroc"] <= 1
    assert found[-1]["spotless"]["auroc"] == pytest.approx(by_hand)


def test_mistakes_end_in_one_line(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="name the folder= of train_probe"):
        ran(monkeypatch, "--samples", str(tmp_path))()
    with pytest.raises(UserError, match="--turns 8: give 1 to 7"):
        ran(monkeypatch, "--samples", str(samples), "--turns", "8")()
    with pytest.raises(UserError, match="'layer 99' is unknown: choose from all, mean"):
        ran(monkeypatch, "--samples", str(samples), "--only", "layer 99")()
