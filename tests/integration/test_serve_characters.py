"""Streams of characters that take several tokens each: every delta holds whole characters, wherever tokens are cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.serving import Live, events_of, serving

TEXT = "é🙂漢"  # a token of the embedded tokenizer for each byte
WHOLE = (0, 2, 6)  # bytes of the text, from its beginning, behind which a character ends
SIZE = len(TEXT.encode())
OPENING = f"<|im_start|>user\nSay it.<|im_end|>\n<|im_start|>assistant\n<think>\n{TEXT}"
OPTIONS = ("split=token", "accept=logprob", "threshold=-1000", "draft=reference", "longest=7", "temperature=1", "adaptive=false")  # fmt: skip


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Copies its reference in drafts of 7 bytes, all of which its rule accepts."""
    file = tmp_path_factory.mktemp("reference") / "text"
    file.write_text(TEXT * 200)
    with serving(*OPTIONS, f"file={file}", "max_new_tokens=900") as running:
        yield running


def streamed(live: Live, times: int) -> list[dict[str, Any]]:
    """Return the events with text of an answer that repeats the text so often."""
    body = {"prompt": OPENING, "max_tokens": times * SIZE, "ignore_eos": True, "stream": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    status, _, raw = live.ask("/v1/completions", {**body, "stream_options": options})
    assert status == 200, raw
    return [one for one in events_of(raw) if one["choices"] and one["choices"][0]["text"]]


def test_log_probabilities_have_the_bytes_of_every_token(live: Live) -> None:
    """The bytes of all tokens are those of the text, though each is only a part of a character."""
    body = {"prompt": OPENING, "max_tokens": 3 * SIZE, "ignore_eos": True, "logprobs": 3}
    told = json.loads(live.ask("/v1/completions", body)[2])["choices"][0]
    found, text = told["logprobs"], told["text"]
    assert text == TEXT * 3
    assert "".join(found["tokens"]) == "".join(f"bytes:\\x{byte:02x}" for byte in text.encode())
    assert all(len(one) == 3 for one in found["top_logprobs"])  # none hides another one
    places = [len(text.encode()[:at].decode(errors="ignore")) for at in range(3 * SIZE)]
    assert found["text_offset"] == places
    chat = {"messages": [{"role": "user", "content": "Say it."}], "logprobs": True}
    entries = live.chat(**chat, top_logprobs=2, max_tokens=2 * SIZE, ignore_eos=True)["choices"][0]["logprobs"]["content"]  # fmt: skip
    assert all(bytes(one["bytes"]) for entry in entries for one in [entry, *entry["top_logprobs"]])


def test_no_character_is_broken_over_two_deltas(live: Live) -> None:
    """Four streams at once. Some deltas are told while the last character has come in part: it waits for the next one."""
    times = (40, 50, 60, 70)
    with ThreadPoolExecutor(len(times)) as pool:
        answers = list(pool.map(lambda n: streamed(live, n), times))
    cut = 0
    for n, events in zip(times, answers, strict=True):
        deltas = [one["choices"][0]["text"] for one in events]
        assert "".join(deltas) == TEXT * n and len(deltas) > 2
        assert not any("\ufffd" in delta for delta in deltas)
        cut += sum(one["usage"]["completion_tokens"] % SIZE not in WHOLE for one in events)
    assert cut > 0, "no delta was told within a character"
