"""Passes over a few tokens of one session take a short path with the same results as the general one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.engines._lean import model, packed, step
from semspec.models import memory, processor
from semspec.types import Generate, Read, Sampling, What
from tests.support.tiny_models import FAMILIES, VOCABULARY, ask, context, load, query, tokens

LOGITS, PROBS, LOGPROBS = Read(What.LOGITS), Read(What.PROBS), Read(What.LOGPROBS)
HIDDEN, TOP_K = Read(What.HIDDEN, layers=(0, 1, -1)), Read(What.TOP_K, k=3)
WARM = Sampling(temperature=0.8)
TREE = [-1, -1, 0, 1, 3, 3, 0]
NODES = tokens(len(TREE), seed=11)


def close(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return torch.equal(a[0], b[0]) and close(a[1], b[1])
    assert a.shape == b.shape, (a.shape, b.shape)
    return bool((a - b).abs().le(1e-5 * (1 + b.abs())).all())


def general(family: str = "llama", **options: Any) -> Any:
    """An engine that sends everything through the general pass."""
    engine = load(family, **options)
    engine._step = None
    return engine


def counted(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the engine's passes by the way they take."""
    ways: Counter[str] = Counter()

    def counting(way: Any) -> Any:
        def count(*args: Any) -> Any:
            ways[way.__name__] += 1
            return way(*args)

        return count

    for owner, name in ((engine._step, "one"), (engine._step, "few"), (engine.model, "forward")):
        monkeypatch.setattr(owner, name, counting(getattr(owner, name)))
    return ways


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("count", "parents"), [(0, None), (1, None), (6, None), (7, TREE)])
def test_a_small_pass_equals_the_general_one(
    family: str, count: int, parents: Sequence[int] | None
) -> None:
    draft = NODES[:count]
    pooled = Read(What.POOLED, spans=((0, count), (count // 2, count))) if count else LOGPROBS
    reads = (LOGITS, PROBS, LOGPROBS, HIDDEN, TOP_K, pooled)
    quick, slow = load(family), general(family)
    at = context(tokens(30))
    for engine in (quick, slow):
        ask(engine, at)
    given = {"tokens": draft, "parents": parents, "sampling": WARM}
    a, b = (ask(engine, at, *reads, **given) for engine in (quick, slow))
    assert (a.fed, a.cached) == (b.fed, b.cached) == (count + 1, 29)
    for read in reads:
        assert close(a[read], b[read]), read


ids = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_any_history_equals_that_of_the_general_pass(data: st.DataObject) -> None:
    """Drafts, rollbacks, trees, generation and passes together, several sessions in turn."""
    family = data.draw(st.sampled_from(["llama-biases", "qwen2", "qwen3"]))
    quick, slow = load(family), general(family)
    contexts = [context(data.draw(ids), key) for key in range(3)]
    for _ in range(data.draw(st.integers(3, 9))):
        at = data.draw(st.sampled_from(contexts))
        draft, kind = data.draw(ids), data.draw(st.sampled_from(["chain", "tree", "write", "all"]))
        pooled = Read(What.POOLED, spans=((0, len(draft)),))
        asked: list[dict[str, Any]] = [{"at": at, "tokens": draft}]
        reads = [(LOGITS, HIDDEN, pooled)]
        if kind == "tree":
            parents = [data.draw(st.integers(-1, i - 1)) for i in range(len(draft))]
            asked[0]["parents"] = parents
        elif kind == "write":
            asked[0] |= {"generate": Generate(3), "sampling": WARM}
            reads = [(PROBS, HIDDEN, Read(What.POOLED))]
        elif kind == "all":
            asked = [{"at": one, "tokens": draft} for one in contexts]
            reads *= len(contexts)
        both = [
            engine.answer([query(*(q["at"], *r), **{k: v for k, v in q.items() if k != "at"}) for q, r in zip(asked, reads, strict=True)])
            for engine in (quick, slow)
        ]  # fmt: skip
        for a, b, own in zip(*both, reads, strict=True):
            assert (a.tokens, a.fed, a.cached) == (b.tokens, b.fed, b.cached)
            for read in own:
                assert close(a[read], b[read]), read
        if kind == "tree":
            leaf, path = data.draw(st.integers(-1, len(draft) - 1)), list[int]()
            while leaf >= 0:
                path.insert(0, draft[leaf])
                leaf = parents[leaf]
            at.extend(path)
        else:
            taken = [*draft, *both[0][0].tokens]
            at.extend(taken[: data.draw(st.integers(0, len(taken)))])


def test_few_tokens_of_one_session_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, at = load(), context(tokens(100))
    ways = counted(engine, monkeypatch)

    def taken(*asked: Any) -> dict[str, int]:
        ways.clear()
        engine.answer(list(asked))
        return dict(ways)

    assert taken(query(at)) == {"forward": 1}, "a prompt is long"
    assert taken(query(at, PROBS)) == {"one": 1}, "no draft: the row of the last token"
    assert taken(query(at, generate=Generate(1))) == {"one": 1}, "the first token, too"
    assert taken(query(at, generate=Generate(4))) == {"one": 4}
    assert taken(query(at, PROBS, tokens=NODES)) == {"few": 1}
    assert taken(query(at, PROBS, tokens=NODES, parents=TREE)) == {"few": 1}
    assert taken(query(at, PROBS, tokens=[], parents=[])) == {"one": 1}, "all was pruned"
    assert taken(query(at, PROBS, HIDDEN, tokens=NODES[:2], rows_from=99)) == {"few": 1}
    assert taken(query(at, PROBS, tokens=tokens(step.FEW - 1))) == {"few": 1}
    assert taken(query(at, PROBS, tokens=tokens(step.FEW))) == {"forward": 1}
    attention = Read(What.ATTENTION)
    assert taken(query(at, attention, tokens=NODES)) == {"forward": 1}
    other = context(tokens(100, seed=1), 1)
    engine.answer([query(other)])
    assert taken(query(at, PROBS, tokens=NODES), query(other, PROBS)) == {"forward": 1}
    assert taken(query(other, PROBS, tokens=NODES)) == {"few": 1}


def test_other_numbers_take_the_general_pass() -> None:
    """Norm weights are folded into the matrices in float32 alone."""
    engine = load(dtype="bf16")
    assert engine._step is None
    assert ask(engine, context(tokens(9)), PROBS, generate=Generate(2))[PROBS].shape == (2, 97)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("count", "parents"), [(2, None), (6, None), (7, TREE), (80, None)])
def test_packed_matrices_give_what_the_general_product_gives(
    family: str, count: int, parents: Sequence[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "intel", lambda: False)
    monkeypatch.setattr(packed, "WORTH", 1)
    quick = load(family)
    monkeypatch.setattr(model, "packing", lambda matrices: False)
    slow = load(family)
    assert quick.model.products[0].down.wide == 2 and quick.model.head.packed is not None
    assert slow.model.products[0].down.packed is None
    weights = [engine.memory_bytes()["weights"] for engine in (quick, slow)]
    assert weights[1] < weights[0] <= 2 * weights[1], "a packed matrix is a second copy"
    reads = (LOGITS, HIDDEN, Read(What.POOLED, spans=((0, count),)))
    for each in (quick, slow):
        each.answer([query(context(tokens(30)))])
    given = {"tokens": tokens(count, seed=11), "parents": parents}
    a, b = (ask(each, context(tokens(30)), *reads, **given) for each in (quick, slow))
    for read in reads:
        assert close(a[read], b[read]), read


def test_small_products_and_large_models_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "intel", lambda: False)
    few, many = torch.zeros(8, 8), torch.zeros(2048, 1024)
    assert packed.packing([few, many])
    assert packed.Product(few, None, True).wide == packed.WORTH // 64
    assert packed.Product(many, None, True).wide == 2
    assert not packed.packing([few.to(torch.bfloat16)])
    monkeypatch.setattr(packed, "MOST", many.nbytes)
    assert packed.packing([many]) and not packed.packing([few, many])
    with (
        monkeypatch.context() as inside
    ):  # what is stored input by input is not packed, and takes no memory
        inside.setattr(processor, "intel", lambda: True)
        inside.setattr(processor, "second_cache", lambda: few.nbytes)
        assert packed.packing([few, many])
    monkeypatch.setattr(memory, "machine_memory", lambda: packed.SHARE * many.nbytes - 1)
    assert not packed.packing([many])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mixed", [False, True])
def test_matrices_stored_input_by_input_give_what_packed_ones_give(
    family: str, mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All matrices fit in the cache, or (``mixed``) only some of a layer do, and the others are packed."""
    monkeypatch.setattr(packed, "WORTH", 1)
    monkeypatch.setattr(processor, "intel", lambda: False)
    elsewhere = load(family)
    cache = elsewhere.model.products[0].out.matrix.nbytes if mixed else 1 << 20
    monkeypatch.setattr(processor, "second_cache", lambda: cache)
    monkeypatch.setattr(processor, "intel", lambda: True)
    here = load(family)
    layer = here.model.products[0]
    products = [here.model.head, layer.qkv, layer.out, layer.gate_up, layer.down]
    small = [p.matrix.nbytes <= cache for p in products]
    assert any(small) and all(small) == (not mixed)
    for product, fits in zip(products, small, strict=True):
        assert (product.packed is None) == fits
        assert product.matrix.stride(0) == 1 or not fits, "stored input by input"
    layer = elsewhere.model.products[0]
    assert layer.down.packed is not None and layer.out.matrix.stride(1) == 1
    for each in (here, elsewhere):
        each.answer([query(context(tokens(30)))])
    for count, parents in ((1, None), (7, TREE), (80, None)):
        given = {"tokens": tokens(count, seed=11), "parents": parents}
        a, b = (
            ask(each, context(tokens(30)), LOGITS, HIDDEN, **given) for each in (here, elsewhere)
        )
        assert close(a[LOGITS], b[LOGITS]) and close(a[HIDDEN], b[HIDDEN])
    a, b = (ask(each, context(tokens(30)), generate=Generate(3)) for each in (here, elsewhere))
    assert a.tokens == b.tokens
