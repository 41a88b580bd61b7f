"""Hostile requests against a live server of ours, beside an honest client.

Each hostile request soon gets an answer or a one-line error. The honest client's answers stay the same to the byte and take
about as long as beside harmless requests; the server's memory does not grow. ``make test-attack`` sends 20,000.
"""

from __future__ import annotations

import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.hostile_requests import (  # fmt: skip
    ESCAPES,
    NUMBERS,
    TEXTS,
    Attack,
    Forge,
    Honest,
    Target,
    at,
    memory,
    spelt,
)
from tests.support.mutants import HOSTILE, MUTANTS
from tests.support.pair import TARGET
from tests.support.serving import QUESTION, Live, events_of, serving
from tests.support.tool_templates import HERMES

pytestmark = pytest.mark.deep
REQUESTS = MUTANTS or 400
RATE = 50.0  # a second
# times the seconds beside harmless requests, at the median and at the 90th percentile; of few answers both say little
LATE = 3.0 if MUTANTS else 5.0
GROWN = (
    1.15 if MUTANTS else 1.8
)  # times the memory before the last quarter: its cache grows by steps, to so many slots
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
TURN = [{"role": "user", "content": "1 + 1"}]
LONG = [{"role": "system", "content": "Be kind."}, *TURN, {"role": "assistant", "content": [{"type": "text", "text": "2"}], "reasoning_content": "x"}, *TURN]  # fmt: skip
OPTIONS = (
    "concurrency=8",
    "queue=300",
    "choices=4",
    "answer_tokens=200",
    "max_new_tokens=4",
    "body_timeout=2",
    "body=262144",
)
BODY = 262_144

COMMON: dict[str, list[Any]] = {
    "model": ["embedded/tiny-target", "unknown"], "temperature": [0, 0.6, 1.0], "top_p": [1, 0.95], "top_k": [-1, 5], "min_p": [0, 0.1],
    "n": [1, 2], "seed": [0, -3, 2**62], "stop": ["is", ["74", "\n"]], "stream": [True], "ignore_eos": [True], "user": ["me"],
    "tools": [[]], "tool_choice": ["none"], "response_format": [{"type": "text"}], "return_spec_tokens_details": [True],
    "frequency_penalty": [0], "prediction": [{"type": "content", "content": "k is 74"}],
    "semspec": [{"off": True}, {"steps": True}, {"rule": "logprob", "threshold": -5, "draft_length": 3}, {"draft_length": 2}],
}  # fmt: skip
OF_CHATS: dict[str, list[Any]] = {
    "logprobs": [True], "max_completion_tokens": [2], "chat_template_kwargs": [{}], "thinking_token_budget": [0],
    "reasoning_effort": ["low"],
}  # fmt: skip


def requests(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a request that the server takes, and answers in a few tokens."""
    chat = rng.random() < 0.7
    known = COMMON | (OF_CHATS if chat else {"logprobs": [0, 2]})
    told: dict[str, Any] = {"max_tokens": rng.randrange(1, 4)}
    if chat:
        told["messages"] = rng.choice([TURN, LONG])
    else:
        told["prompt"] = rng.choice(["1 + 1", ["1 +", "2 +"], [5, 6, 7], [[5, 6], [7]]])
    for name in rng.sample(list(known), rng.randrange(7)):
        told[name] = rng.choice(known[name])
    if "max_completion_tokens" in told:
        del told["max_tokens"]
    if {"thinking_token_budget", "reasoning_effort"} & set(
        told
    ):  # the words that close it need room
        told.pop(
            "reasoning_effort" if "thinking_token_budget" in told else "thinking_token_budget", None
        )
        told.pop("max_completion_tokens", None)
        told["max_tokens"] = 90
    if isinstance(told.get("prompt"), list) and isinstance(told["prompt"][0], str | list):
        told.pop("n", None)
    if {"rule", "off"} & set(told.get("semspec", {})):
        told.pop("prediction", None)
    return (CHAT if chat else COMPLETION), told


RULES = ("lossless", "greedy", "typical", "fuzzy", "topk_delta", "arc", "arc_certified", "judge", "judge_head", "rsd", "lookahead", "token", "triggers",
         "oracle", "random", "semantic", "semantic_plus", "semantic_risk", "specguard", "glimprouter", "confspec", "cascade", "r_stitch", "arbitrage",
         "logprob", "logprop", "", "../../x", "__init__", "_base", "os", "\x1b[2J")  # fmt: skip
STOPS = ("none", "budget", "eat", "answer", "probe", "eta", "", "_base", "\x1b[2J")
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}
AIMED: dict[str, list[Any]] = {
    "n": [0, -1, 5, 99, 10**6, 1.5, "2", True, [1]],
    "seed": [-1, 2**63, 2**64, 1.5, "x", True, "@"],
    "stop": ["", [""], ["a"] * 5, "x" * 257, [1], {}, "\0", *ESCAPES, [list(ESCAPES)]],
    "logprobs": [True, 0, 21, -1, "yes", 2**40, "@"],
    "top_logprobs": [0, 20, 21, -1, "@"],
    "temperature": [-1, 1e-9, 101, "0", True, -0.0, 1e308, "@"],
    "top_p": [0, -1, 1.0001, 5e-324, "@"], "top_k": [-2, 2**31, 2**63, 0.5, "@"], "min_p": [-1, 2, "@"],
    "max_tokens": [0, -1, 201, 10**9, 2**63, 1.5, True, "@"], "max_completion_tokens": [0, 7, "@"],
    "response_format": [{"type": "json_object"}, SCHEMA, {"type": "text", "x": 1}, [], "text", {"type": ["text"]}, {"type": {}}, {}],
    "tools": [[{}], [{"type": "function", "function": {"name": "f"}}], [None], {}, "x", [[]] * 999],
    "tool_choice": ["required", "auto", {"type": "function", "function": {"name": "f"}}, 1, []],
    "messages": [[], {}, "x", [None], [{}], [{"role": "tool", "content": "x"}], [{"role": "user"}], [{"role": ["user"], "content": "x"}],
                 [{"role": "user", "content": ""}], [{"role": "user", "content": []}], [{"role": "assistant"}], [{"role": "user", "content": [{"type": "image_url"}]}],
                 [{"role": "user", "content": "x", "tool_calls": [{}]}], *([{"role": "user", "content": text}] for text in TEXTS)],
    "prompt": ["", [], [[]], [""], [-1], [2**31], [10**9, 5], [5, "x"], [[5], "x"], [True], [1.0], {}, None, *TEXTS, list(TEXTS[:4])],
    "model": ["gpt-9", "../../etc/passwd", "x" * 5000, *ESCAPES, "", 1, []],
    "prediction": [{"type": "content", "content": "a" * 30_000}, {"type": "content"}, {"type": "file", "content": "x"}, "x", {"type": "content", "content": [{}] * 99}],
    "chat_template_kwargs": [{"enable_thinking": False}, {"messages": []}, {"tools": 1}, {"chat_template": "{% for i in range(10**9) %}{% endfor %}"}, {"tokenize": True}, {"bos_token": "x" * 30_000},
                             {"enable_thinking": [[]]}, {"self": 1, "range": None, "raise_exception": 0, "": {}}, {"namespace": 1}, {"a": [[[[]]]]}, []],
    "stream_options": [{"include_usage": True}, {"x": 1}, [], "x"],
    "reasoning_effort": ["huge", "none", "xhigh", 1, []], "thinking_token_budget": [-1, 10**9, 1.5, "@"],
    "logit_bias": [{"3": 1}, [], {}], "frequency_penalty": [0.5, "@", {}], "store": [True, 0], "best_of": [2, 0, "@", {}],
    "metadata": list(HOSTILE), "user": list(HOSTILE), "no_such": list(HOSTILE), "\x1b[2J": [1], "x" * 9_000: [1], "a\nb": [1], "": [1],
    "semspec": [{"rule": "oracle"},
        *({"rule": rule} for rule in RULES),
        *({"rule": rule, "threshold": value} for rule in RULES for value in (0.5, -1e300, "@")),
        *({"rule": rule, "risk": value} for rule in RULES for value in (0.01, -1, "@")),
        *({"thinking_stop": stop} for stop in STOPS),
        *({"thinking_stop": stop, name: value} for stop in STOPS for name in ("thinking_threshold", "thinking_risk") for value in (0.1, 2, -1, "@")),
        *({"draft_length": value} for value in (0, -1, 64, 65, 1.5, True, "@")),
        *({name: value} for name in ("off", "steps") for value in (1, "true", [], None)),
        *({name: 1} for name in ("no_such", "\x1b[2J", "a\nb", "x" * 5000)), [], "x", None, 7,
    ],
}  # fmt: skip


def aimed(rng: random.Random) -> tuple[str, bytes]:
    path, told = requests(rng)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        name = rng.choice([*AIMED, *["semspec"] * 12])
        told[name] = rng.choice(AIMED[name])
    return path, spelt(told, rng.choice(NUMBERS))


PATHS = ("/v1/models", "/", "/health", "/ready", "/metrics", "/server_info", "/model_info", "/v1/models/embedded/tiny-target")  # fmt: skip
OURS = Target(requests, aimed, PATHS, "x-semspec", BODY, 2.0)


# ---- tools ---------------------------------------------------------------------------------------


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def called(arguments: str = "{}", name: str = "f", call: str = "a") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call, "type": "function", "function": function}],
    }


def came_to(content: str, call: str = "a") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": content}


DOUBLING = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
SCHEMAS: list[Any] = [
    {"$ref": "#"}, {"$defs": {**DOUBLING, "d60": {}}, "$ref": "#/$defs/d0"}, {"type": "nope"}, {"type": [[]]}, {"pattern": "(a+)+$"}, {"required": [1]},
    {"properties": {"a": []}}, {"enum": [0] * 9_000}, {"minimum": "@"}, {"$ref": {}}, {"items": {"items": {"items": True}}}, {"anyOf": []}, "x", [], 1,
    {"properties": {text: {"type": "string"} for text in TEXTS}}, *({"description": text} for text in TEXTS),
]  # fmt: skip
CALLS = ("{", "[]", "null", '{"a": NaN}', '{"a": "\\ud800"}', '{"a": ' + "[" * 40_000, '{"a": 1e999}', "", *map(json.dumps, ({text: text} for text in TEXTS)))  # fmt: skip
WITH_TOOLS: dict[str, list[Any]] = {
    "tools": [[tool()], [tool(), tool("g", description="x", parameters={"type": "object"}, strict=True)]], "tool_choice": ["auto", "none"],
    "parallel_tool_calls": [True, False], "messages": [[*TURN, called(), came_to("2")], [*TURN, called('{"a": 1}'), came_to("x"), {"role": "user", "content": "y"}]],
}  # fmt: skip
AIMED_AT_TOOLS: dict[str, list[Any]] = {
    "tools": [[{}], [None], {}, "x", [[]] * 999, [tool()] * 2, [tool(f"f{n}") for n in range(129)], [tool(f"f{n}") for n in range(128)],
              [tool(description="x" * 200_000)], [{"type": "custom", "custom": {"name": "f"}}], [{"type": "function", "function": None}],
              *([tool(text)] for text in TEXTS), *([tool(description=text)] for text in TEXTS),
              *([tool(parameters=schema, strict=strict)] for schema in SCHEMAS for strict in (True, False))],
    "tool_choice": ["required", "any", {"type": "function", "function": {"name": "f"}}, {"type": "function"}, {"type": "allowed_tools"}, 1, [], [[]],
                    {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}}, *ESCAPES],
    "parallel_tool_calls": [0, "x", [], "@"],
    "messages": [[came_to("x")], [*TURN, called(), came_to("x", "b")], [*TURN, {**called(), "tool_calls": [{}]}], [*TURN, {**called(), "tool_calls": "x"}],
                 [*TURN, {**called(), "role": "user"}], [*TURN, {**called(), "content": "x" * 30_000}], [*TURN, *[called()] * 200],
                 [*TURN, {**called(), "tool_calls": called()["tool_calls"] * 2_000}],
                 *([*TURN, called(text)] for text in CALLS), *([*TURN, called("{}", text)] for text in TEXTS),
                 *([*TURN, called("{}", "f", text), came_to(text, text)] for text in TEXTS)],
    "response_format": [{"type": "json_object"}],
}  # fmt: skip


def with_tools(rng: random.Random) -> tuple[str, dict[str, Any]]:
    told: dict[str, Any] = {"messages": TURN, "max_tokens": rng.randrange(1, 4), "tools": WITH_TOOLS["tools"][0]}  # fmt: skip
    for name in rng.sample(list(WITH_TOOLS), rng.randrange(len(WITH_TOOLS) + 1)):
        told[name] = rng.choice(WITH_TOOLS[name])
    if rng.random() < 0.3:
        told["stream"] = True
    return CHAT, told


def aimed_at_tools(rng: random.Random) -> tuple[str, bytes]:
    path, told = with_tools(rng)
    for name in rng.sample(list(AIMED_AT_TOOLS), rng.choice([1, 1, 2])):
        told[name] = rng.choice(AIMED_AT_TOOLS[name])
    return path, spelt(told, rng.choice(NUMBERS))


TOOLS = Target(with_tools, aimed_at_tools, PATHS[:-1], "x-semspec", BODY, 2.0)


def taught(folder: Path) -> tuple[str, ...]:
    """Return the options of a server whose chat template knows tools."""
    shutil.copytree(TARGET, folder, ignore=shutil.ignore_patterns("manifest.json"))
    (folder / "chat_template.jinja").write_text(HERMES)
    return f"model.path={folder}", "accept=logprob"


def honest(live: Live) -> Honest:
    """Return a client with a seed, half of whose questions are answered in a stream."""

    def ask() -> bytes:
        told = live.chat(max_tokens=48, seed=5)["choices"]
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 48, "seed": 5, "stream": True}  # fmt: skip
        status, _, raw = live.ask(CHAT, body)
        assert status == 200, raw
        deltas = [event["choices"][0]["delta"] for event in events_of(raw)]
        words = "".join(d.get("reasoning_content") or d.get("content", "") for d in deltas)
        return json.dumps([told, words]).encode()

    return Honest(ask)


def fill(live: Live) -> None:
    """Give the cache of keys and values its full size, which it reaches sooner or later and keeps."""

    def ask(number: int) -> None:
        told = {"prompt": [7 + number] * 1_900, "max_tokens": 2}
        assert live.ask(COMPLETION, told)[0] == 200

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, range(16)))


@pytest.mark.parametrize("target", [OURS, TOOLS], ids=["all", "tools"])
def test_hostile_requests_end_in_a_line_while_others_are_served_as_ever(
    tmp_path: Path, target: Target
) -> None:
    own = taught(tmp_path / TARGET.name) if target is TOOLS else ()
    with serving(*OPTIONS, *own) as live:
        fill(live)
        client, sizes = honest(live), [memory(live.process.pid)]
        attack = Attack(live.port, Forge(target, 1), RATE, max(100, REQUESTS // 20))

        def look(sent: int) -> None:
            assert live.process.poll() is None, live.log.read_text()[-2000:]
            sizes.append(memory(live.process.pid))
            print(
                f"{sent} requests, {sizes[-1]:.0f} MiB, {len(attack.seen.faults)} faults",
                flush=True,
            )

        attack.run(REQUESTS, client, look)
        print(json.dumps({**attack.figures(), "MiB": [round(size) for size in sizes]}, indent=1))
        assert not attack.seen.faults, "\n".join(attack.seen.faults[:40])
        assert not client.changed, (client.first, client.changed[:2])
        live.wait(
            lambda: not live.metric("semspec:running") + live.metric("semspec:waiting"), "end"
        )
        assert "Traceback" not in live.log.read_text()
        assert at(0.5, attack.hostile) < LATE * at(0.5, attack.harmless)
        assert at(0.9, attack.hostile) < LATE * at(0.9, attack.harmless)
        before = 1 + 3 * len(sizes) // 4
        assert max(sizes) < GROWN * max(sizes[:before]), sizes
