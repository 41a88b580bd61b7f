"""``python -m semspec.build_datastore`` on the embedded target: content, resuming and mistakes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semspec.artifacts import inspection
from semspec.artifacts.dense_datastore import DenseDatastore
from semspec.artifacts.sparse_datastore import SparseDatastore
from semspec.cli.build_datastore import main
from semspec.datastores.files import write_arrays
from semspec.datastores.sparse import write_shard
from semspec.engines.hf import Hf
from semspec.models.text import Text
from semspec.storage.packaged import beside_package
from semspec.training.datastores import build, build_dense, corpus
from semspec.training.datastores.corpus import Documents
from semspec.training.datastores.settings import Options, split_options
from semspec.training.datastores.stages import Reading
from semspec.training.probes.sources import Question
from semspec.types import Context, Query, Read, Sampling, What
from tests.support.datastores import refused

TARGET = str(beside_package("hub_artifacts") / "tiny-target")
SMALL = ("quiet=true", "max_new_tokens=16", "batch=3")


def content(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.iterdir()}


def test_a_dense_store_finds_the_targets_own_answers_by_its_states(tmp_path: Path) -> None:
    arguments = ("kind=dense", "problems=3", "dims=8", "temperature=0", "prompts=false", *SMALL)
    main([*arguments, f"folder={tmp_path / 'work'}"])
    folder = tmp_path / "work" / "datastore"
    assert isinstance(inspection.check(folder), DenseDatastore)
    made = DenseDatastore.load(folder)
    store = made.open(index=True)
    assert made.config["responses"] == "target"
    assert made.config["metrics"]["recall_at_10"] == 1.0
    documents = [d for group in Documents(tmp_path / "work").groups() for d in group]
    assert sum(made.config["shards"]) == sum(len(d.tokens) - d.given for d in documents)
    # greedy answers, and the state before each of their tokens leads to that token and what followed
    engine, last = Hf(device="cpu").load(TARGET), Read(What.HIDDEN, layers=(-1,))
    for key, (tokens, given) in enumerate(documents):
        context = Context(key, tokens)
        reads = (last, Read(What.TOP_K, k=1))
        query = Query("target", context, Sampling(0.0), random.Random(0), reads=reads, rows_from=given - 1)  # fmt: skip
        (answer,) = engine.answer([query])
        states, best = answer[last][:-1, 0].float().numpy(), answer[reads[1]][0][:-1, 0].tolist()
        assert best == tokens[given:]
        for at in (0, 7, len(states) - 1):
            # to eight numbers some places are alike
            told = {tuple(n.following): n.cosine for n in store.nearest(states[at], 5, 5)}
            assert told[tuple(tokens[given + at : given + at + 5])] > 0.99
    engine.close()


ROWS = (
    {
        "messages": [
            {"role": "user", "content": "one two"},
            {"role": "assistant", "content": "three"},
        ]
    },
    {"question": "one", "response": "four five"},
    {"prompt": "one", "thinking": "six seven"},
    {"text": "eight nine ten"},
    {"nothing": 1},
)


def test_a_corpus_can_hold_texts_as_they_are(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    out = tmp_path / "made"
    main(["kind=sparse", "responses=as_is", f"corpus={data}", f"folder={tmp_path / 'w'}", f"out={out}", "quiet=true"])  # fmt: skip
    assert isinstance(inspection.check(out), SparseDatastore)
    made, text = SparseDatastore.load(out), Text(TARGET)
    store = made.open()
    assert made.config["documents"] == 4
    for words in ("three", "four five", "six seven", "eight nine ten"):
        tokens = text.encode(words)
        (match,) = store.longest(tokens, 64)
        assert match.length == len(tokens), words
    # an answer stands behind the end of its prompt
    prompt = text.prompt("one")[1]
    (match,) = store.longest([*prompt[-3:], *text.encode("four")], 64)
    assert match.length >= 3 + len(text.encode("four"))


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


CONVERSATIONS: tuple[tuple[dict[str, Any], tuple[str, str] | None], ...] = (
    ({"messages": [turn("system", "Be short."), turn("user", "one"), turn("assistant", "two")]}, ("one", "two")),
    ({"conversations": [{"from": "system", "value": "x"}, {"from": "human", "value": "one"}, {"from": "gpt", "value": "two"}]}, ("one", "two")),
    ({"messages": [turn("user", "one"), turn("tool", "x"), turn("assistant", "two"), turn("user", "three")]}, ("one", "two")),
    ({"messages": [turn("assistant", "Hello!"), turn("user", "one"), turn("user", "two"), turn("assistant", "three")]}, ("two", "three")),
    ({"messages": [{"content": "one"}, {"content": "two"}]}, ("one", "two")),
    ({"messages": [turn("system", "Be short."), turn("user", "one")]}, None),
)  # fmt: skip


@pytest.mark.parametrize(("row", "found"), CONVERSATIONS)
def test_a_conversation_gives_its_first_question_and_answer(
    row: dict[str, Any], found: tuple[str, str] | None
) -> None:
    told = corpus._text_of(row)
    assert (told and told[:2]) == found


OPENED = "{{- messages[0]['content'] + '<think>\\n' -}}"


@pytest.mark.parametrize(
    ("template", "domain", "answer", "whole"),
    [
        (OPENED, "all", "<think>\nso\n</think>\nso", "one<think>\nso\n</think>\nso"),
        (OPENED, "all", "\n<think>so</think>so", "one<think>\nso</think>so"),
        (OPENED.replace("\\n", ""), "all", "<think>\nso</think>so", "one<think>\nso</think>so"),
        (OPENED, corpus.THOUGHT, "so", "one<think>\nso"),
        (OPENED, corpus.THOUGHT, "<think>\nso", "one<think>\nso"),
        (OPENED.replace("<think>\\n", ""), corpus.THOUGHT, "so", "one<think>\nso"),
        (OPENED.replace("<think>\\n", ""), corpus.THOUGHT, "<think>\nso", "one<think>\nso"),
        (OPENED.replace("<think>\\n", ""), "all", "<think>\nso", "one<think>\nso"),
    ],
)
def test_thinking_is_opened_once(template: str, domain: str, answer: str, whole: str) -> None:
    text = Text(TARGET)
    text.tokenizer.chat_template = template
    asked = Question("q", domain, "one", answer)
    assert (
        text.decode(corpus._document(text, Options(kind="sparse", longest=0), asked, None).tokens)
        == whole
    )


@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.deep
def test_a_build_broken_off_at_any_write_ends_with_the_same_bytes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken off at every file that it writes, each time a little later: the same bytes in the end."""
    monkeypatch.setattr(corpus, "AS_IS", 3)
    options = ["responses=as_is", "problems=7", "seed=5", "quiet=true"]
    options += (
        ["shard=1000", "depth=8"] if kind == "sparse" else ["dims=4", "fit=200", "longest=60"]
    )
    main([f"kind={kind}", *options, f"folder={tmp_path / 'whole'}", f"out={tmp_path / 'a' / 'it'}"])
    broken = [f"kind={kind}", *options, f"folder={tmp_path / 'broken'}", f"out={tmp_path / 'b' / 'it'}"]  # fmt: skip
    written = 0

    class Killed(BaseException):
        pass

    def once(write: Callable[..., Any]) -> Callable[..., Any]:
        done = False

        def wrapped(path: Path, *arguments: Any) -> Any:
            nonlocal done, written
            if done:
                raise Killed
            done = True
            written += 1
            return write(path, *arguments)

        return wrapped

    for _ in range(30):
        with monkeypatch.context() as patch:
            for module, name, write in (
                (corpus, "write_arrays", write_arrays),
                (build_dense, "write_arrays", write_arrays),
                (build.sparse, "write_shard", write_shard),
            ):
                patch.setattr(module, name, once(write))
            try:
                main(broken)
            except Killed:
                continue
            break
    assert written > 4
    whole, again = content(tmp_path / "a" / "it"), content(tmp_path / "b" / "it")
    assert whole == again
    # finished: nothing is read but what is there, and other options are refused
    main(broken)
    assert content(tmp_path / "b" / "it") == whole


def test_mistakes_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = f"folder={tmp_path / 'w'}"
    assert "kind=: give sparse or dense" in refused(capsys)
    assert "did you mean 'sparse'" in refused(capsys, "kind=sprase")
    assert "responses=mine" in refused(capsys, "kind=sparse", "responses=mine")
    assert "whole number" in refused(capsys, "kind=dense", "dims=many")
    assert "dims=0: give 1 to" in refused(capsys, "kind=dense", "dims=0")
    assert "corpus=nowhere.jsonl does not exist" in refused(
        capsys, "kind=sparse", "corpus=nowhere.jsonl"
    )
    assert "a datastore uses corpus=" in refused(capsys, "kind=sparse", "data=x")
    assert "unknown option 'tokens'" in refused(capsys, "kind=sparse", "tokens=3")
    near = "'depht'; did you mean 'depth'? see python -m semspec.build_datastore --help"
    assert near in refused(capsys, "kind=sparse", "depht=4")
    assert "dims=129 is more than the width of the states, 128" in refused(
        capsys, "kind=dense", "responses=as_is", "problems=1", "dims=129", folder
    )
    assert not (
        tmp_path / "w" / "config.json"
    ).exists()  # what cannot work does not bind the folder
    given = ("kind=dense", "responses=as_is", "problems=1", folder)
    options, config = split_options((*given, "dims=8"))
    Reading(config, options).keep_options(tmp_path / "w")
    assert "was begun with other options" in refused(capsys, *given, "dims=4")
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"nothing": 1}\n')
    told = ("kind=sparse", "responses=as_is", f"corpus={empty}", f"folder={tmp_path / 'e'}")
    assert "no row of" in refused(capsys, *told)
    main(["--help"])
    assert "kind=sparse|dense" in capsys.readouterr().out


def test_small_corpora_need_small_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"text": "one two"}\n')
    told = (
        "kind=dense",
        "responses=as_is",
        f"corpus={data}",
        f"folder={tmp_path / 'w'}",
        "dims=64",
    )
    assert "too few for 64 dimensions: give a larger corpus" in refused(capsys, *told)
