"""Generation with engine=hf: what is drawn, where it ends, and what is read meanwhile."""

from __future__ import annotations

import random

import pytest
import torch

from semspec.decoding.sampling import draw, probabilities
from semspec.engines._lean.generate import FEW
from semspec.errors import UserError
from semspec.types import Generate, Read, Sampling, What
from tests.support.tiny_models import (
    FAMILIES,
    GREEDY,
    Marks,
    ask,
    context,
    load,
    query,
    reference,
    tokens,
    truth,
)

PROMPT = tokens(20)
WARM = Sampling(temperature=0.8, top_k=30, top_p=0.95)
LOGITS, PROBS, LOGPROBS = Read(What.LOGITS), Read(What.PROBS), Read(What.LOGPROBS)
TEMPERED = Read(What.LOGPROBS, temperature=0.6)
HIDDEN, ATTENTION = Read(What.HIDDEN, layers=(0, -1)), Read(What.ATTENTION, layers=(1,))
TOP_K, POOLED = Read(What.TOP_K, k=3), Read(What.POOLED)


def close(a: torch.Tensor, b: torch.Tensor, within: float = 1e-4) -> bool:
    assert a.shape == b.shape, (a.shape, b.shape)
    return bool((a - b).abs().max() < within)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_transformers_generate(family: str) -> None:
    answer = ask(load(family), context(PROMPT), generate=Generate(40))
    ids = torch.tensor([PROMPT])
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 40}
    with torch.inference_mode():
        expected = reference(family).generate(ids, pad_token_id=0, **options)
    assert answer.tokens == expected[0, 20:].tolist()
    assert (answer.finish, answer.ends) == ("limit", [])


@pytest.mark.parametrize("family", ["llama-biases", "qwen3"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("reads", [(HIDDEN, LOGITS), (HIDDEN, LOGITS, ATTENTION)])
def test_rows_are_what_tokens_were_drawn_from(
    family: str, sampling: Sampling, reads: tuple[Read, ...]
) -> None:
    after = tokens(4, seed=5)
    answer = ask(
        load(family),
        context(PROMPT),
        PROBS,
        LOGPROBS,
        TEMPERED,
        TOP_K,
        *reads,
        sampling=sampling,
        seed=7,
        tokens=after,
        generate=Generate(15),
    )
    drawn, rng = answer.tokens, random.Random(7)
    assert [draw(row, rng.random()) for row in answer[PROBS]] == drawn
    out = truth(family, PROMPT + after + drawn, output_hidden_states=True)
    logits = out.logits[0, 23:-1]
    assert close(answer[LOGITS], logits)
    assert close(answer[PROBS], probabilities(logits, sampling), 1e-4)
    picked = torch.tensor(drawn)[:, None]
    assert close(answer[LOGPROBS], logits.log_softmax(-1).gather(-1, picked)[:, 0])
    assert close(answer[TEMPERED], (logits / 0.6).log_softmax(-1).gather(-1, picked)[:, 0])
    assert torch.equal(answer[TOP_K][0], logits.topk(3).indices)
    states = torch.stack([out.hidden_states[0], out.hidden_states[-1]])[:, 0, 23:-1]
    assert close(answer[HIDDEN], states.transpose(0, 1))
    assert answer.fed == 24 + 14  # the last token is drawn, and not fed
    if ATTENTION in reads:
        assert answer[ATTENTION].shape == (1, 15, 24 + 14)
        assert close(answer[ATTENTION].sum(-1), torch.ones(1, 15))


def test_generating_gives_rows_from_an_earlier_position() -> None:
    answer = ask(
        load(),
        context(PROMPT),
        *(HIDDEN, TOP_K, PROBS, LOGPROBS),
        sampling=WARM,
        rows_from=12,
        generate=Generate(6),
    )
    out = truth("llama", PROMPT + answer.tokens, output_hidden_states=True)
    logits = out.logits[0, 12:-1]
    assert close(answer[HIDDEN][:, 1], out.hidden_states[-1][0, 12:-1])
    assert torch.equal(answer[TOP_K][0], logits.topk(3).indices)
    assert close(answer[PROBS], probabilities(logits, WARM))
    assert answer[LOGPROBS].shape == (6,)


def test_greedy_draws_no_random_number() -> None:
    rng = random.Random(3)
    before = rng.getstate()
    asked = query(context(PROMPT), PROBS, generate=Generate(5))
    asked.rng = rng
    answer = load().answer([asked])[0]
    assert rng.getstate() == before
    assert answer[PROBS].argmax(-1).tolist() == answer.tokens
    assert answer[PROBS].sum() == 5


def run(boundary: Marks, units: int, *reads: Read, limit: int = 30):  # type: ignore[no-untyped-def]
    engine, at = load(), context(PROMPT)
    answer = ask(engine, at, *reads, generate=Generate(limit, boundary, units))
    return engine, at, answer


def free() -> list[int]:
    """Return what the model writes with nothing to stop it."""
    drawn: list[int] = ask(load(), context(PROMPT), generate=Generate(30)).tokens
    return drawn


def marked(after: bool) -> tuple[Marks, list[int]]:
    """A boundary at some token that comes up, and the ends it must find."""
    drawn = free()
    mark = next(t for t in drawn[3:] if drawn.count(t) >= 1 and t != drawn[0])
    where = [i for i, t in enumerate(drawn) if t == mark]
    return (Marks(after=[mark]), [i + 1 for i in where]) if after else (Marks([], [mark]), where)


@pytest.mark.parametrize("after", [True, False])
def test_generation_ends_at_a_boundary(after: bool) -> None:
    boundary, ends = marked(after)
    _, _, answer = run(boundary, 1, POOLED, LOGITS, LOGPROBS)
    assert (answer.finish, answer.ends) == ("units", ends[:1])
    count = ends[0] + (not after)  # a token that revealed the end is kept
    assert answer.tokens == free()[:count]
    assert len(answer[LOGITS]) == len(answer[LOGPROBS]) == count
    out = truth("llama", PROMPT + answer.tokens, output_hidden_states=True)
    own = torch.stack(out.hidden_states)[:, 0, len(PROMPT) :][:, : ends[0]]
    assert close(answer[POOLED], own.mean(1)[None])
    assert answer.fed == 20 + ends[0]


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("reduce", ["mean", "max", "last"])
def test_units_are_pooled_over_their_own_tokens(after: bool, reduce: str) -> None:
    read = Read(What.POOLED, reduce=reduce)  # type: ignore[arg-type]
    boundary, ends = marked(after)
    some = Read(What.POOLED, layers=(1, -1), reduce=reduce)  # type: ignore[arg-type]
    engine, at, answer = run(boundary, 99, read, some)
    assert torch.equal(answer[some], answer[read][:, [1, -1]])
    spans = list(zip([0, *ends], [*ends, 30], strict=True))
    spans = [(a, b) for a, b in spans if a < b]
    out = truth("llama", PROMPT + answer.tokens, output_hidden_states=True)
    own = torch.stack(out.hidden_states)[:, 0, len(PROMPT) :]
    how = {"mean": lambda x: x.mean(1), "max": lambda x: x.amax(1), "last": lambda x: x[:, -1]}
    assert close(answer[read], torch.stack([how[reduce](own[:, a:b]) for a, b in spans]))
    assert answer.fed == 20 + 30  # the last token, too
    at.extend(answer.tokens)
    assert ask(engine, at).fed == 0


def test_end_of_text_ends() -> None:
    engine, drawn = load(), free()
    engine.stop_ids = frozenset({drawn[4]})
    answer = ask(engine, context(PROMPT), POOLED, generate=Generate(30, Marks(after=[drawn[4]])))
    assert answer.tokens == drawn[: drawn.index(drawn[4]) + 1]
    assert (answer.finish, answer.ends) == ("eos", [len(answer.tokens)])
    assert len(answer[POOLED]) == 1


def test_generation_ends_at_the_limit_of_the_context() -> None:
    engine = load(max_context=24)
    assert engine.context_limit == 24
    answer = ask(engine, context(PROMPT), generate=Generate(99))
    assert (len(answer.tokens), answer.finish) == (4, "limit")
    assert ask(engine, context(PROMPT, 1), LOGITS, generate=Generate(0)).tokens == []
    for ids, ask_for in ((tokens(24), Generate(1)), (tokens(25), None)):
        with pytest.raises(UserError, match="exceed the context limit of 24") as error:
            ask(engine, context(ids, 2), LOGITS, generate=ask_for)
        assert "\n" not in str(error.value)


def test_long_generation_grows_the_cache() -> None:
    engine = load()
    answer = ask(engine, context(PROMPT), LOGITS, LOGPROBS, generate=Generate(400))
    expected = truth("llama", PROMPT + answer.tokens).logits[0, 19:-1]
    assert close(answer[LOGITS], expected, 3e-4)
    assert len(answer[LOGPROBS]) == 400


def test_those_who_write_give_way_to_those_whose_drafts_are_read() -> None:
    engine = load("llama-biases")
    alone = ask(load("llama-biases"), context(PROMPT), generate=Generate(12)).tokens
    contexts = [context(tokens(20), key=1), context(tokens(20), key=2), context(tokens(20), key=3)]
    writing = [
        query(contexts[0], generate=Generate(12, gives_way=True)),
        query(contexts[1], generate=Generate(12)),
    ]
    gave, went_on = engine.answer(writing)
    assert gave.finish == went_on.finish == "limit"  # nobody waits
    engine = load("llama-biases")
    read = query(contexts[2], LOGPROBS, tokens=tokens(3, seed=5))
    gave, went_on, scored = engine.answer([*writing, read])
    assert (gave.finish, len(gave.tokens)) == ("paused", FEW)
    assert (went_on.finish, scored.finish) == ("limit", "scored")
    (rest,) = engine.answer([query(contexts[0], tokens=gave.tokens, generate=Generate(12 - FEW))])
    assert gave.tokens + rest.tokens == went_on.tokens == alone
