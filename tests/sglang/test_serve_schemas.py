"""``response_format`` over real SGLang servers: the thinking is drafted and free, the answer follows the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from pydantic import BaseModel, ConfigDict

from tests.support.pair import DRAFT
from tests.support.serving import QUESTION, Live, events_of, serving
from tests.support.sglang_servers import NO_SPACES, Pair, inside

pytestmark = pytest.mark.deep

OPTIONS = ("engine=sglang", "accept=logprob", "temperature=0", "max_new_tokens=200", "adaptive=false")  # fmt: skip
SIDES = ("the left one", "neither of both")
SCHEMA = {
    "type": "object",
    "properties": {"side": {"enum": list(SIDES)}, "sure": {"type": "boolean"}},
    "required": ["side", "sure"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "side", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def live(servers: Pair) -> Iterator[Live]:
    with serving(*servers.overrides, *OPTIONS) as one:
        yield one


def message(live: Live, **fields: Any) -> tuple[str, str]:
    told = live.chat(max_tokens=200, **fields)
    assert told["choices"][0]["finish_reason"] == "stop"
    own = told["choices"][0]["message"]
    return own["reasoning_content"] or "", own["content"]


def fits(text: str) -> bool:
    found = json.loads(text)
    return (
        set(found) == {"side", "sure"} and found["side"] in SIDES and found["sure"] in (True, False)
    )


def test_the_answer_fits_and_the_thinking_is_what_it_was(live: Live) -> None:
    free, answer = message(live)
    before = live.metric("semspec:generation_tokens_total", author="draft")
    thought, found = message(live, response_format=FORMAT)
    assert thought == free != "" and fits(found) and not answer.startswith("{")
    assert (
        live.metric("semspec:generation_tokens_total", author="draft") > before + 20
    )  # drafted as ever
    assert message(live, response_format=FORMAT, semspec={"off": True})[1] == found


def test_a_stream_says_the_same(live: Live) -> None:
    expected = message(live, response_format=FORMAT)
    turns = [{"role": "user", "content": QUESTION}]
    body = {"messages": turns, "max_tokens": 200, "stream": True, "response_format": FORMAT}
    status, _, raw = live.ask("/v1/chat/completions", body)
    assert status == 200, raw
    deltas = [event["choices"][0]["delta"] for event in events_of(raw)]
    assert len([d for d in deltas if d.get("reasoning_content")]) > 2
    told = ("".join(d.get(k) or "" for d in deltas) for k in ("reasoning_content", "content"))
    assert tuple(told) == expected


def test_the_clients_own_way(live: Live) -> None:
    class Side(BaseModel):
        model_config = ConfigDict(extra="forbid")
        sure: bool

    client = OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    told = client.chat.completions.parse(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": QUESTION}],
        max_completion_tokens=200,
        response_format=Side,
    )
    assert isinstance(told.choices[0].message.parsed, Side)


def test_a_thinking_that_is_closed_leaves_room_for_the_answer(live: Live) -> None:
    thought, found = message(live, response_format=FORMAT, thinking_token_budget=8)
    assert thought and fits(found)
    assert fits(message(live, response_format=FORMAT, reasoning_effort="none")[1])


def test_long_answers_come_whole(live: Live) -> None:
    """A grammar cannot be taken up again: nothing may cut the request."""
    sides = {"type": "array", "items": {"enum": list(SIDES)}, "minItems": 16, "maxItems": 16}
    asked = {"type": "json_schema", "json_schema": {"name": "sides", "schema": sides}}
    told = live.chat(max_tokens=500, thinking_token_budget=4, response_format=asked)
    found = json.loads(told["choices"][0]["message"]["content"])
    assert len(found) == 16 and set(found) <= set(SIDES)
    assert told["usage"]["completion_tokens"] > 128


def test_texts_that_are_continued_are_held_from_their_first_token_on(live: Live) -> None:
    body = {"prompt": QUESTION, "max_tokens": 60, "response_format": FORMAT, "logprobs": 1}
    status, _, raw = live.ask("/v1/completions", body)
    choice = json.loads(raw)["choices"][0]
    assert status == 200 and fits(choice["text"])
    assert len(choice["logprobs"]["tokens"]) > 3
    assert fits(json.loads(live.ask("/v1/completions", body)[2])["choices"][0]["text"])


def test_what_is_cut_ends_by_length(live: Live) -> None:
    body = {"prompt": QUESTION, "max_tokens": 4, "response_format": FORMAT}
    choice = json.loads(live.ask("/v1/completions", body)[2])["choices"][0]
    assert choice["finish_reason"] == "length" and choice["text"].startswith("{")


@pytest.mark.parametrize(
    "asked",
    [
        {"type": "json_schema"},
        {"type": "json_object", "json_schema": {"schema": {}}},
        {"type": "json_schema", "json_schema": {"schema": {"type": "no such type"}}},
        {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/nowhere"}}},
        {"type": "grammar"},
    ],
)
def test_what_is_no_schema_is_refused(live: Live, asked: dict[str, Any]) -> None:
    turns = [{"role": "user", "content": QUESTION}]
    status, error = live.error(
        "/v1/chat/completions",
        {"messages": turns, "response_format": asked, "thinking_token_budget": 0},
    )
    assert status == 400 and "response_format" in error["message"]
    assert fits(message(live, response_format=FORMAT)[1])  # the server has not suffered


def test_a_server_that_judges_steps_by_itself_does_so_up_to_the_answer(
    tmp_path: Path, live: Live
) -> None:
    asked = {"drafting": {"lm": {"model": str(DRAFT)}}, "verification": {}}
    with inside(tmp_path, asked, **NO_SPACES) as (url, _):
        own = f"engine.target_url={url}", "engine.inside=true"
        with serving(*own, *OPTIONS) as other:
            thought, found = message(other, response_format=FORMAT)
            assert fits(found) and thought == message(other)[0] != ""
