"""`scripts/compare_probe_temperatures.py` on a small sampling: the same contexts and steps for all, and the figures."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semspec import world
from semspec.errors import UserError
from semspec.training.probes import metrics
from semspec.training.probes.contexts import FILE, read_chains
from semspec.training.probes.shards import read_samples, read_states

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import compare_probe_temperatures as script
import temperature_samples as samples
from compare_probe_features import Samples

SMALL = ("problems=14", "per_problem=1", "samples=4", "keep=2", "drafted=3", "batch=14", "epochs=2", "chains=world")  # fmt: skip
BOTH = ("--temperatures", "0.3", "1", "--usual", "1", "--judged", "1", "0.3")
FOLDERS = [f"{role}-{t}" for role in ("target", "draft") for t in ("0.3", "1")]


def run(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "DRAWS", 10)  # of each interval: most of what these tests would take
        patch.setattr(sys, "argv", ["compare_probe_temperatures.py", *arguments])
        return script.main()


def tables(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text())["tables"]
    return found


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("temperatures")
    assert run(*SMALL, *BOTH, "--work", str(folder), "--out", str(folder / "found.json")) == 0
    return folder


def test_every_temperature_has_the_same_contexts_and_steps_of_its_own(work: Path) -> None:
    chains = {(work / name / FILE).read_bytes() for name in FOLDERS}
    assert len(chains) == 1
    drawn = {name: list(read_samples(work / name / "samples")) for name in FOLDERS}
    contexts = {frozenset(s.context for s in each) for each in drawn.values()}
    assert len(contexts) == 1 and len(next(iter(contexts))) == 14
    texts = {name: [s.text for s in each] for name, each in drawn.items()}
    assert texts["target-0.3"] != texts["target-1"] and texts["draft-0.3"] != texts["draft-1"]


def test_figures_are_those_of_the_samples(work: Path) -> None:
    found: list[dict[str, Any]] = tables(work / "found.json")
    assert [(t["drafted_at"], t["behind"]) for t in found] == [
        (t, behind) for t in (1.0, 0.3) for behind in ("any text", "right steps only")
    ]
    table = found[0]
    labels = ["T = 0.3", "T = 1", "counted, T = 0.3", "counted, T = 1"]
    assert [row["label"] for row in table["rows"]] == labels
    assert table["contexts"] == table["problems"] == 14
    # by hand: the share of 4 steps at T = 0.3 that mean what a step drafted at T = 1 means
    chains = {chain.id: chain for chain in read_chains(work / "target-1" / FILE)}
    own: dict[str, Counter[Any]] = {}
    for s in read_samples(work / "target-0.3/samples"):
        if s.writer == "own":
            own.setdefault(s.context, Counter())[_meaning(chains, s)] += 1
    counted, right = [], []
    for s in read_samples(work / "target-1/samples"):
        if s.writer != "own":
            counted.append((own[s.context][_meaning(chains, s)] + 0.5) / 5)
            chain = chains[s.chain]
            problem = world.find_problem(chain.question)
            assert problem is not None
            known = [world.meaning(problem, text) for text in chain.texts[: s.cut]]
            said = [meaning for meaning in known if meaning is not None]
            right.append(float(world.is_next(problem, said, world.meaning(problem, s.text))))
    row = table["rows"][2]["target"]
    assert row["steps"] == len(right) == 14 * 3 and row["wrong"] == right.count(0.0) > 0
    assert row["auroc"] == pytest.approx(metrics.auroc(np.array(counted), np.array(right)))
    assert table["rows"][3]["spearman_target"] == pytest.approx(1)


def _meaning(chains: Any, sample: Any) -> Any:
    problem = world.find_problem(chains[sample.chain].question)
    assert problem is not None
    return world.meaning(problem, sample.text) or sample.text


def test_the_usual_temperature_is_compared_with_itself(work: Path) -> None:
    for table in tables(work / "found.json"):
        for row in table["rows"]:
            changes = row["change"].values()
            same = row["label"].endswith("T = 1")
            assert all(change["by"] == 0 for change in changes) == same
            assert not same or all(change["interval"] == [0, 0] for change in changes)
            for kept in ("right_kept", "wrong_kept"):
                assert 0 < row["ratio"][kept]["kept"] <= 1


def test_a_step_read_has_the_states_of_the_step_written(work: Path, tmp_path: Path) -> None:
    """What the draft reads of a step in its context is what it had in mind when it wrote it."""
    known = Samples(work / "draft-1")
    chains = {chain.id: chain for chain in read_chains(work / "draft-1" / FILE)}
    with_states = [s for s in read_samples(known.into) if s.file is not None]
    written = sorted(with_states, key=lambda s: (s.chain, s.cut, s.number))
    settings = samples.Work(work, "", "", 1.0, SMALL).config("draft", 1.0)
    read = samples.read_steps(settings, written, chains, tmp_path / "read")
    assert [s.tokens for s in read] == [s.tokens for s in written] and len(read) == 14 * 2
    for was, now in zip(written, read, strict=True):
        assert was.file is not None and now.file is not None
        before = read_states(known.into, was.file)[was.row]
        after = read_states(tmp_path / "read", now.file)[now.row]
        assert before.shape == after.shape == (1, 3, 128)
        np.testing.assert_allclose(after.numpy(), before.numpy(), rtol=5e-3, atol=5e-3)


def test_steps_are_scored_by_probes_that_have_not_seen_their_problem(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = {role: Samples(work / f"{role}-1") for role in samples.ROLES}
    where = samples.Work(work, "", "", 1.0, SMALL)
    contexts = set(drawn["target"].semantic)
    judged = samples.Judged(where, 1.0, drawn, contexts).rows["target"]
    training = drawn["target"].rows(samples.PAPER, contexts)
    seen: list[set[str]] = []

    def noted(rows: Any, chosen: Any, validation: Any, config: Any) -> Any:
        seen.append({rows.chains[i] for i in [*chosen, *validation]})
        return train(rows, chosen, validation, config)

    def checked(made: Any, rows: Any, index: Any) -> Any:
        assert index and not seen[-1] & {rows.chains[i] for i in index}
        return predict(made, rows, index)

    train, predict = script.train, script.predict
    monkeypatch.setattr(script, "train", noted)
    monkeypatch.setattr(script, "predict", checked)
    found = script.scores(training, where.config("target", 1.0), [judged], 7)
    assert len(seen) == 7 and len(found[0]) == 42
    assert ((found[0] > 0) & (found[0] < 1)).all(), "each step is scored once, by a probability"


def test_a_second_start_samples_nothing_and_finds_the_same(work: Path, tmp_path: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in work.rglob("*.safetensors")}
    assert run(*SMALL, *BOTH, "--work", str(work), "--out", str(tmp_path / "again.json")) == 0
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*.safetensors")} == files
    first, again = (
        json.loads(f.read_text()) for f in (work / "found.json", tmp_path / "again.json")
    )
    assert first["tables"] == again["tables"]


def test_samples_that_are_there_are_taken(work: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    for role in samples.ROLES:
        (there / role).symlink_to(work / f"{role}-1")
    given = (
        "--known",
        str(there),
        "--usual",
        "1",
        "--judged",
        "1",
        "--temperatures",
        "1",
        "--turns",
        "2",
    )
    out = tmp_path / "found.json"
    assert run(*SMALL, "--work", str(tmp_path / "new"), *given, "--out", str(out)) == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["read-1"]
    (table, _) = tables(out)
    assert table["problems"] == 4, "two sevenths"


def test_mistakes_end_in_one_line(work: Path, tmp_path: Path) -> None:
    place = ("--work", str(tmp_path / "new"), *SMALL)
    with pytest.raises(UserError, match=r"'0\.6' is unknown: choose from 0\.3, 1"):
        run(*place, "--temperatures", "0.3", "1", "--judged", "0.3")
    with pytest.raises(UserError, match="--turns 0: give 1 to 7"):
        run(*place, "--turns", "0")
    with pytest.raises(UserError, match="holds no finished samples: name a folder with target"):
        run(*place, "--known", str(tmp_path))
    there = tmp_path / "there"
    there.mkdir()
    for role in samples.ROLES:
        (there / role).symlink_to(work / f"{role}-1")
    with pytest.raises(UserError, match="was sampled at 1: give that as --usual"):
        run(*place, "--known", str(there))
    with pytest.raises(UserError, match="has 14 chains: give problems=14 or fewer"):
        run(*place, "problems=15", "--known", str(there), "--usual", "1", "--judged", "1")
