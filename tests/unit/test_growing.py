"""The store of earlier answers against an exhaustive search; its size limit, its tenants, and runs that use it."""

from __future__ import annotations

import random
import shutil
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from semspec.choices.settle import expand_shorthands
from semspec.config import build, compose
from semspec.datastores.growing import BYTES, OWN_BYTES, RUN, GrowingStore
from semspec.datastores.sparse import END
from semspec.drafters.suffix import Suffix
from semspec.errors import UserError
from semspec.results.records import RunFolder
from semspec.runner import execute
from semspec.types import Context, Room
from tests.support.drafting import answerless, kit_for

ROOM = Room(99, 40, 1)
PLENTY = 1 << 24


def by_hand(
    texts: Sequence[Sequence[int]], tail: Sequence[int], longest: int, least: int, length: int
) -> tuple[int, set[tuple[int, ...]]] | None:
    """The longest end of ``tail`` that any text has, and all that followed it."""
    for size in range(min(longest, len(tail)), max(least, RUN) - 1, -1):
        wanted = list(tail[-size:])
        found = {
            tuple(text[at + size : at + size + length])
            for text in texts
            for at in range(len(text) - size)
            if list(text[at : at + size]) == wanted
        }
        if found:
            return size, found
    return None


def test_it_finds_what_a_search_of_all_texts_finds() -> None:
    rng = random.Random(0)
    for _ in range(30):
        store, texts = GrowingStore(PLENTY), list[list[int]]()
        for _ in range(6):
            text = [rng.randrange(3) for _ in range(rng.randrange(25))]
            texts.append(text)
            store.add("", text)
            tail = [rng.randrange(3) for _ in range(rng.randrange(12))]
            options = rng.randrange(1, 12), rng.randrange(1, 8), rng.randrange(1, 9)
            wanted = by_hand(texts, tail, *options) if options[0] >= RUN else None
            found = store.of("").find(tail, *options)
            assert (found is None) == (wanted is None), (texts, tail, options)
            if found is not None and wanted is not None:
                rows = [tuple(t for t in row if t != END) for row in found[1].tolist()]
                assert found[0] == wanted[0]
                assert set(rows) == wanted[1]


def test_a_tenant_finds_its_own_texts_alone() -> None:
    store = GrowingStore(PLENTY)
    store.add("one", [1, 2, 3, 4, 5])
    store.add("two", [1, 2, 3, 4, 6])
    for tenant, follower in (("one", 5), ("two", 6)):
        found = store.of(tenant).find([1, 2, 3, 4], 9, 1, 1)
        assert found is not None and found[1].tolist() == [[follower]]
    assert store.of("").find([1, 2, 3, 4], 9, 1, 1) is None


def test_the_oldest_texts_make_room_whosever_they_are() -> None:
    store = GrowingStore(2 * OWN_BYTES + 20 * BYTES)
    first, second, third = ([n, n, n, n, n] for n in (1, 2, 3))
    store.add("one", first)
    store.add("two", second)
    assert store.of("one").find([1] * 4, 9, 1, 1) is not None
    store.add("two", third)
    assert store.of("one").find([1] * 4, 9, 1, 1) is None
    assert store.of("two").find([2] * 4, 9, 1, 1) is not None
    assert store.of("two").find([3] * 4, 9, 1, 1) is not None
    store.add("one", range(100))  # larger than all there is room for
    assert store.nbytes == 0
    assert store.of("two").find([3] * 4, 9, 1, 1) is None
    store.add("one", first)
    assert store.of("one").find([1] * 4, 9, 1, 1) is not None


@pytest.mark.parametrize(("length", "count", "tenants"), [(1000, 20, 3), (6, 1000, 1000)])
def test_it_takes_no_more_memory_than_it_counts(length: int, count: int, tenants: int) -> None:
    """Texts without any repetition, which take the most; and many tenants with little each."""
    rng = random.Random(0)
    limit = 1 << 20
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    store = GrowingStore(limit)
    most = 0
    for number in range(count):
        store.add(f"tenant {number % tenants}", [rng.randrange(2**31) for _ in range(length)])
        most = max(most, tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    assert store.nbytes <= limit
    assert limit / 4 < most < limit


def test_suffix_copies_from_an_earlier_answer_where_it_matches_more() -> None:
    store = GrowingStore(PLENTY)
    store.add("me", [1, 2, 3, 4, 5, 6, 7])
    kit = kit_for(earlier=store.of("me"))

    def drafted(text: list[int], **options: int) -> list[int]:
        session = Suffix(**{"remember": 1, **options}).open(kit)
        return answerless(session.draft(Context(1, text), ROOM)).tokens

    assert drafted([9, 1, 2, 3, 4]) == [5, 6, 7]
    assert drafted([9, 1, 2, 3, 4], remember=0) == []
    assert drafted([9, 1, 2, 3, 4], shortest=5) == []
    assert drafted([3, 4, 8, 1, 2, 3, 4]) == [5, 6, 7]  # four tokens, the context two
    assert drafted([1, 2, 3, 4, 8, 1, 2, 3, 4])[0] == 8  # of equals the context
    with pytest.raises(UserError, match="give a number of MiB"):
        Suffix(remember=-1)


def test_a_run_that_remembers_resumes_to_the_same_answers(tmp_path: Path) -> None:
    """Problems that repeat one another; broken off after some, and as a whole."""
    common = ["draft=suffix", "split=token", "max_new_tokens=32", "problems=3", "plain=false"]
    common += ["engine=hf", "quiet=true", "adaptive=false", "benchmark.domains=[editing]"]

    def kept(folder: Path, remember: int) -> list[tuple[str, int]]:
        composed = compose(expand_shorthands([*common, f"draft.remember={remember}"]))
        execute(build(composed), OmegaConf.to_container(composed, resolve=True), folder)  # type: ignore[arg-type]
        return [(line["text"], line["kept_tokens"]) for line in RunFolder(folder).problem_lines()]

    whole = kept(tmp_path / "whole", 4)
    broken = shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    lines = (broken / "problems.jsonl").read_text().splitlines(keepends=True)
    (broken / "problems.jsonl").write_text("".join(lines[:1]))
    (broken / "result.json").unlink()
    assert kept(broken, 4) == whole
    alone = kept(tmp_path / "without", 0)
    assert sum(n for _, n in whole) > sum(n for _, n in alone), "nothing was remembered"
