"""Files from elsewhere: every reader refuses bad ones in one line, quickly, and before it allocates memory."""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from semspec.artifacts import inspection
from semspec.artifacts.judge_head import JudgeHead
from semspec.artifacts.model import Model
from semspec.artifacts.probe import Probe
from semspec.artifacts.risk import RiskCalibration
from semspec.datastores.files import open_arrays
from semspec.engines._lean.engine import HfEngine
from semspec.engines._sglang.identity import Expected
from semspec.errors import UserError
from semspec.heads.medusa import Medusa
from semspec.models.folder import read_json
from semspec.models.location import ModelConfig, read_facts, weights_fingerprint
from semspec.models.spec import read_spec, read_stop_ids
from semspec.models.template import TemplateRefusedError, _worker, render
from semspec.models.text import Text
from semspec.models.weights import read_weights
from semspec.rules._score import read_score_head
from semspec.storage import dataset_rows as rows
from semspec.storage import foreign, manifests
from semspec.storage.packaged import beside_package

ARTIFACTS = beside_package("hub_artifacts")
NESTED = b"[" * 100_000


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import late imports now, so that their time is not a reader's."""
    Text(str(ARTIFACTS / "tiny-draft"))
    read_spec(ARTIFACTS / "tiny-draft", 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(ARTIFACTS / "tiny-draft", tmp_path / "model"))
    (folder / "manifest.json").unlink()
    return folder


def refused(work: Callable[[], object], says: str = "") -> str:
    """Return the one line of a UserError, raised within two seconds of this process and 500 MB."""
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError) as told:
        work()
    assert time.process_time() - began < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024
    line = str(told.value)
    assert "\n" not in line and len(line) < 1000
    assert says in line
    return line


def nested(path: Path) -> None:
    path.write_bytes(NESTED)


def folder_there(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse


DAMAGE = (nested, folder_there, pipe, loop, device, large)
DIMENSIONS = {"num_hidden_layers": 2, "hidden_size": 4, "vocab_size": 6}


def an_artifact(folder: Path) -> Callable[[], object]:
    JudgeHead.example().save(folder)
    (folder / "manifest.json").unlink()
    return lambda: JudgeHead.load(folder)


def a_folder(folder: Path) -> Callable[[], object]:
    JudgeHead.example().save(folder)
    return lambda: inspection.check(folder)


def a_model(folder: Path) -> Callable[[], object]:
    shutil.copytree(ARTIFACTS / "tiny-draft", folder)
    (folder / "manifest.json").unlink()

    def load() -> None:
        weights_fingerprint(folder)
        spec = read_spec(folder, 0)
        read_weights(folder, spec, torch.float32, torch.device("cpu"))
        Text(str(folder))

    return load


def facts_of(folder: Path) -> Callable[[], object]:
    a_model(folder)
    return lambda: read_facts(ModelConfig(path=str(folder)), "t")


def a_server(folder: Path) -> Callable[[], object]:
    a_model(folder)
    return lambda: Expected.of(folder)


def stop_ids(folder: Path) -> Callable[[], object]:
    a_model(folder)
    return lambda: read_stop_ids(folder)


def a_head(folder: Path) -> Callable[[], object]:
    shutil.copytree(ARTIFACTS / "medusa-tiny", folder)
    (folder / "manifest.json").unlink()
    return lambda: Medusa.load(folder, ARTIFACTS / "tiny-target")


def a_reward(folder: Path) -> Callable[[], object]:
    shutil.copytree(ARTIFACTS / "tiny-reward", folder)
    return lambda: read_score_head(folder)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (an_artifact, "config.json"),
        (an_artifact, "model.safetensors"),
        (an_artifact, "README.md"),
        (a_folder, "manifest.json"),
        (a_folder, "config.json"),
        (a_model, "config.json"),
        (a_model, "model.safetensors"),
        (a_model, "tokenizer.json"),
        (a_model, "generation_config.json"),
        (facts_of, "config.json"),
        (facts_of, "model.safetensors"),
        (a_server, "config.json"),
        (stop_ids, "generation_config.json"),
        (a_head, "config.json"),
        (a_head, "model.safetensors"),
        (a_reward, "model.safetensors"),
    ],
)
def test_anything_but_a_plain_valid_file_is_refused(
    make: Callable[[Path], Callable[[], object]],
    name: str,
    damage: Callable[[Path], None],
    tmp_path: Path,
) -> None:
    load = make(tmp_path / "it")
    path = tmp_path / "it" / name
    path.unlink()
    damage(path)
    if damage is nested and name == "README.md":
        return  # a text like any other
    refused(load)


@pytest.mark.parametrize("damage", DAMAGE)
def test_data_sets_are_plain_files_too(damage: Callable[[Path], None], tmp_path: Path) -> None:
    for name in ("it.jsonl", "it.csv"):
        damage(tmp_path / name)
        if damage is not large and (damage is not nested or name == "it.jsonl"):
            refused(lambda name=name: list(rows.read(tmp_path / name)))


@pytest.mark.parametrize("damage", DAMAGE)
def test_shards_are_plain_files(damage: Callable[[Path], None], tmp_path: Path) -> None:
    damage(tmp_path / "it")
    refused(lambda: open_arrays(tmp_path / "it", {"a": ("I32", (-1,))}))


@pytest.mark.parametrize(
    "header",
    [
        NESTED,
        b'{"a": 1}',
        b'{"a": {"data_offsets": {}, "shape": []}}',
        b'{"a": {"data_offsets": [0, 1e400], "shape": []}}',
        b'{"a": {"dtype": "F32", "data_offsets": [0, 4096], "shape": [1]}}',
        b'{"a": {"dtype": "F32", "data_offsets": [4, 0], "shape": [1]}}',
        b'{"a": {}, "a": {}}',
        b"[]",
    ],
    ids=lambda header: header[:40].decode(),
)
def test_headers_that_lie_are_refused(header: bytes, model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    refused(lambda: weights_fingerprint(model), "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000"),
        ({"num_hidden_layers": 4000}, "does not match the weights"),
        ({"vocab_size": 2**24}, "does not match the weights"),
        ({"intermediate_size": 2**24}, "does not match the weights"),
        ({"hidden_size": 10**400}, "a number of many digits"),
        ({"max_position_embeddings": 2**40}, "max_position_embeddings"),
        ({"text_config": {"num_hidden_layers": 10**6}}, "num_hidden_layers"),
    ],
    ids=str,
)
def test_configs_of_more_than_the_weights_hold_are_refused(
    changes: dict[str, Any], says: str, model: Path
) -> None:
    config = json.loads((model / "config.json").read_text()) | changes
    (model / "config.json").write_text(json.dumps(config))
    refused(lambda: ModelConfig(path=str(model)).fetch(), says)


def test_a_config_of_many_layers_costs_nothing_in_the_pass_either(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**6}))
    refused(lambda: read_spec(model, 0), "num_hidden_layers")
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4000}))
    refused(lambda: HfEngine(model, torch.float32, torch.device("cpu"), 0, 64), "lacks the tensor")


@pytest.mark.parametrize("token", [{"a": 1}, "x", True, -1, 2**31, 2**70, [2, [3]], [2, 2**31]])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_ends_of_text_are_ids_of_tokens(name: str, token: object, model: Path) -> None:
    told = json.loads((model / name).read_text())
    (model / name).write_text(json.dumps(told | {"eos_token_id": token}))
    if name == "config.json":
        (model / "generation_config.json").unlink()
    else:
        refused(lambda: Text(str(model)), "as a token's id")
    refused(lambda: read_stop_ids(model), "as a token's id")


def test_a_padding_token_of_another_type_is_ignored(model: Path) -> None:
    told = json.loads((model / "generation_config.json").read_text())
    path = model / "generation_config.json"
    path.write_text(json.dumps(told | {"pad_token_id": {"a": 1}}))
    assert Text(str(model)).stop_ids == read_stop_ids(model) == {told["eos_token_id"]}


@pytest.mark.parametrize("token", [2**31, 2**32 - 1, 2**70, -1, 1.5, None, "x"])
def test_ids_of_a_tokenizer_are_those_of_a_vocabulary(token: object, model: Path) -> None:
    """Its reader would end the process for 2^31."""
    path = model / "tokenizer.json"
    whole = json.loads(path.read_text())
    for change in (
        lambda t: t["model"]["vocab"].update({next(iter(t["model"]["vocab"])): token}),
        lambda t: t["added_tokens"][-1].update(id=token),
    ):
        told = json.loads(json.dumps(whole))
        change(told)
        path.write_text(json.dumps(told))
        refused(lambda: Text(str(model)), "as a token's id")


# ---- manifests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_that_differs_from_its_manifest_is_refused(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ARTIFACTS / "tiny-draft", tmp_path / "model"))
    config = ModelConfig(path=str(folder))
    assert config.fetch() == folder
    whole = (folder / name).read_bytes()
    at = whole.rindex(b"0") if name.endswith(".json") else len(whole) - 1
    (folder / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    refused(config.fetch, f"was changed after it was made ({name} was changed")
    (folder / name).unlink()
    if name.endswith(".json"):  # weights are missed by whoever reads them
        refused(config.fetch, f"was changed after it was made ({name} is missing")
    (folder / name).write_bytes(whole)
    config.fetch()
    (folder / "added_tokens.json").write_text("{}")
    refused(config.fetch, "added_tokens.json is not in the manifest")


def test_files_that_are_not_read_are_not_checked(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ARTIFACTS / "tiny-draft", tmp_path / "model"))
    (folder / "model.safetensors").unlink()  # of a model that runs on a server
    (folder / "README.md").write_text("mine")
    assert ModelConfig(path=str(folder)).fetch(weights=False) == folder


def test_a_foreign_manifest_is_ignored(model: Path) -> None:
    (model / "manifest.json").write_text('{"files": {"x": 1}, "version": "1.0"}')
    assert ModelConfig(path=str(model)).fetch() == model
    (model / "manifest.json").write_text('{"files": {"x": 1}')  # may have been ours
    refused(ModelConfig(path=str(model)).fetch, "manifest.json is damaged")


def test_a_head_that_differs_from_its_manifest_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ARTIFACTS / "medusa-tiny", tmp_path / "head"))
    Medusa.load(folder, ARTIFACTS / "tiny-target")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"base_model_name_or_path": "x"}))
    refused(lambda: Medusa.load(folder, ARTIFACTS / "tiny-target"), "was changed after it was made")


def test_a_file_that_was_written_again_is_hashed_again(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"old")
    os.utime(path, ns=(1, 1))
    first = manifests.hashed(path)
    assert manifests.hashed(path) == first
    path.write_bytes(b"new")
    assert manifests.hashed(path) != first


# ---- artifacts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("figure", ["x", [1], {"a": 1}, True])
@pytest.mark.parametrize("kind", [JudgeHead, RiskCalibration, Probe])
def test_figures_that_are_not_numbers_are_refused(
    kind: Any, figure: object, tmp_path: Path
) -> None:
    made = kind.example()
    made.save(tmp_path / "it")
    path = tmp_path / "it" / "config.json"
    metrics = {"test": {"all": {"r2": figure}}} if kind is Probe else {"auroc": figure}
    for told in (metrics, {"test": {"all": 1}} if kind is Probe else metrics, []):
        config = json.loads(path.read_text())
        path.write_text(json.dumps(config | {"metrics": told}))
        manifests.seal(tmp_path / "it", kind.kind, kind.version)
        refused(lambda: kind.load(tmp_path / "it").figures(), "metrics")


def test_a_probe_that_would_score_nan_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    made = Probe.example()
    made.tensors["std"] = torch.full_like(made.tensors["std"], 1e-45)
    made.save(tmp_path / "it")
    refused(lambda: Probe.load(tmp_path / "it"), "not finite")


def test_a_probe_that_overflows_on_a_step_says_so(tmp_path: Path) -> None:
    made = Probe.example()
    made.tensors["layers.0.weight"] = torch.full_like(made.tensors["layers.0.weight"], 1e38)
    made.tensors["mean"] *= 0  # else the order of a sum decides whether the folded bias is finite
    made.tensors["layers.1.weight"] *= 0
    made.tensors["layers.2.bias"] = torch.zeros(1)
    made.save(tmp_path / "it")
    probe = Probe.load(tmp_path / "it")
    states = torch.full((1, 3, 4), 1e6)
    refused(lambda: probe.of_rows(states.reshape(1, -1)), "scores a step with NaN")


# ---- chat templates -------------------------------------------------------------------------------

MESSAGES = [{"role": "user", "content": "2 + 2 <é \u2028>?"}, {"role": "assistant", "content": "4"}]
FEATURES = """\
{%- for message in messages %}
  {%- if loop.first %}{{ bos_token }}{% endif %}
  {%- if message.role == 'system' %}{% continue %}{% endif %}
{{ message.role | upper }}: {{ message['content'] | trim | tojson }}{{ message | tojson(indent=2) }}
  {%- if loop.index > 5 %}{% break %}{% endif %}
  {% generation %}{{ message.content }}{% endgeneration %}
{% endfor %}
{%- set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}
{%- if tools is none and documents is none %}no tools{% endif %}{{ undefined_name }}
{%- macro turn(x) %}<{{ x }}>{% endmacro %}{{ turn('a') }}{{ strftime_now('%Y') }}
{%- if add_generation_prompt %}<think>{% endif %}"""


@pytest.mark.parametrize("name", ["tiny-draft", "tiny-target", FEATURES], ids=lambda n: n[:12])
def test_templates_are_rendered_as_transformers_renders_them(name: str) -> None:
    text = Text(str(ARTIFACTS / ("tiny-draft" if "{" in name else name)))
    if "{" in name:
        text.tokenizer.chat_template = name
    for system in (None, "Be brief."):
        for question in ("2 + 2 <é \u2028>?", "😀 " * 50):
            said = [{"role": "system", "content": system}] if system is not None else []
            said.append({"role": "user", "content": question})
            own, _ = text.prompt(question, system)
            theirs = text.tokenizer.apply_chat_template(
                said, tokenize=False, add_generation_prompt=True
            )
            assert own == theirs


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ 7 ** (10**9) }}",
        "{{ 'x' | center(10**10) }}",
        "{{ '%10000000000d' | format(1) }}",
        "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(99999) %}" + "x" * 99 + "{% endfor %}",
        "{{ [].append.__globals__ }}{{ ().__class__.__base__.__subclasses__() }}",
        "{" * 100_000,
        "{{ " + "(" * 10_000 + ")" * 10_000 + " }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('no\nmore') }}",
        "{% if %}",
    ],
    ids=lambda template: template[:30],
)
def test_templates_without_end_are_refused(template: str, model: Path) -> None:
    (model / "chat_template.jinja").write_text(template)
    text = Text(str(model))
    refused(lambda: text.prompt("2 + 2?"), "chat template")
    assert render("{{ messages[0].content }}", {"messages": MESSAGES}) == MESSAGES[0]["content"]


def test_a_template_that_was_refused_says_why() -> None:
    with pytest.raises(TemplateRefusedError, match="no system message"):
        render("{{ raise_exception('no system message') }}", {})


def test_readers_accept_valid_files(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_text('{"a": [1, 2.5, null], "b": Infinity}')
    assert foreign.read_object(path, finite=False)["a"] == [1, 2.5, None]
    refused(lambda: foreign.read_object(path), "is no number")
    refused(lambda: foreign.read_json(path, largest=10), "larger than 10 bytes")
    path.write_bytes(b"\xff")
    refused(lambda: foreign.read_text(path), "cannot be read")
    path.write_text("[]")
    refused(lambda: read_json(path), "not a JSON object")
    refused(lambda: foreign.read_text(tmp_path / "none"), "has no none")
    assert Model.example().maker()


def test_a_template_is_rendered_though_something_ended_the_worker_meanwhile() -> None:
    assert render("{{ a }}", {"a": 1}) == "1"
    worker = _worker.process
    assert worker is not None
    worker.kill()
    worker.wait()
    assert render("{{ a }}", {"a": 2}) == "2"
