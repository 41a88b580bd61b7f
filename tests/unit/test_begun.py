"""Folders begun earlier: what may differ between starts, and what older versions did not record."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from semspec.errors import UserError
from semspec.training.probes.stages import keep_options
from tests.support.probes import FACTS, configuration

Config = dict[str, Any]


def older(folder: Path, change: Callable[[Config], Any]) -> None:
    """The folder's options as another version would have written them."""
    file = folder / "config.json"
    stored = json.loads(file.read_text())
    change(stored)
    file.write_text(json.dumps(stored))


def test_a_folder_without_a_newer_option_has_its_default(tmp_path: Path) -> None:
    keep_options(tmp_path, configuration(tmp_path, "draft=tiny"), FACTS)

    def strip(stored: Config) -> None:
        del stored["definitions"]
        del stored["draft"]["tree_depth"]
        del stored["engine"]["chunk"]

    older(tmp_path, strip)
    keep_options(tmp_path, configuration(tmp_path, "draft=tiny"), FACTS)
    for given, told in (
        ("definitions=[1,8]", r"definitions was \[3,7\], is \[1,8\]"),
        ("draft.tree_depth=4", r"draft\.tree_depth was 6, is 4"),
        ("engine.chunk=7", r"engine\.chunk was 1024, is 7"),
    ):
        with pytest.raises(UserError, match=told):
            keep_options(tmp_path, configuration(tmp_path, "draft=tiny", given), FACTS)


def test_a_folder_of_older_code_keeps_what_that_code_did(tmp_path: Path) -> None:
    keep_options(tmp_path, configuration(tmp_path, "draft=tiny"), FACTS)
    older(tmp_path, lambda stored: stored["draft"].pop("own_prompt"))
    with pytest.raises(UserError, match=r"draft\.own_prompt was false, is true"):
        keep_options(tmp_path, configuration(tmp_path, "draft=tiny"), FACTS)
    keep_options(tmp_path, configuration(tmp_path, "draft=tiny", "draft.own_prompt=false"), FACTS)


def test_recorded_options_count_whatever_the_default_is(tmp_path: Path) -> None:
    keep_options(tmp_path, configuration(tmp_path, "samples=5"), FACTS)
    with pytest.raises(UserError, match="samples was 5, is 20"):
        keep_options(tmp_path, configuration(tmp_path, "samples=20"), FACTS)
    with pytest.raises(UserError, match="draft was null, is not set; "):
        keep_options(tmp_path, configuration(tmp_path, "samples=5", "draft=tiny"), FACTS)
    older(tmp_path, lambda stored: stored.update(invented=3))  # of a newer version
    with pytest.raises(UserError, match="invented was 3, is not set"):
        keep_options(tmp_path, configuration(tmp_path, "samples=5"), FACTS)


def test_other_weights_are_refused_even_by_a_folder_without_fingerprints(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    keep_options(tmp_path, config, FACTS)
    with pytest.raises(UserError, match=r"facts\.fingerprint was .*, is "):
        keep_options(tmp_path, config, replace(FACTS, fingerprint="f" * 64))
    older(tmp_path, lambda stored: stored["facts"].pop("fingerprint"))
    with pytest.raises(UserError, match=r"facts\.fingerprint was not set"):
        keep_options(tmp_path, config, FACTS)


def test_a_folder_resumes_with_servers_at_other_addresses(tmp_path: Path) -> None:
    def at(port: int, *more: str) -> Any:
        return configuration(
            tmp_path, "engine=sglang", f"engine.target_url=http://127.0.0.1:{port}", *more
        )

    keep_options(tmp_path, at(1), FACTS)
    keep_options(tmp_path, at(2, "engine.patience=3"), FACTS)
    with pytest.raises(UserError, match="seed was 0, is 1"):
        keep_options(tmp_path, at(2, "seed=1"), FACTS)
    with pytest.raises(UserError, match=r"engine\.check was true, is not set"):
        keep_options(tmp_path, configuration(tmp_path), FACTS)


@dataclass(frozen=True, kw_only=True)
class Extra:
    size: int = 3
    newer: bool = False


def test_other_stages_options_have_their_defaults_too(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    keep_options(tmp_path, config, FACTS, extra=Extra(size=4), told={"a": 1})
    older(tmp_path, lambda stored: stored["extra"].pop("newer"))
    keep_options(tmp_path, config, FACTS, extra=Extra(size=4), told={"a": 1})
    with pytest.raises(UserError, match=r"extra\.newer was false, is true"):
        keep_options(tmp_path, config, FACTS, extra=Extra(size=4, newer=True), told={"a": 1})
