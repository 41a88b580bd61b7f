"""engine=hf writes and scores as transformers does with the same folder."""

from __future__ import annotations

import random
from typing import Any

import torch

from semspec.decoding.sampling import at_temperature
from semspec.engines._sglang.requests import LIKELIEST
from semspec.engines.hf import Hf
from semspec.engines.pool import Engines
from semspec.models.text import Text
from semspec.types import Context, Query, Read, Sampling, What
from tests.support.smollm2 import LIMIT, TOKENS, corrections, folder, reference, solve


def test_greedy_text_is_that_of_transformers(engines: Engines) -> None:
    problems = corrections(3)
    text = Text(str(folder()))
    for done in solve(engines, problems, "plain", *TOKENS):
        ids = torch.tensor([text.prompt(done.problem.question)[1]])
        with torch.inference_mode():
            out: Any = reference().generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=LIMIT, do_sample=False
            )
        assert done.outcome.tokens == out[0, ids.shape[1] :].tolist()
        assert len(done.outcome.tokens) > 60


def test_log_probabilities_are_those_of_transformers() -> None:
    text = Text(str(folder()))
    prompt = text.prompt("What is the capital of France?")[1]
    tokens = text.encode("The capital of France is Paris, and in 1889 it had 2447957 people.")
    temperatures = (1.0, 0.6, 0.2)
    reads = tuple(Read(What.LOGPROBS, temperature=t) for t in temperatures)
    query = Query("target", Context(0, prompt), Sampling(1.0), random.Random(0), tokens, reads=reads)  # fmt: skip
    answer = Hf(device="cpu").load(str(folder())).answer([query])[0]
    with torch.inference_mode():
        logits = reference()(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    ids = torch.tensor(tokens)[:, None]
    raw = logits.log_softmax(-1)
    expected = raw.gather(1, ids)[:, 0]
    assert expected.min() < -3 and expected.max() > -0.1  # sure of some and not of others
    best = raw.topk(LIKELIEST).values
    for read, temperature in zip(reads, temperatures, strict=True):
        exact = (logits.double() / temperature).log_softmax(-1).gather(1, ids)[:, 0]
        assert (torch.as_tensor(answer[read]) - exact).abs().max() < 1e-3 / temperature
        # what a server's few likeliest tokens tell of it: never too much, and hardly too little
        error = at_temperature(expected, best, temperature) - exact
        assert -0.1 < error.min() and error.max() < 1e-3 / temperature
        assert error.abs().median() < 1e-3
