"""Drafters that copy from a corpus, worked by hand; datastores of another target are refused."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semspec.datastores.dense import shapes
from semspec.datastores.files import open_arrays, write_arrays
from semspec.drafters.dresd import Dresd
from semspec.drafters.hybrid import Hybrid
from semspec.drafters.rest import Rest
from semspec.drafters.suffix import Suffix
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.models.location import ModelConfig, ModelFacts, read_facts
from semspec.training.datastores import settings
from semspec.types import LAST_STATES, Context, Draft, Query, Room, Seen
from tests.support.binding import run_of
from tests.support.datastores import TOY_FACTS, dense_folder, sparse_folder, toy_documents
from tests.support.drafting import answerless, kit_for

ROOM = Room(99, 40, 1)
MODELS = {"target": TOY_FACTS, "draft": TOY_FACTS}


def edges(draft: Draft) -> dict[tuple[int, ...], str]:
    parents = draft.parents or list(range(-1, len(draft.tokens) - 1))
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return dict(zip(paths, draft.origins, strict=True))


def bound(cls: type[Any], folder: Path, **options: Any) -> Any:
    return cls(datastore=str(folder), **options).bind(run_of(MODELS))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """After (7 1 2): twice 3 4, once 3 5, once 6. After (1 2) alone also twice 9. In two shards."""
    first = [[7, 1, 2, 3, 4], [7, 1, 2, 3, 5], [8, 1, 2, 9]]
    return sparse_folder(tmp_path, first, [[7, 1, 2, 3, 4], [7, 1, 2, 6], [8, 1, 2, 9]])


def test_rest_drafts_the_example_worked_by_hand(corpus: Path) -> None:
    session = bound(Rest, corpus).open(kit_for(trees=True))
    draft = answerless(session.draft(Context(1, [5, 7, 1, 2]), ROOM))
    assert edges(draft) == {(3,): "main", (3, 4): "main", (6,): "branch", (3, 5): "branch"}
    assert (draft.found, draft.grade) == ("lexical", 3)
    assert draft.ends == [1, 2, 3, 4]
    # 8 was never before 7: two tokens match, and all six places count
    wider = answerless(session.draft(Context(2, [8, 7, 7, 0, 1, 2]), ROOM))
    assert wider.grade == 2
    assert set(edges(wider)) == {(3,), (9,), (3, 4), (6,), (3, 5)}
    assert edges(wider)[3,] == "main"
    # a token alone is no match, unless it is asked for
    assert answerless(session.draft(Context(3, [5, 2]), ROOM)).found == "none"
    alone = bound(Rest, corpus, shortest=1).open(kit_for(trees=True))
    assert answerless(alone.draft(Context(3, [5, 2]), ROOM)).grade == 1


def test_rest_keeps_the_heaviest_nodes_and_knows_chains(corpus: Path) -> None:
    few = bound(Rest, corpus, nodes=2).open(kit_for(trees=True))
    assert answerless(few.draft(Context(1, [7, 1, 2]), ROOM)).tokens == [3, 4]
    chain = bound(Rest, corpus).open(kit_for())
    draft = answerless(chain.draft(Context(1, [7, 1, 2]), ROOM))
    assert (draft.tokens, draft.parents) == ([3, 4], None)
    short = bound(Rest, corpus, span=2, longest=1).open(kit_for(trees=True))
    assert set(edges(answerless(short.draft(Context(1, [7, 1, 2]), ROOM)))) == {(3,), (9,), (6,)}


def test_suffix_takes_the_corpus_where_it_matches_more(corpus: Path) -> None:
    text = [
        1,
        2,
        50,
        7,
        1,
        2,
    ]  # (1 2) stood here before, and 50 followed; (7 1 2) stands in the corpus

    def drafted(**options: Any) -> list[int]:
        session = bound(Suffix, corpus, **options).open(kit_for())
        return answerless(session.draft(Context(1, text), ROOM)).tokens

    context = [50, 7, 1, 2]
    assert drafted(threshold=1, bias=0) == [3, 4]
    assert drafted(threshold=1, bias=1) == context  # 3 is not more than 2 + 1
    assert drafted(threshold=4, bias=0) == context
    assert drafted() == context  # the paper's: 5 and 5
    session = bound(Suffix, corpus, threshold=3).open(kit_for())
    assert answerless(session.draft(Context(1, [7, 1, 2]), ROOM)).tokens == [3, 4]
    assert answerless(session.draft(Context(1, [0, 1, 2]), ROOM)).tokens == []


# -- DReSD -------------------------------------------------------------------------------------

FEATURES = Toy(vocabulary=5).models()["target"].features[:, :, -1:]


class Target:
    """Answers with the toy's states, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[Query] = []

    def rows(self, tokens: list[int], start: int, end: int) -> Any:
        before, own = [*tokens[start - 1 : end - 1]], tokens[start:end]
        return FEATURES[before, own]

    def draft(self, session: Any, context: Context, room: Room = ROOM) -> Draft:
        plan = session.draft(context, room)
        try:
            query = next(plan)
            while True:
                self.asked.append(query)
                assert query.rows_from is not None
                rows = self.rows(context.tokens, query.rows_from, len(context))
                query = plan.send(type("Answer", (), {"values": {LAST_STATES: rows}}))
        except StopIteration as stop:
            draft: Draft = stop.value
            return draft


DOCUMENTS = [[0, 1, 2, 3, 4], [0, 1, 2, 4, 4], [0, 1, 3, 3, 3], [3, 3, 0, 0]]


def test_dresd_drafts_the_example_worked_by_hand(tmp_path: Path) -> None:
    """The state after (0 1) stands in three documents; two of them went on with 2, as the target did."""
    folder = dense_folder(tmp_path, DOCUMENTS, 5)
    target = Target()
    session = bound(Dresd, folder, neighbours=3).open(kit_for(trees=True))
    draft = target.draft(session, Context(1, [4, 0, 1, 2]))
    assert edges(draft) == {(3,): "main", (3, 4): "main", (4,): "branch", (4, 4): "branch"}
    assert (draft.found, draft.grade) == ("semantic", 9)
    (query,) = target.asked
    assert (query.rows_from, query.reads) == (2, (LAST_STATES,))
    # other neighbours are not asked for with three; 4 came after none of these
    assert target.draft(session, Context(2, [4, 0, 1, 4])).found == "none"
    one = bound(Dresd, folder, neighbours=3, drafts=1, longest=1).open(kit_for(trees=True))
    assert target.draft(one, Context(1, [4, 0, 1, 2])).tokens == [3]
    assert target.draft(one, Context(1, [2])).found == "none"


def test_dresd_never_asks_for_states_that_it_has_seen(tmp_path: Path) -> None:
    folder = dense_folder(tmp_path, DOCUMENTS, 5)
    target, context = Target(), Context(1, [4, 0, 1])
    session = bound(Dresd, folder).open(kit_for(trees=True))
    target.draft(session, context)
    for beyond in (0, 1):  # the pass may have read the written token, too
        context.extend([2, 3, 1])
        start = len(context) - 4
        count = 3 + beyond
        rows = target.rows(context.tokens, start, start + count)
        session.see(Seen(start, count, {LAST_STATES: rows}))
        seen, fresh = target.draft(session, context), bound(Dresd, folder).open(kit_for(trees=True))
        assert len(target.asked) == 1
        assert Target().draft(fresh, context) == seen
    context.extend([2, 3])  # a rule kept tokens without a pass
    target.draft(session, context)
    assert len(target.asked) == 2


def test_shapes_are_the_papers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    documents = [[0, 1, 2, *rng.integers(0, 5, 40).tolist()] for _ in range(30)]
    folder = dense_folder(tmp_path, documents, 5)
    from semspec.types import Sampling

    for temperature, drafts, longest in ((0.0, 3, 20), (1.0, 10, 10)):
        kit = replace(kit_for(trees=True), sampling=Sampling(temperature))
        session = bound(Dresd, folder).open(kit)
        draft = Target().draft(session, Context(1, [4, 0, 1, 2]))
        parents = draft.parents or []
        leaves = set(range(len(draft.tokens))) - set(parents)
        assert 1 < len(leaves) <= drafts
        assert max(map(len, edges(draft))) == longest


# -- bound to their target ---------------------------------------------------------------------


@pytest.mark.parametrize("cls", [Rest, Dresd, Suffix])
def test_another_models_datastore_is_refused(cls: type[Any], tmp_path: Path) -> None:
    if cls is Dresd:
        folder = dense_folder(tmp_path, DOCUMENTS, 5)
    else:
        folder = sparse_folder(tmp_path, toy_documents(5))
    other = ModelFacts("another", None, "x", TOY_FACTS.layers, TOY_FACTS.width, "toy")
    drafter = cls(datastore=str(folder))
    with pytest.raises(UserError, match=r"toy, the model is another.*allow_mismatch=true"):
        drafter.bind(run_of({"target": other}))
    cls(datastore=str(folder), allow_mismatch=True).bind(run_of({"target": other})).open(kit_for())
    wide = ModelFacts("toy", None, "toy", TOY_FACTS.layers, 99, "toy")
    if cls is Dresd:
        with pytest.raises(UserError, match="reads width=4, the model has width=99"):
            cls(datastore=str(folder), allow_mismatch=True).bind(run_of({"target": wide}))
    wrong = {Rest: Dresd, Suffix: Dresd, Dresd: Rest}[cls]
    with pytest.raises(UserError, match=re.escape("not a")):
        wrong(datastore=str(folder)).bind(run_of(MODELS))


@pytest.mark.parametrize("cls", [Rest, Dresd, Suffix])
def test_tokens_that_the_target_does_not_have_are_refused(cls: type[Any], tmp_path: Path) -> None:
    """Before anything is drafted: a token beyond the target's rows would end the run, or its server."""
    assert read_facts(ModelConfig(path="embedded/tiny-target"), "").vocabulary == 704
    documents = toy_documents(5)
    if cls is Dresd:
        folder = dense_folder(tmp_path, documents, 5)
    else:
        folder = sparse_folder(tmp_path, documents)
    largest = max(map(max, documents))
    for vocabulary, allow_mismatch in ((largest, True), (largest, False), (largest + 1, False)):
        drafter = cls(datastore=str(folder), allow_mismatch=allow_mismatch)
        models = {"target": replace(TOY_FACTS, vocabulary=vocabulary)}
        if vocabulary > largest:
            drafter.bind(run_of(models)).open(kit_for())
            continue
        with pytest.raises(
            UserError, match=f"contains token {largest}, beyond the model's vocabulary"
        ):
            drafter.bind(run_of(models))


def test_a_token_below_the_end_of_a_document_is_refused(tmp_path: Path) -> None:
    folder = dense_folder(tmp_path, toy_documents(5), 5)
    shard = folder / "shard-00000.safetensors"
    mapped = open_arrays(shard, shapes(4))
    arrays = {name: mapped.array(name).copy() for name in ("keys", "places", "tokens")}
    arrays["tokens"][3] = -7
    write_arrays(shard, arrays)
    (folder / "manifest.json").unlink()  # it would tell of the change
    with pytest.raises(UserError, match="contains token 4294967289, beyond"):
        Dresd(datastore=str(folder)).bind(run_of({"target": replace(TOY_FACTS, vocabulary=5)}))


@pytest.mark.parametrize(
    ("cls", "depth", "option", "least"), [(Rest, 1, "shortest", 2), (Suffix, 4, "threshold", 5)]
)
def test_a_corpus_that_could_draft_nothing_is_refused(
    cls: type[Any], depth: int, option: str, least: int, tmp_path: Path
) -> None:
    folder = sparse_folder(tmp_path, toy_documents(5), depth=depth)
    says = f"depth={depth}, and {option}={least} .* rebuild it with depth={least} or more, or give {option}={depth}"
    with pytest.raises(UserError, match=says) as told:
        bound(cls, folder)
    assert "\n" not in str(told.value)
    with pytest.raises(UserError, match=says):
        Hybrid(sources=f"{cls.__name__.lower()}+token_recycling", sparse=str(folder)).bind(
            run_of(MODELS)
        )
    bound(cls, folder, **{option: depth}).open(kit_for())


def test_hybrid_passes_its_datastores_on(corpus: Path) -> None:
    hybrid = Hybrid(sources="rest,suffix", sparse=str(corpus)).bind(run_of(MODELS))
    session = hybrid.open(kit_for(trees=True))
    draft = answerless(session.draft(Context(1, [5, 7, 1, 2]), ROOM))
    assert draft.tokens[:2] == [3, 4]
    with pytest.raises(UserError, match="no artifact embedded/nowhere"):
        Hybrid(sources="dresd", dense="embedded/nowhere").bind(run_of(MODELS))
    with pytest.raises(UserError, match="a datastore is missing"):
        Rest(datastore="").bind(run_of(MODELS))


@pytest.mark.parametrize(("drafter", "kind"), [(Rest, "sparse"), (Dresd, "dense")])
@pytest.mark.parametrize("given", ["", "embedded"])
def test_a_datastore_that_is_missing_or_another_models_is_answered_with_the_command_that_makes_it(
    drafter: type[Rest] | type[Dresd], kind: str, given: str
) -> None:
    run = replace(run_of(MODELS), given={"target": ModelConfig(path="Qwen/QwQ-32B")})
    made = drafter() if given else drafter(datastore="")
    with pytest.raises(
        UserError, match="does not fit" if given else "a datastore is missing"
    ) as refused:
        made.bind(run)
    found = re.search(r"python -m semspec\.build_datastore [^';]+", str(refused.value))
    assert found, refused.value
    options, probe = settings.split_options(shlex.split(found[0].removesuffix(" "))[3:])
    assert (options.kind, options.corpus) == (kind, "HuggingFaceH4/ultrachat_200k")
    assert options.out == f"datastores/QwQ-32B-{kind}"
    assert probe.model.path == "Qwen/QwQ-32B"


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (Rest, {"span": 1}),
        (Rest, {"nodes": 0}),
        (Suffix, {"bias": -1}),
        (Suffix, {"threshold": 65}),
        (Dresd, {"neighbours": 0}),
        (Dresd, {"drafts": -1}),
    ],
)
def test_options_that_make_no_sense_are_refused(cls: type[Any], options: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        cls(**options)
