"""A draft model with differently named special tokens reads its own chat template."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path

import pytest

from semspec.engines.bridge import BridgedEngine
from semspec.solver import Solver
from tests.support.pair import DRAFT, configuration

pytestmark = pytest.mark.deep


@pytest.fixture
def renamed(tmp_path: Path) -> Path:
    """The embedded draft, its marks for turns renamed in tokenizer and template."""
    folder = tmp_path / "draft"
    shutil.copytree(DRAFT, folder, ignore=shutil.ignore_patterns("manifest.json"))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        text = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_text(
            text.replace("<|im_start|>", "<|turn|>").replace("<|im_end|>", "<|over|>"),
            encoding="utf-8",
        )
    json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return folder


def kept(*overrides: str) -> list[list[int]]:
    config = configuration("accept=logprob", "problems=4", *overrides)
    problems = list(islice(config.benchmark.problems(), 4))
    with Solver(config) as solver:
        bridged = isinstance(solver.engines["draft"], BridgedEngine)
        assert bridged == any("path" in o for o in overrides)
        return [s.outcome.tokens for s in solver.solve(problems, "speculative")]


def test_a_draft_with_renamed_marks_drafts_the_same(renamed: Path) -> None:
    """The same ids under other names: its own prompt reads to it as the original's does."""
    assert kept(f"draft.model.path={renamed}") == kept()


def test_the_targets_template_changes_what_a_draft_proposes(renamed: Path) -> None:
    foreign = kept(f"draft.model.path={renamed}", "draft.own_prompt=false")
    assert foreign != kept(), "a prompt with fillers for its marks should have changed something"
