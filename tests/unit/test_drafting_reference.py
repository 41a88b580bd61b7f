"""Drafters that keep state between rounds draft the same as stateless references.

The references are written to be readable: lists, loops, and everything computed again each time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec import registry
from semspec.decoding.trim import along
from semspec.drafters.adapld import AdaPld
from semspec.drafters.hybrid import KEEP, PRIOR, Hybrid
from semspec.protocols import DraftSession
from semspec.types import Context, Draft, Room, Seen
from tests.support.drafting import Script, kit_for

VOCABULARY, STATES, TOP = 9, 10, 17
ROOM = Room(40, 40, 1)
Rows = Sequence[Sequence[float]]
Tree = list[tuple[tuple[int, ...], str]]  # paths in the order in which they were drafted


def direction(row: Sequence[float], width: int) -> list[float]:
    """A row at unit length, as a sketch of it where it is wider than ``width``."""
    if width and len(row) > width:
        coins = np.random.default_rng(0).random(len(row))
        buckets = [0.0] * width
        for i, value in enumerate(row):
            buckets[i % width] += -value if coins[i] < 0.5 else value
        row = buckets
    length = math.sqrt(sum(value * value for value in row))
    return [value / length for value in row]


def cosine(one: Sequence[float], other: Sequence[float], width: int) -> float:
    pairs = zip(direction(one, width), direction(other, width), strict=True)
    return sum(a * b for a, b in pairs)


def plain_adapld(text: list[int], script: Script, options: AdaPld) -> tuple[Tree, str, int]:
    """AdaPLD (papers of 2026, section 3), its equations one after the other."""
    width = options.width
    places_of: dict[int, list[int]] = {}  # with a token before, and one after
    for place in range(1, len(text) - 1):
        places_of.setdefault(text[place], []).append(place)

    def retrieved(token: int, newest: int) -> tuple[list[int], str]:
        if options.lexical and token in places_of:
            return places_of[token][-newest:], "lexical"
        own, found = script.embeddings[token], list[int]()
        for other, places in places_of.items() if options.semantic else ():
            if cosine(own, script.embeddings[other], width) >= options.threshold:
                found += places
        found = [place for place in found if place in sorted(found)[-newest:]]
        return found, "semantic" if found else "none"

    def best(places: list[int], position: int) -> tuple[int, float]:
        if not options.ranked:
            return max(places), 0.0
        alike = [cosine(script.states[p - 1], script.states[position], width) for p in places]
        return places[alike.index(max(alike))], max(alike)

    tree: dict[tuple[int, ...], str] = {}
    places, found = retrieved(text[-1], options.candidates)
    if not places:
        return [], found, 0
    anchor, likeness = best(places, len(text) - 2)
    run = text[anchor + 1 :][: options.longest] if found == "lexical" else []
    for end in range(1, len(run) + 1):
        tree[tuple(run[:end])] = "main"
    likely = [t for t in script.tops[anchor][: options.branch] if t not in run[:1]]
    for token in likely:
        tree[(token,)] = "branch"
    for token in likely if options.successor else ():
        places, _ = retrieved(token, options.successor_candidates)
        if places:
            after = text[best(places, anchor)[0] + 1]
            tree.setdefault((token, after), "successor")
    return list(tree.items()), found, min(9, max(0, int(10 * likeness)))


def paths(draft: Draft) -> Tree:
    parents = draft.parents or list(range(-1, len(draft.tokens) - 1))
    made: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, parents, strict=True):
        made.append((*(made[parent] if parent >= 0 else ()), token))
    return list(zip(made, draft.origins, strict=True))


def history(seed: int) -> tuple[list[int], Script]:
    """A text of few tokens that repeats itself, and what a target would have said to it."""
    rng = np.random.default_rng(seed)
    text = [int(VOCABULARY * rng.random() ** 2) for _ in range(60)]
    script = Script(
        rng.standard_normal((60, STATES)).astype(np.float32).tolist(),
        [rng.permutation(20)[:TOP].tolist() for _ in text],
        dict(enumerate(rng.standard_normal((20, STATES)).astype(np.float32).tolist())),
    )
    return text, script


def rounds(text: list[int], script: Script, session: DraftSession, seed: int) -> Any:
    """Contexts as they grow: some rows are seen in passes, others have to be asked for."""
    rng, context = random.Random(seed), Context(1, text[: 1 + seed % 20])
    while len(context) < len(text):
        yield context
        start, count = len(context) - 1, rng.randrange(1, 6)
        context.extend(text[len(context) : len(context) + count])
        if rng.random() < 0.7:
            seen = slice(start, min(start + count + rng.randrange(2), len(context)))
            values = {read: script.read(read, seen, ()) for read in session.watches}
            session.see(Seen(seen.start, seen.stop - seen.start, values))


CHOICES = {
    "lexical": [True, True, False],
    "semantic": [True, True, False],
    "ranked": [True, True, False],
    "successor": [True, True, False],
    "longest": [0, 3, 30],
    "branch": [1, 4, 8],
    "candidates": [1, 3, 128],
    "successor_candidates": [1, 2, 16],
    "threshold": [0.0, 0.3, 0.6],
    "width": [0, 4],
    "layer": [1],
}


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.fixed_dictionaries({k: st.sampled_from(v) for k, v in CHOICES.items()}))  # fmt: skip
def test_adapld_drafts_what_a_plain_one_drafts(seed: int, chosen: dict[str, Any]) -> None:
    chosen["semantic"] |= not chosen["lexical"]
    options = AdaPld(**chosen)
    text, script = history(seed)
    session = options.open(kit_for(trees=True))
    for context in rounds(text, script, session, seed):
        draft = script.draft(session, context, ROOM)
        own = (paths(draft), draft.found, draft.grade)
        assert own == plain_adapld(list(context.tokens), script, options)


@pytest.mark.parametrize("seed", range(6))
def test_hybrid_chooses_as_a_plain_one_does(seed: int) -> None:
    """Every source starts anew each round, and every average is taken over the whole past."""
    names = ("suffix", "adapld", "token_recycling", "logitspec")
    text, script = history(seed)
    kit = kit_for(trees=True)
    session = Hybrid(sources=",".join(names)).open(kit)
    drafted: list[tuple[int, dict[tuple[str, str, int], Draft]]] = []

    def worth(kind: tuple[str, str, int], now: int) -> float:
        gained, drafts = PRIOR, 1.0
        ends = [*(at for at, _ in drafted), now][1:]
        for (at, own), end in zip(drafted, ends, strict=True):
            if kind in own:
                chain = list(range(-1, len(own[kind].tokens) - 1))
                parents = own[kind].parents or chain
                gained *= KEEP
                gained += len(along(own[kind].tokens, parents, text[at:end]))
                drafts = KEEP * drafts + 1
        return gained / drafts

    chosen = set()
    for context in rounds(text, script, session, seed):
        own = {}
        for name in names:
            fresh = registry.plugin("drafter", name).cls().open(kit)
            draft = script.draft(fresh, Context(2, list(context.tokens)), ROOM)
            if draft.tokens:
                own[name, draft.found, draft.grade] = draft
        best = max(own, key=lambda kind: worth(kind, len(context)), default=None)
        drafted.append((len(context), own))
        expected = own[best] if best is not None else Draft(found="none")
        assert script.draft(session, context, ROOM) == expected
        chosen.add(best and best[0])
    assert len(chosen) > 1  # or it would not matter how they are weighed


def test_the_way_through_a_tree_equals_a_walk_by_children() -> None:
    rng = random.Random(0)
    for _ in range(300):
        parents = [rng.randrange(-1, node) for node in range(rng.randrange(12))]
        tokens = [rng.randrange(3) for _ in parents]
        way = [rng.randrange(3) for _ in range(rng.randrange(5))]
        path: list[int] = []
        for token in way:
            at = path[-1] if path else -1
            children = [n for n, p in enumerate(parents) if p == at and tokens[n] == token]
            if not children:
                break
            path.append(children[0])
        assert along(tokens, parents, way) == path
