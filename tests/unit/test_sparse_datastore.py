"""The suffix array equals a search from the end, and the trie equals counts by hand."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from semspec.datastores.files import open_arrays, write_arrays
from semspec.datastores.sparse import END, SHAPES, SparseStore, backwards, write_shard
from semspec.datastores.suffixes import sorted_suffixes
from semspec.datastores.trie import greediest, heaviest
from semspec.errors import UserError
from tests.support.deep import samples

Documents = list[list[int]]
LARGE = [0, 1, 255, 256, 65_535, 65_536, 151_935, 2**31 - 1]  # byte orders, and beyond 16 bits
AFTER = 12  # tokens after a place that are compared


def corpora(rng: random.Random, count: int) -> Iterator[Documents]:
    """Random texts over small alphabets, and those that strain suffix sorting most."""
    fibonacci, before = "ab", "a"
    while len(fibonacci) < 300:
        fibonacci, before = fibonacci + before, fibonacci
    thue_morse = "".join("ab"[i.bit_count() % 2] for i in range(300))
    for text in ("a" * 200, "ab" * 100, "abb" * 80, fibonacci, thue_morse):
        yield [[ord(c) - 97 for c in text]]
    yield [[0] * i + [1] for i in range(20)]
    yield [[], [5], [], [5, 5]]
    for _ in range(count):
        letters = rng.sample(LARGE, rng.randrange(1, 6))
        yield [rng.choices(letters, k=rng.randrange(0, 40)) for _ in range(rng.randrange(1, 5))]


def contexts(documents: Documents, rng: random.Random, count: int) -> Iterator[list[int]]:
    """Ends of the corpus itself, ends with a fault, and texts that are not in it."""
    letters = sorted({t for d in documents for t in d} | {3})
    whole = [d for d in documents if d]
    for _ in range(count):
        source = rng.choice(whole)
        end = rng.randrange(1, len(source) + 1)
        text = source[max(0, end - rng.randrange(1, 24)) : end]
        if rng.random() < 0.5:
            text[rng.randrange(len(text))] = rng.choice(letters)
        yield rng.choices(letters, k=rng.randrange(0, 3)) + text


def searched(
    documents: Documents, context: Sequence[int], longest: int, shortest: int
) -> tuple[int, list[tuple[int, ...]]]:
    """The longest suffix's length, and what follows each of its places."""
    for length in range(min(longest, len(context)), max(shortest, 1) - 1, -1):
        last = list(context[len(context) - length :])
        after = [
            tuple(document[at + length : at + length + AFTER])
            for document in documents
            for at in range(len(document) - length + 1)
            if document[at : at + length] == last
        ]
        if after:
            return length, sorted(after)
    return 0, []


def rows_of(store: SparseStore, context: Sequence[int], *limits: int) -> tuple[int, list[tuple[int, ...]]]:  # fmt: skip
    matches = store.longest(context, *limits)
    if not matches:
        return 0, []
    rows = store.following(matches, AFTER, 1 << 40)
    assert not ((rows[:, :-1] == END) & (rows[:, 1:] != END)).any()
    return matches[0].length, sorted(tuple(t for t in row if t != END) for row in rows.tolist())


@pytest.mark.deep(quick=True)
def test_matches_equal_a_search_from_the_end(tmp_path: Path) -> None:
    """100,000 contexts in the deep run, 10,000 in the quick one: length, every place, and what followed it; in one shard and in several."""
    rng, cases = random.Random(20261121), 0
    for number, documents in enumerate(corpora(rng, samples(quick=50, deep=500))):
        depth = rng.choice([1, 2, 3, 7, 16, 64])
        shards = [documents] if number % 2 else [documents[:1], documents[1:]]
        paths = [tmp_path / f"{number}-{i}.safetensors" for i in range(len(shards))]
        for path, own in zip(paths, shards, strict=True):
            write_shard(path, own, depth)
        store = SparseStore.open(paths, depth)
        if not any(documents):
            continue
        for context in contexts(documents, rng, 200):
            longest, shortest = rng.randrange(1, 20), rng.randrange(1, 4)
            limit = min(longest, depth)
            wanted = searched(documents, context, limit, shortest)
            assert rows_of(store, context, limit, shortest) == wanted, (documents, context)
            cases += 1
    assert cases >= samples(quick=10_000, deep=100_000)


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 8, 64, 1000])
def test_suffixes_are_sorted_as_deep_as_asked(depth: int) -> None:
    rng = random.Random(depth)
    for documents in corpora(rng, 60):
        text = backwards(documents)
        listed = text.tolist()
        order = sorted_suffixes(text, depth).tolist()
        assert sorted(order) == list(range(len(text)))
        deep = 1 << (depth - 1).bit_length()  # it may sort deeper, to a power of two
        keys = [listed[i : i + depth] for i in order]
        assert keys == sorted(keys)
        tied = [(listed[i : i + deep], i) for i in order]
        assert tied == sorted(tied)  # ties by place: the same bytes each time


def test_the_heaviest_beginnings_equal_counting() -> None:
    rng = random.Random(7)
    for _ in range(400):
        length = rng.randrange(1, 6)
        texts = [rng.choices([0, 1, 2], k=rng.randrange(0, length + 1)) for _ in range(rng.randrange(1, 30))]  # fmt: skip
        rows = np.array([text + [END] * (length - len(text)) for text in texts], np.int64)
        counts = Counter(tuple(t[:n]) for t in texts for n in range(1, len(t) + 1))
        nodes = rng.randrange(1, 20)
        trie = heaviest(rows, nodes)
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(trie.tokens, trie.parents, strict=True):
            assert parent < len(paths)
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        assert [counts[path] for path in paths] == trie.counts
        assert len(set(paths)) == len(paths) == min(nodes, len(counts))
        assert trie.counts == sorted(counts.values(), reverse=True)[:nodes]
        assert greediest(rows) == by_hand(counts)


def by_hand(counts: Counter[tuple[int, ...]]) -> list[int]:
    path: tuple[int, ...] = ()
    while after := {p: n for p, n in counts.items() if p[:-1] == path}:
        path = min(after, key=lambda p: (-after[p], p))
    return list(path)


def test_many_places_are_looked_at_in_part(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.safetensors", [[1, 2, 3]] * 300 + [[1, 2, 4]] * 100, 8)
    write_shard(tmp_path / "b.safetensors", [[1, 2, 5]] * 400, 8)
    store = SparseStore.open([tmp_path / "a.safetensors", tmp_path / "b.safetensors"], 8)
    matches = store.longest([9, 1, 2], 16)
    assert [m.count for m in matches] == [400, 400]
    rows = store.following(matches, 2, 80)
    assert len(rows) == 80
    share = Counter(rows[:, 0].tolist())
    assert share[5] == 40 and abs(share[3] - 30) <= 1


def test_more_than_memory_opens_at_once(tmp_path: Path) -> None:
    """A file of 60 GB, nearly all of it holes: opened and asked in under a second."""
    tokens = 7_500_000_000
    size = 4 * tokens
    header = json.dumps(
        {
            "tokens": {"dtype": "U8", "shape": [tokens, 4], "data_offsets": [0, size]},
            "suffixes": {"dtype": "I32", "shape": [tokens], "data_offsets": [size, 2 * size]},
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * size)
    began = time.process_time()
    store = SparseStore.open([path], 64)
    assert store.longest([1, 2, 3], 16) == []
    assert time.process_time() - began < 1


def test_damaged_shards_end_in_an_error_or_in_tokens(tmp_path: Path) -> None:
    """Bytes of header and content changed at random: refused, or asked without a crash."""
    path, rng, refused = tmp_path / "it.safetensors", random.Random(0), 0
    write_shard(path, [[1, 2, 3, 1, 2, 4]] * 5, 8)
    whole = path.read_bytes()
    for _ in range(2000):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            store = SparseStore.open([path], 8)
        except UserError:
            refused += 1
            continue
        store.shards[0].largest()
        matches = store.longest([1, 2], 8)
        if matches:
            with suppress(UserError):  # of a token that no model has
                heaviest(store.following(matches, 4, 10), 8)
    assert 500 < refused < 2000


def test_the_largest_token_is_found_in_a_few_steps(tmp_path: Path) -> None:
    rng, path = random.Random(7), tmp_path / "it.safetensors"
    for documents in [*corpora(rng, 60), [[], []], []]:
        write_shard(path, documents, 8)
        (shard,) = SparseStore.open([path], 8).shards
        assert shard.largest() == max((t for d in documents for t in d), default=END)  # type: ignore[attr-defined]


def test_tokens_that_the_model_does_not_have_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "it.safetensors"
    write_shard(path, [[1, 2, 3, 1, 2, 70_000]], 8)
    store = SparseStore.open([path], 8)
    with pytest.raises(
        UserError, match="store contains token 70000, beyond the model's vocabulary of 70000"
    ):
        store.bind("owner/store", 70_000)
    store.bind("owner/store", 70_001)
    assert 70_000 in store.following(store.longest([1, 2], 8), 4, 10)
    # a damaged file in whose sorted suffixes the token is not found says it when it is met
    mapped = open_arrays(path, SHAPES)
    tokens, order = (mapped.array(name).copy() for name in ("tokens", "suffixes"))
    first = tokens.view(">u4")[order, 0]
    order[first == 70_000] = order[first == 3]
    write_arrays(path, {"tokens": tokens, "suffixes": order})
    store = SparseStore.open([path], 8)
    store.bind("owner/store", 70_000)
    with pytest.raises(UserError, match="owner/store contains token 70000"):
        store.following(store.longest([1, 2], 8), 4, 10)


def test_damaged_shards_are_refused_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "it.safetensors"
    write_shard(path, [[1, 2, 3]], 8)
    whole = path.read_bytes()
    for data, says in (
        (whole[:-1], "cut off"),
        (whole[:50], "cut off"),
        (b"", "cut off"),
        (whole + b"x", "cut off"),
        (whole.replace(b"I32", b"F32"), "suffixes is F32"),
        (b"\xff" * 64, "header claims"),
    ):
        path.write_bytes(data)
        with pytest.raises(UserError, match=says) as told:
            SparseStore.open([path], 8)
        assert "\n" not in str(told.value)
    write_arrays(path, {"tokens": np.zeros((3, 4), np.uint8), "suffixes": np.zeros(2, np.int32)})
    with pytest.raises(UserError, match="not as many suffixes"):
        SparseStore.open([path], 8)
    path.unlink()
    with pytest.raises(UserError, match="is missing"):
        SparseStore.open([path], 8)
    with pytest.raises(ValueError, match="a token"):
        backwards([[-2]])
