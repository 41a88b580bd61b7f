"""The contract of every registered drafter and rule; new ones are tested automatically."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec import registry
from semspec.decoding.pace import Pace, Steady
from semspec.decoding.trim import depths
from semspec.driver import Driver
from semspec.loop import Speculation, speculate
from semspec.protocols import Plan, Plugin
from semspec.types import Context, Draft, Outcome, Room, Sampling, Verdict
from tests.support.deep import samples
from tests.support.examples import (
    DRAFTERS,
    RULE_EXAMPLES,
    TOY,
    bound,
    bound_rule,
    engines,
    examples,
    kit_for,
    splits_of,
)
from tests.support.law import PROMPT

DRAFTER_EXAMPLES = examples("drafter")


def watched(plan: Plan[Any], seen: list[Any]) -> Plan[Any]:
    """Runs a plan through, keeping what it returns."""
    value = yield from plan
    seen.append(value)
    return value


class Watched:
    """A session that keeps what its drafts or verdicts were."""

    def __init__(self, session: Any, seen: list[Any]) -> None:
        self.session, self.seen = session, seen
        self.watches, self.recalls = getattr(session, "watches", ()), True

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
    (done,) = Driver(engines(drafter, rule)).run([(context, plan)])  # type: ignore[arg-type]
    return done.value, context, drafts, verdicts


def combinations() -> Iterator[Any]:
    for d, made in DRAFTER_EXAMPLES.items():
        drafter = bound(made, "token", 1.0)
        for r, rule in RULE_EXAMPLES.items():
            if drafter.levels and not rule.trees:
                continue
            for split in ["token"] if drafter.levels else splits_of(rule):
                if split in splits_of(rule):
                    yield pytest.param(drafter, r, split, id=f"{d}-{r}-{split}")


@pytest.mark.parametrize(("drafter", "rule", "split"), list(combinations()))
@pytest.mark.deep(quick=True)
@settings(max_examples=samples(quick=3, deep=8), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    draft_length=st.integers(1, 4),
    step_cap=st.integers(1, 6),
    budget=st.integers(1, 30),
    temperature=st.sampled_from([0.0, 0.6, 1.0]),
)
def test_every_pairing_keeps_the_invariants_of_the_loop(
    drafter: Any,
    rule: str,
    split: str,
    seed: int,
    draft_length: int,
    step_cap: int,
    budget: int,
    temperature: float,
) -> None:
    made = bound_rule(rule, split, temperature)
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

    # drafts and verdicts are well formed
    for draft in drafts:
        if draft.parents is not None:
            well_formed(draft, draft.parents, draft_length, stop_ids)
        elif draft.tokens:
            assert draft.ends == sorted(set(draft.ends))
            assert draft.ends[0] >= 1
            # at most the token that revealed the last end is no unit's
            assert len(draft.tokens) - 1 <= draft.ends[-1] <= len(draft.tokens)
    judged = [draft for draft in drafts if draft.tokens or draft.halted]
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


@pytest.mark.parametrize("name", [n for n, made in DRAFTER_EXAMPLES.items() if not made.plain])
def test_an_example_of_a_drafter_drafts(name: str) -> None:
    drafter, rule = (
        bound(DRAFTER_EXAMPLES[name], "token", 1.0),
        bound_rule("lossless-0", "token", 1.0),
    )
    tokens = 0
    for seed in range(20):
        drafts = solve(drafter, rule, kit_for(rule, seed, split="token"), 30, Steady(3, 4))[2]
        tokens += sum(len(draft.tokens) for draft in drafts)
    assert tokens > 20


@pytest.mark.parametrize("name", RULE_EXAMPLES)
def test_an_example_of_a_rule_judges(name: str) -> None:
    made = RULE_EXAMPLES[name]
    split = "paragraph" if "paragraph" in splits_of(made) else "token"
    temperature = 0.0 if made.greedy_only else 1.0
    rule, drafter = bound_rule(name, split, temperature), DRAFTERS["lm"].cls()
    judged = 0
    for seed in range(20):
        kit = kit_for(rule, seed, split=split, sampling=Sampling(temperature))
        judged += len(solve(drafter, rule, kit, 30, Steady(2, 4))[3])
    assert judged >= 10


def well_formed(draft: Draft, parents: list[int], levels: int, stop_ids: frozenset[int]) -> None:
    """A tree of nodes that can each be cut; its depth is bounded, and nothing follows an end."""
    assert len(parents) == len(draft.tokens)
    assert draft.ends == list(range(1, len(parents) + 1))
    assert max(depths(parents)) <= levels
    assert not any(draft.tokens[parent] in stop_ids for parent in parents if parent >= 0)
    assert draft.probs is None or len(draft.probs) == len(parents)


def growing() -> Iterator[Any]:
    """Drafters of trees that draft by the rows of a model or a head."""
    for name, made in DRAFTER_EXAMPLES.items():
        drafter = bound(made, "token", 1.0)
        if drafter.levels and drafter.rows:
            yield pytest.param(drafter, id=name)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("drafter", list(growing()))
def test_a_drafter_of_trees_drafts_chains_where_they_are_asked_for(
    drafter: Any, temperature: float
) -> None:
    rule = bound(registry.plugin("accept", "lossless").cls(), "token", temperature)
    kit = kit_for(rule, 3, split="token", sampling=Sampling(temperature))
    for chain in (False, True):
        pace = Steady(3, 1, chain=chain)
        _, _, drafts, verdicts = solve(drafter, rule, kit, 24, pace)
        made = [draft for draft in drafts if draft.tokens]
        assert made and all((draft.parents is None) == chain for draft in made)
        assert verdicts and (not chain or max(len(draft.tokens) for draft in made) <= 3)


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """Says that the model drafts so many units, whatever was found; 0: not at all."""

    units: int
    chain: bool

    def model(self, found: Draft, room: Room) -> Room | None:
        return dataclasses.replace(room, units=self.units, chain=self.chain) if self.units else None


@pytest.mark.parametrize("units", [0, 2, 9])
@pytest.mark.parametrize(
    "name", [name for name, made in DRAFTER_EXAMPLES.items() if made.beside is not None]
)
def test_who_copies_beside_a_model_lets_the_pace_say_which_of_them_drafts(
    name: str, units: int
) -> None:
    """As long as is said, and not only as long as its option for fixed lengths; where the model rests, nothing is asked."""
    rule, drafter = (
        bound_rule("lossless-0", "token", 1.0),
        bound(DRAFTER_EXAMPLES[name], "token", 1.0),
    )
    assert drafter.beside.rows and drafter.chains and not drafter.rows
    kit = kit_for(rule, 3, split="token", sampling=Sampling(1.0))
    outcome, _, drafts, _ = solve(drafter, rule, kit, 40, Steady(40, 1, turns=Told(units, True)))
    drawn = [draft for draft in drafts if draft.probs is not None]
    if not units:
        assert not drawn and any(draft.tokens for draft in drafts)
        assert not any(one.passes.get("draft") for one in outcome.rounds)
    else:
        assert len(drawn) == len(drafts) and max(len(draft.tokens) for draft in drawn) == units


# artifacts are no options; tests/contract/test_artifacts.py is about them
@pytest.mark.parametrize("kind", [kind for kind in registry.PACKAGES if kind != "artifact"])
def test_plugins_are_frozen_documented_dataclasses(kind: registry.Kind) -> None:
    known = registry.plugins(kind)
    assert known, f"no {kind} is registered"
    for name, plugin in known.items():
        assert dataclasses.is_dataclass(plugin.cls), name
        parameters = plugin.cls.__dataclass_params__  # type: ignore[attr-defined]
        assert parameters.frozen, f"{name}: options must not change during a run"
        assert all(f.kw_only for f in dataclasses.fields(plugin.cls)), name
        assert 10 < len(plugin.summary) < 100, f"{name}: one line of help, not {plugin.summary!r}"
        plugin.cls()  # every option has a default
        # a form of calls belongs to a server and is part of no run
        assert kind == "calls" or Plugin in plugin.cls.__mro__, (
            f"{name}: no life of its own: derive it from its kind's class"
        )


def test_every_rule_declares_what_it_needs() -> None:
    for rule in RULE_EXAMPLES.values():
        assert rule.cuts in {"tokens", "ends"}
        assert rule.splits is None or rule.splits <= set(registry.plugins("split"))
        assert isinstance(rule.lossless, bool)
        assert isinstance(rule.needs, frozenset)
