"""A certificate of SGLang's own NGRAM speculation, in a real engine on the CPU, against the model's forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from semspec.certify import greedy
from semspec.certify.endpoints.local import Forward
from semspec.certify.endpoints.openai import sampling_fields
from semspec.certify.laws import Tokens
from semspec.certify.sampled import AgainstLaw, Ask, KnownLaws, Result, examine, rounds_of
from semspec.models.text import Text
from semspec.types import Sampling
from tests.support import sglang_env
from tests.support.pair import DRAFT

pytestmark = pytest.mark.deep
QUESTION = "Modulo 100, let t=25, u is 3 * t, x is u + t, r is x - t. Find r."
WARM = Sampling(1.0)


class InProcess:
    """An ``sglang.Engine`` as a writer: every prefix is a request, all of them under way together."""

    def __init__(self, engine: Any, text: Text) -> None:
        self.engine, self.text = engine, text
        self.drafted = 0

    name = "sglang.Engine"

    def encode(self, text: str) -> Tokens:
        return tuple(self.text.encode(text))

    def show(self, tokens: Tokens) -> str:
        return self.text.decode([t for t in tokens if isinstance(t, int)])

    def write(self, prefixes: Sequence[Tokens], length: int, sampling: Sampling) -> list[Tokens]:
        params = {**sampling_fields(sampling), "max_new_tokens": length, "ignore_eos": True}
        answers = self.engine.generate(
            input_ids=[list(prefix) for prefix in prefixes], sampling_params=params
        )
        self.drafted += sum(a["meta_info"].get("spec_num_correct_drafts") or 0 for a in answers)
        return [tuple(answer["output_ids"][:length]) for answer in answers]

    def close(self) -> None:
        """Do nothing: the test closes the engine."""


def certified(engine: Any) -> tuple[greedy.Result, Result, int]:
    text, reference = Text(str(DRAFT)), Forward(str(DRAFT))
    writer = InProcess(engine, text)
    prompt = text.prompt(QUESTION)[0]
    prefixes = [writer.encode(prompt), writer.encode(prompt + "To find r we need x, so we take x")]
    texts = [writer.write([prefix], 40, greedy.GREEDY)[0] for prefix in prefixes for _ in range(2)]
    compared = [
        greedy.read_by(reference, i, prefixes[i // 2], own, 0.001) for i, own in enumerate(texts)
    ]
    ask = Ask(sampling=WARM, length=5, detect=0.25, batch=8)
    counted = AgainstLaw(prefixes, reference, ask, KnownLaws())
    drawn = examine(counted, ask, rounds_of(writer, prefixes, ask), lambda _: None)
    return greedy.Result(0.001, compared), drawn, writer.drafted


def test_an_engine_without_speculation_passes() -> None:
    with sglang_env.engine(DRAFT) as engine:
        texts, drawn, drafted = certified(engine)
    assert not texts.faulty and not drawn.faulty and drafted == 0


def test_ngram_is_greedy_on_a_cpu_whatever_the_temperature() -> None:
    """Its greedy texts are the model's; without SGLang's kernels it verifies drawn tokens greedily, and that is found."""
    with sglang_env.engine(
        DRAFT, speculative_algorithm="NGRAM", speculative_num_draft_tokens=8, max_running_requests=4
    ) as engine:
        texts, drawn, drafted = certified(engine)
    assert drafted > 0
    assert not texts.faulty
    assert drawn.faulty and drawn.stopped == "evidence"
