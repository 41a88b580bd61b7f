"""engine=hf gives the same as transformers: logits, states and attention, for every family."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from semspec.decoding.sampling import probabilities
from semspec.engines._lean import passes
from semspec.errors import UserError
from semspec.types import Read, Sampling, What
from tests.support.tiny_models import (
    FAMILIES,
    ask,
    context,
    folder,
    load,
    reference,
    tokens,
    truth,
)

PROMPT, AFTER = tokens(23), tokens(9, seed=1)
LOGITS = Read(What.LOGITS)


def close(a: torch.Tensor, b: torch.Tensor, within: float = 1e-4) -> bool:
    assert a.shape == b.shape, (a.shape, b.shape)
    return bool((a - b).abs().max() < within)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_transformers_logits(family: str) -> None:
    answer = ask(load(family), context(PROMPT), LOGITS, tokens=AFTER)
    expected = truth(family, PROMPT + AFTER).logits[0, len(PROMPT) - 1 :]
    assert close(answer[LOGITS], expected)
    assert (answer.fed, answer.cached, answer.finish) == (32, 0, "scored")


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "layer by layer"])
@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_transformers_states(
    family: str, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not at_once:
        monkeypatch.setattr(passes, "AT_ONCE", 0)
    hidden = Read(What.HIDDEN, layers=(0, 2, -1))
    spans = ((0, 4), (4, 9), (2, 3))
    pooled = {r: Read(What.POOLED, spans=spans, reduce=r) for r in ("mean", "max", "last")}
    some = Read(What.POOLED, layers=(2, -1), spans=spans, reduce="max")
    answer = ask(load(family), context(PROMPT), hidden, some, *pooled.values(), tokens=AFTER)
    states = torch.stack(truth(family, PROMPT + AFTER, output_hidden_states=True).hidden_states)
    rows = states[:, 0, len(PROMPT) - 1 :]
    assert close(answer[hidden], rows[[0, 2, 3]].transpose(0, 1))
    own = [rows[:, 1 + a : 1 + b] for a, b in spans]
    assert close(answer[pooled["mean"]], torch.stack([x.mean(1) for x in own]))
    assert close(answer[pooled["max"]], torch.stack([x.amax(1) for x in own]))
    assert close(answer[pooled["last"]], torch.stack([x[:, -1] for x in own]))
    assert torch.equal(answer[some], answer[pooled["max"]][:, [2, 3]])
    assert answer[pooled["mean"]].dtype == torch.float32


@pytest.mark.parametrize("family", ["llama-biases", "qwen3"])
def test_attention_is_transformers_attention(family: str) -> None:
    read = Read(What.ATTENTION, layers=(0, -1))
    answer = ask(load(family), context(PROMPT), read, tokens=AFTER)
    model = AutoModelForCausalLM.from_pretrained(folder(family), attn_implementation="eager")
    with torch.inference_mode():
        out = model(torch.tensor([PROMPT + AFTER]), output_attentions=True)
    expected = torch.stack([out.attentions[i][0].mean(0) for i in (0, 2)])
    assert close(answer[read], expected[:, len(PROMPT) - 1 :])


def test_reads_over_the_vocabulary_agree_with_each_other() -> None:
    probs, top, logprobs = Read(What.PROBS), Read(What.TOP_K, k=5), Read(What.LOGPROBS)
    sampling = Sampling(temperature=0.7, top_k=20, top_p=0.9)
    tempered, embeddings = Read(What.LOGPROBS, temperature=0.3), Read(What.EMBEDDINGS)
    answer = ask(
        load(),
        context(PROMPT),
        probs,
        top,
        logprobs,
        tempered,
        embeddings,
        tokens=AFTER,
        sampling=sampling,
    )
    logits = truth("llama", PROMPT + AFTER).logits[0, len(PROMPT) - 1 :]
    assert close(answer[probs], probabilities(logits, sampling))
    values, ids = logits.log_softmax(-1).topk(5, -1)
    assert torch.equal(answer[top][0], ids)
    assert close(answer[top][1], values)
    ids = torch.tensor(AFTER)[:, None]
    assert close(answer[logprobs], logits.log_softmax(-1)[:-1].gather(-1, ids)[:, 0])
    assert close(answer[tempered], (logits / 0.3).log_softmax(-1)[:-1].gather(-1, ids)[:, 0])
    assert torch.equal(answer[embeddings], reference("llama").model.embed_tokens.weight[AFTER])


def test_embeddings_need_no_pass() -> None:
    read = Read(What.EMBEDDINGS)
    answer = ask(load(), context(PROMPT), read, tokens=AFTER)
    assert answer.fed == 0
    assert answer[read].shape == (9, 32)


def test_rows_from_an_earlier_position_are_those_of_transformers() -> None:
    engine, at = load(), context(PROMPT)
    ask(engine, at, tokens=AFTER)
    hidden, logprobs = Read(What.HIDDEN), Read(What.LOGPROBS)
    answer = ask(engine, at, hidden, LOGITS, logprobs, tokens=AFTER, rows_from=10)
    out = truth("llama", PROMPT + AFTER, output_hidden_states=True)
    assert close(answer[LOGITS], out.logits[0, 10:])
    assert close(answer[hidden], out.hidden_states[-1][0, 10:, None])
    assert answer[logprobs].shape == (9,)
    assert (answer.fed, answer.cached) == (22, 10)


def test_the_contexts_last_row_is_that_of_transformers() -> None:
    answer = ask(load(), context(PROMPT), LOGITS)
    assert close(answer[LOGITS], truth("llama", PROMPT).logits[0, -1:])


def test_long_prompts_go_in_chunks() -> None:
    prompt, after = tokens(300), tokens(150, seed=3)
    reads = (
        LOGITS,
        Read(What.PROBS),
        Read(What.LOGPROBS),
        Read(What.HIDDEN, layers=(1,)),
        Read(What.POOLED, spans=((0, 70), (60, 150))),
        Read(What.ATTENTION),
    )
    whole = ask(load(), context(prompt), *reads, tokens=after)
    parts = ask(load(chunk=37), context(prompt), *reads, tokens=after)
    for read in reads:
        assert close(whole[read], parts[read], 2e-4), read
    assert close(whole[LOGITS], truth("llama", prompt + after).logits[0, 299:], 2e-4)


def test_bfloat16_files_load_in_either_precision(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from semspec.engines.hf import Hf

    model = AutoModelForCausalLM.from_pretrained(folder("qwen3"), dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    exact = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.inference_mode():
        expected = exact(torch.tensor([PROMPT + AFTER])).logits[0, len(PROMPT) - 1 :]
    single = Hf(device="cpu").load(str(tmp_path))
    assert close(ask(single, context(PROMPT), LOGITS, tokens=AFTER)[LOGITS], expected)
    half = Hf(device="cpu", dtype="bf16").load(str(tmp_path))
    rough = ask(half, context(PROMPT), LOGITS, tokens=AFTER)[LOGITS]
    assert rough.dtype == torch.float32
    assert (rough - expected).abs().mean() < 0.05 * expected.abs().mean()
    assert half.memory_bytes()["weights"] * 2 <= single.memory_bytes()["weights"] + 4096  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (Read(What.HIDDEN, layers=(4,)), "hidden: layers (4,), but there are 4"),
        (Read(What.POOLED, spans=((0, 10),)), "pooled: spans ((0, 10),) of 9 tokens"),
    ],
)
def test_impossible_reads_are_refused(read: Read, words: str) -> None:
    with pytest.raises(UserError) as error:
        ask(load(), context(PROMPT), read, tokens=AFTER)
    assert words in str(error.value)
