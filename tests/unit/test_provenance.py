"""The provenance of a result: always recorded, never a secret, never an error."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from semspec.storage import provenance


def test_provenance_has_versions_machine_and_command() -> None:
    told = provenance.collect(seed=7, argv=["python", "-m", "semspec.run", "seed=7"])
    assert told["seed"] == 7 and told["command"][-1] == "seed=7"
    assert told["python"].startswith(f"{sys.version_info.major}.")
    assert told["machine"]["cores"] >= 1 and told["machine"]["memory_gib"] > 0
    assert told["machine"]["cpu"] and len(told["machine"]["load"]) == 3
    assert "torch" in told["packages"]
    assert told["git"] is None or len(told["git"]["revision"]) >= 40
    json.dumps(told, allow_nan=False)


def test_environment_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "a-very-secret-value")
    assert "a-very-secret-value" not in json.dumps(provenance.collect())


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("hf.token=abc", "hf.token=***"),
        ("+engine.api_key=abc", "+engine.api_key=***"),
        ("--hf-token=abc", "--hf-token=***"),
        ("PASSWORD=a b", "PASSWORD=***"),
        ("hf_abcdefghijklmnopqrst", "***"),
        ("url=https://me:pw@host/v1", "url=https://***@host/v1"),
        ("max_tokens=512", "max_tokens=512"),
        ("split=token", "split=token"),
        ("author=me", "author=me"),
        ("draft=hf_internal", "draft=hf_internal"),
    ],
)
def test_credentials_are_masked(word: str, shown: str) -> None:
    assert provenance.masked(["run", word]) == ["run", shown]


def test_a_flag_masks_what_follows() -> None:
    assert provenance.masked(["--token", "abc", "abc"]) == ["--token", "***", "abc"]
    assert provenance.masked(["--token", "--seed"]) == ["--token", "--seed"]


def test_collecting_provenance_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError

    for module, name in [
        (subprocess, "run"),
        (os, "sched_getaffinity"),
        (os, "getloadavg"),
        (os, "sysconf"),
        (os, "cpu_count"),
        (Path, "read_text"),
        (importlib.metadata, "version"),
        (platform, "platform"),
        (provenance, "masked"),
    ]:
        monkeypatch.setattr(module, name, refuse)
    told = provenance.collect()
    assert told["git"] is None and told["command"] is None and told["packages"] == {}
    assert told["machine"]["gpus"] == [] and told["machine"]["memory_gib"] is None


def test_the_git_state_is_that_of_the_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def git(*command: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *command],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    package = tmp_path / "semspec"
    package.mkdir()
    file = package / "provenance.py"
    file.write_text("")
    git("init")
    git("add", ".")
    git("-c", "commit.gpgsign=false", "commit", "-m", "one", "--no-verify")
    monkeypatch.setattr(provenance, "ROOT", file.parent.parent)
    told = provenance.collect()["git"]
    assert len(told["revision"]) >= 40 and told["dirty"] is False
    file.write_text("changed")
    assert provenance.collect()["git"]["dirty"] is True
    inner = package / "site-packages" / "semspec"  # installed within someone else's checkout
    inner.mkdir(parents=True)
    monkeypatch.setattr(provenance, "ROOT", inner.parent)
    assert provenance.collect()["git"] is None
