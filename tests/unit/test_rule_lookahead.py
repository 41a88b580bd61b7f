"""Lookahead Reasoning: the target's own steps and their use, traced by hand."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast  # type: ignore[attr-defined]

from semspec import world
from semspec.errors import UserError
from semspec.models.location import ModelConfig
from semspec.rules._same import Encoder
from semspec.rules.lookahead import Lookahead
from semspec.types import Answer, Draft, Query
from tests.support.binding import run_of
from tests.support.words import Words, finish

ONE, TWO, THREE = " One.\n\n", " Two.\n\n", " Three.\n\n"


def wrote(words: Words, text: str, end: int | None = None) -> Answer:
    """Return the target's answer: a unit, and perhaps the token that revealed its end."""
    tokens = words.encode(text)
    return Answer(tokens, [end or len(tokens)], "eos" if tokens[-1] == 0 else "units")


def test_all_steps_are_asked_for_at_the_same_time() -> None:
    words = Words()
    draft, context = words.draft(ONE, TWO, THREE), words.context(" Zero.\n\n")
    plan = Lookahead(compare="exact").open(words.kit()).judge(context, draft)
    queries = next(plan)
    assert isinstance(queries, tuple)
    assert [words.decode(q.tokens) for q in queries] == ["", ONE, ONE + TWO]
    assert all(q.model == "target" and q.generate and q.generate.units == 1 for q in queries)
    boundaries = {id(q.generate.boundary) for q in queries if q.generate}
    assert len(boundaries) == 3, "each stream has its own boundary"
    assert len({q.rng.random() for q in queries}) == 3, "and its own random numbers"
    answers = tuple(wrote(words, text) for text in (ONE, " Other.\n\n", THREE))
    verdict = finish(plan, answers)
    assert verdict.keep == draft.ends[0]
    assert words.decode(verdict.write) == " Other.\n\n", "the target's step stands already"
    assert verdict.handover is None and verdict.scores == [1.0, 0.0]


def judged(words: Words, draft: Draft, *answers: Answer, **options: object):  # type: ignore[no-untyped-def]
    kit = words.kit(**options)  # type: ignore[arg-type]
    plan = Lookahead(compare="exact").open(kit).judge(words.context(), draft)
    next(plan)
    return finish(plan, tuple(answers))


def test_steps_that_mean_the_same_are_all_kept() -> None:
    words = Words()
    verdict = judged(words, words.draft(ONE, TWO), wrote(words, ONE), wrote(words, TWO))
    assert (verdict.keep, verdict.write, verdict.handover) == (4, [], None)


def test_the_token_that_revealed_an_end_is_written_with_the_step() -> None:
    words = Words()
    draft = words.draft(" One.")
    draft.tokens += words.encode(" Then")  # the draft's own, of no unit yet
    same = wrote(words, " One. Now", end=1)
    verdict = judged(words, draft, same, split="sentence")
    assert verdict.keep == 2, "kept with the token that the draft model drew"
    other = wrote(words, " Uno. Now", end=1)
    verdict = judged(words, draft, other, split="sentence")
    assert (verdict.keep, words.decode(verdict.write)) == (0, " Uno. Now")


def test_an_end_of_text_is_part_of_a_steps_meaning() -> None:
    words = Words()
    ended, open_ = " One.<stop>", " One.\n\n"
    assert judged(words, words.draft(ended), wrote(words, ended)).keep == 2
    for mine, own in ((ended, open_), (open_, ended)):
        verdict = judged(words, words.draft(mine), wrote(words, own))
        assert verdict.keep == 0 and words.decode(verdict.write) == own


def test_a_loop_is_caught() -> None:
    words = Words()
    step = " It is so, I say.\n\n"
    kit = words.kit(max_repeats=2)
    plan = Lookahead(compare="exact").open(kit).judge(words.context(step + step), words.draft(step))
    next(plan)
    verdict = finish(plan, (wrote(words, step),))
    assert verdict.keep == 0 and "repeats" in verdict.note


def test_the_oracle_compares_steps_by_meaning() -> None:
    domain = world.DOMAINS["residues"]
    problem = domain.make(random.Random(3))
    words = Words()
    session = Lookahead(compare="oracle").open(words.kit(prompt=problem.question))
    first, second = (domain.solve(random.Random(seed), problem)[0] for seed in (1, 2))
    other = domain.solve(random.Random(1), problem)[1]
    assert first != second and session.same("", first, second)
    assert not session.same("", first, other)
    assert session.same("", "no such  step", "no such step")
    assert not session.same("", "no such step", first)
    with pytest.raises(UserError, match="compare=nli"):
        Lookahead(compare="oracle").open(words.kit(prompt="How many?"))


def test_entailment_finds_nearly_all_paraphrases() -> None:
    """The embedded model tells paraphrases from steps that say something else, nearly always."""
    words = Words()
    session = Lookahead().bind(run_of({}, "paragraph", 0.6)).open(words.kit())
    right = total = 0
    for seed in range(20):
        problem = world.DOMAINS["residues"].make(random.Random(seed))
        one, two = (
            world.DOMAINS["residues"].solve(
                random.Random(seed + i), problem, world.Style(recap=0.0)
            )
            for i in (100, 200)
        )
        said = f"{problem.question}\n" + "".join(step + "\n\n" for step in one[:2])
        for a, b, alike in ((one[2], two[2], True), (one[2], two[3], False)):
            right += session.same(said, a + "\n\n", b + "\n\n") is alike
            total += 1
    assert right >= 0.8 * total


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A very small BERT with random weights."""
    folder = tmp_path_factory.mktemp("encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "we", "add", "five", "stop", "."]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=10, intermediate_size=32, max_position_embeddings=32, **shape)
    BertModel(config).save_pretrained(folder)
    return folder


def test_cosine_of_mean_pooled_states(encoder: Path) -> None:
    found = Encoder(encoder)
    a, b = "we add five .", "stop ."
    pooled = []
    for text in (a, b):  # one at a time: no padding
        inputs = found.tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            pooled.append(found.model(**inputs).last_hidden_state[0].mean(0))
    expected = float(torch.cosine_similarity(pooled[0], pooled[1], dim=0))
    assert found.cosine(a, b) == pytest.approx(expected, abs=1e-5)
    assert found.cosine(a, a) == 1.0 and found.cosine(a, "") == 0.0
    assert found.cosine(a, "we " * 1000) < 1.0  # cut to what the model can read


def test_the_threshold_on_embeddings_decides(encoder: Path) -> None:
    words = Words()
    model = ModelConfig(path=str(encoder))
    for threshold, alike in ((-1.0, True), (0.99999, False)):
        rule = Lookahead(compare="embedding", model=model, threshold=threshold)
        session = rule.bind(run_of({}, "paragraph", 0.6)).open(words.kit())
        assert session.same("", "we add five.", "stop.") is alike


def test_models_that_cannot_be_loaded_are_refused(tmp_path: Path) -> None:
    model = ModelConfig(path=str(tmp_path))
    with pytest.raises(UserError, match="cannot load an encoder"):
        Lookahead(compare="embedding", model=model).bind(run_of({}, "paragraph", 0.6))


def test_wrong_options_are_refused() -> None:
    with pytest.raises(UserError, match="nli, embedding, oracle, exact"):
        Lookahead(compare="llm")
    with pytest.raises(UserError, match="none exceeds 1"):
        Lookahead(threshold=1.0)


def test_queries_name_their_purpose() -> None:
    words = Words()
    plan = Lookahead(compare="exact").open(words.kit()).judge(words.context(), words.draft(ONE))
    (query,) = next(plan)
    assert isinstance(query, Query) and query.purpose == "verify"
