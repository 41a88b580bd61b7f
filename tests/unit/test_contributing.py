"""The worked example of CONTRIBUTING.md runs unchanged: a drafter and its artifact in one file."""

from __future__ import annotations

import re
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from semspec import registry
from semspec.choices.settle import expand_shorthands
from semspec.config import options
from semspec.errors import UserError
from semspec.models.location import EXAMPLE, EXAMPLE_VOCABULARY, ModelConfig, ModelFacts, read_facts
from semspec.solver import Solver
from semspec.types import Context, Draft, Room
from tests.contract import test_artifacts as artifact_contract
from tests.contract import test_drafters_and_rules as contract
from tests.support.binding import run_of
from tests.support.drafting import answerless, kit_for
from tests.support.pair import configuration
from tests.support.runs import text

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example as a module that the registry knows; forgotten afterwards."""
    for kind in (
        "drafter",
        "artifact",
    ):  # the known ones, before some join that no other test must see
        registry.plugins(kind)
        monkeypatch.setitem(registry._PLUGINS, kind, dict(registry._PLUGINS[kind]))
    (block,) = re.findall(
        r"^```python\n(# semspec/drafters/bigram\.py\n.*?)^```$", PAGE, re.M | re.S
    )
    module = ModuleType("semspec.drafters.bigram")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block, "CONTRIBUTING.md", "exec"), module.__dict__)
    return module


def bound(module: Any, folder: Path, texts: list[list[int]], **given: Any) -> Any:
    module.Bigrams.count(texts, EXAMPLE, EXAMPLE_VOCABULARY).save(folder)
    return module.Bigram(table=str(folder), **given).bind(run_of({"target": EXAMPLE}))


def test_the_bigram_drafter_drafts_the_most_frequent_successors(
    module: Any, tmp_path: Path
) -> None:
    drafter = bound(module, tmp_path, [[1, 2, 3, 1, 2, 4], [2, 3], [3, 1, 5]], longest=5)
    session = drafter.open(kit_for())
    assert answerless(session.draft(Context(1, [7, 1]), Room(9, 9, 4))) == Draft(
        [2, 3, 1, 2, 3], [1, 2, 3, 4, 5]
    )
    assert answerless(session.draft(Context(1, [1]), Room(2, 9, 4))) == Draft([2, 3], [1, 2])
    assert answerless(session.draft(Context(1, [7]), Room(9, 9, 4))) == Draft()


def test_the_bigram_drafter_counts_units_of_the_split(module: Any, tmp_path: Path) -> None:
    drafter = bound(module, tmp_path, [[0, 1, 2, 3, 0]])  # token 2 ends a paragraph
    session = drafter.open(kit_for("paragraph"))
    found = answerless(session.draft(Context(1, [0]), Room(100, 2, 4)))
    assert found == Draft([1, 2, 3, 0, 1, 2], [2, 6])


def test_a_bigram_table_of_another_model_is_refused(module: Any, tmp_path: Path) -> None:
    drafter = bound(module, tmp_path, [[1, 2]])
    other = ModelFacts("owner/other", None, "", 2, 4, "f" * 64)
    with pytest.raises(UserError, match="trained for owner/model, the model is owner/other"):
        drafter.bind(run_of({"target": other}))
    made = module.Bigrams.load(tmp_path)
    made.tensors["following"][0] = EXAMPLE_VOCABULARY
    made.save(tmp_path / "bad")
    with pytest.raises(UserError, match="tokens that are not in the vocabulary"):
        module.Bigrams.load(tmp_path / "bad")


@pytest.mark.parametrize(
    ("given", "says"),
    [({"longest": 0}, "longest=0: .*draft=none"), ({}, r"no table is named: give draft\.table=")],
)
def test_a_mistake_ends_in_one_line(module: Any, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        module.Bigram(**given).bind(run_of({"target": EXAMPLE}))
    assert "\n" not in str(refused.value)


def test_the_bigram_drafter_passes_the_contract_tests(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    examples = contract.examples("drafter")
    made = examples["bigram-0"]
    monkeypatch.setitem(contract.DRAFTER_EXAMPLES, "bigram-0", made)
    contract.test_an_example_of_a_drafter_drafts("bigram-0")
    contract.test_plugins_are_frozen_documented_dataclasses("drafter")
    for rule, split in (("lossless-0", "token"), ("logprob-0", "paragraph")):
        contract.test_every_pairing_keeps_the_invariants_of_the_loop(
            drafter=contract.bound(made, split, 1.0), rule=rule, split=split
        )
    monkeypatch.setitem(artifact_contract.KINDS, "bigrams", module.Bigrams)
    artifact_contract.test_a_kind_declares_name_version_schema_and_example("bigrams")
    artifact_contract.test_another_model_is_refused_by_name("bigrams")
    flipped = tmp_path / "flipped"
    artifact_contract.test_a_flipped_byte_anywhere_is_found("bigrams", flipped / "it", flipped)
    artifact_contract.test_configs_outside_the_schema_are_refused("bigrams", tmp_path / "configs")


def test_a_run_uses_the_bigram_drafter_as_any_other(module: Any, tmp_path: Path) -> None:
    """Counted over texts of the embedded world, it saves passes of the target and changes no text."""
    assert options("draft")["bigram"].startswith("Drafts what most often followed")
    common = ("accept=greedy", "split=token", "temperature=0", "max_new_tokens=60")
    plain = configuration("draft=none", *common)
    problems = list(islice(plain.benchmark.problems(), 4))
    with Solver(plain) as solver:
        texts = {s.problem.id: s.outcome.tokens for s in solver.solve(problems, "plain")}
        vocabulary = solver.engines["target"].vocabulary
    target = read_facts(ModelConfig(path="embedded/tiny-target"), text().fingerprint)
    module.Bigrams.count(texts.values(), target, vocabulary).save(tmp_path)
    given = expand_shorthands(["draft=bigram", f"table={tmp_path}", *common])
    with Solver(configuration(*given, "draft_length=4")) as solver:
        found = {s.problem.id: s.outcome for s in solver.solve(problems, "speculative")}
    assert {name: outcome.tokens for name, outcome in found.items()} == texts
    assert sum(len(r.kept) for outcome in found.values() for r in outcome.rounds) > 20


def test_the_example_leaves_nothing_in_the_registry() -> None:
    assert "bigram" not in registry.plugins("drafter")
    assert "bigrams" not in registry.plugins("artifact")
