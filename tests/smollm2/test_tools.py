"""A real model calls a tool through the server: it sees two calls in the conversation and makes the third."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.support.serving import serving
from tests.support.smollm2 import folder
from tests.support.tool_templates import HERMES, SUBTRACT

OPTIONS = ("draft=suffix", "split=token", "accept=lossless", "temperature=0", "max_new_tokens=80")


def asked(a: int, b: int) -> dict[str, Any]:
    return {"role": "user", "content": f"What is {a} minus {b}?"}


def solved(call: str, a: int, b: int) -> list[dict[str, Any]]:
    function = {"name": "subtract", "arguments": json.dumps({"a": a, "b": b})}
    made = {"id": call, "type": "function", "function": function}
    return [
        asked(a, b),
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": call, "content": str(a - b)},
        {"role": "assistant", "content": f"It is {a - b}."},
    ]


def test_it_calls_the_tool_and_says_what_came_of_it(tmp_path: Path) -> None:
    taught = tmp_path / "taught"
    shutil.copytree(folder(), taught, ignore=shutil.ignore_patterns("manifest.json"))
    # its own template knows no tools; none of it thinks
    (taught / "chat_template.jinja").write_text(HERMES.replace("<think>\\n", ""))
    turns = [*solved("a", 9, 4), *solved("b", 38, 15), asked(76, 21)]
    with serving(f"model.path={taught}", *OPTIONS) as live:
        first = live.chat(messages=turns, tools=[SUBTRACT], max_tokens=80)
        message = first["choices"][0]["message"]
        (call,) = message["tool_calls"]
        assert call["function"]["name"] == "subtract"
        assert json.loads(call["function"]["arguments"]) == {"a": 76, "b": 21}
        assert first["choices"][0]["finish_reason"] == "tool_calls" and message["content"] is None
        # the calls before it are what its words are drafted from
        drafted = first["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"]
        assert drafted > 0.5 * first["usage"]["completion_tokens"]
        turns += [message, {"role": "tool", "tool_call_id": call["id"], "content": "55"}]
        then = live.chat(messages=turns, tools=[SUBTRACT], max_tokens=40)
    assert then["choices"][0]["message"]["content"] == "It is 55."
    assert then["usage"]["prompt_tokens_details"]["cached_tokens"] > 200
