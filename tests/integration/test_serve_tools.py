"""Tool calls over the API: OpenAI's own client queries a live server with a pair that calls tools, whole and streaming."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.calling_pair import Told, pair
from tests.support.serving import QUESTION, Live, serving
from tests.support.tool_templates import HERMES, SUBTRACT

TOOL: Any = SUBTRACT
TURN: Any = [{"role": "user", "content": QUESTION}]
THOUGHT, SAID = "Now k is x - 2, and x=76.", "I ask for it."
CALLS = ['{"a": 76, "b": 2}', '{"a": 74, "b": 0}']
FINAL = "So k=74."


def written(arguments: str, name: str = "subtract") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def called(*ids: str) -> dict[str, Any]:
    told = [
        {"id": one, "type": "function", "function": {"name": "subtract", "arguments": arguments}}
        for one, arguments in zip(ids, CALLS, strict=True)
    ]
    return {"role": "assistant", "content": SAID, "tool_calls": told}


def results(*ids: str) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": one, "content": "74"} for one in ids]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The pair: it calls the tool twice, answers once it has the results, and calls one that there is not."""
    earlier = called("a", "b")
    for call in earlier["tool_calls"]:  # as templates take them
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    calling = f"{THOUGHT}\n</think>\n\n{SAID}\n" + "\n".join(map(written, CALLS))
    unknown = f"</think>\n\nWell. {written(CALLS[0], 'divide')} It is gone."
    lessons = [
        Told(TURN, calling, [TOOL]),
        Told([*TURN, earlier, *results("a", "b")], f"</think>\n\n{FINAL}", [TOOL]),
        Told([{"role": "user", "content": "Now divide."}], unknown, [TOOL]),
    ]
    return pair(tmp_path_factory.mktemp("pair"), HERMES, lessons)


@pytest.fixture(scope="module")
def live(options: tuple[str, ...]) -> Iterator[Live]:
    with serving(
        *options, "accept=lossless", "split=token", "temperature=0", "max_new_tokens=250"
    ) as one:
        yield one


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def model(live: Live) -> str:
    return str(json.loads(live.ask("/v1/models")[2])["data"][0]["id"])


def test_an_agents_turns_by_openais_client(live: Live, client: openai.OpenAI) -> None:
    asked: Any = {"model": model(live), "tools": [TOOL]}
    first = client.chat.completions.create(messages=TURN, **asked)
    choice = first.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", SAID)
    assert choice.message.model_dump()["reasoning_content"] == THOUGHT
    calls: Any = choice.message.tool_calls
    assert [call.function.arguments for call in calls] == CALLS
    assert {call.function.name for call in calls} == {"subtract"}
    ids = [call.id for call in calls]
    assert len(set(ids)) == 2 and all(one.startswith("call_") for one in ids)
    # the message goes back as it came, and the results in whatever order
    turns: Any = [*TURN, choice.message, *reversed(results(*ids))]
    then = client.chat.completions.create(messages=turns, **asked)
    assert (then.choices[0].finish_reason, then.choices[0].message.content) == ("stop", FINAL)
    assert then.choices[0].message.tool_calls is None
    assert then.usage is not None and then.usage.prompt_tokens_details is not None
    assert then.usage.prompt_tokens_details.cached_tokens > 100  # the turn before was kept


def test_calls_are_drafted_like_any_other_text(live: Live) -> None:
    # with a seed drafts have fixed lengths, whatever the clock says
    told = live.chat(tools=[TOOL], messages=TURN, max_tokens=250, seed=1)
    figures = told["metrics"]["speculative_decoding"]
    assert figures["num_accepted_draft_tokens"] > 0.3 * told["usage"]["completion_tokens"]
    alone = live.chat(tools=[TOOL], messages=TURN, max_tokens=250, semspec={"off": True})
    assert shape(alone["choices"][0]["message"]) == shape(told["choices"][0]["message"])


def shape(message: dict[str, Any]) -> tuple[str | None, str | None, list[tuple[str, str]]]:
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]  # fmt: skip
    return message["reasoning_content"], message["content"], calls


@pytest.mark.parametrize("fields", [{}, {"semspec": {"steps": True}}, {"logprobs": True}, {"n": 2}])
def test_a_stream_brings_the_same_calls_in_pieces(live: Live, client: openai.OpenAI, fields: dict[str, Any]) -> None:  # fmt: skip
    whole = client.chat.completions.create(
        model=model(live), messages=TURN, tools=[TOOL], extra_body=fields
    )
    chunks = client.chat.completions.create(
        model=model(live), messages=TURN, tools=[TOOL], stream=True, extra_body=fields
    )
    texts: dict[int, str] = {}
    calls: dict[int, list[dict[str, Any]]] = {}
    ends: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            for piece in choice.delta.tool_calls or ():
                assert piece.function is not None
                own = calls.setdefault(choice.index, [])
                if (
                    piece.id is not None
                ):  # as OpenAI's begin: who is called, and nothing of what with
                    assert (piece.type, piece.index) == ("function", len(own))
                    own.append({"id": piece.id, "name": piece.function.name, "arguments": ""})
                own[piece.index]["arguments"] += piece.function.arguments or ""
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert len(whole.choices) == len(ends) == fields.get("n", 1)
    for one in whole.choices:
        expected = [(c.function.name, c.function.arguments) for c in one.message.tool_calls or ()]  # type: ignore[union-attr]
        assert len(expected) == 2
        assert [(c["name"], c["arguments"]) for c in calls[one.index]] == expected
        assert texts[one.index] == one.message.content and ends[one.index] == "tool_calls"
    ids = [call["id"] for own in calls.values() for call in own]
    assert len(set(ids)) == len(ids)


def test_the_clients_own_helpers_read_it(live: Live) -> None:
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}

    async def ask() -> Any:
        url = f"{live.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as own:
            asked: Any = {"model": model(live), "messages": TURN, "tools": [strict]}
            async with own.chat.completions.stream(**asked) as events:
                names = [event.type async for event in events]
                return names, await events.get_final_completion()

    names, final = asyncio.run(ask())
    assert names.count("tool_calls.function.arguments.done") == 2
    calls = final.choices[0].message.tool_calls
    assert [call.function.arguments for call in calls] == CALLS
    assert final.choices[0].finish_reason == "tool_calls"


def test_one_call_ends_the_answer_where_no_more_are_wanted(live: Live) -> None:
    told = live.chat(tools=[TOOL], messages=TURN, max_tokens=250, parallel_tool_calls=False)
    choice = told["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == CALLS[:1]
    both = live.chat(tools=[TOOL], messages=TURN, max_tokens=250)
    assert told["usage"]["completion_tokens"] < both["usage"]["completion_tokens"]


def test_what_was_not_offered_stays_text(live: Live) -> None:
    turns = [{"role": "user", "content": "Now divide."}]
    choice = live.chat(tools=[TOOL], messages=turns, max_tokens=250)["choices"][0]
    assert choice["finish_reason"] == "stop" and "tool_calls" not in choice["message"]
    assert choice["message"]["content"] == f"Well. {written(CALLS[0], 'divide')} It is gone."


def test_what_is_cut_short_is_no_call(live: Live) -> None:
    told = live.chat(tools=[TOOL], messages=TURN, max_tokens=250)
    most = told["usage"]["completion_tokens"] - 6
    choice = live.chat(tools=[TOOL], messages=TURN, max_tokens=most)["choices"][0]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["message"]["content"].startswith(f"{SAID}<tool_call>")


def test_without_a_grammar_a_call_cannot_be_required(live: Live) -> None:
    named = {"type": "function", "function": {"name": "subtract"}}
    for choice in ("required", named):
        body = {"messages": TURN, "tools": [TOOL], "tool_choice": choice}
        status, error = live.error("/v1/chat/completions", body)
        assert (status, error["param"]) == (400, "tool_choice"), error
        assert "give auto or none" in error["message"]
    assert live.chat(tools=[TOOL], messages=TURN, tool_choice="none", max_tokens=8)


def test_tools_count_as_part_of_the_prompt(live: Live) -> None:
    bare = live.chat(messages=TURN, max_tokens=4)["usage"]["prompt_tokens"]
    with_tools = live.chat(messages=TURN, max_tokens=4, tools=[TOOL])["usage"]["prompt_tokens"]
    assert with_tools > bare + 50
    long = {"type": "function", "function": {"name": "f", "description": "word " * 100_000}}
    status, error = live.error("/v1/chat/completions", {"messages": TURN, "tools": [long]})
    assert (status, error["code"]) == (400, "context_length_exceeded"), error


def test_a_model_that_knows_no_tools_says_so() -> None:
    with serving("max_new_tokens=20") as bare:  # the embedded pair's own template
        status, error = bare.error("/v1/chat/completions", {"messages": TURN, "tools": [TOOL]})
        assert (status, error["param"]) == (400, "tools") and "support tools" in error["message"]
        turns = [*TURN, called("a", "b"), *results("a", "b")]
        status, error = bare.error("/v1/chat/completions", {"messages": turns})
        assert (status, error["param"]) == (400, "messages.1.tool_calls"), error
