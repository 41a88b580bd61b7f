"""A session computes only what is new: drafts, rollbacks, trees, and growing contexts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.errors import UserError
from semspec.types import Context, Generate, Read, Sampling, What
from tests.support.tiny_models import (
    VOCABULARY,
    Marks,
    ask,
    context,
    load,
    query,
    tokens,
    truth,
)

LOGITS, HIDDEN, LOGPROBS = Read(What.LOGITS), Read(What.HIDDEN), Read(What.LOGPROBS)
POOLED = Read(What.POOLED, spans=((0, 1), (1, 3)))


def close(a: torch.Tensor, b: torch.Tensor, within: float = 1e-4) -> bool:
    assert a.shape == b.shape, (a.shape, b.shape)
    return bool((a - b).abs().max() < within)


class Counted(list[int]):
    """Counts how many tokens are looked at."""

    seen = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.seen += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self):  # type: ignore[no-untyped-def]
        self.seen += len(self)
        return super().__iter__()


def test_a_round_looks_at_new_tokens_only() -> None:
    engine, at = load(), context(tokens(400))
    at.tokens = counted = Counted(at.tokens)
    ask(engine, at, LOGITS, tokens=tokens(8))
    for round_ in range(5):
        counted.seen = 0
        draft = tokens(8, seed=round_)
        answer = ask(engine, at, LOGITS, tokens=draft)
        assert (answer.fed, answer.cached) == (9, len(at) - 1)
        at.extend(draft[:5])
        wrote = ask(engine, at, generate=Generate(3))
        assert wrote.fed == 1 + 2
        at.extend(wrote.tokens)
        assert counted.seen < 60


def test_without_rows_nothing_is_read_again() -> None:
    engine, at = load(), context(tokens(20))
    assert ask(engine, at).fed == 20
    assert ask(engine, at).fed == 0
    draft = tokens(6, seed=1)
    assert ask(engine, at, tokens=draft).fed == 6
    assert ask(engine, at, POOLED, tokens=draft).fed == 6
    assert ask(engine, at, tokens=draft, generate=Generate(1)).fed == 1
    at.extend(draft)
    assert ask(engine, at).fed == 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_any_history_gives_the_logits_of_a_fresh_pass(data: st.DataObject) -> None:
    """Drafts, partial acceptance, rejection, trees and generation in any order."""
    family = data.draw(st.sampled_from(["llama", "qwen3"]))
    engine = load(family, chunk=data.draw(st.sampled_from([5, 1024])))
    ids = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6)
    contexts = [context(data.draw(ids), key) for key in range(2)]
    for _ in range(data.draw(st.integers(2, 7))):
        at = data.draw(st.sampled_from(contexts))
        kind = data.draw(st.sampled_from(["score", "tree", "generate", "grow", "forget"]))
        draft = data.draw(ids)
        if kind == "score":
            answer = ask(engine, at, LOGITS, tokens=draft)
            fresh = truth(family, at.tokens + draft).logits[0, len(at) - 1 :]
            assert close(answer[LOGITS], fresh)
            at.extend(draft[: data.draw(st.integers(0, len(draft)))])
        elif kind == "tree":
            parents = [data.draw(st.integers(-1, i - 1)) for i in range(len(draft))]
            answer = ask(engine, at, LOGITS, tokens=draft, parents=parents)
            leaf = data.draw(st.integers(-1, len(draft) - 1))
            path = path_to(parents, leaf)
            fresh = truth(family, at.tokens + [draft[i] for i in path]).logits[0, len(at) - 1 :]
            assert close(answer[LOGITS][[0, *(i + 1 for i in path)]], fresh)
            at.extend([draft[i] for i in path])
        elif kind == "generate":
            answer = ask(engine, at, LOGITS, tokens=draft, generate=Generate(4))
            whole = at.tokens + draft + answer.tokens
            fresh = truth(family, whole).logits[0, len(at) + len(draft) - 1 : -1]
            assert close(answer[LOGITS], fresh)
            at.extend((draft + answer.tokens)[: data.draw(st.integers(0, len(draft) + 4))])
        elif kind == "grow":
            at.extend(draft)
        else:
            engine.forget(at)


def path_to(parents: Sequence[int], node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


TREE = [-1, -1, 0, 1, 3, 3, 0]
NODES = tokens(len(TREE), seed=11)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen2-yarn"])
@pytest.mark.parametrize("chunk", [3, 1024])
def test_a_tree_is_its_chains(family: str, chunk: int) -> None:
    prompt = tokens(20)
    spans = Read(What.POOLED, spans=((2, 5),))
    tempered = Read(What.LOGPROBS, temperature=0.4)
    asked = (LOGITS, HIDDEN, LOGPROBS, tempered, spans, Read(What.ATTENTION))
    engine = load(family, chunk=chunk)
    tree = ask(engine, context(prompt), *asked, tokens=NODES, parents=TREE)
    pooled = []
    for node in range(len(TREE)):
        path = path_to(TREE, node)
        chain = [NODES[i] for i in path]
        alone = ask(load(family), context(prompt), *asked[:4], tokens=chain)
        states = ask(
            load(family), context(prompt), Read(What.HIDDEN, layers=(0, 1, 2, 3)), tokens=chain
        )
        pooled.append(next(iter(states.values.values()))[-1])
        for read in (LOGITS, HIDDEN):
            rows = torch.stack([tree[read][0], *(tree[read][i + 1] for i in path)])
            assert close(rows, alone[read], 1e-5 if read is HIDDEN else 1e-4)
            if read is LOGITS:
                assert close(rows.softmax(-1), alone[read].softmax(-1), 1e-5)
        for read in (LOGPROBS, tempered):
            assert close(tree[read][path], alone[read])
    assert close(tree[spans][0], torch.stack(pooled[2:5]).mean(0))
    weights = tree[asked[-1]][0]
    assert weights.shape == (8, 27)
    assert weights[3, 20] > 0
    assert weights[3, 21] == 0  # node 2 sees node 0, not node 1


@pytest.mark.parametrize("leaf", [0, 5, 6])
def test_an_accepted_path_is_moved_and_not_read_again(leaf: int) -> None:
    prompt, engine = tokens(20), load()
    at = context(prompt)
    ask(engine, at, LOGITS, tokens=NODES, parents=TREE)
    path = path_to(TREE, leaf)
    at.extend([NODES[i] for i in path])
    assert ask(engine, at).fed == 0
    after = tokens(3, seed=12)
    answer = ask(engine, at, LOGITS, tokens=after)
    assert (answer.fed, answer.cached) == (4, 19 + len(path))
    assert close(answer[LOGITS], truth("llama", at.tokens + after).logits[0, len(at) - 1 :])


@pytest.mark.parametrize("chunk", [2, 1024])
def test_a_tree_that_grew_is_fed_its_new_nodes_alone(chunk: int) -> None:
    engine, at = load(chunk=chunk), context(tokens(20))
    whole = ask(load(), at, LOGITS, tokens=NODES, parents=TREE)[LOGITS]
    assert ask(engine, at, tokens=NODES[:2], parents=TREE[:2]).fed == 22
    for first, end in ((2, 4), (4, 7)):
        grown = {"tokens": NODES[:end], "parents": TREE[:end], "rows_from": 20 + first}
        answer = ask(engine, at, LOGITS, **grown)
        assert (answer.fed, answer.cached) == (end - first, 20 + first)
        assert close(answer[LOGITS], whole[first + 1 : end + 1])
    # another tree with the same beginning; the same tokens under another parent are no beginning
    other = [*NODES[:3], 7]
    answer = ask(engine, at, LOGITS, tokens=other, parents=TREE[:4], rows_from=22)
    assert (answer.fed, answer.cached) == (2, 22)
    assert close(answer[LOGITS][:1], whole[3:4])
    moved = [-1, -1, 1, 1]
    answer = ask(engine, at, LOGITS, tokens=other, parents=moved, rows_from=23)
    assert (answer.fed, answer.cached) == (2, 22)
    alone = truth("llama", [*at.tokens, other[1], other[3]]).logits[0, -1:]
    assert close(answer[LOGITS], alone)
    at.extend([other[1], other[3], 5])  # node 2 was never on the way
    answer = ask(engine, at, LOGITS)
    assert (answer.fed, answer.cached) == (1, 22)
    assert close(answer[LOGITS], truth("llama", at.tokens).logits[0, -1:])


def test_half_a_tree_is_no_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that fails inside a tree leaves siblings in the cache, which do not follow one another."""
    engine, at = load(chunk=22), context(tokens(20))
    engine._step = None  # so that all passes take the way that fails
    forward, passes = engine.model.forward, iter(range(9))

    def fail(*args: Any) -> Any:
        if next(passes) == 1:
            raise MemoryError
        return forward(*args)

    monkeypatch.setattr(engine.model, "forward", fail)
    with pytest.raises(MemoryError):
        ask(engine, at, LOGITS, tokens=NODES, parents=TREE)
    monkeypatch.undo()
    at.extend([*NODES[:2], 5])  # of which only the first is on the way
    answer = ask(engine, at, LOGITS)
    assert (answer.fed, answer.cached) == (2, 21)
    assert close(answer[LOGITS], truth("llama", at.tokens).logits[0, -1:])


def test_a_tree_may_be_empty_and_must_be_ordered() -> None:
    engine, at = load(), context(tokens(5))
    assert ask(engine, at, LOGITS, tokens=[], parents=[])[LOGITS].shape == (1, VOCABULARY)
    with pytest.raises(UserError, match="parents come first"):
        ask(engine, at, LOGITS, tokens=[1, 2], parents=[1, -1])


def test_a_copy_of_a_context_is_compared_once() -> None:
    engine, at = load(), context(tokens(30))
    ask(engine, at, LOGITS, tokens=tokens(5))
    copy = Context(at.key, at.tokens)
    assert ask(engine, copy, LOGITS).cached == 29
    other = Context(at.key, tokens(30, seed=9))
    answer = ask(engine, other, LOGITS)
    assert answer.cached == 0
    assert close(answer[LOGITS], truth("llama", other.tokens).logits[0, -1:])


def test_forgetting_frees_the_slot() -> None:
    engine = load()
    for key in range(6):
        at = context(tokens(20, seed=key), key)
        ask(engine, at, LOGITS)
        engine.forget(at)
    size = engine.memory_bytes()["cache"]
    assert size == 256 * 2 * 16 * 4 * 3  # positions, keys and values, head_dim, float32, layers
    engine.forget(at)  # not known any more: nothing to do
    engine.close()
    assert engine.memory_bytes()["cache"] == 0


def test_ragged_batches_equal_singles() -> None:

    warm = Sampling(temperature=0.9)
    probs = Read(What.PROBS)
    spans = Read(What.POOLED, spans=((0, 2),))

    def batch() -> list[Any]:
        return [
            query(context(tokens(7, 1), 1), LOGITS, spans, tokens=tokens(5, 2)),
            query(context(tokens(40, 3), 2), LOGITS, HIDDEN, generate=Generate(9), seed=4),
            query(context(tokens(12, 5), 3), LOGITS, tokens=NODES, parents=TREE),
            query(context(tokens(3, 6), 4), probs, sampling=warm, generate=Generate(20), seed=5),
            query(
                context(tokens(25, 7), 5),
                *(probs, Read(What.POOLED)),
                sampling=warm,
                generate=Generate(20, Marks(before=range(0, 97, 9)), 2),
                seed=6,
            ),
            query(context(tokens(9, 8), 6)),
            query(context(tokens(9, 8), 7), Read(What.EMBEDDINGS), tokens=[3]),
            query(context(tokens(30, 9), 8), Read(What.ATTENTION), generate=Generate(2)),
        ]

    together, engine = load(), load()
    for _ in range(2):  # the second time everything is cached
        answers = together.answer(batch())
        singles = [engine.answer([q])[0] for q in batch()]
        for a, b in zip(answers, singles, strict=True):
            assert (a.tokens, a.ends, a.finish) == (b.tokens, b.ends, b.finish)
            assert (a.fed, a.cached) == (b.fed, b.cached)
            for read in a.values:
                assert close(a[read], b[read], 2e-5 * (1 + float(b[read].abs().max()))), read


def test_batches_of_changing_members_equal_singles() -> None:
    engine = load(max_context=600)
    contexts = [context(tokens(10 + 3 * k, k), k) for k in range(6)]
    for members in ([0, 3], [5, 1, 2], [4, 0], [1], [0, 1, 2, 3, 4, 5], [2, 5]):
        asked = [query(contexts[k], LOGITS, generate=Generate(3 + k)) for k in members]
        for k, answer in zip(members, engine.answer(asked), strict=True):
            fresh = truth("llama", contexts[k].tokens + answer.tokens).logits[0]
            assert close(answer[LOGITS], fresh[len(contexts[k]) - 1 : -1])
            contexts[k].extend(answer.tokens)


def test_one_context_twice_in_a_batch_gets_both_answers() -> None:
    engine, at = load(), context(tokens(10))
    first, second = engine.answer(
        [query(at, LOGITS, tokens=tokens(3)), query(at, LOGITS, tokens=tokens(4, 1))]
    )
    assert close(first[LOGITS][0], second[LOGITS][0])
    assert (first.fed, second.fed) == (13, 5)


@pytest.mark.parametrize("survives", [0, 1, 2])
def test_a_pass_that_fails_leaves_a_session_that_works(
    monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    engine, at = load(chunk=8), context(tokens(30))
    engine._step = None
    ask(engine, at, LOGITS, tokens=tokens(6))
    forward, passes = engine.model.forward, iter(range(9))

    def fail(*args: Any) -> Any:
        if next(passes) == survives:
            raise MemoryError
        return forward(*args)

    monkeypatch.setattr(engine.model, "forward", fail)
    with pytest.raises(MemoryError):
        ask(engine, at, LOGITS, tokens=tokens(6), rows_from=5)
    monkeypatch.undo()
    after = tokens(6, seed=3)
    answer = ask(engine, at, LOGITS, tokens=after)
    assert close(answer[LOGITS], truth("llama", at.tokens + after).logits[0, 29:])
    assert answer.cached == 5 + 8 * survives
