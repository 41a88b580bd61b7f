"""The memory keeps one row per position, whatever the order and pieces in which rows arrive."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.drafters._anchors import Anchors
from semspec.drafters._memory import FIRST_ROWS, Memory, Sketch
from semspec.errors import UserError
from semspec.types import Answer, Context, Seen
from tests.support.drafting import kit_for

WIDTH = 6


def rows(start: int, count: int, memory: Memory) -> Seen:
    """Rows that tell their position."""
    at = torch.arange(start, start + count, dtype=torch.float32)
    hidden = torch.stack([torch.cos(at), torch.sin(at), *[torch.zeros(count)] * (WIDTH - 2)], 1)
    ids = (at.long()[:, None] + torch.arange(3)) % 1000
    assert memory.hidden is not None and memory.top is not None
    return Seen(start, count, {memory.hidden: hidden[:, None], memory.top: (ids, ids.float())})


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), max_size=30))
def test_rows_are_kept_at_their_positions(segments: list[tuple[int, int]]) -> None:
    memory = Memory(layer=1, top_k=3)
    known = 0
    for start, count in segments:
        memory.see(rows(start, count, memory))
        known = max(known, start + count) if start <= known else known
    assert memory.known == known
    at = np.arange(known)
    if known:
        np.testing.assert_allclose(memory.states[:known, 0], np.cos(at), atol=1e-6)
        assert (memory.tops[:known] == at[:, None] + np.arange(3)).all()


def test_rows_after_a_gap_are_asked_for_once() -> None:
    """Nothing is asked twice, and the last token's own row comes with its next pass."""
    memory, context = Memory(layer=1, top_k=3), Context(1, list(range(9)))
    plan = memory.catch_up(context, kit_for())
    query = next(plan)
    assert (query.model, query.rows_from, query.tokens) == ("target", 0, ())
    assert query.reads == memory.reads
    with pytest.raises(StopIteration):
        plan.send(Answer(values=rows(0, 9, memory).values))
    assert memory.known == 8
    memory.see(rows(8, 1, memory))
    context.extend([0])
    assert not list(memory.catch_up(context, kit_for()))  # position 9 is the last token
    context.extend([0, 0, 0])
    memory.see(rows(11, 1, memory))  # 9 and 10 were never part of a pass
    assert next(memory.catch_up(context, kit_for())).rows_from == 9


def test_buffers_grow_by_doubling() -> None:
    memory = Memory(layer=1, top_k=3)
    sizes = set()
    for start in range(0, 9 * FIRST_ROWS, 512):
        memory.see(rows(start, 512, memory))
        sizes.add(len(memory.states))
    assert sizes == {FIRST_ROWS * 2**i for i in range(5)}


@pytest.mark.parametrize("width", [128, 100])
def test_a_sketch_keeps_cosines(width: int) -> None:
    """Within the deviation that _memory.py states, (1 - cos^2) / sqrt(width); also with a remainder."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal((400, 640)).astype(np.float32)
    near = base + rng.uniform(0, 2, (400, 1)).astype(np.float32) * rng.standard_normal(base.shape)
    base[:, 3] += 20  # as real states have: one coordinate much larger than all others
    near[:, 3] += 20
    sketch = Sketch(width)
    exact = (Sketch(0)(base) * Sketch(0)(near.astype(np.float32))).sum(1)
    sketched = (sketch(base) * sketch(near.astype(np.float32))).sum(1)
    deviation = (sketched - exact) * np.sqrt(width) / (1 - exact**2)
    assert abs(deviation.mean()) < 0.3
    assert 0.7 < deviation.std() < 1.3
    np.testing.assert_allclose(np.linalg.norm(sketch(base), axis=1), 1, rtol=1e-5)


def test_the_most_similar_state_is_found() -> None:
    """Position 30 is nearly five turns of the circle from where it began; of equals the newest."""
    memory = Memory(layer=1, top_k=3)
    memory.see(rows(0, 40, memory))
    best = memory.closest(30, [array("q", [10, 20, 25]), array("q", [6, 3])])
    assert [b.place for b in best] == [25, 6]  # cos(24 - 30) = .96; cos(5 - 30) = .99
    assert best[0].likeness == pytest.approx(np.cos(6), abs=1e-6)
    memory.states[:] = memory.states[0]
    assert memory.closest(30, [array("q", [10, 20, 25])])[0].place == 25


def test_half_precision_is_a_choice_and_others_are_refused() -> None:
    memory = Memory(layer=1, top_k=3, precision="float16")
    memory.see(rows(0, 40, memory))
    assert memory.states.dtype == np.float16
    assert memory.closest(30, [array("q", [10, 20, 25])])[0].place == 25
    with pytest.raises(UserError, match="float32 or float16"):
        Memory(precision="int8")


def test_anchors_have_a_token_before_and_one_after() -> None:
    rng = random.Random(0)
    tokens = rng.choices(range(5), k=80)
    anchors = Anchors()
    for end in (1, 2, 30, 30, 80):
        anchors.learn(tokens[:end])
        for token in range(6):
            places = [i for i in range(1, end - 1) if tokens[i] == token]
            assert anchors.at(token, 1000).tolist() == places
            assert anchors.at(token, 2).tolist() == places[-2:]


@pytest.mark.parametrize("newest", [1, 2, 5, 16, 128])
def test_places_of_many_tokens_are_the_newest_of_all(newest: int) -> None:
    rng = random.Random(newest)
    for _ in range(40):
        tokens = [int(60 * rng.random() ** 2) for _ in range(rng.randrange(3, 300))]
        anchors = Anchors()
        anchors.learn(tokens)
        numbers = rng.sample(range(len(anchors.tokens)), rng.randrange(len(anchors.tokens)))
        asked = [anchors.tokens[number] for number in numbers]
        joined = [i for t in asked for i in range(1, len(tokens) - 1) if tokens[i] == t]
        kept = sorted(joined)[-newest:]
        found = anchors.of(array("q", numbers), newest).tolist()
        assert found == [place for place in joined if place in kept]
