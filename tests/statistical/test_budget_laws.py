"""Adaptive draft lengths keep the target's law; drafts cut depending on what was drawn do not.

The lengths, nodes and pauses of a problem depend on the outcome of earlier drafts, of this problem and of others. They
change all the time, and the outputs still have exactly the target's law.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest

from semspec.decoding.budget import Adaptive
from semspec.decoding.budget_beside import SUFFIX, Beside, Copies, Lookups
from semspec.decoding.budget_copied_steps import CopiedSteps
from semspec.decoding.budget_steps import AdaptiveSteps
from semspec.decoding.costs import CHAIN, Costs
from semspec.decoding.pace import Pace, Steady
from semspec.decoding.pacing import Pacing
from semspec.decoding.trim import shorten
from semspec.drafters.eagle3 import Eagle3Drafter
from semspec.drafters.hybrid import Hybrid
from semspec.drafters.lm import LanguageModel
from semspec.drafters.medusa import MedusaDrafter
from semspec.engines.toy import Toy
from semspec.models.location import ModelConfig
from semspec.protocols import Drafter
from semspec.rules.lossless import Lossless
from semspec.rules.random import Random
from semspec.types import Draft, Sampling
from tests.statistical.test_laws import SURE
from tests.statistical.test_retrieval_laws import CONTEXT_DRAFTERS, REPEATING, retrieval
from tests.support.binding import run_of
from tests.support.costs import economy, table
from tests.support.datastores import TOY_FACTS
from tests.support.deep import samples
from tests.support.heads import target_folder, toy_eagle3, toy_medusa
from tests.support.law import p_value, speculative_plan, toy_kit

pytestmark = pytest.mark.deep(quick=True)
SAMPLES = samples(quick=1_500, deep=4_000)
FEWER = samples(quick=400, deep=1_000)  # of drafters that take longer
CHAINS = {"dynamic": 0.3, "static": 0.28, "sampled": 0.3}  # what a chain costs beside its tokens
TOY = Toy(vocabulary=4, seed=3)
LENGTH = 4


@dataclass(slots=True, kw_only=True)
class Watched(Adaptive):
    """Counts what was decided, for a test that means to have seen decisions of each kind."""

    decided: Counter[str] = field(default_factory=Counter)

    def alone(self, left: int) -> int:
        self.decided["alone" if (tokens := Adaptive.alone(self, left)) == 1 else "pause"] += 1
        return tokens

    def cut(self, draft: Draft) -> None:
        noted(self, draft, self.decided, Adaptive.cut)


@dataclass(slots=True, kw_only=True)
class WatchedBeside(Beside):
    """The same of copies beside a model."""

    decided: Counter[str] = field(default_factory=Counter)

    def alone(self, left: int) -> int:
        self.decided["alone" if (tokens := Beside.alone(self, left)) == 1 else "pause"] += 1
        return tokens

    def cut(self, draft: Draft) -> None:
        noted(self, draft, self.decided, Beside.cut)
        if draft.tokens:
            self.decided["the model" if self._draws else "a copy"] += 1
            passed_over = self._draws and self.copying._proposal is not None
            self.decided["the model in place of a copy"] += passed_over


def noted(
    pace: Adaptive, draft: Draft, decided: Counter[str], cut: Callable[[Any, Draft], None]
) -> None:
    """Cut a draft, and count what was decided about it."""
    count, tree = len(draft.tokens), draft.parents is not None
    if count and pace.longest_chain:
        decided["asked a chain" if pace.chain else "asked a tree"] += 1
    cut(pace, draft)
    decided[f"draft of {min(count, 3)}"] += 1
    decided["cut"] += 0 < len(draft.tokens) < count
    decided["dropped"] += bool(count and not draft.tokens)
    decided["a chain of a tree"] += bool(tree and draft.tokens and draft.parents is None)


def paces(
    costs: Costs, decided: Counter[str], first: float = 0.5, **options: Any
) -> Callable[[int, int], Pace]:
    """One economy for all problems: what it has learned of some decides about the others."""
    shared = economy(costs, first)

    def made(longest: int, cap: int) -> Pace:
        return Watched(economy=shared, longest=longest, decided=decided, **options)

    return made


def test_lengths_that_are_chosen_before_drawing_are_lossless() -> None:
    decided: Counter[str] = Counter()
    costs = table(passing=0.8, fed=0.25, units=0.05)
    plan = speculative_plan(LanguageModel(), Lossless())
    options: dict[str, Any] = {"draft_length": 3, "length": LENGTH, "samples": SAMPLES}
    p = p_value(TOY, plan, Lossless(), Sampling(0.8), pace=paces(costs, decided), **options)
    assert p > SURE
    assert min(decided[f"draft of {n}"] for n in (1, 2)) > 20, decided


def test_pauses_are_lossless() -> None:
    """A draft model that hardly pays: now it drafts, now the target writes some tokens in a row."""
    decided: Counter[str] = Counter()
    made = paces(table(passing=1.2, fed=0.4, units=0.3), decided)
    plan = speculative_plan(LanguageModel(), Lossless())
    options: dict[str, Any] = {"draft_length": 3, "length": LENGTH, "samples": SAMPLES}
    assert p_value(TOY, plan, Lossless(), Sampling(0.8), pace=made, **options) > SURE
    assert decided["pause"] > 20 and decided["draft of 1"] > 20, decided


@pytest.mark.parametrize("name", CONTEXT_DRAFTERS)
def test_lookups_of_which_the_likely_part_is_sent_are_lossless(name: str) -> None:
    decided: Counter[str] = Counter()
    drafter = retrieval(name)
    costs = table(passing=0.9, fed=0.15, asked=0.02, tree=0.05)
    made = paces(costs, decided, 0.4, copies=True, cuts=True, exact=True, watches=True)
    plan = speculative_plan(drafter, Lossless())
    options: dict[str, Any] = {"prompt": REPEATING, "draft_length": drafter.reach, "samples": FEWER}
    p = p_value(TOY, plan, Lossless(), Sampling(1.0), pace=made, length=LENGTH, **options)
    assert p > SURE
    assert decided["cut"] + decided["dropped"] > 20, decided


@pytest.mark.parametrize("tree", ["dynamic", "static", "sampled"])
@pytest.mark.parametrize("chain", [0, 3])
def test_trees_of_the_depth_and_the_nodes_that_pay_are_lossless(tree: str, chain: int) -> None:
    """With ``chain``, a chain is drafted now and then in the tree's place."""
    decided: Counter[str] = Counter()
    drafter = LanguageModel(tree=tree, tree_depth=3, tree_top_k=2, tree_nodes=8)
    cuts = tree != "sampled"
    costs = table(passing=0.8, fed=0.1, units=0.05, tree=0.03)
    if chain:  # as good as a tree, nearly, so that what was kept of late decides
        costs.fixed = False
        for size in (1, 2, 4):
            costs.add("draft", CHAIN, 1, size, CHAINS[tree] + 0.05 * size)
        costs.fixed = True
    made = paces(costs, decided, cuts=cuts, exact=True, longest_chain=chain)
    plan = speculative_plan(drafter, Lossless())
    options: dict[str, Any] = {"draft_length": 3, "length": LENGTH, "samples": FEWER}
    assert p_value(TOY, plan, Lossless(), Sampling(0.8), pace=made, **options) > SURE
    assert not cuts or (decided["cut"] > 20), decided
    assert not chain or min(decided["asked a chain"], decided["asked a tree"]) > 20, decided


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Drafters with random heads, alone and behind a copying one; EAGLE-3's can draft three of the four tokens."""
    home: Path = tmp_path_factory.mktemp("heads")
    target = target_folder(home / "target", TOY.vocabulary)
    eagle3 = str(toy_eagle3(home / "eagle3", TOY.vocabulary, [0, 2, 3]))
    medusa = str(toy_medusa(home / "medusa", TOY.vocabulary))
    run = run_of({"target": TOY_FACTS, "draft": TOY_FACTS}, folders={"target": target})
    size: dict[str, Any] = {"tree_depth": 3, "tree_top_k": 3, "tree_nodes": 7}
    made: dict[str, Any] = {}
    for tree in ("chain", "static", "dynamic", "sampled"):
        shape = {"tree": tree, **size}
        made[f"eagle3 {tree}"] = Eagle3Drafter(head=ModelConfig(path=eagle3), **shape).bind(run)
        made[f"medusa {tree}"] = MedusaDrafter(head=ModelConfig(path=medusa), **shape).bind(run)
        for name in ("lm", "eagle3"):
            made[f"suffix+{name} {tree}"] = Hybrid(
                sources=f"suffix+{name}", match=2, eagle3=eagle3, chain=2, **shape
            ).bind(run)
    return made


def paces_of_a_run(
    drafter: Drafter, sampling: Sampling, costs: Costs, decided: Counter[str]
) -> Callable[[int, int], Pace]:
    """As ``paces``, with the options that a run chooses for this drafter."""
    economies = {"draft": economy(costs)}
    if drafter.beside is not None:
        economies |= {"draft" + SUFFIX: Lookups(costs, "draft" + SUFFIX)}
    kit = toy_kit(Lossless(), TOY.models()["target"], sampling, 0)
    watching = drafter.open(kit)

    def made(longest: int, cap: int) -> Pace:
        pacing, pair = Pacing(costs, economies), (drafter, Lossless())
        pace = pacing.of_tokens("draft", pair, watching, sampling, longest, cap, chain=3)
        assert isinstance(pace, Adaptive)
        options = {one.name: getattr(pace, one.name) for one in fields(pace) if one.init}
        return (WatchedBeside if isinstance(pace, Beside) else Watched)(**options, decided=decided)

    return made


ALONE = [f"{head} {tree}" for head in ("eagle3", "medusa") for tree in ("chain", *CHAINS)]
BESIDE = [f"suffix+{name} {tree}" for name in ("lm", "eagle3") for tree in ("chain", *CHAINS)]


@pytest.mark.parametrize("name", [*ALONE, *BESIDE])
def test_heads_and_copies_beside_a_model_that_draft_what_pays_are_lossless(
    heads: Any, name: str
) -> None:
    decided: Counter[str] = Counter()
    drafter, sampling = heads[name], Sampling(0.8, top_p=0.9)
    costs = table(passing=0.8, fed=0.1, units=0.05, asked=0.02, tree=0.03)
    costs.fixed = False
    for size in (1, 2, 4):
        costs.add("draft", CHAIN, 1, size, 0.1 + 0.05 * size)
    costs.fixed = True
    made = paces_of_a_run(drafter, sampling, costs, decided)
    options: dict[str, Any] = {"prompt": REPEATING, "draft_length": 3, "samples": FEWER}
    plan = speculative_plan(drafter, Lossless())
    p = p_value(TOY, plan, Lossless(), sampling, pace=made, length=LENGTH, **options)
    assert p > SURE
    assert sum(decided[f"draft of {n}"] for n in (1, 2, 3)) > 20, decided
    assert decided["cut"] + decided["dropped"] + decided["alone"] + decided["pause"] > 20, decided


def taking_turns(
    drafter: Hybrid, sampling: Sampling, decided: Counter[str], units: float = 0.02
) -> Callable[[int, int], Pace]:
    """Paces of copies beside a model, where both are worth about the same; all problems learn together."""
    costs = table(passing=0.6, fed=0.1, units=units, tree=0.03)
    shared = economy(costs)
    lookups = Lookups(costs, "draft" + SUFFIX).beside(shared)
    tree = bool(drafter.levels) and not drafter.drawn(sampling)
    both: dict[str, Any] = {"exact": True, "watches": "eagle3" in drafter.sources}

    def made(longest: int, cap: int) -> Pace:
        copying = Copies(economy=lookups, longest=longest, **both)
        more = {"longest_chain": 3 if drafter.levels else 0, "cuts": tree, **both}
        return WatchedBeside(economy=shared, longest=3, copying=copying, decided=decided, **more)

    return made


@pytest.mark.parametrize("name", BESIDE)
def test_copies_and_a_model_that_take_turns_are_lossless(heads: Any, name: str) -> None:
    """What became of all drafts before says which of them drafts."""
    decided: Counter[str] = Counter()
    drafter, sampling = heads[name], Sampling(0.8, top_p=0.9)
    made = taking_turns(drafter, sampling, decided)
    options: dict[str, Any] = {"prompt": REPEATING, "draft_length": 3, "samples": FEWER}
    plan = speculative_plan(drafter, Lossless())
    p = p_value(TOY, plan, Lossless(), sampling, pace=made, length=LENGTH, **options)
    assert p > SURE
    assert both_drafted(decided), decided


def both_drafted(decided: Counter[str]) -> bool:
    return min(decided[who] for who in ("a copy", "the model", "the model in place of a copy")) > 20


def test_nested_drafts_of_which_copies_and_a_model_take_turns_are_lossless(heads: Any) -> None:
    """As below; every token that comes out was drafted by one of them, or written by the target."""
    decided: Counter[str] = Counter()
    drafter, sampling, rule = heads["suffix+lm chain"], Sampling(1.0), Random(rate=0.0)
    made = taking_turns(drafter, sampling, decided, units=0.2)
    plan = speculative_plan(LanguageModel(), rule, nested=drafter, pen=made)
    options: dict[str, Any] = {"split": "paragraph", "step_cap": 3, "samples": SAMPLES}
    assert p_value(TOY, plan, rule, sampling, prompt=REPEATING, **options) > SURE
    assert both_drafted(decided), decided


def test_nested_drafts_that_come_and_go_are_lossless() -> None:
    """Every drafted step is rejected: what comes out was all written by the target, with help or without."""
    decided: Counter[str] = Counter()
    made = paces(table(passing=1.1, fed=0.3, units=0.2), decided, 0.6)
    rule = Random(rate=0.0)
    plan = speculative_plan(LanguageModel(), rule, nested=LanguageModel(), pen=made)
    options: dict[str, Any] = {"split": "paragraph", "step_cap": 3, "samples": SAMPLES}
    assert p_value(TOY, plan, rule, Sampling(1.0), **options) > SURE
    assert decided["pause"] > 20 and decided["draft of 1"] > 20, decided


@pytest.mark.parametrize("copies", [False, True], ids=["lm", "prompt_lookup"])
def test_steps_that_come_and_go_are_lossless(copies: bool) -> None:
    shared = economy(table(passing=1.0, fed=0.3, units=0.5))

    def made(longest: int, cap: int) -> Pace:
        kind = CopiedSteps if copies else AdaptiveSteps
        return kind(economy=shared, longest=longest, cap=cap, by_token=True)

    drafter: Drafter = retrieval("prompt_lookup") if copies else LanguageModel()
    plan = speculative_plan(drafter, Lossless())
    options: dict[str, Any] = {"split": "paragraph", "draft_length": 2, "samples": SAMPLES}
    prompt = {"prompt": REPEATING} if copies else {}
    p = p_value(TOY, plan, Lossless(), Sampling(1.0), pace=made, **options, **prompt)
    assert p > SURE


@dataclass(slots=True)
class Stopping(Steady):
    """Cuts drawn chains by the probabilities that their tokens were drawn with."""

    after: bool = True  # behind an unlikely token, which stays; else before it

    def cut(self, draft: Draft) -> None:
        assert draft.probs is not None
        for at, token in enumerate(draft.tokens):
            if draft.probs[at, token] < 0.4:
                shorten(draft, at + 1 if self.after else at)
                return


@pytest.mark.parametrize("after", [True, False], ids=["behind it", "before it"])
def test_a_drawn_chain_may_stop_behind_an_unlikely_token_and_not_before_it(after: bool) -> None:
    """What stops by the tokens so far leaves a sample of q; what drops a token for what it is does not.

    The dropped token's place is then written by p alone: tokens that q finds unlikely come out too often.
    """
    plan = speculative_plan(LanguageModel(), Lossless())
    options: dict[str, Any] = {"draft_length": 3, "samples": samples(quick=7_000, deep=10_000)}

    def made(longest: int, cap: int) -> Pace:
        return Stopping(longest, cap, after=after)

    p = p_value(TOY, plan, Lossless(), Sampling(1.0), pace=made, **options)
    assert p > SURE if after else p < 1e-12
