"""The identity of weights: cheap at any size, the same wherever a folder lies, different for other weights."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from semspec.errors import UserError
from semspec.models.hub import Found, noted
from semspec.models.location import ModelConfig
from semspec.results import identity
from semspec.results.identity import digest_of, identities
from semspec.runner import execute
from tests.support.pair import TARGET, configuration


def flip(path: Path, at: int) -> None:
    """Change one byte; size and times stay."""
    state = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 1]))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    copy = tmp_path / "model"
    shutil.copytree(TARGET, copy)
    (copy / "manifest.json").unlink()  # it would refuse a changed model by itself
    return copy


def test_one_changed_byte_is_another_model_and_a_copy_is_the_same(model: Path) -> None:
    before = digest_of(model)
    assert before.startswith("sha256 ") and before == digest_of(TARGET)
    (model / "README.md").write_text("another card")
    os.utime(model / "model.safetensors", (1, 1))
    assert digest_of(model) == before
    flip(model / "model.safetensors", 500_000)
    changed = digest_of(model)
    assert changed != before
    flip(model / "config.json", 1)
    assert digest_of(model) not in (before, changed)


def test_fingerprints_of_large_files_sample_them(tmp_path: Path) -> None:
    for number in range(12):
        with (tmp_path / f"model-{number:02d}.safetensors").open("wb") as file:
            file.write(b"header")
            file.truncate(5 << 30)  # sparse: 60 GB that nobody has written
    began = time.process_time()
    before = digest_of(tmp_path)
    assert time.process_time() - began < 2
    assert before.startswith("sampled-sha256 ")
    flip(tmp_path / "model-03.safetensors", 1000)  # in the header
    assert (header := digest_of(tmp_path)) != before
    last = (5 << 30) - 1
    flip(tmp_path / "model-11.safetensors", last)
    assert (end := digest_of(tmp_path)) not in (before, header)
    listed = {"files": {"model-05.safetensors": {"sha256": "0" * 64}}}
    (tmp_path / "manifest.json").write_text(json.dumps(listed))  # it knows of every byte
    assert digest_of(tmp_path) not in (before, header, end)


def test_identities_are_under_the_given_names(model: Path) -> None:
    with noted() as found:
        ModelConfig(path="embedded/tiny-draft").fetch()
        ModelConfig(path=str(model)).fetch(weights=False)
    found["owner/name"] = Found(Path("/cache/snapshots") / ("ab" * 20), on_hub=True)
    told = identities(found)
    assert set(told) == {"embedded/tiny-draft", str(model), "owner/name"}
    assert told["owner/name"] == f"commit {'ab' * 20}"
    ModelConfig(path="embedded/tiny-draft").fetch()
    assert len(found) == 3  # nothing is noted behind the block


def test_everything_that_a_rule_and_a_drafter_load_is_part_of_it(tmp_path: Path) -> None:
    given = ("draft=rest", "accept=semantic_plus", "problems=1", "max_new_tokens=8")
    execute(configuration(*given, "quiet=true"), {"any": 1}, tmp_path)
    told = json.loads((tmp_path / "weights.json").read_text())
    assert {"embedded/tiny-target", "embedded/sparse-tiny"} < set(told["files"])
    assert any("probe" in name for name in told["files"]), told


def test_a_run_is_not_resumed_with_other_weights(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    given = ("draft=prompt_lookup", "accept=greedy", "split=token", "temperature=0", "quiet=true")
    config = configuration(*given, "problems=2", "max_new_tokens=8", f"model.path={model}")
    execute(config, {"any": 1}, folder)
    (folder / "result.json").unlink()
    problems = folder / "problems.jsonl"
    first = problems.read_bytes().splitlines(keepends=True)[0]
    problems.write_bytes(first)
    flip(model / "model.safetensors", 500_000)
    with pytest.raises(UserError, match=f"begun with another {model}: .*another hydra.run.dir"):
        execute(config, {"any": 1}, folder)
    assert problems.read_bytes() == first
    flip(model / "model.safetensors", 500_000)
    identity._digest.cache_clear()
    assert execute(config, {"any": 1}, folder)["problems"] == 2
