"""Tools over real SGLang servers: required calls follow their schemas, in the form of the model's template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.support.pair import DRAFT, TARGET
from tests.support.serving import QUESTION, Live, events_of, serving
from tests.support.sglang_servers import Pair
from tests.support.tool_templates import OF_FORMS

pytestmark = pytest.mark.deep

OPTIONS = ("engine=sglang", "accept=logprob", "temperature=0", "max_new_tokens=600", "adaptive=false")  # fmt: skip
TURN: Any = [{"role": "user", "content": QUESTION}]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


SIDE = {"enum": ["the left one", "neither"]}
TOOLS = [tool("choose", side=SIDE, sure={"type": "boolean"}), tool("doubt", sure={"enum": [False]})]
NAMED = {"type": "function", "function": {"name": "doubt"}}


@pytest.fixture(scope="module", params=list(OF_FORMS))
def live(request: pytest.FixtureRequest, servers: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:  # fmt: skip
    """A server of the embedded pair, with a template that knows tools in one of the forms."""
    folder = tmp_path_factory.mktemp("taught") / TARGET.name
    shutil.copytree(TARGET, folder)
    (folder / "manifest.json").unlink()
    (folder / "chat_template.jinja").write_text(OF_FORMS[request.param])
    with serving(
        *servers.overrides,
        *OPTIONS,
        f"model.path={folder}",
        "draft=lm",
        f"draft.model.path={DRAFT}",
    ) as one:
        yield one


def fits(call: dict[str, Any]) -> bool:
    name, told = call["function"]["name"], json.loads(call["function"]["arguments"])
    if name == "doubt":
        return bool(told == {"sure": False})
    return bool(name == "choose") and set(told) == {"side", "sure"} and told["side"] in SIDE["enum"]


def message(live: Live, **fields: Any) -> tuple[str | None, list[dict[str, Any]]]:
    told = live.chat(messages=TURN, tools=TOOLS, max_tokens=600, thinking_token_budget=40, **fields)
    choice = told["choices"][0]
    assert choice["finish_reason"] == "tool_calls", choice
    assert choice["message"]["content"] is None
    return choice["message"]["reasoning_content"], choice["message"]["tool_calls"]


def test_a_call_that_is_required_is_made(live: Live) -> None:
    _, calls = message(live, tool_choice="required", parallel_tool_calls=False)
    assert len(calls) == 1 and fits(calls[0])


def test_the_one_that_is_named_is_called(live: Live) -> None:
    _, calls = message(live, tool_choice=NAMED)
    assert [call["function"]["name"] for call in calls] == ["doubt"] and fits(calls[0])


def test_a_stream_brings_the_same_call(live: Live) -> None:
    thought, (call,) = message(live, tool_choice=NAMED)
    body = {
        "messages": TURN,
        "tools": TOOLS,
        "tool_choice": NAMED,
        "max_tokens": 600,
        "stream": True,
    }
    status, _, raw = live.ask("/v1/chat/completions", {**body, "thinking_token_budget": 40})
    assert status == 200, raw
    choices = [event["choices"][0] for event in events_of(raw)]
    pieces = [one for c in choices for one in c["delta"].get("tool_calls") or ()]
    assert pieces[0]["function"]["name"] == "doubt"
    assert "".join(piece["function"]["arguments"] for piece in pieces) == call["function"]["arguments"]  # fmt: skip
    told = "".join(c["delta"].get("reasoning_content") or "" for c in choices)
    assert told == (thought or "") and choices[-1]["finish_reason"] == "tool_calls"


def test_the_clients_own_way(live: Live) -> None:
    client = OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    asked: Any = {"model": client.models.list().data[0].id, "messages": TURN, "tools": TOOLS}
    told = client.chat.completions.create(
        tool_choice="required",
        parallel_tool_calls=False,
        max_completion_tokens=600,
        extra_body={"thinking_token_budget": 40},
        **asked,
    )
    (call,) = told.choices[0].message.tool_calls or ()
    assert fits(call.model_dump())
    turns = [*TURN, told.choices[0].message]
    turns.append({"role": "tool", "tool_call_id": call.id, "content": "noted"})
    again = client.chat.completions.create(
        **asked | {"messages": turns, "max_completion_tokens": 8}
    )
    assert again.usage is not None and told.usage is not None
    assert again.usage.prompt_tokens > told.usage.prompt_tokens


def test_parameters_that_are_no_schema_are_refused(live: Live) -> None:
    bad = {"type": "function", "function": {"name": "f", "parameters": {"type": "no such type"}}}
    body = {"messages": TURN, "tools": [bad], "tool_choice": "required", "thinking_token_budget": 0}
    status, error = live.error("/v1/chat/completions", body)
    assert (status, error["param"]) == (400, "tool_choice"), error
    assert fits(message(live, tool_choice=NAMED)[1][0])  # the server has not suffered


def test_calls_are_free_where_none_is_required(live: Live) -> None:
    told = live.chat(messages=TURN, tools=TOOLS, max_tokens=200)
    assert told["metrics"]["speculative_decoding"]["num_draft_tokens"] > 20  # as any text
