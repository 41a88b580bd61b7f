"""``python -m semspec.artifacts``, publish and pull without a Hub; the index; a kind defined in one file."""

from __future__ import annotations

import errno
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from semspec import registry
from semspec.artifacts import base, inspection
from semspec.artifacts.evaluation import Evaluation
from semspec.artifacts.probe import Probe
from semspec.cli import artifacts as command
from semspec.cli import publish, pull
from semspec.errors import UserError
from semspec.probes import index
from semspec.runner import execute
from semspec.storage import manifests
from tests.contract import test_artifacts as contract
from tests.support.pair import configuration

DOCS = (Path(__file__).parents[2] / "docs" / "artifacts.md").read_text()


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    Probe.example().save(tmp_path / "all" / "probe")
    return tmp_path / "all" / "probe"


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0, of: Any = command) -> str:
    """Return what the command prints; its exit code must be ``code``, its errors one line."""
    capsys.readouterr()
    try:
        of.main(list(words))
        found = 0
    except SystemExit as done:
        found = int(done.code or 0)
    captured = capsys.readouterr()
    assert found == code, captured
    if code == 2:
        assert captured.err.startswith("semspec: ")
        assert captured.err.count("\n") == 1
    return captured.out + captured.err


def test_list_and_inspect_show_an_artifact(probe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "probe-tiny-target-plus" in told(capsys, "list")
    assert "owner/model" in told(capsys, "list", f"path={probe.parent}")
    shown = told(capsys, "inspect", f"path={probe}")
    for part in ("spearman 0.5", "layers.0.weight", "[3, 12]", "float32", "model.safetensors"):
        assert part in shown
    assert "tiny-draft" in told(capsys, "inspect", "path=embedded/probe-tiny-draft-paper")
    for kind in ("probe", "evaluation", "model"):
        assert kind in told(capsys, "kinds")
    assert json.loads(told(capsys, "schema", "kind=probe")) == Probe.schema


def test_a_damaged_artifact_is_listed_as_damaged(
    probe: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Probe.example().save(probe.parent / "intact")
    (probe / base.CONFIG).write_text("{")
    shown = told(capsys, "list", f"path={probe.parent}")
    assert shown.count("not as published") == 1
    assert "intact" in shown
    assert "1 of 1" in told(capsys, "verify", "path=embedded/judge-head-tiny-target")


def test_a_manifest_that_cannot_be_written_is_one_line(
    probe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(manifests, "write_bytes", full)
    assert f"no space left in {probe}" in told(capsys, "seal", f"path={probe}", code=2)


def test_verify_finds_a_changed_byte_and_seal_accepts_it(
    probe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"path={probe.parent}"
    assert "1 of 1 as published" in told(capsys, "verify", where)
    card = probe / base.CARD
    data = card.read_bytes()
    card.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    assert "README.md was changed" in told(capsys, "verify", where, code=1)
    assert f"sealed {probe} (probe)" in told(capsys, "seal", where)
    told(capsys, "verify", where)
    manifest = (probe / base.MANIFEST).read_bytes()
    (probe / base.CONFIG).write_text('{"kind": "probe", "version": 1}')
    assert "has no role" in told(capsys, "seal", where, code=2)
    assert (probe / base.MANIFEST).read_bytes() == manifest  # nothing damaged is vouched for
    (probe.parent / "empty").mkdir()
    assert "holds no artifact" in told(capsys, "verify", f"path={probe.parent / 'empty'}", code=1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("verfy",), "unknown command 'verfy'; did you mean 'verify'?"),
        (("verify",), "path= is missing"),
        (("verify", "path=nowhere"), "no folder nowhere"),
        (("verify", "where=x"), "unknown option 'where'"),
        (("list", "x"), "options are written name=value"),
        (("inspect", "path=embedded/nothing"), "no artifact embedded/nothing"),
        (("inspect", "path=./nowhere"), "or point path at a local folder or a Hub repository"),
        (("verify", "path=embedded/nothing"), "no artifact embedded/nothing"),
        (("seal", "path="), "path= is missing"),
        (("list", "path=nowhere"), "no folder nowhere"),
        (("schema", "kind=prob"), "did you mean artifact=probe?"),
        (("evaluation", "run=nowhere", "out=x"), "holds no finished run"),
    ],
)
def test_mistakes_end_in_one_line(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in told(capsys, *words, code=2)


def test_publish_shows_and_pull_refuses_without_a_network(
    probe: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    where = f"path={probe}"
    shown = told(capsys, where, "repo=me/it", "private=true", of=publish)
    for part in ("me/it (a private repository)", "manifest.json", "tags:", "nothing was sent"):
        assert part in shown
    for words, says in (
        ((where,), "repo= is missing"),
        ((where, "repo=it"), "give OWNER/NAME"),
        ((where, "repo=me/it", "token=hf_abcdefghijklmnopqrst"), "a token is not an option"),
        ((where, "repo=me/it", "confirm=yes"), "confirm=yes: give true or false"),
        (("path=nowhere", "repo=me/it"), "no folder nowhere"),
        ((f"path={tmp_path}", "repo=me/it"), "has no manifest.json"),
    ):
        line = told(capsys, *words, code=2, of=publish)
        assert says in line
        assert "hf_" not in line
    (probe / "notes.txt").write_text("mine")
    assert "notes.txt is not in the manifest" in told(capsys, where, "repo=me/it", code=2, of=publish)  # fmt: skip
    assert "give OWNER/NAME" in told(capsys, "repo=it", code=2, of=pull)
    assert "already exists" in told(capsys, "repo=me/it", f"out={probe}", code=2, of=pull)
    for module in (command, publish, pull):
        assert "usage: python -m semspec." in told(capsys, "--help", of=module)


def test_a_run_becomes_an_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("problems=2", "max_new_tokens=24", "quiet=true", "accept=greedy", "split=token")
    config = configuration(*options, "temperature=0")
    resolved = {"model": {"path": "/home/me/models/big"}, "temperature": 0.0, "quiet": True}
    result = execute(config, resolved, tmp_path / "run")
    out = tmp_path / "evaluation"
    told(capsys, "evaluation", f"run={tmp_path / 'run'}", f"out={out}")
    made = Evaluation.load(out)
    assert made.config["result"]["pass_at_1"] == result["pass_at_1"]
    told_options = made.config["options"]
    assert {told_options.pop(f"plugins.{group}") for group in ("accept", "draft")} == {
        "greedy",
        "lm",
    }
    own = {name: value for name, value in told_options.items() if not name.startswith("plugins.")}
    assert own == {"model.path": "big", "temperature": 0.0}
    assert str(tmp_path) not in (out / base.CONFIG).read_text()
    assert "1 of 1" in told(capsys, "verify", f"path={out}")


def test_the_index_lists_every_probe_as_its_config_does(tmp_path: Path) -> None:
    for entry in index.entries():
        found = Probe.load(entry["path"], entry.get("revision"))
        line = index.line(
            found.config, index.feature_set(found.features, found.layers), entry["path"], "0" * 40
        )
        for name in ("model", "role", "features"):
            assert f"{name}: {entry[name]}" in line
    file = tmp_path / "probes.yaml"
    example = Probe.example()
    features = index.feature_set(example.features, example.layers)
    line = index.line(example.config, features, "me/it", "c0ffee00" * 5)
    file.write_text(line + "\n")
    assert index.find("owner/model", "target", "paper", "paragraph", file) == (
        "me/it",
        "c0ffee00" * 5,
    )
    assert index.find("owner/model", "draft", "paper", "paragraph", file) is None
    assert index.find("owner/model", "target", "paper", "sentence", file) is None
    for bad, says in (
        (line.replace(", revision: " + "c0ffee00" * 5, ""), "name the commit"),
        (line.replace("c0ffee00" * 5, "main"), "name the commit"),
        (line.replace("role: target", "role: judge"), "role is target or draft"),
        (line.replace("path: ", "place: "), "it needs model, role, features, path"),
    ):
        file.write_text(bad + "\n")
        with pytest.raises(UserError, match=says):
            index.entries(file)


def test_a_new_kind_is_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The example of docs/artifacts.md, as it stands there, passes the contract tests."""
    registry.plugins("artifact")
    (block,) = re.findall(r"^```python\n(# semspec/artifacts/\w+\.py\n.*?)^```$", DOCS, re.M | re.S)
    monkeypatch.setitem(registry._PLUGINS, "artifact", dict(registry._PLUGINS["artifact"]))
    module = ModuleType("semspec.artifacts.temperatures")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block, "docs/artifacts.md", "exec"), module.__dict__)
    monkeypatch.setitem(contract.KINDS, "temperatures", module.Temperatures)  # type: ignore[attr-defined]
    for number, test in enumerate(
        (
            contract.test_a_flipped_byte_anywhere_is_found,
            contract.test_configs_outside_the_schema_are_refused,
            contract.test_tensors_that_do_not_fit_the_config_are_refused,
        )
    ):
        into = tmp_path / str(number)
        arguments = (into / "it", into) if number == 0 else (into / "it",)
        test("temperatures", *arguments)  # type: ignore[operator]
    contract.test_a_kind_declares_name_version_schema_and_example("temperatures")
    contract.test_another_model_is_refused_by_name("temperatures")
    made = module.Temperatures.example()  # type: ignore[attr-defined]
    made.tensors["temperatures"][0] = 0
    made.save(tmp_path / "bad")
    with pytest.raises(UserError, match="temperatures are above 0"):
        inspection.check(tmp_path / "bad")
