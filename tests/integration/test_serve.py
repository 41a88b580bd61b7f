"""A live server in its own process, queried by OpenAI's own client: answers, streams, counts and refusals."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

import semspec
from tests.support.serving import QUESTION, Live, events_of, serving

NAME = "embedded/tiny-target"
TURN: Any = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving("max_new_tokens=160", "concurrency=4", "queue=8") as running:
        yield running


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def pair() -> Iterator[semspec.Pair]:
    """The same models as a library, with the seed that the tests ask for."""
    with semspec.load(max_new_tokens=160, seed=5) as made:
        yield made


def streamed(client: openai.OpenAI, **options: Any) -> tuple[str, str, list[Any]]:
    """Return the thinking and the answer of a stream, and its chunks."""
    chunks = list(client.chat.completions.create(model=NAME, messages=TURN, stream=True, **options))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    return thought, "".join(delta.content or "" for delta in deltas), chunks


def test_an_answer_is_that_of_the_library_with_thinking_and_answer_apart(
    client: openai.OpenAI, pair: semspec.Pair
) -> None:
    told = client.chat.completions.create(model=NAME, messages=TURN, seed=5)
    message: Any = told.choices[0].message
    solution = pair.solve(QUESTION)
    thought, closed, answer = solution.text.partition("</think>")
    assert closed and message.content == answer.strip() != ""
    assert message.reasoning_content == message.reasoning == thought.removeprefix("<think>").strip()
    assert told.choices[0].finish_reason == "stop"
    figures, usage = solution.figures, told.usage
    assert usage is not None and usage.completion_tokens == figures.tokens
    details = usage.completion_tokens_details
    assert details is not None and 0 < (details.reasoning_tokens or 0) < figures.tokens
    speculative = told.model_extra["metrics"]["speculative_decoding"]  # type: ignore[index]
    assert speculative["num_draft_tokens"] == figures.drafted_tokens
    assert speculative["num_accepted_draft_tokens"] == figures.kept_tokens
    assert speculative["num_spec_steps"] == figures.drafts


def test_figures_of_speculation_reconcile(live: Live) -> None:
    for options in ({}, {"semspec": {"rule": "logprob", "threshold": -8, "draft_length": 2}}):
        told = live.chat(seed=1, **options)["metrics"]["speculative_decoding"]
        histogram, each = told["acceptance_histogram"], told["per_step_accepted"]
        assert len(histogram) == told["num_spec_tokens"] + 1
        assert (
            sum(histogram)
            == told["num_spec_steps"]
            == len(each)
            == len(told["per_step_drafted"])
            > 0
        )
        accepted = sum(n * count for n, count in enumerate(histogram))
        assert accepted == told["num_accepted_draft_tokens"] == sum(each)
        assert told["num_draft_tokens"] == sum(told["per_step_drafted"])
        assert told["mean_acceptance_length"] == pytest.approx(1 + accepted / sum(histogram))
        assert told["draft_acceptance_rate"] == pytest.approx(accepted / told["num_draft_tokens"])
        by_length = told["acceptance_histogram_by_draft_length"]
        assert all(len(counts) == int(n) + 1 for n, counts in by_length.items())
        assert sum(map(sum, by_length.values())) == told["num_spec_steps"]


def test_a_stream_has_the_text_of_the_whole_and_its_usage_at_the_end(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=NAME, messages=TURN, seed=2)
    message: Any = whole.choices[0].message
    thought, answer, chunks = streamed(client, seed=2, stream_options={"include_usage": True})
    assert (thought, answer) == (message.reasoning_content, message.content)
    assert chunks[-1].choices == [] and chunks[-1].usage.to_dict() | {
        "prompt_tokens_details": 0
    } == (
        whole.usage.to_dict() | {"prompt_tokens_details": 0}  # type: ignore[union-attr]
    )
    assert chunks[-1].model_extra["metrics"] == whole.model_extra["metrics"]  # type: ignore[index]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_kept_steps_come_whole_and_the_targets_tokens_as_they_are_written(live: Live) -> None:
    body = {
        "messages": TURN,
        "stream": True,
        "seed": 0,
        "semspec": {"steps": True},
        "max_tokens": 160,
    }
    _, headers, raw = live.ask("/v1/chat/completions", body)
    assert headers["content-type"].startswith("text/event-stream")
    deltas = [event["choices"][0]["delta"] for event in events_of(raw)]
    kept = [
        d
        for d in deltas
        if d.get("semspec", {}).get("author") == "draft" and d["semspec"].get("accepted")
    ]
    gone = [d for d in deltas if d.get("semspec", {}).get("accepted") is False]
    assert kept and gone
    assert all(d["semspec"]["score"] is not None for d in [*kept, *gone])
    for one in kept:  # a sentence at least, in one piece
        text = one.get("reasoning_content") or one.get("content", "")
        assert len(text.split()) > 3, one
    assert all(d["semspec"]["text"].strip() for d in gone)
    own = [d for d in deltas if d.get("semspec", {}).get("author") == "target"]
    assert "".join(d.get("reasoning_content") or d.get("content", "") for d in own).strip()
    body |= {"semspec": {"off": True}, "ignore_eos": True, "max_tokens": 1200}
    _, _, raw = live.ask("/v1/chat/completions", body)
    deltas = [event["choices"][0]["delta"] for event in events_of(raw)]
    pieces = [d.get("reasoning_content") or d.get("content", "") for d in deltas]
    told = sum(map(len, pieces))  # as it comes, and the first token at once
    assert len([piece for piece in pieces if piece]) > 3 and max(map(len, pieces)) < 0.7 * told
    assert len(next(piece for piece in pieces if piece)) < 0.2 * told


@pytest.mark.parametrize("more", [{}, {"stop": ["never said"]}])
def test_an_answer_in_one_piece_has_the_steps_of_its_stream(
    live: Live, more: dict[str, Any]
) -> None:
    """Whether who reads along decodes the text, or the driver follows it for a stop."""
    fields = {"seed": 0, "max_tokens": 160, "semspec": {"steps": True}, **more}
    whole = live.chat(**fields)["choices"][0]["semspec"]["steps"]
    _, _, raw = live.ask("/v1/chat/completions", {"messages": TURN, "stream": True, **fields})
    deltas = [event["choices"][0]["delta"].get("semspec", {}) for event in events_of(raw)]
    assert [step for step in deltas if "accepted" in step] == whole
    assert {step["author"] for step in whole} == {"draft", "target"}
    assert {step["accepted"] for step in whole} == {True, False}


def test_the_same_seed_gives_the_same_text_whatever_else_is_running(live: Live) -> None:
    alone = [live.chat(seed=seed)["choices"][0]["message"] for seed in range(3)]

    async def together() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none") as asking:
            create = asking.chat.completions.create
            made = [create(model=NAME, messages=TURN, seed=s % 3, max_tokens=160) for s in range(6)]
            return [told.choices[0].message for told in await asyncio.gather(*made)]

    for number, message in enumerate(asyncio.run(together())):
        assert message.content == alone[number % 3]["content"]
        assert message.reasoning_content == alone[number % 3]["reasoning_content"]
    assert len({message["reasoning_content"] for message in alone}) > 1


def test_several_choices_differ_and_a_prompt_counts_once(live: Live) -> None:
    told = live.chat(n=3, seed=0)
    texts = [one["message"]["reasoning_content"] for one in told["choices"]]
    assert len(set(texts)) > 1 and [one["index"] for one in told["choices"]] == [0, 1, 2]
    assert told["metrics"]["speculative_decoding"] is None
    assert told["usage"]["prompt_tokens"] == live.chat(seed=0)["usage"]["prompt_tokens"]
    assert texts[0] == live.chat(seed=0)["choices"][0]["message"]["reasoning_content"]


def test_off_is_the_target_alone(live: Live, pair: semspec.Pair) -> None:
    told = live.chat(seed=5, semspec={"off": True})
    plain = pair.solve(QUESTION, mode="plain")
    message = told["choices"][0]["message"]
    assert message["content"] == plain.text.partition("</think>")[2].strip()
    assert told["metrics"]["speculative_decoding"] is None


def test_a_header_chooses_like_the_body(live: Live) -> None:
    body = {"messages": TURN, "max_tokens": 160, "seed": 3}
    ours = {"rule": "logprob", "threshold": -1000000.0, "draft_length": 2}
    in_body = json.loads(live.ask("/v1/chat/completions", {**body, "semspec": ours})[2])
    header = {"x-semspec": "rule=logprob; threshold=-1e6; draft_length=2"}
    in_header = json.loads(live.ask("/v1/chat/completions", body, header)[2])
    for told in (in_body, in_header):
        found = told["metrics"]["speculative_decoding"]
        assert found["num_accepted_draft_tokens"] == found["num_draft_tokens"] > 0
    assert in_body["choices"] == in_header["choices"]


def test_stop_texts_end_the_answer_and_not_the_thinking(live: Live) -> None:
    whole = live.chat(seed=0)
    answer = whole["choices"][0]["message"]["content"]
    word = answer.split()[2]
    told = live.chat(seed=0, stop=[word, "\n\n\n\n"])
    message = told["choices"][0]["message"]
    assert message["content"] == answer.partition(word)[0]
    assert message["reasoning_content"] == whole["choices"][0]["message"]["reasoning_content"]
    assert told["choices"][0]["finish_reason"] == "stop"
    assert told["usage"]["completion_tokens"] < whole["usage"]["completion_tokens"]


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}])
def test_whoever_leaves_one_token_gets_the_greedy_text(live: Live, narrow: dict[str, float]) -> None:  # fmt: skip
    for ours in ({}, {"off": True}):
        for seed in (1, 2):  # with a seed, as much is drafted in every request
            greedy = live.chat(temperature=0, seed=seed, semspec=ours)["choices"]
            told = live.chat(temperature=1, seed=seed, semspec=ours, **narrow)
            assert told["choices"] == greedy


@pytest.mark.parametrize("off", [False, True])
def test_the_thinking_is_closed_in_words_and_the_answer_follows(live: Live, off: bool) -> None:
    for asked in (
        {"thinking_token_budget": 20},
        {"reasoning_effort": "none"},
        {"reasoning_effort": "low"},
    ):
        told = live.chat(seed=1, semspec={"off": off}, **asked)
        message = told["choices"][0]["message"]
        assert message["content"].strip(), message
        assert "My time for thinking is over" in message["reasoning_content"]
        thought = told["usage"]["completion_tokens_details"]["reasoning_tokens"]
        budget = {"none": 0, "low": 40}.get(asked.get("reasoning_effort"), 20)  # type: ignore[call-overload]
        assert thought <= budget + 80


def test_a_limit_ends_with_length_and_ignore_eos_goes_on_to_it(live: Live) -> None:
    told = live.chat(max_completion_tokens=9, max_tokens=9)
    assert told["choices"][0]["finish_reason"] == "length"
    assert told["usage"]["completion_tokens"] == 9
    for ours in ({}, {"off": True}):
        told = live.chat(ignore_eos=True, max_tokens=200, semspec=ours)
        assert told["usage"]["completion_tokens"] == 200, ours
        assert told["choices"][0]["finish_reason"] == "length"


def test_log_probabilities_are_the_targets(live: Live) -> None:
    for ours in ({}, {"off": True}):
        told = live.chat(seed=0, logprobs=True, top_logprobs=3, temperature=0, semspec=ours)
        entries = told["choices"][0]["logprobs"]["content"]
        assert len(entries) == told["usage"]["completion_tokens"]
        plain = live.chat(seed=0, temperature=0, semspec=ours)
        assert told["choices"][0]["message"] == plain["choices"][0]["message"]
        for entry in entries:
            assert entry["logprob"] <= 1e-6 and len(entry["top_logprobs"]) == 3
            best = [one["logprob"] for one in entry["top_logprobs"]]
            assert best == sorted(best, reverse=True)
            assert entry["logprob"] <= best[0] + 1e-4
        if ours:  # greedy: each token is its row's best
            for e in entries:
                assert e["logprob"] == pytest.approx(e["top_logprobs"][0]["logprob"], abs=1e-4)


def test_log_probabilities_in_a_stream_are_those_of_the_whole(client: openai.OpenAI) -> None:
    told = client.chat.completions.create(model=NAME, messages=TURN, seed=0, logprobs=True)
    whole = told.choices[0].logprobs
    _, answer, chunks = streamed(client, seed=0, logprobs=True)
    parts = [c.choices[0].logprobs.content for c in chunks if c.choices and c.choices[0].logprobs]
    entries = [entry for part in parts for entry in part]
    assert answer == told.choices[0].message.content
    assert whole is not None and whole.content is not None
    assert [e.token for e in entries] == [e.token for e in whole.content]
    for one, other in zip(entries, whole.content, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)


def test_a_prediction_is_copied_and_changes_nothing(live: Live) -> None:
    alone = live.chat(messages=TURN, temperature=0, semspec={"off": True})
    message = alone["choices"][0]["message"]
    text = f"{message['reasoning_content']}\n</think>\n\n{message['content']}"
    parts = [{"type": "text", "text": text[:90]}, {"type": "text", "text": text[90:]}]
    for content in (text, parts):
        asked = {"prediction": {"type": "content", "content": content}, "seed": 1}
        # with a seed drafts have fixed lengths, whatever other requests have taught
        told = live.chat(messages=TURN, temperature=0, **asked)
        assert told["choices"][0]["message"] == message
        details = told["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] > told["usage"]["completion_tokens"] / 2
    # the copies are judged losslessly, though the server's own rule is relaxed
    near = {"type": "content", "content": re.sub(r"\bk\b", "m", text)}
    told = live.chat(messages=TURN, temperature=0, prediction=near, seed=1)
    assert told["choices"][0]["message"] == message
    lenient = {"rule": "logprob", "threshold": -1000}
    told = live.chat(messages=TURN, temperature=0, prediction=near, semspec=lenient, seed=1)
    assert told["choices"][0]["message"] != message
    other = {"type": "content", "content": "Nothing of this is said: 1, 2, 3, 4, 5, 6, 7."}
    told = live.chat(messages=TURN, temperature=0, prediction=other)
    assert told["choices"][0]["message"] == message
    details = told["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] < 10 < details["rejected_prediction_tokens"]
    assert "accepted_prediction_tokens" not in alone["usage"]["completion_tokens_details"]


def test_completions_go_on_from_raw_text_or_ids(client: openai.OpenAI, live: Live) -> None:
    prompt = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    told = client.completions.create(model=NAME, prompt=prompt, max_tokens=160, seed=0, logprobs=2)
    chat = live.chat(seed=0)["choices"][0]["message"]
    text = told.choices[0].text
    assert text.startswith(chat["reasoning_content"]) and text.endswith(chat["content"])
    assert "</think>" in text
    assert told.choices[0].logprobs is not None
    tokens = told.choices[0].logprobs.tokens
    assert (
        tokens is not None
        and told.usage is not None
        and len(tokens) == told.usage.completion_tokens
    )
    several = client.completions.create(model=NAME, prompt=[prompt, prompt], max_tokens=8, seed=0)
    assert [one.index for one in several.choices] == [0, 1]
    assert several.choices[0].text != ""
    stream = client.completions.create(
        model=NAME, prompt=prompt, max_tokens=160, seed=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == text


def test_a_conversation_finds_its_earlier_turns_cached(live: Live) -> None:
    first = live.chat(seed=0)
    message = first["choices"][0]["message"]
    turns = [
        *TURN,
        {"role": "assistant", **{k: message[k] for k in ("content", "reasoning_content")}},
    ]
    turns.append({"role": "user", "content": "Thank you. And if x=7?"})
    told = live.chat(messages=turns, seed=0)
    cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"] - 3
    assert cached < told["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools.0.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "text", "json_schema": {"schema": {}}}}, "response_format"),
        ({"prediction": {"type": "file", "content": "x"}}, "prediction.type"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        (
            {"prediction": {"type": "content", "content": "x"}, "semspec": {"off": True}},
            "prediction",
        ),
        (
            {"return_spec_tokens_details": True, "semspec": {"off": True}},
            "return_spec_tokens_details",
        ),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"3": 1}}, "logit_bias"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 99}, "n"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 100000}, "max_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content",
        ),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        ({"thinking_token_budget": 5, "max_tokens": 3}, "thinking_token_budget"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"semspec": {"rule": "logprop"}}, "semspec.rule"),
        (
            {"semspec": {"rule": "oracle"}, "messages": [{"role": "user", "content": "1 + 1"}]},
            "semspec.rule",
        ),
        ({"semspec": {"rule": "rsd", "threshold": 0.5}, "temperature": 1}, "semspec.rule"),
        ({"semspec": {"threshold": 7}}, "semspec.threshold"),
        ({"semspec": {"risk": 0.1}}, "semspec.risk"),
        ({"semspec": {"draft_length": 0}}, "semspec.draft_length"),
        ({"semspec": {"thinking_stop": "eta"}}, "semspec.thinking_stop"),
        ({"semspec": {"thinking_threshold": 0.9}}, "semspec.thinking_threshold"),
        ({"semspec": {"thinking_stop": "eat", "thinking_risk": 0.1}}, "semspec.thinking_risk"),
        ({"semspec": {"thinking_stop": "eat"}, "max_tokens": 3}, "semspec.thinking_stop"),
        ({"semspec": {"no_such": 1}}, "semspec.no_such"),
        ({"seed": 1.5}, "seed"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    live: Live, fields: dict[str, Any], named: str
) -> None:
    status, error = live.error("/v1/chat/completions", {"messages": TURN, **fields})
    assert status == 400, error
    assert error["param"].startswith(named) and named in error["message"]
    assert error["type"] == "invalid_request_error"


def test_texts_that_cannot_fit_are_refused_before_they_are_read(live: Live) -> None:
    long = "word " * 200_000
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]}),
        ("/v1/completions", {"prompt": long}),
    ):
        status, error = live.error(path, body)
        assert (status, error["code"]) == (400, "context_length_exceeded"), error
        assert "at least" in error["message"]


def test_what_asks_for_nothing_is_taken(live: Live) -> None:
    neutral = {
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": None,
        "user": "me",
        "store": False,
        # as sglang-router sends them with every request
        "model": "unknown",
        "no_stop_trim": False,
        "continue_final_message": False,
        "return_hidden_states": False,
    }
    told = live.chat(
        seed=0, tools=[], response_format={"type": "text"}, max_tokens=4, top_k=-1, **neutral
    )
    assert told["usage"]["completion_tokens"] == 4


def test_other_errors_are_json_too(live: Live) -> None:
    chats = "/v1/chat/completions"
    cases = [
        (404, live.ask("/v1/nothing")),
        (405, live.ask(chats, method="GET")),
        (404, live.ask(f"{chats}/")),
        (404, live.ask("/" + "x" * 5000)),
        (404, live.ask(chats, {"messages": TURN, "model": "gpt-9"})),
        (404, live.ask(chats, {"messages": TURN, "model": "a\r\nb\x1b[2J" + "x" * 5000})),
        (400, live.ask(chats, {"messages": TURN, "\x1b[2J\n" + "x" * 5000: 1})),
        (400, live.ask(chats, b"{")),
        (400, live.ask(chats, b"[1]")),
        (400, live.ask(chats, b"[" * 100_000)),
        (400, live.ask(chats, b'{"messages": [{"role": "user", "content": "\\ud800"}]}')),
        (413, live.ask(chats, b"x" * ((1 << 20) + 1))),
        (415, live.ask(chats, b"{}", {"content-type": "text/plain"})),
        (403, live.ask("/v1/models", headers={"host": "evil.example"})),
    ]
    for status, (got, headers, body) in cases:
        error = json.loads(body)["error"]
        assert got == status, error
        assert set(error) == {"message", "type", "param", "code"} and error["message"]
        for text in (error["message"], error["param"] or ""):
            assert text.isprintable() and len(text) <= 500, text  # one line, whatever was said
        assert headers["content-type"] == "application/json" and headers["x-request-id"]


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01 no HTTP\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a" * 70_000]
)
def test_what_is_no_http_is_answered_in_json(live: Live, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=60) as connection:
        connection.sendall(data)
        head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"application/json" in head
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_drafts_of_others_go_on_beside_a_tiny_top_p(live: Live) -> None:
    """In float32 it is 0: no token was left, which looked as if the draft model were lost."""
    assert live.chat(top_p=5e-324, max_tokens=4)["usage"]["completion_tokens"] == 4
    told = live.chat(seed=5)
    assert told["metrics"]["speculative_decoding"]["num_spec_steps"] > 0
    assert live.metric("semspec:choices_without_drafts_total") == 0


def test_models_health_and_counters(client: openai.OpenAI, live: Live) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    (entry,) = json.loads(live.ask("/v1/models")[2])["data"]
    assert (entry["root"], entry["parent"]) == (NAME, None)
    assert [live.ask(path)[0] for path in ("/health", "/ready")] == [200, 200]
    names = {
        "num_spec_steps": "vllm:spec_decode_num_drafts_total",
        "num_draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
        "num_accepted_draft_tokens": "vllm:spec_decode_num_accepted_tokens_total",
    }
    before = {name: live.metric(name) for name in names.values()}
    positions = live.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total")
    tokens = live.metric("semspec:generation_tokens_total")
    told = live.chat(seed=9)
    found = told["metrics"]["speculative_decoding"]
    for field, name in names.items():
        assert live.metric(name) - before[name] == found[field]
    more = live.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total") - positions
    assert more == found["num_accepted_draft_tokens"]
    assert (
        live.metric("semspec:generation_tokens_total") - tokens
        == told["usage"]["completion_tokens"]
    )
    assert live.metric("sglang:spec_accept_length") == pytest.approx(
        found["mean_acceptance_length"]
    )
    drafts, accepted = (
        live.metric(names[n]) for n in ("num_spec_steps", "num_accepted_draft_tokens")
    )
    told = json.loads(live.ask("/server_info")[2])
    assert told["internal_states"] == [{"avg_spec_accept_length": 1 + accepted / drafts}]
    assert json.loads(live.ask("/model_info")[2])["model_path"] == NAME


def test_a_client_that_goes_frees_its_place(live: Live) -> None:
    cancelled = live.metric("semspec:requests_total", outcome="cancelled")
    for stream in (True, False):
        body = json.dumps(
            {"messages": TURN, "stream": stream, "ignore_eos": True, "max_tokens": 1500}
        )
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", live.port)) as connection:
            connection.sendall((head + body).encode())
            live.wait(lambda: live.metric("semspec:running") == 1, "it runs")
        live.wait(lambda: live.metric("semspec:running") == 0, "it is given up")
    assert live.metric("semspec:requests_total", outcome="cancelled") == cancelled + 2


def test_too_many_requests_are_told_to_come_again(live: Live) -> None:
    """Four run and eight wait; who comes then is refused, and all others are answered."""

    def ask(number: int) -> tuple[int, dict[str, str]]:
        body = {"messages": TURN, "ignore_eos": True, "max_tokens": 60, "semspec": {"off": True}}
        status, headers, _ = live.ask("/v1/chat/completions", body)
        return status, headers

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(ask, range(20)))
    counts = [status for status, _ in answers]
    assert set(counts) == {200, 429} and counts.count(200) >= 12
    assert all(int(headers["retry-after"]) >= 1 for status, headers in answers if status == 429)


def test_the_log_has_a_line_for_each_request_and_no_prompts(live: Live) -> None:
    _, headers, _ = live.ask(
        "/v1/chat/completions", {"messages": TURN, "max_tokens": 3}, {"x-request-id": "mine-1"}
    )
    assert headers["x-request-id"] == "mine-1"
    mine = lambda: [line for line in live.lines() if line.get("request") == "mine-1"]  # noqa: E731
    live.wait(mine, "its line")  # it is written when the answer has gone out
    (line,) = mine()
    assert line["outcome"] == "ok" and line["completion_tokens"] == 3
    assert "Modulo" not in live.log.read_text()


@pytest.mark.deep
def test_keys_a_drain_that_loses_nothing_and_exit_0() -> None:
    key = "a-key-of-this-test-0123456789"
    with serving("concurrency=2", SEMSPEC_API_KEYS=key) as live:
        for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {key}"}):
            for path in ("/v1/models", "/metrics", "/v1/chat/completions"):
                assert live.ask(path, headers=given)[0] == 401
        assert live.ask("/health")[0] == 200
        mine = {"authorization": f"Bearer {key}"}
        assert live.ask("/v1/models", headers=mine)[0] == 200
        answers: list[tuple[int, bytes]] = []

        def ask() -> None:
            body = {"messages": TURN, "ignore_eos": True, "max_tokens": 150}
            status, _, told = live.ask("/v1/chat/completions", body, mine)
            answers.append((status, told))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        running = lambda: "semspec:running{model_name=\"embedded/tiny-target\"} 2.0" in live.ask("/metrics", headers=mine)[2].decode()  # fmt: skip # noqa: E731
        live.wait(running, "two run")
        live.process.send_signal(signal.SIGTERM)
        live.wait(lambda: live.ask("/ready")[0] == 503, "it is not ready")
        status, headers, told = live.ask("/v1/chat/completions", {"messages": TURN}, mine)
        assert (
            status == 503
            and headers["retry-after"]
            and json.loads(told)["error"]["code"] == "draining"
        )
        assert live.process.wait(120) == 0
        for thread in threads:
            thread.join()
        assert [status for status, _ in answers] == [200] * 4
        assert {json.loads(told)["usage"]["completion_tokens"] for _, told in answers} == {150}
        assert key not in live.log.read_text()


@pytest.mark.deep
def test_who_says_nothing_or_half_of_it_is_not_waited_for() -> None:
    half = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with serving("body_timeout=1") as live:
        for data in (b"", b"P", half, half + b'content-length: 99\r\n\r\n{"messages"'):
            began = time.monotonic()
            with socket.create_connection(("127.0.0.1", live.port), timeout=60) as connection:
                connection.sendall(data)
                raw = connection.makefile("rb").read()  # until it is closed
            assert 1 <= time.monotonic() - began < 30
            if not data:
                assert raw == b"", "an answer would be taken for that of the next request"
                continue
            assert raw.startswith(b"HTTP/1.1 408 "), (data, raw)
            assert json.loads(raw.partition(b"\r\n\r\n")[2])["error"]["type"] == "timeout_error"


@pytest.mark.deep
def test_an_answer_that_takes_too_long_is_given_up_and_a_second_signal_stops_at_once() -> None:
    with serving("concurrency=1", "timeout=3") as live:
        body = {"messages": TURN, "ignore_eos": True, "max_tokens": 1900, "temperature": 0}
        status, _, told = live.ask("/v1/chat/completions", body)
        assert (status, json.loads(told)["error"]["code"]) == (504, "timeout")
        status, _, raw = live.ask("/v1/chat/completions", {**body, "stream": True})
        last = json.loads(raw.decode().strip().split("\n\n")[-1].removeprefix("data: "))
        assert status == 200 and last["error"]["code"] == "timeout"
        live.wait(lambda: live.metric("semspec:running") == 0, "they are given up")
        body = {"messages": TURN, "ignore_eos": True, "max_tokens": 1800, "semspec": {"off": True}}

        def ask() -> None:
            with pytest.raises(OSError):
                live.ask("/v1/chat/completions", body)

        thread = threading.Thread(target=ask)
        thread.start()
        live.wait(lambda: live.metric("semspec:running") == 1, "it runs")
        live.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert live.process.poll() is None
        live.process.send_signal(signal.SIGTERM)
        assert live.process.wait(20) == 1
        thread.join()
