"""The relaxed token rules against slow references written from the papers, on chains and on trees."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.artifacts.judge_head import JudgeHead
from semspec.decoding.acceptance import shape_of
from semspec.decoding.pace import Steady
from semspec.drafters.lm import LanguageModel
from semspec.driver import Driver
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.loop import Speculation, speculate
from semspec.models.location import ModelFacts
from semspec.rules._tokens import Scored
from semspec.rules.fuzzy import DIVERGENCES, Fuzzy
from semspec.rules.judge_head import Judged
from semspec.rules.lossless import Lossless
from semspec.rules.topk_delta import TopKDelta, near_nodes
from semspec.rules.typical import Typical, typical_nodes
from semspec.solver import Solver
from semspec.types import LAST_STATES, Answer, Context, Draft, Query, Room, Round, Sampling
from tests.support.binding import run_of
from tests.support.law import PROMPT, toy_kit
from tests.support.pair import configuration

CPU = torch.device("cpu")
TREES = ("chain", "static", "dynamic", "sampled")
Row = list[float]


def example(seed: int) -> tuple[torch.Tensor, torch.Tensor, list[int], list[int]]:
    """Rows of target and drafter with zeros in them, and a tree or a chain over them."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    count, vocabulary = rng.randrange(1, 12), 7
    chain = rng.random() < 0.5
    parents = [node - 1 if chain else rng.randrange(-1, node) for node in range(count)]

    def rows() -> torch.Tensor:
        logits = torch.randn(count + 1, vocabulary, generator=generator) * 2
        logits[torch.rand(logits.shape, generator=generator) < 0.2] = -torch.inf
        logits[:, 0] = 0.0
        return logits.softmax(-1)

    return rows(), rows(), parents, [rng.randrange(vocabulary) for _ in parents]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 0.5), st.floats(0, 1))
def test_typical_acceptance_equals_a_plain_loop(seed: int, epsilon: float, delta: float) -> None:
    p, _, parents, tokens = example(seed)
    shape = shape_of(parents, len(tokens), CPU)
    flags = typical_nodes(p, torch.tensor(tokens), shape.rows, epsilon, delta).tolist()
    for parent, token, flag in zip(parents, tokens, flags, strict=True):
        row = p[parent + 1].tolist()
        entropy = -sum(x * math.log(x) for x in row if x > 0)
        least = min(epsilon, delta * math.exp(-entropy))
        assert flag == (row[token] > least) or abs(row[token] - least) < 1e-6


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.floats(0, 1))
def test_top_k_and_delta_equal_a_plain_loop(seed: int, k: int, delta: float) -> None:
    p, _, parents, tokens = example(seed)
    best = p.log().topk(min(k, p.shape[-1]), -1)
    shape = shape_of(parents, len(tokens), CPU)
    tensor = torch.tensor(tokens)
    flags = near_nodes(best.indices, best.values, tensor, shape.rows, delta).tolist()
    for parent, token, flag in zip(parents, tokens, flags, strict=True):
        row = p[parent + 1].tolist()
        among = token in best.indices[parent + 1].tolist()
        least = max(row) - delta
        assert flag == (among and row[token] >= least) or abs(row[token] - least) < 1e-6


def kl(p: Row, q: Row) -> float:
    if any(x > 0 and y == 0 for x, y in zip(p, q, strict=True)):
        return math.inf
    return sum(x * math.log(x / y) for x, y in zip(p, q, strict=True) if x > 0)


def js(p: Row, q: Row) -> float:
    middle = [(x + y) / 2 for x, y in zip(p, q, strict=True)]
    return (kl(p, middle) + kl(q, middle)) / 2


SLOW: dict[str, Callable[[Row, Row], float]] = {
    "kl": kl,
    "reverse_kl": lambda p, q: kl(q, p),
    "js": js,
    "tv": lambda p, q: sum(abs(x - y) for x, y in zip(p, q, strict=True)) / 2,
}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(sorted(DIVERGENCES)))
def test_divergences_equal_a_plain_loop(seed: int, name: str) -> None:
    p, q, _, _ = example(seed)
    for told, a, b in zip(DIVERGENCES[name](p, q).tolist(), p.tolist(), q.tolist(), strict=True):
        assert told == pytest.approx(SLOW[name](a, b), abs=1e-5)


def test_tokens_with_nan_are_never_near() -> None:
    p = torch.full((2, 5), torch.nan)
    rows, token = torch.tensor([0]), torch.tensor([0])
    best = p.topk(2, -1)
    assert not typical_nodes(p, token, rows, 0.0, 0.3).any()
    assert not near_nodes(best.indices, best.values, token, rows, 1.0).any()
    for measure in DIVERGENCES.values():
        assert not bool((measure(p, p) < math.inf).any())


def solve(rule: Any, tree: str, sampling: Sampling, seed: int) -> tuple[list[int], list[Round]]:
    toy = Toy(vocabulary=6, seed=seed, stop=True)
    kit = toy_kit(rule, toy.models()["target"], sampling, seed)
    drafter = LanguageModel(tree=tree, tree_depth=3, tree_top_k=3, tree_nodes=8)
    context, pace = Context(0, PROMPT), Steady(3, 1)
    plan = speculate(Speculation(context, kit, 12, drafter.open(kit), rule.open(kit), pace))
    (done,) = Driver(dict(toy.models())).run([(context, plan)])  # type: ignore[arg-type]
    return done.value.tokens, [replace(r, seconds={}, draft_seconds=0.0) for r in done.value.rounds]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", ["typical", "fuzzy", "judge_head"])
def test_rules_without_tolerance_are_lossless_token_for_token(name: str, tree: str) -> None:
    never = {
        "typical": Typical(epsilon=1, delta=1e9),
        "fuzzy": Fuzzy(threshold=0),
        "judge_head": toy_head(1.1),
    }
    rule = never[name]
    for seed in range(10):
        for sampling in (Sampling(1.0), Sampling(0.6, top_p=0.9)):
            assert solve(rule, tree, sampling, seed) == solve(Lossless(), tree, sampling, seed)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(
    "rule",
    [Typical(epsilon=0), TopKDelta(k=6, delta=1), Fuzzy(threshold=math.inf, divergence="js")],
    ids=str,
)
def test_rules_that_accept_all_keep_every_first_child(rule: Any, tree: str) -> None:
    for seed in range(10):
        for done in solve(rule, tree, Sampling(1.0), seed)[1]:
            parents = done.parents or list(range(-1, len(done.drafted) - 1))
            at, way = -1, []
            while at in parents:
                at = parents.index(at)
                way.append(done.drafted[at])
            assert done.kept == way


@pytest.mark.parametrize("tree", ["chain", "dynamic"])
def test_greedy_keeps_only_its_favourites_by_default(tree: str) -> None:
    """At temperature 0 one token has all the probability; top-k/delta looks at what was before."""
    greedy = Sampling(0.0)
    plain = [solve(Lossless(), tree, greedy, seed)[0] for seed in range(5)]
    for rule in (Typical(), Fuzzy(), TopKDelta(k=1), TopKDelta(delta=0)):
        assert [solve(rule, tree, greedy, seed)[0] for seed in range(5)] == plain
    assert [solve(TopKDelta(delta=1), tree, greedy, seed)[0] for seed in range(5)] != plain


PIECES = ["a", "</think>", "<think>", "</th", "ink>"]


def judged(rule: Any, context: Context, draft: Draft, prompt: str) -> int:
    """How much is kept where speculative sampling would keep nothing."""
    toy = Toy(vocabulary=5, seed=1)
    engine = toy.models()["target"]
    kit = toy_kit(rule, engine, Sampling(1.0), 0)
    session = rule.open(replace(kit, prompt=prompt, piece=PIECES.__getitem__))
    kept = 0
    for at in range(context.prompt_length, len(context) + 1):  # asked as the context grows
        now = Context(0, context.tokens[:at])
        now.prompt_length = context.prompt_length
        plan = session.judge(now, draft)
        (answer,) = engine.answer([next(plan)])
        unlikely(answer)
        try:
            plan.send(answer)
        except StopIteration as stop:
            kept = stop.value.keep
    return kept


def unlikely(answer: Answer) -> None:
    """The target gives all drafted tokens no chance, but all are among its favourites."""
    probs, top = answer.values
    rows = len(answer.values[probs])
    answer.values = {
        probs: torch.nn.functional.one_hot(torch.full((rows,), 2), 5).float(),
        top: (torch.arange(5).expand(rows, 5), torch.full((rows, 5), 0.2).log()),
    }


@pytest.mark.parametrize(
    ("prompt", "written", "kept"),
    [
        ("Q <think>\n", [0], 4),  # up to the tag that closes the thinking
        ("Q <think>\n", [0, 1], 0),
        ("Q <think>\n", [3, 4], 0),  # a tag may be spread over tokens
        ("Q", [0], 0),
        ("Q", [2, 0], 4),  # the model opens it by itself
        ("Q <think></think>", [0], 0),
    ],
)
def test_only_the_thinking_is_relaxed(prompt: str, written: Sequence[int], kept: int) -> None:
    context = Context(0, [0, 1])
    context.extend(written)
    draft = Draft([0, 0, 3, 4, 0, 0], [1, 2, 3, 4, 5, 6])
    rule = TopKDelta(k=5, delta=1, only_in_think=True)
    assert judged(rule, context, draft, prompt) == kept
    assert judged(TopKDelta(k=5, delta=1), context, draft, prompt) == 6
    tree = Draft([0, 0, 3, 4, 0, 0], [1, 2, 3, 4, 5, 6], parents=[-1, 0, 1, 2, 3, 4])
    assert judged(rule, context, tree, prompt) == kept


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("accept=typical accept.epsilon=-1", "give probabilities from 0 (keep everything)"),
        ("accept=topk_delta accept.k=0", "give k of at least 1"),
        ("accept=topk_delta accept.delta=2", "a difference of probabilities"),
        ("accept=fuzzy accept.divergence=chi", "give one of kl, reverse_kl, js, tv"),
        ("accept=fuzzy accept.threshold=nan", "0 or more"),
    ],
)
def test_options_without_meaning_are_refused(arguments: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        configuration("split=token", *arguments.split())
    assert words in str(error.value) and "\n" not in str(error.value)


def toy_head(threshold: float = 0.5) -> Any:
    return Judged(threshold=threshold).bound(judge=JudgeHead.example())


@pytest.mark.parametrize("tree", TREES)
def test_the_judge_of_tokens_sees_the_state_after_each(tree: str) -> None:
    """Its flag of a node is what a slow head says of the pass over the way to that node alone."""
    engine = Toy(vocabulary=6, seed=1).models()["target"]
    kit = toy_kit(None, engine, Sampling(1.0), 3)
    drafter = LanguageModel(tree=tree, tree_depth=3, tree_top_k=3, tree_nodes=8)
    context = Context(0, PROMPT)
    plan, told = drafter.open(kit).draft(context, Room(9, 3, 1)), None
    try:
        while True:
            (told,) = Toy(vocabulary=6, seed=1).models()["draft"].answer([plan.send(told)])
    except StopIteration as stop:
        draft = stop.value
    session = toy_head().open(kit)
    query = next(session.judge(context, draft))
    (answer,) = engine.answer([query])
    scored = Scored(draft, answer, shape_of(draft.parents, len(draft.tokens), CPU))
    head, parents = JudgeHead.example(), draft.parents or range(-1, len(draft.tokens) - 1)
    weight, bias = head.tensors["weight"].tolist(), float(head.tensors["bias"])
    ways: list[list[int]] = []
    for token, parent, flag in zip(
        draft.tokens, parents, session.loosely(context, scored).tolist(), strict=True
    ):
        ways.append([*(ways[parent] if parent >= 0 else []), token])
        alone = Query(
            "target", context, Sampling(1.0), kit.rng, tokens=ways[-1], reads=(LAST_STATES,)
        )
        state = engine.answer([alone])[0][LAST_STATES][-1, 0].tolist()
        score = sum(w * x for w, x in zip(weight, state, strict=True)) + bias
        assert flag == (1 / (1 + math.exp(-score)) >= 0.5)


def test_the_shipped_judge_separates_wrong_tokens_from_right_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of fresh solutions, and bound to the target that it was trained for."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    from train_tiny_judge_head import measured, states

    made = configuration("split=token", "accept=judge_head")
    head = JudgeHead.load(made.accept.head)
    with Solver(made) as solver:
        assert solver.rule.judge.config == head.config
        engine, text = solver.engines["target"], solver.text
        found = measured(head, *states(engine, text, random.Random(1), 24, 0))
    assert found["auroc"] > 0.9
    assert found["right_tokens_kept"] > 0.8 and found["wrong_tokens_kept"] < 0.2
    other = ModelFacts("owner/other", None, "", 24, 128, "f" * 64)
    with pytest.raises(UserError, match="does not fit: it was trained for embedded/tiny-target"):
        made.accept.bind(run_of({"target": other}, "token", 1.0))
    with pytest.raises(UserError, match="give a probability from 0"):
        Judged(threshold=-1)


def test_fuzzy_refuses_drafts_without_rows() -> None:
    with pytest.raises(UserError, match="use draft=lm, or accept=typical"):
        configuration("split=token", "accept=fuzzy", "draft=prompt_lookup")
