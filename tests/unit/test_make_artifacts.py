"""`make artifacts`: the committed scripts make the committed artifacts, and differences are noticed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semspec.artifacts import inspection
from semspec.errors import UserError
from semspec.storage.packaged import beside_package

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import artifact_data
import artifact_making
import train_eagle3
import train_medusa
import train_tiny_copier
import train_tiny_judge_head
import train_tiny_nli
import train_tiny_pair
import train_tiny_probes
import train_tiny_reward
from artifact_making import TARGET, Making
from make_artifacts import CARDS, KNOWN, MAKINGS, check, differences, make

HUB = beside_package("hub_artifacts")
HEAD = train_tiny_judge_head.NAME


def places(name: str, out: Path = HUB) -> set[str]:
    return {one.place for one in check(out, [name])[0]}


def test_committed_artifacts_are_what_the_committed_scripts_make() -> None:
    wrong, known = check(HUB, list(MAKINGS))
    assert not wrong, "\n".join(map(str, wrong))
    assert {(one.name, one.place) for one in known} == set(KNOWN), "an exception that holds no more"


def test_every_committed_artifact_is_made_by_a_script_and_after_what_it_needs() -> None:
    assert {folder.name for folder in HUB.iterdir()} == set(MAKINGS) - {CARDS}
    done = set[str]()
    for name, making in MAKINGS.items():
        assert set(making.needs) <= done, name
        lines = making.commands(Path("work"), Path("made"))
        files = [line[1] for line in lines if line[1].endswith(".py")]
        assert all(Path(file).is_file() for file in files), name
        done.add(name)


def longer(stages: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*stages[:-1], replace(stages[-1], steps=stages[-1].steps + 1))


def other_word(words: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    assert old in words
    return tuple(new if word == old else word for word in words)


PROBE = "probe-tiny-draft-paper"
CHANGES: list[tuple[str, Any, str, Callable[[Any], Any], str]] = [
    (TARGET, train_tiny_pair, "STAGES", longer, "training.json stages.10.steps"),
    ("tiny-draft", train_tiny_pair, "SEED", lambda _: 5, "training.json seed"),
    ("tiny-copier", train_tiny_copier, "LEGS", longer, "training.json stages.1.steps"),
    ("tiny-nli", train_tiny_nli, "STAGES", longer, "training.json stages.2.steps"),
    ("tiny-nli", train_tiny_nli, "LONGEST", lambda _: 96, "config.json max_position_embeddings"),
    ("tiny-reward", train_tiny_reward, "SAMPLED", lambda _: {0.6: 9}, "training.json sampled.T=0.6"),
    ("tiny-reward", train_tiny_reward, "LAYERS", lambda _: 3, "config.json num_hidden_layers"),
    ("eagle3-tiny", train_eagle3, "INNER", lambda _: 256, "config.json intermediate_size"),
    ("eagle3-tiny", train_eagle3, "OPTIONS", lambda o: o | {"unroll": (4, "")}, "training.json unroll"),
    ("medusa-tiny", train_medusa, "OPTIONS", lambda o: o | {"heads": 3}, "config.json medusa_num_heads"),
    (HEAD, train_tiny_judge_head, "SEED", lambda _: 1, "config.json data.seed"),
    (PROBE, train_tiny_probes, "TRAINING",
     lambda words: other_word(words, "hidden=[32,16]", "hidden=[32,8]"), "config.json features.hidden.1"),
    (PROBE, train_tiny_probes, "TRAINING",
     lambda words: other_word(words, "epochs=40", "epochs=20"), "config.json training.epochs"),
    (PROBE, train_tiny_probes, "COMMON",
     lambda words: other_word(words, "per_problem=4", "per_problem=5"), "config.json data.contexts"),
    ("router-tiny-draft", train_tiny_probes, "PROBES",
     lambda probes: probes | {"router": ("features=paper",)}, "config.json features.logprobs"),
    (CARDS, artifact_data.judging, "SEED", lambda _: 1,
     f"{PROBE}/config.json metrics.judging.fresh.seed"),
    ("dense-tiny", artifact_data.datastores, "KINDS", lambda kinds: kinds | {"dense": ("dims=16",)},
     "config.json dims"),
    ("sparse-tiny", artifact_data.datastores, "COMMON", lambda words: (*words, "seed=3"),
     "config.json data.seed"),
    ("arc-tiny", artifact_data, "ARC",
     lambda words: other_word(words, "positions=16", "positions=8"), "config.json data.positions"),
    ("risk-tiny-target-logprob", artifact_data.calibrate_risk, "GIVEN", lambda o: o | {"seed": "2"},
     "config.json data.seed"),
    ("stop-probe-tiny-target", artifact_data, "STOP",
     lambda words: other_word(words, "seed=11", "seed=12"), "config.json data.seed"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "module", "constant", "change", "place"),
    CHANGES,
    ids=[f"{name} {constant} {place.rpartition(' ')[2]}" for name, _, constant, _, place in CHANGES],
)  # fmt: skip
def test_a_changed_constant_of_a_script_is_noticed(
    name: str,
    module: Any,
    constant: str,
    change: Callable[[Any], Any],
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, constant, change(getattr(module, constant)))
    assert place in {one.place for one in differences(name, HUB)}


def test_artifacts_of_another_target_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = artifact_making.facts

    def facts(name: str) -> Any:
        found = own(name)
        return replace(found, fingerprint="f" * 64) if name == TARGET else found

    monkeypatch.setattr(artifact_making, "facts", facts)
    bound = ("sparse-tiny", "dense-tiny", "arc-tiny", "risk-tiny-target-logprob", HEAD)
    for name in (*bound, "stop-probe-tiny-target", "probe-tiny-target-plus"):
        assert places(name) == {"config.json model.fingerprint"}, name
    assert places("router-tiny-draft") == {"config.json target.fingerprint"}
    assert places(PROBE) == set()


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    shutil.copytree(HUB / HEAD, tmp_path / "hub" / HEAD)
    return tmp_path / "hub"


def test_a_changed_record_and_damage_are_noticed(committed: Path) -> None:
    assert places(HEAD, committed) == set()
    file = committed / HEAD / "config.json"
    config = json.loads(file.read_text())
    config["data"]["solutions"] = 249
    file.write_text(json.dumps(config))
    (damage,) = check(committed, [HEAD])[0]
    assert "is damaged" in str(damage)
    inspection.seal(committed / HEAD)
    (one,) = check(committed, [HEAD])[0]
    assert str(one) == f"{HEAD}: config.json data.solutions is 249, the scripts make it 250"
    assert str(check(committed, ["arc-tiny"])[0][0]).endswith(f"is not in {committed}")


def test_what_is_made_takes_its_place_whole_or_not_at_all(committed: Path, tmp_path: Path) -> None:
    before = {f.name: f.read_bytes() for f in (committed / HEAD).iterdir()}
    work = tmp_path / "work"
    half = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(parents=True); (p / 'config.json').touch()"
    whole = "import shutil, sys; shutil.copytree(sys.argv[2], sys.argv[1])"

    def making(code: str, ends: int) -> Making:
        def commands(work: Path, made: Path) -> list[list[str]]:
            first = [sys.executable, "-c", code, str(made / HEAD), str(HUB / HEAD)]
            return [first, [sys.executable, "-c", f"raise SystemExit({ends})"]]

        return replace(MAKINGS[HEAD], commands=commands)

    with pytest.raises(
        UserError, match="it ended with exit code 3; run the same command again to resume"
    ):
        make(making(half, 3), work, committed)
    assert {f.name: f.read_bytes() for f in (committed / HEAD).iterdir()} == before
    (committed / HEAD / "config.json").unlink()  # what is damaged is replaced, too
    make(making(whole, 0), work, committed)
    assert {f.name: f.read_bytes() for f in (committed / HEAD).iterdir()} == before
    assert [path.name for path in committed.iterdir()] == [HEAD], "nothing is left beside it"
    assert not MAKINGS[HEAD].made(work).exists()
    shutil.rmtree(committed / HEAD)
    make(making(whole, 0), work, committed)
    assert places(HEAD, committed) == set()
