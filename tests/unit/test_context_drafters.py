"""Drafters that reuse the target's states and predictions for its own context, worked by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from semspec import registry
from semspec.decoding.pace import Steady
from semspec.drafters.adapld import AdaPld
from semspec.drafters.hybrid import Hybrid
from semspec.drafters.logitspec import LogitSpec
from semspec.drafters.pld_plus import PldPlus, chosen_layer
from semspec.drafters.suffix import Suffix
from semspec.drafters.token_recycling import TokenRecycling, shape
from semspec.driver import Driver
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.loop import Speculation, speculate
from semspec.rules.lossless import Lossless
from semspec.types import Context, Draft, Room, Sampling, What
from tests.support.datastores import with_toy_datastore
from tests.support.drafting import Script, kit_for
from tests.support.law import own_rng, toy_kit

ROOM = Room(99, 40, 1)


def edges(draft: Draft) -> dict[tuple[int, ...], str]:
    """Every path of a draft from the root on, and where its last token came from."""
    parents = draft.parents or list(range(-1, len(draft.tokens) - 1))
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return dict(zip(paths, draft.origins, strict=True))


# -- AdaPLD ------------------------------------------------------------------------------------

#  position   0  1  2  3  4  5  6  7  8  9 10
TEXT = [10, 20, 11, 12, 13, 20, 14, 15, 13, 16, 20]
ANGLES = [0.3, 0, 0, 0, 1.5, 0.2, 0, 0.25, 0, 1.4, 0]  # of the states; 4 is most like 9
TOPS = [[0, 0, 0]] * 5 + [[13, 14, 99]] + [[0, 0, 0]] * 5  # what the target thought at position 5
STATES = [[math.cos(a), math.sin(a)] for a in ANGLES]


def adapld(text: list[int] | None = None, script: Script | None = None, **options: Any) -> Draft:
    options = {"branch": 3, "layer": 1, "semantic": False} | options
    script = script or Script(STATES, TOPS)
    session = AdaPld(**options).open(kit_for(trees=True))
    return script.draft(session, Context(1, text or TEXT), ROOM)


def test_adapld_drafts_the_example_worked_by_hand() -> None:
    """The last token, 20, stood at 1 and 5. Before 5 the state (1.5) is like that before 10 (1.4).

    Copied is what followed 5. Of the target's thoughts there 14 is the copy itself, 13 and 99 become
    branches. 13 stood at 4 (state before: 0) and at 8 (0.25); the anchor's own state is 0.2: it is the
    second one, after which came 16. 99 was never there.
    """
    draft = adapld(longest=3)
    assert edges(draft) == {
        (14,): "main",
        (14, 15): "main",
        (14, 15, 13): "main",
        (13,): "branch",
        (13, 16): "successor",
        (99,): "branch",
    }
    assert draft.found == "lexical" and draft.grade == 9
    assert draft.ends == [1, 2, 3, 4, 5, 6]


def test_each_part_of_adapld_adds_its_own_branches() -> None:
    """The ablations of the paper's table 4, and two more."""
    assert set(edges(adapld(longest=2, branch=0))) == {(14,), (14, 15)}
    assert set(edges(adapld(longest=2, successor=False))) == {(14,), (14, 15), (13,), (99,)}
    without_copy = edges(adapld(longest=0))
    assert set(without_copy) == {(13,), (13, 16), (14,), (14, 15), (99,)}
    # by meaning alone: a token is like itself, and nothing is copied
    alike = adapld(lexical=False, semantic=True, script=embedded({}))
    assert set(edges(alike)) == {(13,), (13, 16), (14,), (14, 15), (99,)}
    assert alike.found == "semantic"
    chain = adapld(longest=2, tree=False)
    assert (chain.tokens, chain.parents) == ([14, 15], None)
    newest = adapld([20, 20, 1, 5, 20, 6, 9, 9, 9, 9, 20], ranked=False, branch=0, longest=1)
    assert newest.tokens == [6]


def embedded(angles: dict[int, float]) -> Script:
    """Embeddings at these angles; each other token stands at right angles to all."""
    table = {}
    for i, token in enumerate(sorted({*TEXT, 0, 77, 99})):
        own = [0.0] * 20
        if token in angles:
            own[:2] = [math.cos(angles[token]), math.sin(angles[token])]
        else:
            own[i + 2] = 1.0
        table[token] = own
    return Script(STATES, TOPS, table)


def test_adapld_falls_back_on_meaning() -> None:
    """77 is new and like 20: branches alone, for what followed the other token is no continuation."""
    text = [*TEXT[:-1], 77]
    script = embedded({77: 0.0, 20: 0.5, 16: 1.3})  # cosines with 77: .88 and .27
    draft = adapld(text, script, semantic=True, threshold=0.4)
    assert draft.found == "semantic"
    assert edges(draft) == {
        (13,): "branch",
        (13, 16): "successor",
        (14,): "branch",
        (14, 15): "successor",
        (99,): "branch",
    }
    assert adapld(text, semantic=False).found == "none"
    assert adapld(text, embedded({77: 0.0, 20: 0.5}), semantic=True, threshold=0.9).found == "none"


def test_adapld_reads_an_embedding_once() -> None:
    script = embedded({77: 0.0, 20: 0.5})
    session = AdaPld(branch=3, layer=1).open(kit_for(trees=True))
    context = Context(1, [*TEXT[:-1], 77])
    first, again = (script.draft(session, context, ROOM) for _ in range(2))
    assert edges(first) == edges(again)
    asked = [t for q in script.asked if q.reads[0].what is What.EMBEDDINGS for t in q.tokens]
    assert len(asked) == len(set(asked)) > 0
    assert not any(q.passes for q in script.asked if q.tokens)


def test_neighbours_equal_a_comparison_of_all() -> None:
    """Asked again and again while the memory grows."""
    from semspec.drafters._anchors import Neighbours

    rng = np.random.default_rng(0)
    table = rng.standard_normal((60, 4)).astype(np.float32)
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    script = Script([], [], dict(enumerate(table.tolist())))
    neighbours, kit, context = Neighbours(0.3, 0), kit_for(), Context(1, [0])

    class Asking:
        def __init__(self, queries: list[int], known: list[int]) -> None:
            self.queries, self.known = queries, known

        def draft(self, context: Context, room: Room) -> Any:
            return neighbours.like(context, kit, self.queries, self.known)

    for count in (1, 5, 5, 30, 50):
        queries = rng.choice(60, 4, replace=False).tolist()
        known = list(range(count))
        found: Any = script.draft(Asking(queries, known), context, ROOM)  # type: ignore[arg-type]
        alike = [[t for t in known if unit[t] @ unit[q] >= 0.3] for q in queries]
        assert [own.tolist() for own in found] == alike


def test_pld_plus_copies_where_the_state_is_alike() -> None:
    session = PldPlus(longest=3, layer=1).open(kit_for())
    draft = Script(STATES, TOPS).draft(session, Context(1, TEXT), ROOM)
    assert (draft.tokens, draft.found, draft.parents) == ([14, 15, 13], "lexical", None)
    assert [chosen_layer(0, kit_for(layers=n)) for n in (1, 2, 24, 40)] == [1, 1, 8, 14]
    assert chosen_layer(-1, kit_for(layers=24)) == -1


# -- Token Recycling ---------------------------------------------------------------------------


def test_token_recycling_drafts_the_example_worked_by_hand() -> None:
    """After a 1 the target thought of 2 or 3; after a 2, of 3 or 1, and the last time of 1 or 4."""
    text = [1, 2, 3, 2, 1]
    tops = [[2, 3], [3, 1], [2, 2], [1, 4], [7, 7]]
    session = TokenRecycling(top_k=2, nodes=6, depth=3).open(kit_for(trees=True))
    draft = Script([], tops).draft(session, Context(1, text), ROOM)
    # weights: 1/2 (2), 1/4 (2 1) and (3), 1/8 (2 1 2), (2 4) and (3 2)
    assert edges(draft) == dict.fromkeys([(2,), (2, 1), (3,), (2, 1, 2), (2, 4), (3, 2)], "main")
    assert session.matrix == {1: [2, 3], 2: [1, 4], 3: [2, 2]}
    assert Script([], tops).draft(session, Context(1, [*text, 9]), ROOM) == Draft()


def test_the_static_tree_is_the_heaviest_one() -> None:
    """Against all nodes of three levels, weighed one by one."""
    paths: list[tuple[int, ...]] = []
    for parent, rank in shape(3, 12, 3):
        paths.append((*(paths[parent] if parent >= 0 else ()), rank))
    every = [
        (a, *rest)
        for a in range(3)
        for rest in [(), *((b,) for b in range(3)), *((b, c) for b in range(3) for c in range(3))]
    ]
    weights = sorted(sum(rank + 1 for rank in path) for path in every)
    assert sorted(sum(rank + 1 for rank in path) for path in paths) == weights[:12]
    assert len(set(paths)) == 12
    full = shape(8, 80, 6)
    assert len(full) == 80 and all(parent < node for node, (parent, _) in enumerate(full))


# -- LogitSpec ---------------------------------------------------------------------------------


def test_logitspec_drafts_the_example_worked_by_hand() -> None:
    """The row that wrote the last 5 held 5, 8 and 9. (5 8) and (5 9) are looked up, as is 5."""
    text = [4, 5, 8, 1, 2, 5, 6, 9, 3, 4, 5]
    tops = [[0, 0, 0]] * 9 + [[5, 8, 9], [0, 0, 0]]
    session = LogitSpec(longest=2, guesses=2).open(kit_for(trees=True))
    draft = Script([], tops).draft(session, Context(1, text), ROOM)
    assert edges(draft) == {
        (8,): "main",  # what followed (4 5)
        (8, 1): "main",
        (9,): "branch",
        (8, 1, 2): "successor",  # what followed (4 5 8) goes on where the copy ended
        (9, 3): "successor",
        (9, 3, 4): "successor",
    }
    small = LogitSpec(nodes=2, longest=2, guesses=2).open(kit_for(trees=True))
    assert Script([], tops).draft(small, Context(1, text), ROOM).tokens == [8, 1]


# -- all ---------------------------------------------------------------------------------------

SOURCES = [
    name
    for name, plugin in registry.plugins("drafter").items()
    if not plugin.cls().models()
    and not plugin.cls.plain
    and name != "hybrid"
    and not plugin.cls().levels  # heads are trained for a target
    and not plugin.cls().refers  # see test_reference.py
]


def solved(drafter: Any, seed: int, temperature: float = 1.0) -> tuple[Context, Any, Any, Any]:
    """A problem of the toy world; its context, its session, the kit and the target."""
    models = Toy(vocabulary=5, seed=seed % 3).models()
    kit = toy_kit(Lossless(), models["target"], Sampling(temperature), seed)
    rng = random.Random(seed)
    context = Context(1, [rng.randrange(5) for _ in range(20)])
    session = drafter.open(own_rng(kit, "draft"))
    rule = Lossless().open(kit)
    plan = speculate(Speculation(context, kit, 60, session, rule, Steady(6, 1)))
    (done,) = Driver(dict(models)).run([(context, plan)])  # type: ignore[arg-type]
    return context, session, kit, done.value


@pytest.mark.parametrize("name", [*SOURCES, "suffix, static"])
@pytest.mark.parametrize("seed", range(4))
def test_rejected_drafts_leave_no_trace(name: str, seed: int) -> None:
    """A session that drafted, and was rejected, for many rounds drafts as one that never did."""
    if name == "suffix, static":  # the corpus wherever it matches at all
        drafter = with_toy_datastore(Suffix(datastore="toy", bias=0, threshold=1), 5)
    else:
        drafter = with_toy_datastore(registry.plugin("drafter", name).cls(), 5)
    context, session, kit, outcome = solved(drafter, seed)
    rejected = [r for r in outcome.rounds if len(r.kept) < len(r.drafted)]
    assert len(rejected) > 5
    fresh, copy = drafter.open(kit), Context(2, context.tokens)
    target = Toy(vocabulary=5, seed=seed % 3).models()["target"]
    driver = Driver({"target": target})
    room = Room(30, 30, 1)
    plans = [(context, session.draft(context, room)), (copy, fresh.draft(copy, room))]
    old, new = (done.value for done in driver.run(plans))
    assert (old.tokens, old.parents, old.origins, old.found, old.grade) == (
        new.tokens,
        new.parents,
        new.origins,
        new.found,
        new.grade,
    )
    assert old.tokens


def test_hybrid_follows_the_source_that_is_worth_most() -> None:
    """After x comes x + 1 or x + 2: a copy is right half of the time, the target knows both."""
    script = Script([], [])
    session = Hybrid(sources="prompt_lookup,token_recycling").open(kit_for(trees=True))
    rng, context = random.Random(0), Context(1, [])

    def go_on() -> None:
        token = (context.tokens[-1] + rng.randrange(1, 3)) % 9 if len(context) else 0
        context.extend([token])
        script.tops = [*script.tops, [(token + 1) % 9, (token + 2) % 9]]

    for _ in range(30):
        go_on()
    branched = []
    for _ in range(60):
        branched.append(script.draft(session, context, Room(30, 2, 1)).parents is not None)
        go_on()
        go_on()
    assert all(branched[-20:])
    by_source: dict[str, list[float]] = {}
    for (name, *_), worth in session.worth.items():  # type: ignore[attr-defined]
        by_source.setdefault(name, []).append(worth.mean)
    assert min(by_source["token_recycling"]) > max(by_source["prompt_lookup"])


def test_hybrid_reads_the_prompt_once() -> None:
    script = embedded({})
    session = Hybrid(sources="adapld,logitspec,pld_plus").open(kit_for(trees=True))
    script.tops = [[0] * 17] * len(TEXT)
    script.draft(session, Context(1, TEXT), ROOM)
    assert sum(query.passes for query in script.asked) == 1
    assert set(script.asked[0].reads) == set(session.watches)


@pytest.mark.parametrize(
    "sources",
    [
        "",
        "lm",
        "none",
        "hybrid",
        "suffix,suffix",
        "sufix",
        "lm+suffix",
        "adapld+lm",
        "lm+eagle3",
        "medusa",
    ],
)
def test_hybrid_refuses_unknown_sources(sources: str) -> None:
    with pytest.raises(UserError, match=r"sources|suffix"):
        Hybrid(sources=sources)


def test_hybrid_asks_the_last_source_where_nothing_matches() -> None:
    """As SAM decoding does: below 5 tokens Token Recycling drafts; a corpus must match 5 more."""
    hybrid = Hybrid(sources="suffix+token_recycling", match=5)
    suffix = hybrid._drafters()["suffix"]
    assert (suffix.shortest, suffix.threshold, suffix.bias) == (5, 10, 5)
    script = Script([], [[7, 8]] * 40)
    context = Context(1, [1, 2, 3, 4, 5, 6, 20, 21])
    session = hybrid.open(kit_for(trees=True))
    for token in (1, 2, 3, 4):
        context.extend([token])
        assert script.draft(session, context, ROOM).found == ""
    context.extend([5])
    draft = script.draft(session, context, ROOM)
    assert (draft.found, draft.grade, draft.tokens[:3]) == ("lexical", 5, [6, 20, 21])
    assert not Hybrid().least
    assert Hybrid(sources="suffix+lm").least == Hybrid(sources="rest+eagle3").least == 5
    for wrong in ({"match": 60}, {"match": -1}, {"chain": 0}):
        with pytest.raises(UserError, match="give match from 0 to 59, chain at least 1"):
            Hybrid(**wrong)
    with pytest.raises(
        UserError, match=r"put a drafter that copies from text before lm \(suffix\+lm\)"
    ):
        Hybrid(sources="lm")
    with pytest.raises(UserError, match="adapld reports no length of its match"):
        Hybrid(sources="adapld+suffix", match=3)


@pytest.mark.parametrize(
    ("drafter", "options"),
    [
        (AdaPld, {"lexical": False, "semantic": False}),
        (AdaPld, {"longest": 0, "branch": 0}),
        (AdaPld, {"candidates": 0}),
        (PldPlus, {"longest": 0}),
        (TokenRecycling, {"nodes": 0}),
        (LogitSpec, {"guesses": 0}),
    ],
)
def test_options_that_make_no_sense_are_refused(drafter: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        drafter(**options)
