"""Drafters inside SGLang, tested without it: trees, padding, rows, requests."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.decoding.trim import depths
from semspec.drafters.adapld import AdaPld
from semspec.drafters.prompt_lookup import PromptLookup
from semspec.errors import UserError
from semspec.sglang_plugin.answers import Rows, without_missing_reads
from semspec.sglang_plugin.drafting import Options
from semspec.sglang_plugin.drafts import Drafts, fitted, lay_out
from semspec.types import Draft
from tests.support.drafting import kit_for

VOCABULARY, WIDTH = 20, 4
KIT = kit_for(trees=True, stop_ids=frozenset({19}))


def runner(keeps_states: bool = False) -> Any:
    embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
    model = torch.nn.Sequential(embedding)
    model.get_input_embeddings = lambda: embedding
    return SimpleNamespace(
        model=model,
        model_config=SimpleNamespace(hidden_size=WIDTH, vocab_size=VOCABULARY),
        server_args=SimpleNamespace(enable_return_hidden_states=keeps_states),
    )


def drafts(drafter: Any, n: int, on: Any = None) -> Drafts:
    on = on or runner()
    drafter = without_missing_reads(drafter, on)
    return Drafts(drafter, n, KIT, Rows(drafter.open(KIT).watches, on))


def trees(told: tuple[Any, Any], n: int) -> list[tuple[list[int], list[int]]]:
    """Tokens and parents, as SGLang takes them from the mask."""
    nodes, sees = told[0].reshape(-1, n), told[1].reshape(-1, n, n)
    assert told[0].dtype == np.int64 and told[1].dtype == np.bool_
    found = []
    for tokens, mask in zip(nodes.tolist(), sees, strict=True):
        above = [[a for a in range(i) if mask[i][a]] for i in range(n)]
        parents = [max(own, default=-1) for own in above]
        for i, parent in enumerate(parents):
            assert mask[i][i] and not mask[i][i + 1 :].any()
            assert above[i] == ([*above[parent], parent] if parent >= 0 else [])
        found.append((tokens, parents))
    return found


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12))
def test_a_tree_is_cut_to_its_room_and_filled_up(seed: int, n: int) -> None:
    rng = random.Random(seed)
    tokens, parents = [], []
    for node in range(rng.randrange(0, 16)):
        parents.append(rng.randrange(-1, node))
        used = {t for t, p in zip(tokens, parents, strict=False) if p == parents[-1]}
        tokens.append(rng.choice([t for t in range(VOCABULARY) if t not in used]))
    whole = list(zip(tokens, depths(parents), strict=True))
    draft = fitted(Draft(list(tokens), [], parents=list(parents)), n - 1)
    assert draft.parents is not None and len(draft.tokens) == min(len(tokens), n - 1)
    kept = list(zip(draft.tokens, depths(draft.parents), strict=True))
    left = list(whole)
    for one in kept:
        left.remove(one)
    if left and kept:  # the shallowest stay
        assert max(depth for _, depth in kept) <= min(depth for _, depth in left)
    nodes, sees = np.zeros(n, np.int64), np.zeros((n, n), np.bool_)
    lay_out(7, draft.tokens, draft.parents, nodes, sees)
    ((laid, above),) = trees((nodes, sees), n)
    used_nodes = 1 + len(draft.tokens)
    assert laid[:used_nodes] == [7, *draft.tokens]
    assert above[1:used_nodes] == [parent + 1 for parent in draft.parents]
    for parent in range(n):  # no token stands twice among siblings
        children = [laid[i] for i in range(n) if above[i] == parent]
        assert len(children) == len(set(children))
    assert all(above[i] in (0, i - 1) for i in range(used_nodes, n))


def test_requests_are_met_followed_and_forgotten() -> None:
    made, n = drafts(PromptLookup(ngram=2), 5), 5
    one, other = object(), object()
    made.meet([("a", one, [1, 2, 3, 4, 1, 2], []), ("b", other, [5, 6], [7])])
    found = trees(made.batch_get(["a", "b"], [[1, 2], [6, 7]], [6, 3]), n)
    assert found[0] == ([2, 3, 4, 1, 2], [-1, 0, 1, 2, 3])
    assert found[1] == ([7, 0, 0, 0, 0], [-1, 0, 1, 2, 3]) and made.counts == [5, 1]
    # the text grows by what was accepted; only its end is told
    made.meet([("a", one, [1, 2, 3, 4, 1, 2], [3, 9])])
    found = trees(made.batch_get(["a"], [[2, 3, 9]], [8]), n)
    assert found == [([9, 0, 0, 0, 0], [-1, 0, 1, 2, 3])]
    # an id that another request has now, and one that has left and comes back
    made.meet([("a", other, [8, 9, 8], [])])
    assert trees(made.batch_get(["a"], [[9, 8]], [3]), n)[0][0][:2] == [8, 9]
    made.erase_match_state(["a", "never seen"])
    made.meet([("a", other, [8, 9, 8], [9, 8])])
    assert trees(made.batch_get(["a"], [[9, 8]], [5]), n)[0][0][:3] == [8, 9, 8]


def test_rows_of_the_passes_reach_the_drafter_along_the_way() -> None:
    """AdaPLD sees the likeliest tokens and the state of each token that is really there."""
    on, n = runner(keeps_states=True), 6
    made = drafts(AdaPld(branch=2, longest=3, width=0), n, on)
    request, prompt = object(), [1, 2, 3, 1]
    states = torch.randn(4, WIDTH)
    made.prefilled([("a", request, 0, 4)], states)
    made.meet([("a", request, prompt, [2])])
    ((tokens, _),) = trees(made.batch_get(["a"], [[1, 2]], [5]), n)
    memory = made._sessions["a"].drafting.memory  # type: ignore[attr-defined]
    assert memory.known == 4 and memory.tops[:4].tolist() == [[2, 2], [3, 3], [1, 1], [2, 2]]
    unit = states / states.norm(dim=1, keepdim=True)
    assert np.allclose(memory.states[:4], unit.numpy(), atol=1e-6)
    assert tokens[:3] == [2, 3, 1]  # a copy, with nothing beside it: what stood there is copied
    logits, after = torch.randn(n, VOCABULARY), torch.randn(n, WIDTH)
    made.verified(["a"], n, logits, after)
    made.meet([("a", request, prompt, [2, 3, 1, 9])])  # two drafted tokens were kept, 9 was written
    made.batch_get(["a"], [[3, 1, 9]], [8])
    assert memory.known == 7
    assert memory.tops[4:7].tolist() == logits[:3].topk(2).indices.tolist()
    unit = after / after.norm(dim=1, keepdim=True)
    assert np.allclose(memory.states[4:7], unit[:3].numpy(), atol=1e-6)


def test_states_that_sglang_does_not_keep_are_left_out_or_refused() -> None:
    assert not without_missing_reads(AdaPld(), runner()).ranked
    assert without_missing_reads(AdaPld(), runner(keeps_states=True)).layer == -1
    with pytest.raises(UserError, match="SGLang keeps only the last layer's states"):
        without_missing_reads(AdaPld(layer=3), runner(keeps_states=True))
    with pytest.raises(UserError, match="leaves no room for a draft"):
        drafts(PromptLookup(), 1)
    with pytest.raises(UserError, match=r"drafting\.suffix has no option length"):
        Options(suffix={"length": 3}).drafter("suffix")


def test_a_request_new_to_a_batch_has_no_rows_of_the_last_pass() -> None:
    """Its rows are missing: they are asked for, and answered with what stands next."""
    made, n = drafts(AdaPld(branch=2, longest=2, semantic=False), 4), 4
    first, second = object(), object()
    made.meet([("a", first, [1, 2, 1], [2])])
    made.batch_get(["a"], [[1, 2]], [4])
    made.verified(["a"], n, torch.randn(n, VOCABULARY), None)
    made.meet([("a", first, [1, 2, 1], [2, 5]), ("b", second, [3, 4, 3], [4, 3, 4])])
    made.batch_get(["a", "b"], [[2, 5], [3, 4]], [5, 6])
    known = [made._sessions[rid].drafting.memory.known for rid in "ab"]  # type: ignore[attr-defined]
    assert known == [4, 5]
