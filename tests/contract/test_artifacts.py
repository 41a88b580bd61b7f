"""The contract of every registered kind of artifact: what is written can be read, and nothing else can."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from semspec import registry
from semspec.artifacts import _card, base, inspection
from semspec.artifacts.base import Artifact
from semspec.errors import UserError
from semspec.models.location import ModelFacts
from semspec.storage import json_schema, manifests
from semspec.storage.packaged import beside_package

KINDS = {name: plugin.cls for name, plugin in registry.plugins("artifact").items()}
TENSORS = [n for n, cls in KINDS.items() if cls.example().tensors]
LAID_OUT = [n for n in TENSORS if KINDS[n].layout(KINDS[n].example().config)]
TYPED = [n for n, cls in KINDS.items() if "kind" in cls.example().config]
BOUND = [n for n, cls in KINDS.items() if isinstance(cls.example().config.get("model"), dict)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "it"


def saved(kind: str, folder: Path) -> Artifact:
    made = KINDS[kind].example()
    shutil.rmtree(folder, ignore_errors=True)  # what was damaged is never replaced
    made.save(folder)
    return made


def content(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.iterdir()}


def refused(kind: str, folder: Path) -> str:
    """Also without a manifest: whoever damages on purpose writes one that agrees."""
    (folder / base.MANIFEST).unlink(missing_ok=True)
    with pytest.raises(UserError) as told:
        KINDS[kind].load(folder)
    assert "\n" not in str(told.value)
    return str(told.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_declares_name_version_schema_and_example(kind: str) -> None:
    cls = KINDS[kind]
    assert cls.kind == kind
    assert cls.version >= 1
    assert cls.made_by
    assert issubclass(cls, Artifact)
    assert json.loads(json.dumps(cls.schema)) == cls.schema  # JSON, as it is printed
    json_schema.check(json.loads(json.dumps(cls.example().config)), cls.schema)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_artifact_loads_unchanged_and_saves_the_same_bytes(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    made = saved(kind, folder)
    again = KINDS[kind].load(folder)
    assert again.config == json.loads(json.dumps(made.config))
    assert set(again.tensors) == set(made.tensors)
    assert all(again.tensors[n].equal(t) for n, t in made.tensors.items())
    again.save(tmp_path / "again")
    assert content(tmp_path / "again") == content(folder)
    assert type(inspection.check(folder)) is KINDS[kind]
    front = _card.front_matter((folder / base.CARD).read_text())
    assert "speculative-decoding" in front["tags"]
    assert front["license"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_byte_anywhere_is_found(kind: str, folder: Path, tmp_path: Path) -> None:
    saved(kind, folder)
    assert [found.wrong for found in inspection.below(tmp_path)] == [()]
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for at in {0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 2, len(whole) - 1}:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            (found,) = inspection.below(tmp_path)
            assert found.wrong, f"{path.name}, byte {at}"
        path.write_bytes(whole)
    for change in (
        lambda: (folder / "more.txt").write_text("x"),
        lambda: (folder / "inner").mkdir(),
        lambda: (folder / base.CARD).unlink(),
        lambda: (folder / base.MANIFEST).unlink(),
        lambda: (tmp_path / "stray").write_text("x"),
    ):
        saved(kind, folder)
        change()
        assert any(found.wrong for found in inspection.below(tmp_path))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["weights.pt", "a.pkl", "b.bin", "code.py", "c.npy"])
def test_files_that_could_run_code_are_refused(kind: str, name: str, folder: Path) -> None:
    saved(kind, folder)
    (folder / name).write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(UserError, match="can run code"):
        inspection.seal(folder)
    assert "can run code" in refused(kind, folder)


@pytest.mark.parametrize("kind", TYPED)
def test_configs_outside_the_schema_are_refused(kind: str, folder: Path) -> None:
    made = saved(kind, folder)
    changes: list[tuple[Callable[[dict[str, Any]], object], str]] = [
        (lambda c: c.update(kind="other"), "'other', not a"),
        (lambda c: c.update(version=made.version + 1), "this semspec reads version"),
        (lambda c: c.update(version=True), "this semspec reads version"),
        (lambda c: c.update(surprise=1), "'surprise', which is not known"),
        (lambda c: c.update(provenance=[]), "provenance is an array, not object"),
        *(
            (lambda c, name=name: c.pop(name), f"has no {name}")
            for name in KINDS[kind].schema["required"]
            if name not in ("kind", "version")
        ),
    ]
    for change, says in changes:
        saved(kind, folder)
        config = copy.deepcopy(made.config)
        change(config)
        (folder / base.CONFIG).write_text(json.dumps(config))
        assert says in refused(kind, folder)


@pytest.mark.parametrize("kind", LAID_OUT)
def test_tensors_that_do_not_fit_the_config_are_refused(kind: str, folder: Path) -> None:
    made = saved(kind, folder)
    name, first = next((n, t) for n, t in made.tensors.items() if t.is_floating_point())
    bad = first.clone().flatten()
    bad[0] = torch.nan
    for tensors, says in (
        ({n: t for n, t in made.tensors.items() if n != name}, f"missing tensors: {name}"),
        (made.tensors | {"more": torch.zeros(1)}, "unknown ones: more"),
        (made.tensors | {name: first[None]}, "has the shape"),
        (made.tensors | {name: first.to(torch.complex64)}, "is torch.complex64"),
        (made.tensors | {name: bad.reshape(first.shape)}, "not finite"),
    ):
        saved(kind, folder)
        save_file({n: t.contiguous() for n, t in tensors.items()}, folder / base.TENSORS)
        assert says in refused(kind, folder)


@pytest.mark.parametrize("kind", BOUND)
def test_another_model_is_refused_by_name(kind: str) -> None:
    made = KINDS[kind].example()
    told = made.config["model"]
    own = ModelFacts(told["id"], told.get("revision"), told.get("fingerprint") or "",
                     told.get("layers", 1), told.get("width", 1), told["tokenizer"])  # fmt: skip
    assert made.check(own) == []
    other = ModelFacts("another/model", own.revision, "", own.layers, own.width, own.tokenizer)
    with pytest.raises(UserError) as error:
        made.check(other)
    assert own.name in str(error.value)
    assert "another/model" in str(error.value)
    assert "allow_mismatch=true" in str(error.value)
    assert len(made.check(other, allow_mismatch=True)) == 1


def test_hub_artifacts_are_exactly_what_would_be_published() -> None:
    found = list(inspection.below(beside_package("hub_artifacts")))
    assert len(found) >= 13
    assert {one.kind for one in found} >= {"probe", "model"}
    wrong = [line for one in found for line in one.wrong]
    assert not wrong, "python -m semspec.artifacts seal path=hub_artifacts"
    for one in found:
        manifest = manifests.read(one.folder)
        assert manifest is not None
        if one.kind in LAID_OUT:
            tensors = load_file(one.folder / base.TENSORS)
            assert set(tensors) == set(KINDS[one.kind].load(one.folder).tensors)
