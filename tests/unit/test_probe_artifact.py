"""A probe's file: its binding to a model, refusals, and its scores."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from semspec.artifacts.probe import Probe
from semspec.errors import UserError
from semspec.models.location import ModelConfig, read_facts, weights_fingerprint
from semspec.probes.features import LOGPROB_NAMES, of_logprobs
from semspec.types import Read, What
from tests.support.pair import DRAFT
from tests.support.probes import FACTS, LAYERS, WIDTH, random_probe

LOGPROBS = Read(What.LOGPROBS)
SPANS = ((0, 4), (4, 5), (5, 11))


def values_for(probe: Probe, spans: tuple[tuple[int, int], ...]) -> dict[Read, Any]:
    torch.manual_seed(1)
    found: dict[Read, Any] = {
        read: torch.randn(len(spans), len(read.layers) or LAYERS + 1, WIDTH)
        for read in probe.reads(spans)
        if read.what is What.POOLED
    }
    return found | {LOGPROBS: -8 * torch.rand(spans[-1][1]) ** 4}


def slowly(
    probe: Probe, values: dict[Read, Any], spans: tuple[tuple[int, int], ...]
) -> list[float]:
    """The formula of ``mlp``, a step and a number at a time."""
    t, told = probe.tensors, probe.config["features"]
    layers = tuple(told["layers"])
    scores = []
    for unit, (a, b) in enumerate(spans):
        row: list[float] = []
        for pooling in told["pooling"]:
            read = Read(What.POOLED, layers=layers, spans=spans, reduce=pooling)
            row += values[read][unit].flatten().tolist()  # layer by layer
        if told["logprobs"]:
            row += of_logprobs(values[LOGPROBS][a:b].tolist())
        x = (torch.tensor(row) - t["mean"]) / t["std"]
        for i in range(3):
            x = t[f"layers.{i}.weight"] @ x + t[f"layers.{i}.bias"]
            if i < 2:
                gelu = told["activation"] == "gelu"
                x = torch.nn.functional.gelu(x) if gelu else x.clamp_min(0)
        scores.append(float(x.sigmoid()))
    return scores


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layers": (3,)},
        {"layers": (0, 2), "pooling": ("max", "last")},
        {"pooling": ("mean", "max", "last"), "logprobs": True, "activation": "gelu"},
        {"pooling": (), "logprobs": True},
    ],
    ids=str,
)
def test_scores_are_those_of_the_formula(options: dict[str, Any]) -> None:
    probe = random_probe(**options)
    for spans in (SPANS, SPANS[:1]):
        values = values_for(probe, spans)
        found = probe.score(values, probe.reads(spans), spans)
        assert found.shape == (len(spans),)
        assert found.dtype == torch.float32
        assert found.tolist() == pytest.approx(slowly(probe, values, spans), abs=1e-5)


def test_a_step_unlike_all_that_was_seen_is_scored_0() -> None:
    probe = random_probe(logprobs=True, pooling=("mean",))
    values = values_for(probe, SPANS)
    values[LOGPROBS][:] = -1.0
    before = probe.score(values, probe.reads(SPANS), SPANS)
    probe.guard = -9.0
    assert torch.equal(probe.score(values, probe.reads(SPANS), SPANS), before)
    values[LOGPROBS][4] = -9.5  # in the second step
    scores = probe.score(values, probe.reads(SPANS), SPANS)
    assert scores[1] == 0
    assert torch.equal(scores[[0, 2]], before[[0, 2]])
    rows = torch.zeros(2, probe.features.size(LAYERS, WIDTH))
    rows[1, -len(LOGPROB_NAMES)] = -9.5  # of_rows knows the same features, put together before
    assert probe.of_rows(rows)[0] > 0
    assert probe.of_rows(rows)[1] == 0


def test_a_generated_tail_that_is_no_step_is_left_out() -> None:
    probe = random_probe()
    (read,) = probe.draft_reads()
    assert read == Read(What.POOLED, reduce="mean")
    values = {read: torch.randn(3, LAYERS + 1, WIDTH)}
    assert len(probe.score(values, (read,), SPANS[:2])) == 2


def test_a_saved_probe_loads_unchanged(tmp_path: Path) -> None:
    probe = random_probe(logprobs=True)
    probe.save(tmp_path / "probe")
    probe.save(tmp_path / "probe")  # over an older one
    again = Probe.load(str(tmp_path / "probe"))
    assert again.config == json.loads(json.dumps(probe.config))
    values = values_for(probe, SPANS)
    reads = probe.reads(SPANS)
    assert torch.equal(probe.score(values, reads, SPANS), again.score(values, reads, SPANS))
    assert {f.name for f in (tmp_path / "probe").iterdir()} == {
        "README.md",
        "config.json",
        "manifest.json",
        "model.safetensors",
    }


def test_another_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("important")
    with pytest.raises(UserError, match="something that semspec did not write"):
        random_probe().save(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "important"


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"name": "owner/other"}, "trained for owner/model, the model is owner/other"),
        ({"revision": "beef" * 10}, "trained for revision c0ffeec0ffee..., the model is at beef"),
        ({"revision": None}, "the model is at none"),
        ({"fingerprint": "a" * 64}, "with weights none, these are aaaaaaaaaaaa..."),
        ({"tokenizer": "e" * 64}, "tokenizer ffffffffffff..., the model's is eeeeeeeeeeee..."),
        ({"layers": 4}, "layers=3, the model has layers=4"),
        ({"width": 16}, "width=8, the model has width=16"),
    ],
    ids=str,
)
def test_a_probe_for_another_model_is_refused_by_name(other: dict[str, Any], says: str) -> None:
    probe = random_probe()
    assert probe.check(FACTS, split="paragraph", temperature=0.6, role="target") == []
    model = replace(FACTS, **other)
    with pytest.raises(UserError) as told:
        probe.check(model)
    assert says in str(told.value)
    assert "train_probe" in str(told.value)
    if set(other) & {"layers", "width"}:  # that can never work
        with pytest.raises(UserError):
            probe.check(model, allow_mismatch=True)
    else:
        assert len(probe.check(model, allow_mismatch=True)) == 1


def test_another_split_temperature_and_role_are_refused() -> None:
    probe = random_probe()
    for options, says in (
        ({"split": "sentence"}, "split=paragraph, not split=sentence"),
        ({"temperature": 1.5}, "temperature 0.6 for 0 to 1, not for 1.5"),
        ({"role": "draft"}, "target's probe, not a draft's"),
    ):
        with pytest.raises(UserError, match=says):
            probe.check(FACTS, **options)  # type: ignore[arg-type]


def _tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return damage


def _config(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        for name, value in changes.items():
            *at, last = name.split("__")
            inner = config
            for step in at:
                inner = inner[step]
            inner[last] = value
        path.write_text(json.dumps(config))

    return damage


def _cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_tensors(lambda t: t.update(more=torch.zeros(1))), "unknown ones: more"),
        (_tensors(lambda t: t.pop("std")), "missing tensors: std"),
        (_tensors(lambda t: t["layers.0.weight"].fill_(float("nan"))), "not finite"),
        (_tensors(lambda t: t["calibration.scores"].fill_(float("inf"))), "not finite"),
        (_tensors(lambda t: t["std"].zero_()), "not above 0"),
        (_tensors(lambda t: t.update(mean=t["mean"][:-1].clone())), "mean has the shape"),
        (_tensors(lambda t: t.update(mean=t["mean"].double())), "float64"),
        (_tensors(lambda t: t.update({"calibration.groups": torch.arange(2)})), "differ in length"),
        (_cut("model.safetensors", 100), "damaged"),
        (_cut("model.safetensors", 0), "damaged"),
        (_cut("config.json", 30), "cannot be read"),
        (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (
            lambda f: (f / "weights.pt").write_bytes(b"x"),
            "contains weights.pt: such a file can run code",
        ),
        (_config(kind="arc"), "'arc', not a probe"),
        (_config(version=2), "version 2"),
        (_config(model={}), "not a valid probe config"),
        (_config(model__layers=-1), "not a valid probe config"),
        (_config(model__width=1 << 40), "not a valid probe config"),
        (_config(model__layers=4), "features.inputs is 32, the features are 40 numbers"),
        (_config(features__hidden=[6, 5]), "layers.1.weight has the shape"),
        (_config(note="x"), "'note', which is not known"),
        (_config(split=None), "split is None, not string"),
        (_config(features__pooling=["median"]), "not a valid probe config"),
        (_config(features__layers=[9]), "not a valid probe config"),
        (_config(features__activation="exec"), "not a valid probe config"),
        (_config(temperature=[]), "not a valid probe config"),
        (_config(role="judge"), "not a valid probe config"),
    ],
)
def test_a_damaged_artifact_is_refused(
    damage: Callable[[Path], None], says: str, tmp_path: Path
) -> None:
    folder = tmp_path / "probe"
    random_probe().save(folder)
    damage(folder)
    with pytest.raises(UserError, match=r"was changed after it was made|contains weights\.pt"):
        Probe.load(str(folder))
    (folder / "manifest.json").unlink()  # whoever damages on purpose writes one that agrees
    with pytest.raises(UserError) as told:
        Probe.load(str(folder))
    assert says in str(told.value)
    assert "\n" not in str(told.value)


def test_fingerprints_of_weights_depend_on_their_tensors_alone(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4)}
    for name, more in (("one", None), ("two", {"made": "by me"})):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors", metadata=more)
    assert weights_fingerprint(tmp_path / "one") == weights_fingerprint(tmp_path / "two")
    tensors["b"][3] = 2.0
    save_file(tensors, tmp_path / "two" / "model.safetensors")
    assert weights_fingerprint(tmp_path / "one") != weights_fingerprint(tmp_path / "two")


def test_facts_of_the_embedded_draft_are_read_from_its_folder() -> None:
    told = read_facts(ModelConfig(path="embedded/tiny-draft"), "hash")
    assert (told.name, told.revision, told.tokenizer) == ("embedded/tiny-draft", None, "hash")
    assert (told.layers, told.width) == (2, 128)
    assert told.fingerprint == weights_fingerprint(DRAFT)


def test_scoring_is_cheap() -> None:
    probe = random_probe(("mean", "max", "last"), logprobs=True)
    values, reads = values_for(probe, SPANS[:1]), probe.reads(SPANS[:1])
    probe.score(values, reads, SPANS[:1])
    took = []
    for _ in range(200):
        began = time.perf_counter()
        probe.score(values, reads, SPANS[:1])
        took.append(time.perf_counter() - began)
    assert sorted(took)[20] < 1e-3  # generous: a machine under test is busy
