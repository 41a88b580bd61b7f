"""How draft trees grow: what is kept, what is computed, and that nothing is computed twice."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.choices.settle import expand_shorthands
from semspec.decoding.trim import depths
from semspec.drafters._trees import BestFirst, Fixed, Growth, Size, fixed_shape
from semspec.drafters.lm import LanguageModel
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.protocols import Plan
from semspec.types import Answer, Draft, Read, Room, Sampling, What
from tests.support.law import toy_kit
from tests.support.pair import configuration
from tests.support.tiny_models import ask, context, load, tokens

STOP = 0


def model(way: tuple[int, ...], vocabulary: int = 9) -> torch.Tensor:
    """A row for every text: what follows it depends on all of it."""
    generator = torch.Generator().manual_seed(hash(way) % 2**31)
    return torch.randn(vocabulary, generator=generator).mul(2).softmax(-1)


def ways(tokens: list[int], parents: list[int]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def grown(tree: Growth) -> Draft:
    while tree.open:
        read = [(), *ways(*tree.reading())]
        tree.grow(torch.stack([model(way) for way in read[-len(tree.open) :]]))
    return tree.draft(sampled=True)


sizes = st.builds(Size, st.integers(1, 5), st.integers(1, 9), st.integers(1, 40))


@settings(max_examples=60, deadline=None)
@given(sizes, st.sampled_from(["best", "fixed", "sampled"]), st.integers(0, 99))
def test_trees_keep_their_size_and_know_their_rows(size: Size, kind: str, seed: int) -> None:
    rng = random.Random(seed) if kind == "sampled" else None
    tree = BestFirst(size, {STOP}) if kind == "best" else Fixed(size, {STOP}, rng)
    draft = grown(tree)
    assert draft.parents is not None and draft.probs is not None
    assert 1 <= len(draft.tokens) <= size.nodes
    assert max(depths(draft.parents)) <= size.depth
    assert max(Counter(draft.parents).values()) <= size.top_k
    assert not any(draft.tokens[p] == STOP for p in draft.parents if p >= 0)
    texts = ways(draft.tokens, draft.parents)
    assert len(set(texts)) == len(texts), "siblings differ"
    for text, row in zip(texts, draft.probs, strict=True):
        assert torch.equal(row, model(text[:-1]))
    likely = [float(row[text[-1]]) for text, row in zip(texts, draft.probs, strict=True)]
    assert draft.likely == ([] if kind == "sampled" else pytest.approx(likely))
    assert len(set(tree.read)) == len(tree.read), "nothing is read twice"


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 20))
def test_best_first_keeps_the_most_probable_ways(depth: int, top_k: int, nodes: int) -> None:
    """Against all ways of the beam: each level's best ``top_k`` go on, by the paper."""
    everything: dict[tuple[int, ...], float] = {}
    beam: list[tuple[int, ...]] = [()]
    for _ in range(depth):
        level: dict[tuple[int, ...], float] = {}
        for way in beam:
            best = model(way).topk(top_k)
            above = everything.get(way, 0.0)
            for token, p in zip(best.indices.tolist(), best.values.log().tolist(), strict=True):
                level[(*way, token)] = above + p
        everything |= level
        goes_on = [way for way in level if way[-1] != STOP]
        beam = sorted(goes_on, key=lambda way: -level[way])[:top_k]
    expected = sorted(everything, key=lambda way: -everything[way])[:nodes]
    draft = grown(BestFirst(Size(depth, top_k, nodes), {STOP}))
    assert draft.parents is not None
    assert set(ways(draft.tokens, draft.parents)) == set(expected)


def test_best_first_names_columns_and_drafts_nothing_impossible() -> None:
    tree = BestFirst(Size(2, 4, 8), {STOP}, np.array([3, 5, 7, 11, 13]))
    tree.grow(torch.tensor([[0.0, 0.5, 0.5, 0.0, 0.0]]))  # of two equal ones, the first is first
    assert (tree.tokens, tree.parents) == ([5, 7], [-1, -1])
    tree.grow(torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.25, 0.75]]))
    draft = tree.draft()
    assert (draft.tokens, draft.parents) == ([5, 7, 3, 13, 11], [-1, -1, 0, 1, 1])
    assert draft.likely == [0.5, 0.5, 1.0, 0.75, 0.25]


def test_best_first_gives_no_node_of_a_full_tree_more_children_than_asked() -> None:
    tree = BestFirst(Size(3, 2, 6), ())
    tree.grow(torch.tensor([[0.6, 0.3, 0.1, 0.0]]))
    tree.grow(torch.tensor([[0.4, 0.35, 0.15, 0.1], [0.9, 0.05, 0.03, 0.02]]))
    # it is full, and all children of both open nodes are likelier than its least likely node, 0.3 * 0.05
    tree.grow(torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25]]))
    assert tree.tokens[6:] == [0, 1, 0, 1] and tree.parents[6:] == [2, 2, 4, 4]
    draft = tree.draft()
    assert (draft.tokens, draft.parents) == ([0, 1, 0, 1, 0, 0], [-1, -1, 0, 0, 1, 2])
    assert draft.likely == pytest.approx([0.6, 0.3, 0.4, 0.35, 0.9, 0.4])


def test_the_fixed_shape_has_the_asked_nodes_and_depth() -> None:
    shape = fixed_shape(6, 10, 32)
    assert sum(shape.values()) == 32
    assert max(map(len, shape)) < 6 and max(shape.values()) <= 10
    widths = [shape.get((0,) * depth, 0) for depth in range(7)]
    assert widths == sorted(widths, reverse=True), "the favourites' line is the richest, and thins"
    for at in shape:  # an inner node's parent has it as a child
        assert not at or shape[at[:-1]] > at[-1]


def test_siblings_are_drawn_without_replacement() -> None:
    row = torch.tensor([0.5, 0.3, 0.2, 0.0])
    seen: Counter[tuple[int, ...]] = Counter()
    rng = random.Random(1)
    for _ in range(4000):
        tree = Fixed(Size(1, 4, 4), (), rng)
        tree.grow(row[None])
        seen[tuple(tree.tokens)] += 1
    assert row.tolist() == pytest.approx([0.5, 0.3, 0.2, 0.0]), "rows stay what they were"
    for order, count in seen.items():
        assert sorted(order) == [0, 1, 2], "nothing is drawn that has no chance"
        expected = float(row[order[0]] * row[order[1]] / (1 - row[order[0]]))
        assert count / 4000 == pytest.approx(expected, abs=0.03)


PROBS = Read(What.PROBS)


def solve(engine: Any, plan: Plan[Draft]) -> tuple[Draft, list[Answer]]:
    """Runs a plan that asks one engine alone."""
    answers: list[Answer] = []
    asked = next(plan)
    while True:
        answers += engine.answer([asked])
        try:
            asked = plan.send(answers[-1])
        except StopIteration as stop:
            return stop.value, answers


@pytest.mark.parametrize("kind", ["static", "dynamic", "sampled"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_one_pass_a_level_over_its_new_nodes_alone(kind: str, temperature: float) -> None:
    """On engine=hf: what a level gave is what a fresh engine gives for each way by itself."""
    sampling = Sampling(temperature, top_p=0.95 if temperature else 1.0)
    kit = toy_kit(None, Toy().models()["target"], sampling, 0)
    drafter = LanguageModel(tree=kind, tree_depth=4, tree_top_k=3, tree_nodes=12)
    engine, at = load("qwen3"), context(tokens(20))
    for new in (20, 2):  # of the second round: the accepted leaf, and what was written after it
        draft, (first, *levels) = solve(engine, drafter.open(kit).draft(at, Room(50, 4, 1)))
        assert draft.parents is not None and len(draft.tokens) <= 12
        assert first.fed <= new and max(depths(draft.parents)) - 1 <= len(levels) <= 3
        assert all(answer.fed == len(answer[PROBS]) for answer in levels)
        rows = draft.evidence.get(PROBS)
        assert (rows is None) == (temperature == 0)
        assert (draft.probs is not None) == (kind == "sampled" and temperature > 0)
        texts = ways(draft.tokens, draft.parents)
        for way, row in zip(texts, [] if rows is None else rows, strict=rows is not None):
            alone = ask(load("qwen3"), at, PROBS, tokens=way[:-1], sampling=sampling)
            assert (alone[PROBS][-1] - row).abs().max() < 1e-5
        at.extend([*max(texts, key=len), 5])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            "draft=lm tree=bushy split=token accept=lossless",
            "give chain, static, dynamic or sampled",
        ),
        ("draft=lm tree=static tree_nodes=0 split=token accept=lossless", "at least 1 for each"),
        ("draft=lm tree=static split=paragraph accept=lossless", "use split=token, or tree=chain"),
        ("draft=lm tree=static split=token accept=logprob", "judges only chains"),
        ("draft=lm tree=static split=token accept=lossless ahead=true", "leave ahead=true out"),
    ],
)
def test_impossible_trees_are_refused_in_one_line(arguments: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        configuration(*expand_shorthands(arguments.split()))
    assert words in str(error.value) and "\n" not in str(error.value)
