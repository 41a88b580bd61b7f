"""``return_spec_tokens_details``: SGLang's own response models can read our server's figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sglang.srt.entrypoints.openai.protocol import (
    ChatCompletionResponse,
    ChatCompletionStreamResponse,
    CompletionResponse,
    SpecTokensDetails,
)

from tests.support.serving import QUESTION, Live, events_of, serving

ASKED = {"seed": 3, "return_spec_tokens_details": True}
CHAT = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 120}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving("engine=hf", "split=token", "accept=lossless", "draft_length=3") as running:
        yield running


def check(told: dict[str, Any], read: SpecTokensDetails) -> None:
    """Every field has SGLang's name and type, and none is left out: a field that it does not know it would ignore."""
    assert read.model_dump() == told
    accepted, steps = read.spec_num_correct_drafts, read.spec_verify_ct
    assert steps == sum(read.spec_correct_drafts_histogram) > 0
    assert accepted == sum(n * count for n, count in enumerate(read.spec_correct_drafts_histogram))
    assert read.spec_accept_rate == pytest.approx(accepted / read.spec_num_proposed_drafts)


def test_an_answer_is_read_by_sglangs_model(live: Live) -> None:
    told = live.chat(**CHAT, **ASKED)
    read = ChatCompletionResponse.model_validate(told)
    assert read.sglext is not None and isinstance(
        read.sglext.spec_tokens_details, SpecTokensDetails
    )
    check(told["sglext"]["spec_tokens_details"], read.sglext.spec_tokens_details)
    length = read.usage.completion_tokens / read.sglext.spec_tokens_details.spec_verify_ct
    assert read.sglext.spec_tokens_details.spec_accept_length == pytest.approx(length)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_several_choices_are_read_by_sglangs_model(live: Live, path: str) -> None:
    body = CHAT if "chat" in path else {"prompt": QUESTION, "max_tokens": 40}
    told = json.loads(live.ask(path, {**body, **ASKED, "n": 2})[2])
    model = ChatCompletionResponse if "chat" in path else CompletionResponse
    read = model.model_validate(told)
    assert read.sglext is not None
    several = read.sglext.spec_tokens_details
    assert isinstance(several, list) and len(several) == 2
    for number, one in enumerate(several):
        check(told["sglext"]["spec_tokens_details"][number], one)


def test_the_chunk_of_a_stream_is_read_by_sglangs_model(live: Live) -> None:
    _, _, raw = live.ask("/v1/chat/completions", {**CHAT, **ASKED, "stream": True})
    (own,) = [event for event in events_of(raw) if "sglext" in event]
    read = ChatCompletionStreamResponse.model_validate(own)
    assert read.choices == [] and read.sglext is not None
    assert isinstance(read.sglext.spec_tokens_details, SpecTokensDetails)
    check(own["sglext"]["spec_tokens_details"], read.sglext.spec_tokens_details)
