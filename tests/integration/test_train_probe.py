"""``python -m semspec.train_probe`` as a user runs it, on the embedded draft (which is fast)."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from semspec.artifacts.probe import Probe
from semspec.errors import UserError
from semspec.models.location import ModelConfig, read_facts
from semspec.models.text import Text
from semspec.report.progress import Steps
from semspec.report.terminal import Screen
from semspec.training.probes.compose import build
from semspec.training.probes.pipeline import make
from semspec.training.probes.stages import probe_facts
from semspec.types import Context, Query, Sampling
from tests.integration.test_own_prompt import renamed  # noqa: F401
from tests.support.pair import DRAFT, TARGET
from tests.support.probes import configuration, options
from tests.support.processes import finished, hear_interrupts


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "semspec.train_probe", *arguments]


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return finished(command(*arguments), code)


def contents(folder: Path) -> dict[str, bytes]:
    """Everything that must not depend on interruptions."""
    return {
        str(f.relative_to(folder)): f.read_bytes()
        for f in sorted(folder.rglob("*"))
        if f.is_file() and f.name != ".lock"
    }


def make_here(*arguments: str) -> str:
    """The same in this process, which has its imports; gives what was shown."""
    console = Screen(file=io.StringIO(), width=100)
    make(build(arguments), Steps(console))
    told: str = console.file.getvalue()  # type: ignore[attr-defined]
    return told


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    told = make_here(*options(folder))
    assert "rows x 3 pools x 3 layers x 128 x 2 bytes" in told
    return folder


def test_training_makes_a_probe_that_scores(trained: Path) -> None:
    folder = trained / "probe"
    probe = Probe.load(str(folder))
    model = read_facts(ModelConfig(path="embedded/tiny-draft"), Text(str(DRAFT)).fingerprint)
    assert probe.check(model, split="paragraph", temperature=0.6) == []
    card = (folder / "README.md").read_text()
    assert card.startswith(
        "---\nlibrary_name: semspec\nlicense: apache-2.0\nbase_model: tiny-draft"
    )
    assert "{" not in card
    names = {f.name for f in folder.iterdir()}
    assert {"calibration.svg", "scatter.svg", "learning_curve.svg", "states.svg"} <= names
    assert "![states](states.svg)" in card
    placed = (folder / "states.svg").read_text()
    assert 5 < placed.count("<circle") <= 300 and "first principal component" in placed
    for file in folder.iterdir():
        assert str(trained.parent).encode() not in file.read_bytes()  # no machine's paths
    config = probe.config
    assert config["training"]["rows"]["train"] + config["training"]["rows"]["test"] < 14 * 6
    assert [c["share"] for c in config["metrics"]["learning_curve"]] == [0.12, 0.25, 0.5, 1.0]
    assert len(probe.calibration[0]) == config["training"]["rows"]["test"]

    import random

    from semspec.engines.hf import Hf

    engine, tokens = Hf().load(str(DRAFT)), list(range(20, 32))
    spans = ((0, 5), (5, 12))
    reads = probe.reads(spans)
    query = Query(
        "target", Context(1, [3, 4, 5]), Sampling(), random.Random(0), tokens=tokens, reads=reads
    )
    scores = probe.score(engine.answer([query])[0].values, reads, spans)
    assert scores.shape == (2,)
    assert bool(((scores > 0) & (scores < 1)).all())


def test_other_weights_under_the_same_name_are_refused(trained: Path) -> None:
    probe = Probe.load(str(trained / "probe"))
    other = read_facts(ModelConfig(path="embedded/tiny-target"), Text(str(TARGET)).fingerprint)
    with pytest.raises(UserError, match="layers=2, the model has layers=24"):
        probe.check(other)


def test_samples_serve_another_training(trained: Path, tmp_path: Path) -> None:
    before = {k: v for k, v in contents(trained).items() if not k.startswith("probe")}
    out = tmp_path / "plus"
    told = make_here(*options(trained, "features=plus", "train_on=[residues]", f"out={out}"))
    assert "sampling" not in told
    after = {k: v for k, v in contents(trained).items() if not k.startswith("probe")}
    assert after == before
    config = Probe.load(str(out)).config
    assert config["data"]["trained_on"] == ["residues"]
    assert {"residues", "weekdays"} <= set(config["metrics"]["test"])


def test_other_samples_in_the_same_folder_are_refused(trained: Path) -> None:
    with pytest.raises(UserError, match=r"temperature was 0\.6, is 0\.7"):
        make_here(*options(trained, "temperature=0.7"))


@pytest.mark.deep
def test_a_killed_training_ends_with_the_same_bytes(trained: Path, tmp_path: Path) -> None:
    broken = tmp_path / "run"
    kills = 0
    for wait in range(2):
        process = subprocess.Popen(
            command(*options(broken)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        begun, seen = time.monotonic(), len(list((broken / "samples").glob("*.jsonl")))
        while process.poll() is None and time.monotonic() - begun < 60:
            # once while chains are written, once when one more group has been committed
            groups = len(list((broken / "samples").glob("*.jsonl")))
            if groups > seen or (wait == 0 and (broken / "config.json").exists()):
                break
            time.sleep(0.005)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    done = run(*options(broken))
    assert kills == 2
    for shown in ("Spearman", "lowest log-probability", "probe: "):
        assert shown in done.stdout
    assert not done.stderr.strip()
    assert contents(broken) == contents(trained)


@pytest.mark.deep
def test_an_interrupt_ends_with_one_line(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(*options(tmp_path / "run", "problems=200")),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    )
    chains = tmp_path / "run" / "chains.jsonl"
    while not (chains.exists() and chains.stat().st_size) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.strip().splitlines() == [
        "semspec: interrupted; rerun with the same folder to resume"
    ]


@pytest.mark.deep
def test_retrained_weights_are_noticed_before_any_work(trained: Path, tmp_path: Path) -> None:
    from shutil import copytree

    from safetensors.torch import load_file, save_file

    model = copytree(DRAFT, tmp_path / "tiny-draft")
    tensors = load_file(model / "model.safetensors")
    first = next(iter(tensors))
    tensors[first] = tensors[first] + torch.ones((), dtype=tensors[first].dtype)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    config = configuration(trained, f"model.path={model}")
    own = configuration(trained)
    assert probe_facts(config).fingerprint != probe_facts(own).fingerprint
    probe = Probe.load(str(trained / "probe"))
    with pytest.raises(UserError, match="trained for embedded/tiny-draft, the model is tiny-draft"):
        probe.check(probe_facts(config))


def test_help_lists_the_options_and_mistakes_end_in_one_line() -> None:
    shown = run("--help").stdout
    for name in ("samples", "cluster", "features", "last_layer", "oracle", "logprobs"):
        assert f"  {name} " in shown, name
    done = run("model.path=nowhere", "cluster=oracle", code=2)
    assert done.stderr.startswith("semspec: ")
    assert done.stderr.count("\n") == 1


def test_the_file_is_plain_json(trained: Path) -> None:
    config = json.loads((trained / "probe" / "config.json").read_text())
    assert (config["kind"], config["version"], config["role"]) == ("probe", 1, "target")
    assert len(config["model"]["tokenizer"]) == 64


@pytest.mark.deep
def test_a_probe_for_the_draft_is_bound_to_the_draft(tmp_path: Path) -> None:
    more = ("model=tiny", "draft=tiny", "role=draft", "chains=world", "samples=3", "quiet=true")
    given = [a for a in options(tmp_path / "run", *more) if not a.startswith("model.path")]
    make_here(*given, "split=sentence", "batch=14", "features=last_layer")
    probe = Probe.load(str(tmp_path / "run" / "probe"))
    model = read_facts(ModelConfig(path="embedded/tiny-draft"), Text(str(DRAFT)).fingerprint)
    assert probe.check(model, split="sentence", role="draft") == []
    assert probe.config["data"]["drafted"] == 0
    assert probe.features.layers == (2,)


@pytest.mark.deep
def test_a_draft_with_marks_of_its_own_reads_its_own_prompt(renamed: Path, tmp_path: Path) -> None:  # noqa: F811
    texts = []
    for path in (renamed, DRAFT):
        more = (f"draft.model.path={path}", "draft=tiny", "chains=world", "samples=2", "drafted=2")
        folder = tmp_path / f"run-{path.name}"
        make_here(*options(folder, *more, "batch=14"))
        files = sorted((folder / "samples").glob("*.jsonl"))
        texts.append([line["text"] for file in files for line in map(json.loads, file.open())])
    assert texts[0] == texts[1]
