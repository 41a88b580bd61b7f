"""The rows that a drafter observes equal those of a fresh pass over the finished text, at every position."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from semspec.decoding.pace import Steady
from semspec.decoding.writing import Pen
from semspec.drafters.lm import LanguageModel, LanguageModelSession
from semspec.drafters.none import NoDrafter
from semspec.driver import Driver
from semspec.engines.toy import Toy
from semspec.loop import Speculation, speculate
from semspec.protocols import Kit, Plan
from semspec.rules.logprob import LogProb
from semspec.rules.lossless import Lossless
from semspec.rules.random import Random
from semspec.splitters.token import TokenBoundary, TokenSplit
from semspec.types import Context, Draft, Query, Read, Room, Sampling, Seen, Verdict, What
from tests.support.law import PROMPT, own_rng, toy_kit
from tests.support.tiny_models import load, tokens

TOY = Toy(vocabulary=6, stop=True)
WATCHED = (Read(What.HIDDEN, layers=(0, -1)), Read(What.TOP_K, k=3))


class Watching(LanguageModelSession):
    """The draft model, and everything that was shown to it, by position."""

    watches = WATCHED

    def __init__(self, kit: Any) -> None:
        super().__init__(kit)
        self.rows: dict[int, tuple[torch.Tensor, ...]] = {}
        self.lengths: list[int] = []

    def see(self, seen: Seen) -> None:
        hidden, (ids, logprobs) = (seen.values[read] for read in WATCHED)
        assert len(hidden) == len(ids) == len(logprobs) == seen.count
        for i in range(seen.count):
            self.rows[seen.start + i] = (hidden[i], ids[i], logprobs[i])


class Guessing(Watching):
    """Drafts a tree: all tokens of the vocabulary, and again all after the first of them."""

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        yield from ()
        tokens = [*range(6), *range(6)] if room.limit > 1 else list(range(6))
        parents = [-1] * 6 + [context.tokens[-1] % 6] * (len(tokens) - 6)
        return Draft(tokens, list(range(1, len(tokens) + 1)), parents=parents)


class Climb:
    """A rule for trees: follows the target's favourites, and writes the one that ends the way."""

    lossless, trees = False, True

    def evidence(self) -> tuple[Read, ...]:
        return ()

    def gate(self) -> None:
        return None

    def open(self, kit: Any) -> Any:
        self.kit = kit
        return self

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        best = Read(What.TOP_K, k=1)
        kit = self.kit
        answer = yield Query(
            "target",
            context,
            kit.sampling,
            kit.rng,
            tokens=draft.tokens,
            parents=draft.parents,
            reads=(best,),
        )
        favourites, path = answer[best][0][:, 0].tolist(), []
        while True:
            at = path[-1] if path else -1
            children = [i for i, parent in enumerate(draft.parents or []) if parent == at]
            token = favourites[at + 1]
            node = next((i for i in children if draft.tokens[i] == token), None)
            if node is None:
                return Verdict(len(path), [token], path=path)
            path.append(node)
            if token in kit.stop_ids:
                return Verdict(len(path), path=path)


def watched(
    drafter: type[Watching], rule: Any, seed: int, nested: bool = False, **options: Any
) -> tuple[Context, list[Watching]]:
    models = TOY.models()
    split = options.pop("split")
    kit = toy_kit(rule, models["target"], Sampling(1.0), seed, split=split, **options)
    sessions = [drafter(own_rng(kit, "draft"))]
    pen = None
    if nested:
        inner = replace(
            own_rng(kit, "nested"), boundary=TokenBoundary, evidence=Lossless().evidence()
        )
        sessions.append(Watching(inner))
        pen = Pen(sessions[1], Lossless().open(inner), Steady(2, 1))
    context = Context(1, PROMPT)
    judging, pace = rule.open(kit), Steady(2, 4)
    problem = Speculation(context, kit, 40, sessions[0], judging, pace, pen=pen)
    list(Driver(dict(models)).run([(context, speculate(problem))]))  # type: ignore[arg-type]
    return context, sessions


def truth(context: Context) -> tuple[torch.Tensor, ...]:
    """Rows of every position, read in one pass."""
    fresh = Context(2, context.tokens)
    query = Query("target", fresh, Sampling(1.0), random.Random(0), reads=WATCHED, rows_from=0)
    (answer,) = TOY.models()["target"].answer([query])
    return answer[WATCHED[0]], *answer[WATCHED[1]]


CASES: dict[str, tuple[type[Watching], Any, dict[str, Any]]] = {
    "tree": (Guessing, Climb(), {"split": "token"}),
    "lossless": (Watching, Lossless(), {"split": "token"}),
    "steps": (Watching, LogProb(threshold=-1.5), {"split": "paragraph"}),
    "salvage": (Watching, LogProb(threshold=-1.5), {"split": "paragraph", "salvage": True}),
    "nested": (Watching, LogProb(threshold=-1.5), {"split": "paragraph", "nested": True}),
    "sentences": (Watching, LogProb(threshold=-2), {"split": "sentence", "nested": True}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(6))
def test_watched_rows_equal_those_of_a_fresh_pass(case: str, seed: int) -> None:
    drafter, rule, options = CASES[case]
    context, sessions = watched(drafter, rule, seed, **options)
    expected = truth(context)
    # the last round's rows are never asked for again, so that only the last token may lack its own
    first = context.prompt_length - 1
    for session in sessions:
        missing = set(range(first, len(context) - 1)) - set(session.rows)
        assert not missing, f"positions {sorted(missing)} of {len(context)} were never seen"
        assert max(session.rows) < len(context), "a row of a token that is not there"
        for position, own in session.rows.items():
            for mine, whole in zip(own, expected, strict=True):
                torch.testing.assert_close(mine, whole[position])


def test_watched_rows_of_a_real_model_equal_those_of_a_fresh_pass() -> None:
    """The same over engine=hf, whose passes run over a cache: a draft that is often wrong."""
    target, draft = load("llama"), load("qwen3")
    kit = Kit(
        prompt="",
        sampling=Sampling(0.7),
        boundary=lambda: TokenSplit().open(str, 8),
        stop_ids=frozenset(),
        piece=str,
        decode=str,
        encode=lambda text: [],
        rng=random.Random(0),
        evidence=Lossless().evidence(),
    )
    context = Context(1, tokens(20))
    session = Watching(kit)
    rule = Lossless().open(kit)
    plan = speculate(Speculation(context, kit, 40, session, rule, Steady(4, 8)))
    list(Driver({"target": target, "draft": draft}).run([(context, plan)]))
    fresh = Context(2, context.tokens)
    query = Query("target", fresh, kit.sampling, kit.rng, reads=WATCHED, rows_from=0)
    answer = load("llama").answer([query])[0]
    hidden, logprobs = answer[WATCHED[0]], answer[WATCHED[1]][1]
    assert set(range(19, len(context) - 1)) <= set(session.rows)
    for position, (own, _, own_logprobs) in session.rows.items():
        torch.testing.assert_close(own, hidden[position], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(own_logprobs, logprobs[position], atol=1e-4, rtol=1e-4)


def test_a_rule_that_reads_nothing_shows_nothing() -> None:
    """Where the target does no pass there is nothing to see; what it writes itself is shown."""
    context, (session,) = watched(Watching, Random(rate=0.5), 3, split="paragraph")
    expected = truth(context)[0]
    assert session.rows
    for position, (hidden, *_) in session.rows.items():
        torch.testing.assert_close(hidden, expected[position])


def test_without_a_watcher_nothing_more_is_read() -> None:
    """The queries of a run without watchers are what they were."""
    asked: list[Query] = []
    models = TOY.models()
    kit = toy_kit(Lossless(), models["target"], Sampling(1.0), 0, split="token")
    context = Context(1, PROMPT)
    drafter, rule = LanguageModel().open(kit), Lossless().open(kit)

    def plan() -> Any:
        inner = speculate(Speculation(context, kit, 20, drafter, rule, Steady(2, 4)))
        query = next(inner)
        while True:
            asked.append(query)
            answer = yield query
            try:
                query = inner.send(answer)
            except StopIteration as stop:
                return stop.value

    list(Driver(dict(models)).run([(context, plan())]))  # type: ignore[arg-type]
    assert {r for q in asked if q.model == "target" for r in q.reads} == {Read(What.PROBS)}
    assert NoDrafter().open(kit).watches == ()
