"""What every drafter and rule keeps to, found through the registry: a new one is tested unasked."""

from __future__ import annotations

import atexit
import dataclasses
import random
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from semspec import registry, world
from semspec.artifacts.judge_head import JudgeHead
from semspec.decoding.pace import Pace, Steady
from semspec.decoding.trim import depths
from semspec.driver import Driver
from semspec.engines.toy import Toy, ToyEngine
from semspec.loop import Speculation, speculate
from semspec.models.location import ModelConfig
from semspec.protocols import Plan
from semspec.rules.arc import Calibrated
from semspec.types import Context, Draft, Outcome, Room, Sampling, Verdict
from tests.support.arc import some_calibration
from tests.support.datastores import TOY_FACTS, with_toy_datastore
from tests.support.heads import target_folder, toy_eagle3, toy_medusa
from tests.support.law import PROMPT, SPLITTERS, toy_kit
from tests.support.probes import random_probe

DRAFTERS = registry.plugins("drafter")
RULES = registry.plugins("accept")
QUESTION = world.DOMAINS["residues"].make(random.Random(0)).question
TOY = Toy(vocabulary=12, stop=True)  # with a token for each digit


def kit_for(rule: Any, seed: int, **options: Any) -> Any:
    sampling = options.pop("sampling", Sampling(1.0))
    split = options.pop("split")
    kit = toy_kit(rule, TOY.models()["target"], sampling, seed, split=split, **options)
    return dataclasses.replace(kit, prompt=QUESTION)  # some rules know the embedded world only


@cache
def toy_reward() -> str:
    """A reward model's folder as far as its rule reads it, for the toy engine's hidden states."""
    folder = tempfile.mkdtemp(prefix="semspec-reward-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    weight = torch.randn(1, ToyEngine.width, generator=torch.Generator().manual_seed(0))
    save_file({"score.weight": weight}, Path(folder) / "model.safetensors")
    return folder


@cache
def toy_probe(role: str, features: str) -> str:
    """A probe that fits the toy engine's hidden states, with random weights."""
    folder = tempfile.mkdtemp(prefix="semspec-probe-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    plus = features == "plus"
    probe = random_probe(
        pooling=("mean", "max", "last") if plus else ("mean",),
        logprobs=plus,
        facts=TOY_FACTS,
        seed=len(role),
        role=role,
    )
    steps = 400  # all of them right, so that a risk can be certified
    probe.tensors["calibration.scores"] = torch.linspace(0.3, 1, steps)
    probe.tensors["calibration.semantic"] = torch.ones(steps)
    probe.tensors["calibration.groups"] = torch.arange(steps)
    probe.config["calibration"] = {"temperature": 1.0}
    probe.save(Path(folder) / "probe")
    return str(Path(folder) / "probe")


@cache
def toy_calibration() -> str:
    """A calibration that fits the toy engine's embeddings; nothing in it was measured."""
    folder = Path(tempfile.mkdtemp(prefix="semspec-arc-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    some_calibration(dataclasses.replace(TOY_FACTS, tokenizer="f" * 64)).save(folder / "arc")
    return str(folder / "arc")


@cache
def toy_judge_head() -> str:
    """A judge of tokens that fits the toy engine's hidden states: it likes about half of them."""
    folder = tempfile.mkdtemp(prefix="semspec-judge-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    JudgeHead.example().save(Path(folder) / "head")  # of two layers of width 4, as the toy's
    return str(Path(folder) / "head")


TOY_WORDS = {"verify": ("is .",), "negative": ("it",), "positive": ("is is",), "recap_text": " It"}
TOY_OPTIONS: dict[str, Any] = {  # what makes a rule do something in the toy world
    "judge": {"threshold": 3.0, "first_by_target": 1},
    "lookahead": {"compare": "exact"},
    "triggers": TOY_WORDS | {"tokens": 2, "verify_tokens": 3, "patience": 2, "recap_tokens": 4},
}


@cache  # frozen, as every plugin: what a session learns is its own
def make(name: str, split: str, temperature: float) -> Any:
    """The rule, prepared as the solver does; models of its own are the toy engine's."""
    options = dict(TOY_OPTIONS.get(name, {}))
    if "reward" in RULES[name].cls().models():
        options["model"] = ModelConfig(path=toy_reward())
    known = {f.name for f in dataclasses.fields(RULES[name].cls)}
    for role in ("target", "draft"):
        if f"{role}_probe" in known:
            features = "paper" if name == "semantic" else "plus"
            options |= {f"{role}_probe": toy_probe(role, features), "allow_mismatch": True}
    if issubclass(RULES[name].cls, Calibrated):  # of the bound; other rules do without one
        options |= {"calibration": toy_calibration(), "allow_mismatch": True}
    if "head" in known:
        options |= {"head": toy_judge_head(), "allow_mismatch": True}
    facts = {"target": TOY_FACTS, "draft": TOY_FACTS}
    return RULES[name].cls(**options).prepare(facts, split, temperature)


def engines(rule: Any) -> dict[Any, ToyEngine]:
    """The pair, and the draft again for each role that the rule brings a model for."""
    models = dict(TOY.models())
    return models | {role: TOY.models()["draft"] for role in rule.models()}


def splits_of(rule: Any) -> list[str]:
    return [s for s in SPLITTERS if rule.splits is None or s in rule.splits]


def watched(plan: Plan[Any], seen: list[Any]) -> Plan[Any]:
    """Runs a plan through, keeping what it returns."""
    value = yield from plan
    seen.append(value)
    return value


class Watched:
    """A session that keeps what its drafts or verdicts were."""

    def __init__(self, session: Any, seen: list[Any]) -> None:
        self.session, self.seen = session, seen
        self.watches = getattr(session, "watches", ())

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        return watched(self.session.draft(context, room), self.seen)

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        return watched(self.session.judge(context, draft), self.seen)

    def see(self, seen: Any) -> None:
        self.session.see(seen)

    def observe(self, context: Context, done: Any) -> None:
        self.session.observe(context, done)


def solve(
    drafter: Any, rule: Any, kit: Any, budget: int, pace: Pace
) -> tuple[Outcome, Context, list[Draft], list[Verdict]]:
    context = Context(1, PROMPT)
    drafts: list[Draft] = []
    verdicts: list[Verdict] = []
    drafting, judging = Watched(drafter.open(kit), drafts), Watched(rule.open(kit), verdicts)
    problem = Speculation(context, kit, budget, drafting, judging, pace)  # type: ignore[arg-type]
    plan = speculate(problem)
    (done,) = Driver(engines(rule)).run([(context, plan)])  # type: ignore[arg-type]
    return done.value, context, drafts, verdicts


# beside their defaults: what drafters can be told to draft
SIZE = {"tree_depth": 3, "tree_top_k": 3, "tree_nodes": 9}
WAYS: dict[str, list[dict[str, Any]]] = {
    "lm": [{"tree": tree, **SIZE} for tree in ("static", "dynamic", "sampled")],
    "eagle3": [{"tree": tree, **SIZE} for tree in ("chain", "sampled")],
    "medusa": [{"tree": "chain"}],
    "suffix": [{"datastore": "toy", "threshold": 1, "bias": 0}],
    "hybrid": [{"sources": "rest,dresd,suffix", "sparse": "toy", "dense": "toy"}],
}
TOY_HEADS = {"eagle3": toy_eagle3, "medusa": toy_medusa}


def prepared(name: str, options: dict[str, Any]) -> Any:
    """The drafter as the solver prepares it; heads are random ones on the toy engine's states."""
    folder = Path(tempfile.mkdtemp(prefix="semspec-head-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if name in TOY_HEADS:
        head = TOY_HEADS[name](folder / "head", TOY.vocabulary)
        options = options | {"head": ModelConfig(path=str(head))}
    target = target_folder(folder / "target", TOY.vocabulary)
    return with_toy_datastore(DRAFTERS[name].cls(**options), TOY.vocabulary).prepare(target)


def drafters() -> Iterator[tuple[str, Any]]:
    for name in DRAFTERS:
        for options in [{}, *WAYS.get(name, [])]:
            told = "-".join(str(v) for v in options.values() if isinstance(v, str))
            yield f"{name}-{told}".rstrip("-"), prepared(name, options)


def combinations() -> Iterator[Any]:
    for d, drafter in drafters():
        for r, rule in RULES.items():
            if drafter.levels and not rule.cls.trees:
                continue
            for split in ["token"] if drafter.levels else splits_of(rule.cls):
                if split in splits_of(rule.cls):
                    yield pytest.param(drafter, r, split, id=f"{d}-{r}-{split}")


@pytest.mark.parametrize(("drafter", "rule", "split"), list(combinations()))
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    draft_length=st.integers(1, 4),
    step_cap=st.integers(1, 6),
    budget=st.integers(1, 30),
    temperature=st.sampled_from([0.0, 0.6, 1.0]),
)
def test_loop_invariants(
    drafter: Any,
    rule: str,
    split: str,
    seed: int,
    draft_length: int,
    step_cap: int,
    budget: int,
    temperature: float,
) -> None:
    made = make(rule, split, temperature)
    options = {"split": split, "step_cap": step_cap}
    sampling = Sampling(temperature)

    def again() -> tuple[Outcome, Context, list[Draft], list[Verdict]]:
        kit = kit_for(made, seed, sampling=sampling, **options)
        return solve(drafter, made, kit, budget, Steady(draft_length, step_cap))

    outcome, context, drafts, verdicts = again()
    stop_ids = TOY.models()["target"].stop_ids

    # budget and end of text
    assert 1 <= len(outcome.tokens) <= budget
    assert not set(outcome.tokens[:-1]) & stop_ids, "something was written after the end of text"
    assert (outcome.finish == "eos") == (outcome.tokens[-1] in stop_ids)
    assert outcome.finish == "eos" or len(outcome.tokens) == budget

    # the record rebuilds the output, and every round made progress
    rebuilt = [t for r in outcome.rounds for t in [*r.kept, *r.written, *r.handed]]
    assert rebuilt == outcome.tokens == context.output
    assert all(r.kept or r.written or r.handed for r in outcome.rounds)
    assert [t for _, part in outcome.segments() for t in part] == outcome.tokens

    # drafts and verdicts are well formed
    for draft in drafts:
        if draft.parents is not None:
            well_formed(draft, draft.parents, draft_length, stop_ids)
        elif draft.tokens:
            assert draft.ends == sorted(set(draft.ends))
            assert draft.ends[0] >= 1
            # at most the token that revealed the last end is no unit's
            assert len(draft.tokens) - 1 <= draft.ends[-1] <= len(draft.tokens)
    judged = [draft for draft in drafts if draft.tokens]
    for draft, verdict in zip(judged, verdicts, strict=True):
        assert 0 <= verdict.keep <= len(draft.tokens)
        if draft.parents is not None:  # a path from the root on
            assert verdict.path is not None and len(verdict.path) == verdict.keep
            assert [draft.parents[i] for i in verdict.path] == [-1, *verdict.path][: verdict.keep]
        if made.cuts == "ends":
            assert verdict.keep in {0, *draft.ends, len(draft.tokens)}
        assert len(verdict.scores) in {0, *range(1, len(draft.ends) + 1)}

    # the record tells trees from chains, and what was kept of them
    for done in (r for r in outcome.rounds if r.parents is not None):
        assert len(done.parents) == len(done.drafted) == len(done.ends)
        assert done.units_kept == len(done.kept) <= max(depths(done.parents))

    # same seed, same output
    assert again()[0].tokens == outcome.tokens


def well_formed(draft: Draft, parents: list[int], levels: int, stop_ids: frozenset[int]) -> None:
    """A tree of nodes that can each be cut; its depth is bounded, and nothing follows an end."""
    assert len(parents) == len(draft.tokens)
    assert draft.ends == list(range(1, len(parents) + 1))
    assert max(depths(parents)) <= levels
    assert not any(draft.tokens[parent] in stop_ids for parent in parents if parent >= 0)
    assert draft.probs is None or len(draft.probs) == len(parents)


# artifacts are no options; tests/contract/test_artifacts.py is about them
@pytest.mark.parametrize("kind", [kind for kind in registry.PACKAGES if kind != "artifact"])
def test_plugins_are_frozen_documented_dataclasses(kind: registry.Kind) -> None:
    known = registry.plugins(kind)
    assert known, f"no {kind} is registered"
    for name, plugin in known.items():
        assert dataclasses.is_dataclass(plugin.cls), name
        parameters = plugin.cls.__dataclass_params__
        assert parameters.frozen, f"{name}: options must not change during a run"
        assert all(f.kw_only for f in dataclasses.fields(plugin.cls)), name
        assert 10 < len(plugin.summary) < 100, f"{name}: one line of help, not {plugin.summary!r}"
        plugin.cls()  # every option has a default


def test_every_rule_says_what_it_needs() -> None:
    for plugin in RULES.values():
        rule = plugin.cls()
        assert rule.cuts in {"tokens", "ends"}
        assert rule.splits is None or rule.splits <= set(registry.plugins("split"))
        assert isinstance(rule.lossless, bool)
        assert isinstance(rule.needs, frozenset)
