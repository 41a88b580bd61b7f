"""A live server either honours every field that clients send, visibly in its answer, or refuses it by name.

One table lists all of them. The names in ``SENT`` were copied by hand from what clients of OpenAI, vLLM and SGLang send.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest

from semspec.serve.extension import Semspec
from semspec.serve.requests import NEUTRAL, WITHOUT_EFFECT, ChatRequest, CompletionRequest
from tests.support.serving import QUESTION, Live, events_of, serving

NAME = "embedded/tiny-target"
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
BOTH = (CHAT, COMPLETION)
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": QUESTION}], "seed": 1, "max_tokens": 24},
    COMPLETION: {"prompt": QUESTION, "seed": 1, "max_tokens": 24},
}
SENT = """
messages prompt model max_completion_tokens max_tokens ignore_eos stop seed n temperature top_p top_k logprobs top_logprobs
response_format tools reasoning_effort thinking_token_budget chat_template_kwargs prediction return_spec_tokens_details
stream stream_options stream_options.include_usage stream_options.continuous_usage_stats semspec x-semspec
""".split()

Told: TypeAlias = Any  # an answer, or the events of a stream
Holds: TypeAlias = Callable[[Told, Told], bool]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One field with one value, and what becomes of it."""

    name: str
    sent: Mapping[str, Any]
    where: tuple[str, ...]
    holds: Holds | None = (
        None  # of its answer, and of the answer to ``beside``; None: it is refused
    )
    beside: Mapping[str, Any] = field(default_factory=dict)
    param: str = ""  # that the refusal names
    status: int = 400


def honoured(
    name: str,
    value: Any,
    holds: Holds,
    where: tuple[str, ...] = BOTH,
    beside: Mapping[str, Any] | None = None,
    **more: Any,
) -> Row:
    sent = {**nested(name, value), **more}
    return Row(name=name, sent=sent, where=where, holds=holds, beside=beside or {})


def refused(
    name: str,
    value: Any,
    where: tuple[str, ...] = BOTH,
    param: str | None = None,
    status: int = 400,
    **more: Any,
) -> Row:
    sent = {**nested(name, value), **more}
    return Row(name=name, sent=sent, where=where, param=param or name, status=status)


def nested(name: str, value: Any) -> dict[str, Any]:
    """Return ``a.b`` and a value as ``{a: {b: value}}``."""
    outer, _, inner = name.partition(".")
    return {outer: {inner: value} if inner else value}


# ---- what an answer shows -------------------------------------------------------------------------


def text(told: Told) -> str:
    choice = told["choices"][0]
    if "text" in choice:
        return str(choice["text"])
    said = choice["message"]
    return f"{said['reasoning_content'] or ''}|{said['content'] or ''}"


def same(told: Told, other: Told) -> bool:
    return bool(told["choices"] == other["choices"])


def differs(told: Told, other: Told) -> bool:
    return not same(told, other)


def long(tokens: int) -> Holds:
    return lambda told, _: (
        told["usage"]["completion_tokens"] == tokens
        and told["choices"][0]["finish_reason"] == "length"
    )


def stopped(told: Told, other: Told) -> bool:
    whole, cut = text(other), text(told)
    return whole.startswith(cut.rstrip("|")) and len(cut) < len(whole)


def figures(told: Told) -> Any:
    return told["metrics"]["speculative_decoding"]


def drafted(told: Told, _: Told) -> bool:
    return bool(figures(told)["num_draft_tokens"] > 0)


def entries(told: Told) -> list[Any]:
    """Return the alternatives of each token."""
    found = told["choices"][0]["logprobs"]
    if "content" in found:
        return [entry["top_logprobs"] for entry in found["content"]]
    return list(found["top_logprobs"])


def with_alternatives(count: int) -> Holds:
    return lambda told, _: (
        len(entries(told)) == 24 and all(len(one) == count for one in entries(told))
    )


def predicted(told: Told, _: Told) -> bool:
    details = told["usage"]["completion_tokens_details"]
    names = ("accepted_prediction_tokens", "rejected_prediction_tokens")
    return sum(details[name] for name in names) > 3


def usages(events: Told) -> list[Any]:
    return [event.get("usage") for event in events]


def thought(told: Told) -> int:
    return int(told["usage"]["completion_tokens_details"]["reasoning_tokens"])


def thinks_less(told: Told, other: Told) -> bool:
    return thought(told) < thought(other)


FUNCTION = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
GREEDY = {"temperature": 0}
STREAM = {"stream": True}
USAGE = {"include_usage": True}
OFF = {"semspec": {"off": True}}

TABLE = [
    # what is asked
    honoured("messages", [{"role": "user", "content": "Hello."}], differs, (CHAT,)),
    refused("messages", [], (CHAT,)),
    refused("messages", [{"role": "user", "content": "x"}], (COMPLETION,)),
    honoured("prompt", "1 + 1", differs, (COMPLETION,)),
    honoured(
        "prompt", [5, 6, 7], lambda told, _: told["usage"]["prompt_tokens"] == 3, (COMPLETION,)
    ),
    honoured(
        "prompt", ["1 + 1", "2 + 2"], lambda told, _: len(told["choices"]) == 2, (COMPLETION,)
    ),
    refused("prompt", "", (COMPLETION,)),
    refused("prompt", "x", (CHAT,)),
    honoured("model", NAME, lambda told, other: told["model"] == NAME and same(told, other)),
    honoured("model", "unknown", same),
    refused("model", "another", status=404),
    # how long, and where it ends
    honoured("max_tokens", 7, long(7)),
    refused("max_tokens", 0),
    honoured("max_completion_tokens", 7, long(7), (CHAT,), max_tokens=7),
    refused("max_completion_tokens", 7, (CHAT,), "max_tokens"),  # two limits
    refused("max_completion_tokens", 7, (COMPLETION,)),
    honoured("ignore_eos", True, long(300), max_tokens=300),
    honoured("stop", " ", stopped, (COMPLETION,)),
    honoured("stop", [" ", "=", "k", "."], stopped, (COMPLETION,)),
    honoured("stop", [" ", "never said"], stopped, (CHAT,), {"max_tokens": 300}, max_tokens=300),
    refused("stop", ["a", "b", "c", "d", "e"]),
    # how it is drawn
    honoured("seed", 2, differs),
    honoured("seed", 1, same),
    refused("seed", 1.5),
    honoured("n", 3, lambda told, _: [one["index"] for one in told["choices"]] == [0, 1, 2]),
    refused("n", 99),
    honoured("temperature", 0, same, beside={**GREEDY, "seed": 2}, seed=1),
    refused("temperature", -1),
    honoured("top_p", 1e-6, same, beside=GREEDY),
    refused("top_p", 0),
    honoured("top_k", 1, same, beside=GREEDY),
    refused("top_k", -2),
    honoured("min_p", 1, same, beside=GREEDY),
    refused("min_p", 2),
    # log-probabilities
    honoured("logprobs", True, with_alternatives(0), (CHAT,)),
    honoured("logprobs", 2, with_alternatives(2), (COMPLETION,)),
    honoured("top_logprobs", 2, with_alternatives(2), (CHAT,), logprobs=True),
    refused("top_logprobs", 2),
    # what the answer looks like
    honoured("response_format", {"type": "text"}, same),
    refused("response_format", {"type": "json_object"}),
    refused("response_format", SCHEMA),
    honoured("tools", [], same),
    refused("tools", [FUNCTION]),  # the pair's template knows none
    honoured("tool_choice", "none", same),
    refused("tool_choice", "required"),
    honoured("parallel_tool_calls", True, same),
    # the thinking
    honoured(
        "reasoning_effort",
        "low",
        thinks_less,
        (CHAT,),
        {"max_tokens": 160},
        max_tokens=160,
    ),
    refused("reasoning_effort", "huge", (CHAT,)),
    refused("reasoning_effort", "low", (COMPLETION,)),
    honoured(
        "thinking_token_budget",
        20,
        thinks_less,
        (CHAT,),
        {"max_tokens": 160},
        max_tokens=160,
    ),
    refused("thinking_token_budget", -1, (CHAT,)),
    refused("thinking_token_budget", 20, (COMPLETION,)),
    honoured("chat_template_kwargs", {}, same, (CHAT,)),
    refused(
        "chat_template_kwargs",
        {"enable_thinking": False},
        (CHAT,),
        "chat_template_kwargs.enable_thinking",
    ),
    refused("chat_template_kwargs", {}, (COMPLETION,)),
    # drafts and their figures
    honoured("prediction", {"type": "content", "content": "Modulo 100, k is 74."}, predicted),
    refused("prediction", {"type": "file", "content": "x"}, param="prediction.type"),
    honoured(
        "return_spec_tokens_details",
        True,
        lambda told, _: told["sglext"]["spec_tokens_details"]["spec_verify_ct"] > 0,
    ),
    refused("return_spec_tokens_details", True, **OFF),
    # streams
    honoured("stream", True, lambda events, _: len(events) > 1 and not any(usages(events))),
    honoured(
        "stream_options.include_usage",
        True,
        lambda events, _: (
            usages(events)[-1]["completion_tokens"] == 24
            and figures(events[-1])["num_spec_steps"] > 0
        ),
        **STREAM,
    ),
    honoured(
        "stream_options.continuous_usage_stats",
        True,
        lambda events, _: all(usages(events)),
        **STREAM,
    ),
    refused("stream_options", USAGE),
    refused("stream_options.another", True, **STREAM),
    # ours
    honoured("semspec.off", True, lambda told, _: figures(told) is None),
    honoured("semspec.rule", "logprob", drafted),
    refused("semspec.rule", "logprop"),
    honoured("semspec.threshold", -1e6, drafted, semspec={"rule": "logprob", "threshold": -1e6}),
    refused("semspec.threshold", 7),
    refused("semspec.risk", 0.1),
    honoured("semspec.draft_length", 2, drafted),
    refused("semspec.draft_length", 0),
    honoured(
        "semspec.thinking_stop",
        "eat",
        thinks_less,
        (CHAT,),
        {"max_tokens": 400},
        max_tokens=400,
        semspec={"thinking_stop": "eat", "thinking_threshold": 0.2},
    ),
    refused("semspec.thinking_stop", "eat", (COMPLETION,)),
    refused("semspec.thinking_threshold", 0.9),
    refused("semspec.thinking_risk", 0.1),
    honoured(
        "semspec.steps", True, lambda told, _: len(told["choices"][0]["semspec"]["steps"]) > 0
    ),
    refused("semspec.tenant", "me"),  # this server keeps no answers
    refused("semspec.another", 1),
    honoured("x-semspec", "off", lambda told, _: figures(told) is None),
    refused("x-semspec", "rule=logprop", param="semspec.rule"),
    refused("another", 1),
    refused("best_of", 3, (COMPLETION,)),
    honoured("best_of", 1, same, (COMPLETION,)),
]
TABLE += [
    honoured(name, "me", same)
    for name in ("user", "safety_identifier", "prompt_cache_key", "request_id")
]
TABLE.append(honoured("metadata", {"a": "b"}, same))
# what cannot be honoured: the value that asks for nothing, and one that asks for something
ASKED: dict[str, tuple[Any, Any]] = {
    "frequency_penalty": (0, 0.5),
    "presence_penalty": (0.0, 0.5),
    "repetition_penalty": (1, 1.1),
    "length_penalty": (1, 2),
    "logit_bias": ({}, {"3": 1}),
    "service_tier": ("auto", "flex"),
    "store": (False, True),
    "modalities": (["text"], ["text", "audio"]),
    "audio": (None, {"voice": "alloy"}),
    "verbosity": ("medium", "low"),
    "web_search_options": (None, {}),
    "functions": ([], [{"name": "f"}]),
    "function_call": ("none", "auto"),
    "suffix": ("", "the end"),
    "echo": (False, True),
    "min_tokens": (0, 5),
    "use_beam_search": (False, True),
    "skip_special_tokens": (True, False),
    "spaces_between_special_tokens": (True, False),
    "separate_reasoning": (True, False),
    "stream_reasoning": (True, False),
    "include_reasoning": (True, False),
    "priority": (0, 1),
    "no_stop_trim": (False, True),
    "continue_final_message": (False, True),
    "return_hidden_states": (False, True),
}
for name, (nothing, something) in ASKED.items():
    TABLE += [honoured(name, nothing, same), refused(name, something)]
CASES = [(row, path) for row in TABLE for path in row.where]


# ---- the table holds ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving("concurrency=4", "adaptive=false", "keep=0") as running:
        yield running


@pytest.fixture(scope="module")
def known() -> dict[str, Told]:
    """Answers that several rows are compared with."""
    return {}


def ask(live: Live, path: str, fields: Mapping[str, Any]) -> tuple[int, Told]:
    """Return the status, and the answer, the events or the error."""
    body = {**BASE[path], **fields}
    header = body.pop("x-semspec", None)
    status, _, raw = live.ask(path, body, {"x-semspec": header} if header else {})
    if status == 200 and body.get("stream"):
        return status, events_of(raw)
    return status, json.loads(raw)


@pytest.mark.parametrize(
    ("row", "path"), CASES, ids=[f"{path.split('/')[2]}-{row.name}-{number}" for number, (row, path) in enumerate(CASES)]
)  # fmt: skip
def test_a_field_is_honoured_or_refused_by_its_name(
    live: Live, known: dict[str, Told], row: Row, path: str
) -> None:
    status, told = ask(live, path, row.sent)
    if row.holds is None:
        assert status == row.status and told["error"]["param"] == row.param, told
        assert row.param in told["error"]["message"]
        return
    assert status == 200, told
    beside = f"{path} {json.dumps(row.beside)}"
    if beside not in known:
        known[beside] = ask(live, path, row.beside)[1]
    assert row.holds(told, known[beside]), told


@pytest.mark.parametrize(("path", "kind"), [(CHAT, ChatRequest), (COMPLETION, CompletionRequest)])
def test_the_table_has_every_field(path: str, kind: type[ChatRequest] | type[CompletionRequest]) -> None:  # fmt: skip
    told = {row.name for row, where in CASES if where == path}
    told |= {name.partition(".")[0] for name in told}
    assert set(SENT) <= told
    ours = {f"semspec.{name}" for name in Semspec.model_fields}
    assert {*kind.model_fields, *NEUTRAL, *WITHOUT_EFFECT, *ours} <= told
