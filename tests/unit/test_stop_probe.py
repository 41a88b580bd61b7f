"""A head for ``stop=probe``: labels, features, training, refusals, and what a random score saves."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from semspec.artifacts.probe import Probe
from semspec.artifacts.stop_probe import StopProbe
from semspec.calibration.stopping import Trial, Watched, certify, described_stop
from semspec.cli.calibrate_stop import run
from semspec.driver import Driver
from semspec.engines.hf import Hf
from semspec.errors import UserError
from semspec.models.location import EXAMPLE, ModelConfig, read_facts
from semspec.models.text import CLOSE, Text
from semspec.probes.features import Features
from semspec.protocols import BenchmarkProblem, Run
from semspec.stops.probe import Gathering, Probed
from semspec.storage.files import dumps
from semspec.storage.packaged import beside_package
from semspec.training.stopping.head import Asked, keeper, labelled, made
from semspec.training.stopping.watch import FILE
from semspec.types import Context, Sampling
from tests.support.pair import TARGET

STEPS, ROWS = 6, EXAMPLE.layers + 1
HOW = {"split": "paragraph", "temperature": 0.6, "rule": "logprob", "benchmark": {"name": "synthetic"}}  # fmt: skip
ASKED = Asked("closing", Features(("mean", "last")))
CONFIG: Any = SimpleNamespace(stop=Probed())


def states_of(rng: random.Random, right: bool, told: float) -> torch.Tensor:
    """States that lean one way where an answer is right; ``told`` 0: they say nothing."""
    noise = [[rng.gauss(0, 1) for _ in range(EXAMPLE.width)] for _ in range(2 * ROWS)]
    return torch.tensor(noise).view(2, ROWS, EXAMPLE.width) + (told if right else -told)


def folder_of(folder: Path, told: float, problems: int = 70) -> Path:
    """Write a folder as the command leaves it: answers become right at some step."""
    rng = random.Random(3)
    posed = [BenchmarkProblem(f"p/{number}", f"question {number}") for number in range(problems)]
    gathering = Gathering(ASKED.features, ASKED.span)
    keep, lines = keeper(folder, posed, gathering), []
    for one in posed:
        right_from = rng.randint(1, STEPS - 1)
        rights = [step >= right_from for step in range(STEPS)]
        gathering.states[one.question] = [states_of(rng, right, told) for right in rights]
        keep(one.id, one.question)
        trials = [[20 * step + 20, 0.0, right] for step, right in enumerate(rights)]
        natural = None if one.id == "p/3" else True
        lines.append({"id": one.id, "right": natural, "thought": 150, "trials": trials})
    (folder / FILE).write_text("".join(dumps(line) + "\n" for line in lines))
    return folder


def trained(folder: Path, seed: int = 0) -> StopProbe:
    return made(folder, CONFIG, HOW, ASKED, (8, 4), seed, EXAMPLE)


def test_labels_are_the_graded_answers_and_rows_the_states_beside_them(tmp_path: Path) -> None:
    rows = labelled(folder_of(tmp_path, told=50.0, problems=9), ASKED, EXAMPLE)
    assert len(rows) == 8 * STEPS, "the problem that cannot be graded is left out"
    lines = {one["id"]: one for one in map(json.loads, (tmp_path / FILE).open())}
    for row, (context, target) in enumerate(zip(rows.contexts, rows.target.tolist(), strict=True)):
        name, _, step = context.rpartition("/")
        assert target == lines[name]["trials"][int(step)][2]
        assert bool(rows.whole[row].float().mean() > 0) == bool(target), "states of another step"
    assert 0 < rows.target.mean() < 1


def test_training_is_decided_by_its_seed_and_measured_on_other_problems(tmp_path: Path) -> None:
    one, again, other = (trained(folder_of(tmp_path, told=0.4), seed) for seed in (0, 0, 1))
    assert one.digest == again.digest != other.digest
    test = one.config["metrics"]["test"]["all"]
    low, high = one.config["metrics"]["auroc_interval"]
    assert 0.8 < low <= test["auroc"] <= high <= 1
    groups = one.tensors["calibration.groups"].unique()
    assert len(groups) == one.config["training"]["problems"]["test"] == 10
    assert test["rows"] == 10 * STEPS == len(one.tensors["calibration.semantic"])
    one.save(tmp_path / "head")
    loaded = StopProbe.load(tmp_path / "head")
    assert (loaded.digest, loaded.span) == (one.digest, "closing")
    told = loaded.texts["README.md"]
    for shown in (f"**{test['auroc']:.3f}** [{low:.3f}, {high:.3f}]", "mean + last", "all layers"):
        assert shown in told
    assert f"{one.config['training']['right']['test']:.1%}" in told


def fresh(head: StopProbe, told: float, problems: int = 200) -> list[Watched]:
    """Thinking that the head scores, of problems that it has not seen."""
    rng, found = random.Random(8), []
    for _ in range(problems):
        right_from = rng.randint(1, STEPS - 1)
        rights = [step >= right_from for step in range(STEPS)]
        rows = torch.stack([states_of(rng, right, told).flatten() for right in rights])
        scores = head.of_rows(rows).tolist()
        trials = [Trial(20 * n + 20, *of) for n, of in enumerate(zip(scores, rights, strict=True))]
        found.append(Watched(trials, True, 150))
    return found


def test_a_head_that_is_a_coin_saves_nothing_at_an_asked_risk(tmp_path: Path) -> None:
    coin = trained(folder_of(tmp_path / "coin", told=0.0))
    low, high = coin.config["metrics"]["auroc_interval"]
    assert low < 0.6 and high < 0.75
    assert certify(fresh(coin, told=0.0), risk=0.05).saved < 0.05
    with pytest.raises(UserError, match="cannot be certified from 40 problems"):
        certify(fresh(coin, told=0.0)[:40], risk=0.05)
    able = trained(folder_of(tmp_path / "able", told=0.6))
    assert certify(fresh(able, told=0.6), risk=0.05).saved > 0.25


def test_a_head_with_one_kind_of_label_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, told=0.0)
    text = (folder / FILE).read_text().replace("true]", "false]")
    (folder / FILE).write_text(text)
    with pytest.raises(UserError, match=r"all right or all wrong .*give more problems="):
        trained(folder)
    with pytest.raises(UserError, match=r"hidden=\[8\]: the head has two hidden layers"):
        made(folder, CONFIG, HOW, ASKED, (8,), 0, EXAMPLE)


def test_the_shipped_head_is_small_and_of_the_shipped_target() -> None:
    head = StopProbe.load("embedded/stop-probe-tiny-target")
    facts = read_facts(ModelConfig(path="embedded/tiny-target"), Text(str(TARGET)).fingerprint)
    assert head.check(facts, split="paragraph", temperature=0.6) == []
    folder = beside_package("hub_artifacts") / "stop-probe-tiny-target"
    assert sum(file.stat().st_size for file in folder.iterdir()) < 100_000
    low, high = head.config["metrics"]["auroc_interval"]
    assert 0.7 < low < head.config["metrics"]["test"]["all"]["auroc"] < high


@cache
def engine() -> Any:
    return Hf().load(str(TARGET))


def encode(text: str) -> list[int]:
    return Text(str(TARGET)).encode(text)


@pytest.mark.parametrize("span", ["step", "closing"])
def test_features_are_what_transformers_computes(span: str) -> None:
    from transformers import AutoModelForCausalLM

    prompt = encode("Modulo 100, let x=76, k is x - 2. Find k.\n")
    steps = [encode("First, x=76 is given.\n\n"), encode("Then k is x - 2, so k=74.\n\n")]
    layers = (0, 5, 24)
    gathering = Gathering(Features(("mean", "max", "last"), layers), span)
    kit: Any = SimpleNamespace(encode=encode, prompt="p", sampling=Sampling(0.6), rng=random.Random(0))  # fmt: skip
    session = Probed().bound(gathers=gathering).open(kit)
    context, thought = Context(77, prompt), 0
    for step in steps:
        context.extend(step)
        thought += len(step)
        driver = Driver({"target": engine()})
        (done,) = driver.run([(Context(77 + thought, prompt), session.consider(context, thought))])
        assert done.value.score == 0.0 and not done.value.done
    model: Any = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    tail = encode(f"{CLOSE}\n\n{Probed().answer}")
    for number, found in enumerate(gathering.states["p"]):
        ids = [*prompt, *chain(*steps[: number + 1])]
        count = len(steps[number]) if span == "step" else len(tail)
        ids += tail if span == "closing" else []
        with torch.inference_mode():
            states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        own = torch.stack([states[layer][0, -count:] for layer in layers], 1)
        wanted = torch.stack([own.mean(0), own.amax(0), own[-1]])
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def run_of(**changes: Any) -> Run:
    made_for = Run(models={"target": EXAMPLE}, split="paragraph", sampling=Sampling(0.6), rule="logprob", drafts="d")  # fmt: skip
    return replace(made_for, **changes)


def test_what_cannot_be_is_refused_in_a_line(tmp_path: Path) -> None:
    StopProbe.example().save(tmp_path / "head")
    Probe.example().save(tmp_path / "probe")
    head = Probed(probe=str(tmp_path / "head"), words="", answer="")
    assert head.bind(run_of()).head.span == "step"
    assert described_stop(head)["options"]["probe"] == StopProbe.example().digest
    for stop, changes, told in (
        (Probed(), {}, "stop=probe needs a trained head: train one with python -m semspec.calib"),
        (replace(head, probe=str(tmp_path / "probe")), {}, "'probe', not a stop_probe"),
        (replace(head, answer="So: "), {}, r"measured with stop\.answer=.*train one with"),
        (head, {"split": "sentence"}, "with split=paragraph, not split=sentence"),
        (head, {"models": {"target": replace(EXAMPLE, width=EXAMPLE.width + 1)}}, "it reads width="),
        (head, {"sampling": Sampling(1.5)}, "does not fit: it was trained at temperature"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=told) as error:
            stop.bind(run_of(**changes))
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="stop=probe needs a trained head"):
        Probed().loads(run_of())
    blind: Any = SimpleNamespace(
        engine=SimpleNamespace(offers=frozenset()), engine_choice="engine=x"
    )
    with pytest.raises(UserError, match="stop=probe needs pooled, which engine=x cannot return"):
        head.check_setup(blind)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["stop=eat", "train=true"], "train=true trains the head of stop=probe"),
        (["stop=probe", "train=true", "stop.probe=x"], r"leave stop\.probe= and measure= out"),
        (["stop=probe", "train=true", "pooling=sum"], "pooling=sum: give some of mean, max, last"),
        (["stop=probe", "train=true", "layers=25"], "0 .embeddings. to 24"),
        (["stop=probe", "train=true", "span=all"], "span=all: give step or closing"),
        (["stop=probe", "problems=1"], "stop=probe needs a trained head"),
    ],
)
def test_the_command_refuses_in_a_line(arguments: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=told) as error:
        run([*arguments, f"folder={tmp_path / 'work'}", "adaptive=false"])
    assert "\n" not in str(error.value)
