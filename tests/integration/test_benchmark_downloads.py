"""Benchmarks fetch their data sets with the real Hub client, here from a loopback server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semspec import registry
from semspec.errors import UserError
from tests.support.benchmark_rows import SAMPLES, write_rows
from tests.support.hub import ALICE, TOKENS, hub_for, requests
from tests.support.hub_server import HubServer


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_for(tmp_path, monkeypatch) as server:
        yield server


def make(name: str, **options: Any) -> Any:
    return registry.plugin("benchmark", name).cls(**options)


def publish(hub: HubServer, name: str, folder: Path, **options: Any) -> str:
    sample = SAMPLES[name]
    data = write_rows(folder / name / Path(sample.file).name, sample.rows).read_bytes()
    repo = registry.plugin("benchmark", name).cls.repo
    files = {sample.file: data, "README.md": b"-", "train/train.jsonl": b'{"other": 1}\n'}
    return hub.make(f"datasets/{repo}", files, **options)


@pytest.mark.parametrize("name", ["math500", "gsm8k", "aime24", "amc23", "mmlu_pro", "alpaca"])
def test_a_data_set_is_fetched_at_a_commit_and_nothing_else_of_it(
    name: str, hub: HubServer, tmp_path: Path
) -> None:
    old = publish(hub, name, tmp_path)
    benchmark = make(name, revision=old, order=None)
    sample = SAMPLES[name]
    local = write_rows(tmp_path / "local" / sample.file, sample.rows)
    problems = list(benchmark.problems())
    assert problems == list(make(name, data=str(local), order=None).problems())
    assert not [line for line in requests(hub) if "README" in line or "train/" in line]
    hub.make(f"datasets/{benchmark.repo}", {sample.file: b"no rows at all"})
    assert list(benchmark.problems()) == problems  # the commit is what counts


def test_a_gated_data_set_names_both_ways_out(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = publish(hub, "gpqa", tmp_path, gated=True)
    with pytest.raises(UserError, match=r"accept its terms .* benchmark\.data at a local copy"):
        list(make("gpqa", revision=commit).problems())
    hub.repos["datasets/Idavidrein/gpqa"].owner = TOKENS[ALICE]  # who may read it
    monkeypatch.setenv("HF_TOKEN", ALICE)
    assert len(list(make("gpqa", revision=commit).problems())) == len(SAMPLES["gpqa"].rows)
