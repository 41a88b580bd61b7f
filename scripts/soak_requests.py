"""The requests of `make soak`: valid chats and completions with random parameters, and invalid ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
KNOWN = [
    f"Modulo 100, let x={x}, k is x - 2, m is {y} * k, and z is m + x. Find z."
    for x, y in ((76, 3), (41, 7), (8, 9), (55, 4))
]
ROOMY = 60  # a longer answer has room for words that close its thinking
TURN = {"role": "user", "content": "Modulo 100, let x=76, k is x - 2. Find k."}
SIDE = {"type": "object", "properties": {"side": {"enum": ["left", "right"]}}, "required": ["side"]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "side", "schema": SIDE}}
TOOLS = [{"type": "function", "function": {"name": "choose", "parameters": SIDE}}]
ABILITIES: Mapping[
    str, Mapping[str, Any]
] = {  # what not every server supports; the others answer 400
    "response_format": {"response_format": SCHEMA},
    "tools": {"tools": TOOLS},
    "tool_choice": {"tools": TOOLS, "tool_choice": "required"},
}
DRAFTED = ("prediction", "return_spec_tokens_details")  # refused where nothing is drafted
HEADERS = ("off", "steps", "rule=logprob; threshold=-5; draft_length=3", "thinking_stop=none")
OURS: Sequence[Mapping[str, Any]] = (
    {"off": True},
    {"steps": True},
    {"rule": "logprob", "threshold": -5, "draft_length": 3},
    {"draft_length": 2, "steps": True},
)
STOPPERS: Sequence[Mapping[str, Any]] = (
    {"thinking_stop": "budget"},
    {"thinking_stop": "answer", "steps": True},
    {"thinking_stop": "none", "off": True},
)
ODD = (
    b"",
    b"{",
    b"null",
    b"[[[[",
    b"\xff\xfe",
    b'{"messages": 3}',
    b'{"messages": [{"role": "user"}]}',
)
REFUSED: Sequence[
    tuple[Mapping[str, Any], str]
] = (  # invalid fields of a chat, and the field at fault
    ({"temperature": -1}, "temperature"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"tools": [1]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "none"}}}, "tool_choice"),
    ({"top_p": "x"}, "top_p"),
    ({"min_p": 2}, "min_p"),
    ({"nonsense": 1}, "nonsense"),
    ({"max_tokens": 10**9}, "max_tokens"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"stop": [""]}, "stop"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"prediction": {"type": "text", "content": "x"}}, "prediction"),
    ({"reasoning_effort": "most"}, "reasoning_effort"),
    ({"reasoning_effort": "low", "thinking_token_budget": 9}, "reasoning_effort"),
    ({"thinking_token_budget": 9, "max_tokens": 2}, "thinking_token_budget"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
    ({"semspec": {"off": True}, "prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"semspec": {"off": True, "threshold": -5}}, "semspec.threshold"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"return_spec_tokens_details": 1}, "return_spec_tokens_details"),
    ({"semspec": {"rule": "nobody"}}, "semspec.rule"),
    ({"semspec": {"thinking_stop": "nobody"}}, "semspec.thinking_stop"),
    ({"semspec": {"draft_length": 65}}, "semspec.draft_length"),
    ({"semspec": {"nonsense": 1}}, "semspec.nonsense"),
)
REFUSED_HEADERS = (("rule=nobody", "semspec.rule"), ("threshold=x", "semspec.threshold"), ("nonsense", "semspec.nonsense"))  # fmt: skip
REFUSED_PROMPTS: Sequence[tuple[Mapping[str, Any], str]] = (
    ({"prompt": [10**6]}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": "x", "best_of": 2}, "best_of"),
    ({"prompt": "x", "messages": []}, "messages"),
)
LOOKS: Mapping[str, tuple[int, str]] = {  # paths to get: the status, and what the body must contain
    "/": (200, "<html"),
    "/metrics": (200, "semspec:running{"),
    "/v1/models": (200, '"data"'),
    "/health": (200, ""),
    "/ready": (200, ""),
    "/server_info": (200, "{"),
    "/v1/models/nobody": (404, '"error"'),
    "/nowhere": (404, '"error"'),
    CHAT: (405, '"error"'),
}


def common(rng: random.Random, choices: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return up to four random fields, of those that chats and completions share and of ``choices``."""
    both: dict[str, Callable[[], Any]] = {
        "temperature": lambda: rng.choice((0, 0.3, 0.6, 1.0)),
        "top_p": lambda: rng.choice((0.5, 0.95, 1)),
        "top_k": lambda: rng.choice((-1, 0, 5)),
        "min_p": lambda: rng.choice((0, 0.05, 0.3)),
        "seed": lambda: rng.randrange(5),
        "n": lambda: rng.choice((1, 2, 3)),
        "stop": lambda: rng.choice(("is", ["74", "\n"])),
        "ignore_eos": lambda: True,
        "return_spec_tokens_details": lambda: True,
        "prediction": lambda: rng.choice((predicted("x is 76. k is 74."), predicted([{"type": "text", "text": "The answer is 7."}]))),
        "semspec": lambda: rng.choice(OURS),
    }  # fmt: skip
    pool = {**both, **choices}
    return {name: pool[name]() for name in rng.sample(list(pool), rng.randrange(5))}


def predicted(content: Any) -> dict[str, Any]:
    return {"type": "content", "content": content}


def streaming(rng: random.Random) -> dict[str, Any]:
    """Return the fields that ask for a stream."""
    options = {name: True for name in ("include_usage", "continuous_usage_stats") if rng.random() < 0.4}  # fmt: skip
    return {"stream": True, **({"stream_options": options} if options else {})}


def chat(rng: random.Random, able: Mapping[str, bool]) -> dict[str, Any]:
    """Return a chat with random parameters that are valid for a server with these abilities."""
    x = rng.randrange(100)
    turns: list[dict[str, Any]] = [{"role": "user", "content": f"Modulo 100, let x={x}, k is x - {rng.randrange(9)}. Find k. {'é🙂' * rng.randrange(3)}"}]  # fmt: skip
    if rng.random() < 0.2:
        said = {"role": "assistant", "content": "k is 74.", "reasoning_content": "76 - 2 = 74."}
        turns = [TURN, said, *turns]
    told = {"messages": turns, "max_tokens": rng.choice((1, 2, 17, 64, 150))}
    more: dict[str, Callable[[], Any]] = {
        "logprobs": lambda: True,
        "response_format": lambda: rng.choice(({"type": "text"}, *((SCHEMA,) if able["response_format"] else ()))),
        "tools": lambda: TOOLS,
    }  # fmt: skip
    told |= common(rng, more)
    if told.get("logprobs") and rng.random() < 0.5:
        told["top_logprobs"] = rng.randrange(4)
    if "tools" in told:
        choices = ["none", *(["auto"] if able["tools"] else []), *(["required"] if able["tool_choice"] else [])]  # fmt: skip
        told["tool_choice"] = rng.choice(choices)
    if told["max_tokens"] > ROOMY:
        name = rng.choice(("", "", "thinking_token_budget", "reasoning_effort", "semspec"))
        given = {
            "thinking_token_budget": rng.randrange(30),
            "reasoning_effort": rng.choice(("none", "minimal", "low", "medium", "high", "xhigh")),
            "semspec": rng.choice(STOPPERS),
        }
        told |= {name: given[name]} if name else {}
    return _together(told)


def _together(told: dict[str, Any]) -> dict[str, Any]:
    """Remove fields that cannot be combined with the others."""
    if told.get("response_format") == SCHEMA and told.get("tool_choice", "none") != "none":
        del told["response_format"]
    if told.get("response_format") == SCHEMA or told.get("tool_choice") == "required":
        told.pop("ignore_eos", None)
        told.pop("prediction", None)
    if told.get("semspec", {}).get("off"):
        for name in DRAFTED:
            told.pop(name, None)
    return told


def completion(rng: random.Random) -> dict[str, Any]:
    """Return a request to continue a text, or ids."""
    ids = [rng.randrange(1, 600) for _ in range(rng.randrange(1, 9))]
    prompts = ("Let x=76. Then", ids, ["The answer is", "k is x"], [ids, [5, 6]])
    told: dict[str, Any] = {"prompt": rng.choice(prompts)}
    told |= common(rng, {"logprobs": lambda: rng.randrange(4)})
    if rng.random() < 0.7:
        told["max_tokens"] = rng.choice((1, 17, 64))
    return _together(told)


def choices_of(asked: Mapping[str, Any]) -> int:
    """Return how many choices a request asks for."""
    prompts = asked.get("prompt", "")
    several = isinstance(prompts, list) and not isinstance(prompts[0], int)
    return asked.get("n", 1) * (len(prompts) if several else 1)


def most_tokens(asked: Mapping[str, Any]) -> int:
    return asked.get("max_tokens", 16) * choices_of(asked)


def asked_before(at: int) -> dict[str, Any]:
    """Return a known question, asked so that its answer depends neither on chance nor on drafts."""
    turns = [{"role": "user", "content": KNOWN[at]}]
    return {"messages": turns, "temperature": 0, "max_tokens": 90, "semspec": {"off": True}}


def said(told: bytes) -> str:
    message = json.loads(told)["choices"][0]["message"]
    return f"{message['reasoning_content']}</think>{message['content']}"
