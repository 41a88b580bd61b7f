"""Passes over several sessions: what is batched, what attends together, and how many matrix shapes occur."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from semspec.engines._lean import layout, packed
from semspec.engines._lean.jobs import Job
from semspec.engines._lean.packed import Product, padded, padded_count
from semspec.models import processor
from semspec.types import Generate, Read, What
from tests.support.tiny_models import context, load, query, tokens

LOGITS = Read(What.LOGITS)
ROWS = 400
NUMBERS = 32  # of rows, at most, for as many as that


def noting(of: Callable[..., Any], note: Callable[..., object]) -> Callable[..., Any]:
    def noted(*args: Any) -> Any:
        note(*args)
        return of(*args)

    return noted


def test_numbers_of_rows_are_few_and_little_is_filler() -> None:
    assert len({padded_count(count) for count in range(1, ROWS + 1)}) <= NUMBERS
    for count in range(1, 3 * ROWS):
        assert count <= padded_count(count) < count * (1 + 0.5**packed.STEPS) + 1
        assert padded_count(padded_count(count)) == padded_count(count)


@pytest.mark.parametrize("sessions", [1, 4])
def test_onednn_meets_few_shapes(sessions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps compiled code for each, so that a server's memory would grow with every new number of rows."""
    monkeypatch.setattr(processor, "intel", lambda: False)
    monkeypatch.setattr(packed, "WORTH", 1)
    met: set[tuple[int, int]] = set()

    def note(product: Product, rows: torch.Tensor) -> None:
        if len(rows) >= product.wide:
            met.add((len(rows), id(product)))

    monkeypatch.setattr(Product, "__call__", noting(Product.__call__, note))
    engine = load()
    products = 4 * len(engine.model.products) + 1
    contexts = [context(tokens(3, seed=key), key) for key in range(sessions)]
    engine.answer([query(at) for at in contexts])
    for count in range(1, ROWS // sessions):
        drafts = [tokens(count + key % 2, seed=count) for key in range(sessions)]
        asked = zip(contexts, drafts, strict=True)
        engine.answer([query(at, LOGITS, tokens=draft) for at, draft in asked])
    assert len({rows for rows, _ in met}) > 10, "many numbers of rows were asked for"
    assert len(met) <= products * NUMBERS


@pytest.mark.parametrize(("wide", "out"), [(128, 256), (384, 128), (128, 704)])
def test_filler_does_not_change_a_bit(wide: int, out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With packed matrices the same seed has the same text, whatever else is in the pass."""
    monkeypatch.setattr(processor, "intel", lambda: False)
    torch.manual_seed(0)
    product = Product(torch.randn(out, wide), torch.randn(out), packed.packing([torch.zeros(1)]))
    rows = torch.randn(padded_count(ROWS), wide)
    whole = product(rows)
    for count in range(product.wide, ROWS, 7):
        own = product(padded(rows[:count], padded_count(count)))
        assert torch.equal(own[:count], whole[:count]), count


def test_a_pass_takes_whole_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, fed = load(chunk=100), list[int]()
    forward = noting(engine.model.forward, lambda ids, *_: fed.append(len(ids)))
    monkeypatch.setattr(engine.model, "forward", forward)
    engine.answer([query(context(tokens(30, seed=key), key)) for key in range(12)])
    assert fed == [100, 100, 100, 60]


def jobs(engine: Any, lengths: list[int]) -> list[Job]:
    """Jobs whose sessions have so many tokens in the cache, in the order of their slots."""
    asked = [query(context(tokens(n, seed=key), key)) for key, n in enumerate(lengths)]
    engine.answer(asked)
    made = [Job(one, engine._session(one), engine.model) for one in asked]
    return sorted(made, key=lambda job: job.session.slot)


def test_sessions_of_similar_lengths_attend_together(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load()
    similar, other = jobs(engine, [50, 52, 49, 51]), jobs(load(), [9, 600, 9, 9])
    spec = engine.model.spec
    monkeypatch.setitem(layout.START, "cpu", 64 * spec.heads * spec.head_dim)
    assert layout.groups_of(similar, [1] * 4, engine.model) == [0, 4]
    assert layout.groups_of(similar, [300, 1, 1, 1], engine.model) == [0, 1, 4]
    assert layout.groups_of(other, [1] * 4, engine.model) == [0, 1, 2, 4]


@pytest.mark.parametrize("start", [0, 1 << 12, 1 << 40])
def test_groups_change_no_answer(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layout.START, "cpu", start)
    engine, alone = load(), load()
    lengths = (5, 60, 61, 7, 130, 8)
    reads = (LOGITS, Read(What.ATTENTION), Read(What.HIDDEN))

    def asked() -> list[Any]:
        drafts = [query(context(tokens(n, n), n), *reads, tokens=tokens(n % 9, n)) for n in lengths]
        trees = [query(context(tokens(40, 3), 1), *reads, tokens=[5, 6, 7], parents=[-1, -1, 0])]
        own = Generate(12)
        return drafts + trees + [query(context(tokens(n, 1), -n), LOGITS, generate=own) for n in lengths]  # fmt: skip

    for _ in range(2):  # the second time prompts are cached
        for together, one in zip(engine.answer(asked()), asked(), strict=True):
            single = alone.answer([one])[0]
            assert together.tokens == single.tokens
            for read in one.reads:
                a, b = together[read], single[read]
                assert a.shape == b.shape and (a - b).abs().max() < 1e-4 * (1 + b.abs().max())
