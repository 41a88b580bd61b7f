"""Appending a corpus to a datastore and merging datastores give the same as one build, or are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semspec.artifacts import inspection
from semspec.artifacts.dense_datastore import INDEX, DenseDatastore
from semspec.artifacts.sparse_datastore import SparseDatastore
from semspec.cli.build_datastore import main
from semspec.datastores import dense, sparse
from semspec.models.text import Text
from semspec.storage import files, swap
from semspec.storage.packaged import beside_package
from semspec.training.datastores.joining import documents_of
from tests.support.datastores import TOY_FACTS, refused, sparse_folder

TARGET = str(beside_package("hub_artifacts") / "tiny-target")
TEXTS = [f"the {n} and {n + 1} of it are {n * n} in all, and so are the others" for n in range(100)]


def corpus(folder: Path, name: str, texts: list[str]) -> str:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return f"corpus={path}"


def build(kind: str, tmp_path: Path, name: str, *arguments: str) -> Path:
    more = ["shard=1000", "depth=8"] if kind == "sparse" else ["dims=4"]
    given = [] if any(a.startswith(("append=", "merge=")) for a in arguments) else more
    shard = ["shard=1000"] if kind == "sparse" else []
    out = tmp_path / name
    main([f"kind={kind}", "quiet=true", "responses=as_is", *(given or shard), *arguments,
          f"folder={tmp_path / f'work-{name}'}", f"out={out}"])  # fmt: skip
    return out


def shards(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(folder.glob("shard-*"))}


def test_sparse_stores_join_to_the_bytes_of_one_that_was_built_at_once(tmp_path: Path) -> None:
    whole = build("sparse", tmp_path, "whole", corpus(tmp_path, "all", TEXTS))
    first = build("sparse", tmp_path, "first", corpus(tmp_path, "a", TEXTS[:60]))
    second = build("sparse", tmp_path, "second", corpus(tmp_path, "b", TEXTS[60:]))
    assert len(shards(whole)) > len(shards(first)) > 1
    rest = corpus(tmp_path, "c", TEXTS[60:])
    added = build("sparse", tmp_path, "added", f"append={first}", rest)
    merged = build("sparse", tmp_path, "merged", f"merge=[{first},{second}]")
    for made in (added, merged):
        assert shards(made) == shards(whole)
        assert isinstance(inspection.check(made), SparseDatastore)
        config = SparseDatastore.load(made).config
        assert (config["documents"], config["depth"], config["responses"]) == (100, 8, "as_is")
        assert [part["documents"] for part in config["data"]["parts"]] == [60, 40]
    # every document is there, in its order
    text = Text(TARGET)
    kept = [d for path in sorted(merged.glob("shard-*")) for d in documents_of(path)]
    assert [t for d in kept for t in d] == [t for line in TEXTS for t in text.encode(line)]


def test_a_store_is_added_to_in_place_and_never_twice(tmp_path: Path) -> None:
    store = build("sparse", tmp_path, "store", corpus(tmp_path, "a", TEXTS[:5]))
    more = ["kind=sparse", "quiet=true", "responses=as_is", f"append={store}", f"folder={tmp_path / 'w'}"]  # fmt: skip
    more.append(corpus(tmp_path, "b", TEXTS[5:9]))
    for _ in range(2):
        main(more)
        assert SparseDatastore.load(store).config["documents"] == 9
    # another folder is another addition
    main([*more[:-2], corpus(tmp_path, "c", TEXTS[9:10]), f"folder={tmp_path / 'x'}"])
    config = SparseDatastore.load(store).config
    assert config["documents"] == 10 and len(config["data"]["parts"]) == 3


def test_an_addition_that_is_broken_off_leaves_the_old_store_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken off at every file that is written or exchanged; the next start ends with the same bytes."""
    first = build("sparse", tmp_path, "first", corpus(tmp_path, "a", TEXTS[:60]))
    wanted = shards(build("sparse", tmp_path, "whole", corpus(tmp_path, "all", TEXTS)))
    before, rest = shards(first), corpus(tmp_path, "b", TEXTS[60:])
    more = ["kind=sparse", "quiet=true", "responses=as_is", "shard=1000", f"append={first}", rest]

    class Killed(BaseException):
        pass

    left = 0

    def counted(do: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return do(*given, **named)

        return wrapped

    kills = 0
    for number in range(60):
        with monkeypatch.context() as patch:
            left = number
            patch.setattr(files.os, "replace", counted(files.os.replace))
            patch.setattr(swap, "finish", counted(swap.finish))
            try:
                main([*more, f"folder={tmp_path / 'work'}"])
            except Killed:
                kills += 1
                assert shards(first) in (before, wanted)
                SparseDatastore.load(first)
                continue
            break
    assert kills > 3
    assert shards(first) == wanted


def test_dense_stores_join_by_one_projection(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = build("dense", tmp_path, "first", corpus(tmp_path, "a", TEXTS[:8]))
    rest = corpus(tmp_path, "b", TEXTS[8:12])
    both = build("dense", tmp_path, "both", f"append={first}", rest)
    one = build("dense", tmp_path, "one", f"append={first}", corpus(tmp_path, "c", TEXTS[8:10]))
    merged = build("dense", tmp_path, "merged", f"merge=[{both},{one}]")
    old, new, all_of_them = (DenseDatastore.load(folder) for folder in (first, both, merged))
    for made in (new, all_of_them):
        assert all((made.tensors[n] == t).all() for n, t in old.tensors.items())
        assert made.config["metrics"]["variance"] == old.config["metrics"]["variance"]
        assert made.config["metrics"]["recall_at_10"] == 1.0
    assert shards(merged).items() >= shards(both).items()
    assert shards(both).items() >= shards(first).items()
    counts = [made.config["shards"] for made in (new, DenseDatastore.load(one))]
    assert all_of_them.config["shards"] == counts[0] + counts[1]
    # the added texts are found by their states, as the target itself has them
    store, text = new.open(index=True), Text(TARGET)
    shard = store.shards[-1]
    tokens = text.encode(TEXTS[9])
    where = [i for i in range(len(shard)) if shard.following(i, len(tokens)) == tokens[5:]]
    near = store.index.search(shard.keys[where[0]][None].astype("float32"), 1)[0]
    assert near.tolist() == [[len(store.shards[0]) + where[0]]]
    # another projection
    other = build("dense", tmp_path, "other", corpus(tmp_path, "d", TEXTS[20:28]))
    told = refused(capsys, "kind=dense", f"merge=[{first},{other}]", f"out={tmp_path / 'x'}", f"folder={tmp_path / 'y'}")  # fmt: skip
    assert "was fitted to other states than" in told and f"append={first}" in told


def test_the_places_of_prompts_are_entries_where_they_are_asked_for(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{n} and {n}?", "answer": f"{2 * n} it is"}) + "\n" for n in range(9)))  # fmt: skip
    text = Text(TARGET)
    prompts = [len(text.prompt(f"{n} and {n}?")[1]) for n in range(9)]
    answers = [len(text.encode(f"{2 * n} it is")) for n in range(9)]
    counts = {}
    for prompts_too in (True, False):
        folder = build("dense", tmp_path, f"store {prompts_too}".replace(" ", "-"), f"corpus={rows}", f"prompts={str(prompts_too).lower()}")  # fmt: skip
        counts[prompts_too] = sum(DenseDatastore.load(folder).config["shards"])
    assert counts[False] == sum(answers)
    assert counts[True] == sum(answers) + sum(prompts) - len(prompts)


def test_what_does_not_fit_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = build("sparse", tmp_path, "own", corpus(tmp_path, "a", TEXTS[:5]))
    other = sparse_folder(tmp_path, [[1, 2, 3]], facts=TOY_FACTS)
    new, folder = f"out={tmp_path / 'new'}", f"folder={tmp_path / 'w'}"
    told = refused(capsys, "kind=sparse", f"merge=[{own},{other}]", new, folder)
    assert "cannot join" in told and "tokenizer toy" in told
    told = refused(capsys, "kind=sparse", f"append={other}", corpus(tmp_path, "b", TEXTS[5:]), "responses=as_is", folder)  # fmt: skip
    assert "does not fit" in told and "toy" in told
    assert "not a dense_datastore" in refused(capsys, "kind=dense", f"append={own}", folder)
    for merge in (f"merge=[{own}]", f"merge=[{own},{own}]"):
        assert "at least two datastores, and out=FOLDER" in refused(capsys, "kind=sparse", merge)
    told = refused(capsys, "kind=sparse", "append=embedded/sparse-tiny", folder)
    assert "give out=FOLDER" in told
    assert not (tmp_path / "new").exists()


def real_keys() -> Any:
    store = DenseDatastore.load("embedded/dense-tiny")
    return [shard.keys for shard in store.open().shards]


@pytest.mark.parametrize("name", ["scann", "faiss"])
def test_an_index_over_real_states_finds_what_is_promised_of_places_it_was_not_asked_for(
    name: str, tmp_path: Path
) -> None:
    """With many small leaves the default effort is too little; the effort that is kept is not."""
    from functools import partial

    from semspec.datastores import indices
    from semspec.datastores.files import write_arrays

    keys, leaves = real_keys(), 1000
    built = indices.build(name, keys, leaves)
    write_arrays(tmp_path / INDEX, built)
    load = partial(indices.load, name, built, keys, tmp_path / INDEX)
    places = dense.Places.drawn(keys, 200, 0)
    little = places.recall(places.found(load(indices.Effort(1, 11))))
    effort = dense.tuned(places, load, leaves)
    told = dense.measure(places, load(effort))
    assert little < 0.9 < indices.PROMISED <= told["recall_at_10"]
    assert told["mrr"] > 0.5


def test_sparse_shards_give_their_text_back(tmp_path: Path) -> None:
    documents = [[1, 2, 3], [], [4, 2**31 - 1], [0]]
    sparse.write_shard(tmp_path / "shard", documents, 4)
    assert list(documents_of(tmp_path / "shard")) == documents
