"""Drafts are trimmed of tokens that could never be committed, with all their descendants."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.decoding.thinking import Thinking
from semspec.decoding.trim import depths, first_path, trim
from semspec.errors import UserError
from semspec.types import Draft, Read, What

ROWS = Read(What.PROBS)


def tree(tokens: list[int], parents: list[int]) -> Draft:
    rows = torch.arange(len(tokens)).float()[:, None].repeat(1, 3)
    ends = list(range(1, len(tokens) + 1))
    return Draft(tokens, ends, probs=rows, parents=parents, evidence={ROWS: rows})


def test_depths_count_from_the_root() -> None:
    assert depths([-1, -1, 0, 2, 1]) == [1, 1, 2, 3, 2]
    with pytest.raises(UserError, match="parents come first"):
        depths([-1, 1])


def test_a_tree_loses_what_follows_an_end_of_text() -> None:
    draft = tree([9, 5, 6, 7, 8], [-1, -1, 0, 1, 2])
    trim(draft, 10, {9})
    assert (draft.tokens, draft.parents, draft.ends) == ([9, 5, 7], [-1, -1, 1], [1, 2, 3])
    assert draft.probs is not None and draft.probs[:, 0].tolist() == [0, 1, 3]
    assert torch.equal(draft.evidence[ROWS], draft.probs)


def test_a_tree_loses_what_follows_the_thinking() -> None:
    pieces = ["</", "think>", "so", "</think>"]
    draft = tree([0, 3, 1, 2, 2], [-1, -1, 0, 2, 1])
    trim(draft, 10, (), Thinking(pieces.__getitem__))
    assert (draft.tokens, draft.parents) == ([0, 3, 1], [-1, -1, 0])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_trimming_removes_whole_branches(data: st.DataObject) -> None:
    count, left = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4))
    tokens = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(count)]
    draft = tree(list(tokens), list(parents))
    trim(draft, left, {4})

    def ways(tokens: list[int], parents: list[int]) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for token, parent in zip(tokens, parents, strict=True):
            found.append((*(found[parent] if parent >= 0 else ()), token))
        return found

    assert draft.parents is not None
    whole = ways(tokens, parents)
    expected = [way for way in whole if len(way) <= left and 4 not in way[:-1]]
    assert ways(draft.tokens, draft.parents) == expected
    assert draft.ends == list(range(1, len(expected) + 1))


def test_a_chain_ends_with_the_text_and_with_the_thinking() -> None:
    draft = Draft([1, 9, 2], [1, 2, 3], probs=torch.ones(3, 3))
    trim(draft, 3, {9})
    assert (draft.tokens, draft.ends) == ([1, 9], [1, 2])
    assert draft.probs is not None and len(draft.probs) == 2
    draft = Draft([2, 3, 2, 2], [3, 4])
    trim(draft, 9, (), Thinking(["", "", "so", "</think>"].__getitem__))
    assert (draft.tokens, draft.ends) == ([2, 3, 2], [3])
    with pytest.raises(AssertionError, match="more tokens than there was room for"):
        trim(Draft([1, 1], [1, 2]), 1, ())


def test_the_first_path_of_a_tree() -> None:
    assert first_path([-1, -1, 0, 2, 1]) == [0, 2, 3]
    assert first_path([]) == []
    assert first_path([-1, 0]) == [0, 1]
