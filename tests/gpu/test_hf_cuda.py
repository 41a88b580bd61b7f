"""engine=hf gives the same results on CUDA as on the CPU (run with ``pytest tests/gpu``)."""

from __future__ import annotations

import pytest
import torch

from semspec.types import Generate, Read, Sampling, What
from tests.support.tiny_models import FAMILIES, ask, context, load, query, tokens

PROMPT, AFTER = tokens(70), tokens(7, seed=1)
TREE = [-1, -1, 0, 1, 3, 3, 0]
READS = (
    Read(What.LOGITS),
    Read(What.PROBS),
    Read(What.LOGPROBS),
    Read(What.HIDDEN, layers=(0, -1)),
    Read(What.POOLED, spans=((0, 3), (2, 7))),
    Read(What.ATTENTION),
    Read(What.EMBEDDINGS),
)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("parents", [None, TREE])
def test_scoring_on_cuda_equals_the_cpu(family: str, parents: list[int] | None) -> None:
    asked = {"tokens": AFTER, "parents": parents}
    ours = ask(load(family, device="cuda", dtype="fp32"), context(PROMPT), *READS, **asked)
    expected = ask(load(family), context(PROMPT), *READS, **asked)
    for read in READS:
        assert ours[read].is_cuda
        assert torch.allclose(ours[read].cpu(), expected[read], atol=2e-3, rtol=2e-3), read


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_in_batches_on_cuda_equals_the_cpu(family: str) -> None:
    logits = Read(What.LOGITS)
    engines = load(family, device="cuda", dtype="fp32"), load(family)
    contexts = [context(tokens(5 + 9 * k, k), k) for k in range(4)]
    ours, expected = (
        engine.answer([query(at, logits, generate=Generate(12)) for at in contexts])
        for engine in engines
    )
    for a, b in zip(ours, expected, strict=True):
        assert a.tokens == b.tokens
        assert torch.allclose(a[logits].cpu(), b[logits], atol=2e-3, rtol=2e-3)


def test_bfloat16_is_the_default() -> None:
    engine, probs = load(device="cuda"), Read(What.PROBS)
    assert engine.model.dtype == torch.bfloat16
    warm = Sampling(temperature=0.8)
    answer = ask(engine, context(PROMPT), probs, sampling=warm, generate=Generate(20))
    assert answer[probs].dtype == torch.float32
    assert torch.allclose(answer[probs].sum(-1).cpu(), torch.ones(20), atol=1e-4)
    expected = ask(load(), context(PROMPT), Read(What.LOGITS), tokens=AFTER)
    rough = ask(engine, context(PROMPT, 1), Read(What.LOGITS), tokens=AFTER)
    a, b = rough[Read(What.LOGITS)].cpu(), expected[Read(What.LOGITS)]
    assert (a - b).abs().mean() < 0.1 * b.abs().mean()
