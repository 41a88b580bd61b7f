"""An experiment run as by a user, on the embedded pair."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import finished

SMALL = ("scale=tiny", "problems=1", "max_new_tokens=30")


def reproduce(
    folder: Path, code: int = 0, name: str = "semanticspec/table3"
) -> tuple[str, dict[str, Any]]:
    asked = (f"experiment={name}", *SMALL, f"hydra.run.dir={folder}")
    shown = finished([sys.executable, "-m", "semspec.run", *asked], code).stdout
    return shown, json.loads((folder / f"{name.replace('/', '-')}.json").read_text())


@pytest.mark.deep
def test_an_experiment_resumes_after_a_failed_job_and_solves_nothing_twice(tmp_path: Path) -> None:
    broken = tmp_path / "embedded-pair" / "SemanticSpec" / "residues"
    broken.mkdir(parents=True)
    (broken / "result.json").write_text("{}")  # nothing tells what made it
    shown, told = reproduce(tmp_path, code=1)
    assert "SemanticSpec/residues: failed:" in shown
    assert set(told["here"]["embedded pair"]["SemanticSpec"]) == {"weekdays"}

    (broken / "result.json").unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("result.json")}
    shown, told = reproduce(tmp_path)
    assert "paper: R1-32B" in shown and "here: embedded pair" in shown
    here = told["here"]["embedded pair"]
    assert set(here) == {"Draft alone", "Target alone", "SemanticSpec"}
    for row in here.values():
        assert set(row) == {"residues", "weekdays"}
        assert all(cell["figures"]["latency"] > 0 for cell in row.values())
    assert here["Target alone"]["residues"]["figures"]["speedup"] == 1.0
    # the target alone needs no run of its own, and what was finished is as it was
    after = {path: path.read_bytes() for path in tmp_path.rglob("result.json")}
    assert len(before) == 3 and len(after) == 4
    assert all(after[path] == held for path, held in before.items())


@pytest.mark.deep
def test_an_experiment_on_tokens_shows_each_benchmark(tmp_path: Path) -> None:
    shown, told = reproduce(tmp_path, name="adapld/table9")
    assert "paper: Vicuna-33B" in shown and "here: embedded pair" in shown
    here = told["here"]["embedded pair"]["AdaPLD"]
    assert set(here) == {"chains", "editing", "grounded"}
    assert any(cell["figures"]["draft_to_verify"] > 0 for cell in here.values())
    for file in tmp_path.rglob("config.json"):
        config = json.loads(file.read_text())["config"]
        assert (config["split"], config["plugins"]["draft"]) == ("token", "adapld")


@pytest.mark.deep
def test_an_experiment_with_audits_shows_coverage(tmp_path: Path) -> None:
    shown, told = reproduce(tmp_path, name="arc/table5")
    assert "paper: Llama-3.1-8B" in shown and "here: embedded pair" in shown
    assert "99.4 %" in shown  # the paper's, of MT-Bench
    here = told["here"]["embedded pair"]["ARC"]
    assert set(here) == {"residues", "weekdays"}
    for cell in here.values():
        low, covered, high = (
            cell["figures"][f"kept.all kept.coverage{end}"]
            for end in ("_interval.0", "", "_interval.1")
        )
        assert 0 <= low <= covered <= high <= 1 and cell["problems"] == 1
        assert cell["figures"]["kept.all kept.js_p99"] >= 0
    # a finished audit is not made again, one of other options is
    files = sorted(tmp_path.rglob("audit.json"))
    before = [file.stat().st_mtime_ns for file in files]
    assert len(files) == 2 and reproduce(tmp_path, name="arc/table5")[1] == told
    assert [file.stat().st_mtime_ns for file in files] == before
    held = json.loads(files[0].read_text())
    files[0].write_text(json.dumps(held | {"arguments": []}))
    assert reproduce(tmp_path, name="arc/table5")[1] == told
    assert json.loads(files[0].read_text()) == held
    files[1].write_text("{")
    asked = ("experiment=arc/table5", *SMALL, f"hydra.run.dir={tmp_path}")
    said = finished([sys.executable, "-m", "semspec.run", *asked], 2).stderr
    assert "is not an audit's result" in said and said.count("\n") == 1


@pytest.mark.deep
def test_rows_as_arms_of_one_run(tmp_path: Path) -> None:
    """A block of our own in one process: more problems later add what is missing, and a table of what is there."""
    asked = ("experiment=ours/tokens", "only=T=1/lossless, chain of 5", "only=T=1/typical, chain")
    more = ("max_new_tokens=20", f"hydra.run.dir={tmp_path}", f"json={tmp_path / 'figures.json'}")

    def measured(*options: str) -> tuple[str, dict[str, Any]]:
        command = [sys.executable, "-m", "semspec.run", *asked, *more, *options]
        shown = finished(command).stdout
        return shown, json.loads((tmp_path / "figures.json").read_text())

    shown, told = measured("problems=1")
    assert "2 runs on the embedded pair, those of a block in turn" in shown
    rows = {row["config"]: row for row in told["T=1"]}
    assert list(rows) == ["plain", "lossless, chain of 5", "typical, chain of 5"]
    assert all(row["problems"] == 1 and row["speedup"] > 0 for row in rows.values())
    files = sorted(tmp_path.rglob("problems.jsonl"))
    before = [file.read_bytes() for file in files]
    assert len(files) == 2

    shown, told = measured("problems=2")
    assert all(row["problems"] == 2 and row["speedup_interval"] for row in told["T=1"])
    assert all(f.read_bytes().startswith(b) for f, b in zip(files, before, strict=True))
    assert told["seed"] == 20261208 and told["left_out"] == {}

    shown, told = measured("problems=2", "show=true")
    assert "typical, chain of 5" in shown and "tau" in shown
    assert [file.read_bytes().count(b"\n") for file in files] == [2, 2]


@pytest.mark.deep
def test_a_figure_of_states_is_one_page_with_every_probe(tmp_path: Path) -> None:
    few = ("problems=8", "contexts=24", "samples=4", "drafted=1", "epochs=3", "cluster=oracle")
    asked = ("experiment=semanticspec/figure2", "scale=tiny", *few, f"hydra.run.dir={tmp_path}")
    command = [sys.executable, "-m", "semspec.run", *asked]
    shown = finished(command).stdout
    assert "sampling: done in" in shown and "here: embedded draft" in shown
    told = json.loads((tmp_path / "semanticspec-figure2.json").read_text())["here"]
    assert set(told) == {"embedded target", "embedded draft"}
    page = (tmp_path / "semanticspec-figure2.html").read_text()
    for rows in told.values():
        cell = rows["all layers, averaged"]["embedded world"]
        drawn = Path(cell["states"]).read_text()
        assert cell["figures"]["metrics.test.all.rows"] > 0
        assert drawn.startswith("<svg") and "<circle" in drawn and drawn in page
    assert page.count("<figure>") == 2
    # what is finished is not trained again, and other options of the training are
    assert "done in" not in finished(command).stdout
    again = finished([*command, "epochs=2", "only=embedded draft"]).stdout
    assert "training: done in" in again and "sampling: done in" not in again
