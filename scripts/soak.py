"""`make soak`: keep a live server busy with all that clients do, right and wrong, and look for what is lost, hangs or grows.

    python scripts/soak.py [requests=10000] [workers=12] [options of semspec.serve, adaptive=true for one]
    .venv-sglang/bin/python scripts/soak.py engine=sglang requests=1000
    python scripts/soak.py url=http://127.0.0.1:8000 requests=2000
    python scripts/soak.py --check      ask nothing: what is out of date?

Without ``url=`` it starts the embedded pair. With ``engine=sglang`` that stands on two SGLang servers of the target and one of the draft, and one of
the three is killed every few seconds and started again; a replica of the target is always left.

Every answer must have the status that is expected of its fields, be JSON of the right form and within its limits; every error must name the field that is to
blame, every stream must end, no request may hang, and after all of them nothing may be under way. Some questions
are asked greedily over and over: their texts may not change. Of a server that was started here, the log must have one line for each request, and
its memory, noted every 1,000 requests, may not grow by more than a tenth after the first thousand. In the end it gets SIGTERM while answers are being written, every
second one as a stream: all of them must come whole, and it must end by itself.

Ends with a line of figures, and 1 if something was wrong. Figures of 10,000 requests or more go to results/soak.json and as a row to docs/measurements/serving.md.
"""

from __future__ import annotations

import collections
import contextlib
import http.client
import json
import random
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figures_page import ROOT, FiguresPage
from script_kit import Started, markdown, parser, server

from semspec.errors import UserError
from semspec.jobs.options import described, option, read_known
from semspec.results.code_digest import code_digest
from semspec.storage import provenance
from semspec.storage.files import read_json
from semspec.storage.screen import echo

if TYPE_CHECKING:
    from tests.support.sglang_servers import Mortal

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
PATIENCE = 300.0  # seconds for one answer
SETTLED = 1_000  # requests after which memory may not grow any more
GROWTH = 1.1  # of memory, at most
WHOLE = 10_000  # requests, of which figures are kept
LAST = 300  # tokens of an answer that is under way at the end
MARKS = "<!-- soak: written by make soak -->", "<!-- end of soak -->"
ROOTS = ("Server", "Solver", "Solve", "speculate")
NAMES = {"hf": "`engine=hf`", "sglang": "two SGLang servers of the target, one of the draft"}
HEADINGS = ("", "requests", "kills", "wrong", "memory (RSS)", "whole after SIGTERM", "revision")
KNOWN = [
    f"Modulo 100, let x={x}, k is x - 2, m is {y} * k, and z is m + x. Find z."
    for x, y in ((76, 3), (41, 7), (8, 9), (55, 4))
]
NAMED = "soak-"  # how the requests' numbers begin
AT_MOST_ONCE = (
    "left",
    "half",
    "look",
)  # in the log: kinds whose client goes, and what is no question
ROOMY = 60  # tokens of an answer whose thinking can be closed in words
TURN = {"role": "user", "content": "Modulo 100, let x=76, k is x - 2. Find k."}
SIDE = {"type": "object", "properties": {"side": {"enum": ["left", "right"]}}, "required": ["side"]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "side", "schema": SIDE}}
TOOLS = [{"type": "function", "function": {"name": "choose", "parameters": SIDE}}]
ABILITIES: Mapping[str, Mapping[str, Any]] = {  # that not every server has; where it has not: 400
    "response_format": {"response_format": SCHEMA},
    "tools": {"tools": TOOLS},
    "tool_choice": {"tools": TOOLS, "tool_choice": "required"},
}
DRAFTED = ("prediction", "return_spec_tokens_details")  # that nothing comes of without drafts
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
REFUSED: Sequence[tuple[Mapping[str, Any], str]] = (  # fields of a chat, and the one to blame
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
LOOKS: Mapping[str, tuple[int, str]] = {  # what is no question: status, and what its body has
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


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is asked of which server; every other option is one of the server that is started."""

    # fmt: off
    url: str = option("", "a server that runs; without it one is started")
    requests: int = option(WHOLE, "how many", least=1)
    workers: int = option(12, "at a time", least=1)
    seed: int = option(0, "of what is asked")
    every: int = option(1_000, "requests between two notes of the server's memory", least=1)
    engine: str = option("hf", "what the server stands on", choices=("hf", "sglang"))
    kill_every: float = option(20.0, "seconds between two kills of an SGLang server, on average", least=1)
    # fmt: on


@dataclass
class Tally:
    """What has come of the requests."""

    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=dict)  # by number

    def add(self, outcome: str) -> None:
        self.outcomes[outcome] += 1

    def fail(self, why: str) -> None:
        self.wrong.append(why[:500])


def common(rng: random.Random, choices: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return up to three of the fields that chats and completions have, and of some more."""
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
    """Return what makes a stream of an answer."""
    options = {name: True for name in ("include_usage", "continuous_usage_stats") if rng.random() < 0.4}  # fmt: skip
    return {"stream": True, **({"stream_options": options} if options else {})}


def chat(rng: random.Random, able: Mapping[str, bool]) -> dict[str, Any]:
    """Return a chat with random parameters, all of which a server takes that is able to so much."""
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
    """Leave out what does not go with the other fields."""
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
    """Return a text, or ids, that are to be continued."""
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


class Client:
    """One worker's requests."""

    def __init__(self, address: tuple[str, int], tally: Tally) -> None:
        self.address, self.tally = address, tally
        self.known: Sequence[str] = []  # what is said to each of ``KNOWN``
        self.able: Mapping[str, bool] = {}  # by ``ABILITIES``
        self.headers = threading.local()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.address, timeout=PATIENCE)

    def learn(self) -> None:
        """Ask what the server can, and what it says to the known questions."""
        self.named("")
        able = {}
        for name, fields in ABILITIES.items():
            asked = {"messages": [TURN], "max_tokens": 1, **fields}
            status, told = self.post(json.dumps(asked).encode())
            able[name] = status == 200
            if status != 200:
                param = str(json.loads(told)["error"]["param"])
                if status != 400 or param not in fields:
                    raise UserError(f"{name}: the server answered {status}: {told[:300].decode()}")
        self.able = able
        whole = [self.post(json.dumps(asked_before(at)).encode()) for at in range(len(KNOWN))]
        self.known = [said(told) for _, told in whole]

    def named(self, number: int | str) -> None:
        """Set the headers of this thread's next request."""
        self.headers.told = {"content-type": "application/json"}
        if number != "":
            self.headers.told["x-request-id"] = f"{NAMED}{number}"

    def ask(self, number: int, seed: int) -> None:
        rng = random.Random(f"{seed} {number}")
        kinds = {
            self.whole: 30,
            self.stream: 21,
            self.text: 9,
            self.leave: 12,
            self.slow: 5,
            self.odd: 9,
            self.large: 3,
            self.half: 4,
            self.again: 4,
            self.look: 3,
        }
        kind = rng.choices(list(kinds), weights=list(kinds.values()))[0]
        self.named(number)
        self.tally.kinds[number] = {"leave": "left"}.get(kind.__name__, kind.__name__)
        try:
            kind(rng)
        except Exception as error:
            self.tally.fail(f"{kind.__name__} {number}: {type(error).__name__}: {error}")

    def post(self, told: bytes, path: str = CHAT) -> tuple[int, bytes]:
        with contextlib.closing(self.connect()) as connection:
            connection.request("POST", path, told, self.headers.told)
            got = connection.getresponse()
            return got.status, got.read()

    def error(self, status: int, told: bytes, expected: Sequence[int], param: str = "") -> None:
        """Look at an answer that is no 200: is it the one that was expected, and does it name the field?"""
        found = json.loads(told)["error"]
        blamed = str(found["param"] or "").startswith(param)
        if (status != 429 and (status not in expected or not blamed)) or not found["message"]:
            self.tally.fail(f"{status}, expected {expected} for {param}: {found}")
        self.tally.add(str(status))

    def chat(self, rng: random.Random) -> dict[str, Any]:
        """Return a chat that is taken; some say in a header what is ours."""
        asked = chat(rng, self.able)
        if "semspec" not in asked and rng.random() < 0.15:
            fits = [one for one in HEADERS if "thinking" not in one or asked["max_tokens"] > ROOMY]
            fits = [one for one in fits if one != "off" or not set(DRAFTED) & set(asked)]
            self.headers.told["x-semspec"] = rng.choice(fits)
        return asked

    def whole(self, rng: random.Random) -> None:
        self.answered(self.chat(rng), CHAT, "whole")

    def answered(self, asked: Mapping[str, Any], path: str, outcome: str) -> None:
        """Ask for an answer that is not streamed, and look at it."""
        status, told = self.post(json.dumps(asked).encode(), path)
        if status != 200:
            self.error(status, told, ())
            return
        found, count, most = json.loads(told), choices_of(asked), most_tokens(asked)
        wrong = []
        if len(found["choices"]) != count:
            wrong.append(f"{len(found['choices'])} choices of {count}")
        if not 0 < found["usage"]["completion_tokens"] <= most:
            wrong.append(f"{found['usage']} of {most} tokens")
        several = choices_of(asked) > 1  # that are told of one by one, which `metrics` does not
        drafted = several or found["metrics"]["speculative_decoding"] is not None
        if ("sglext" in found) != (asked.get("return_spec_tokens_details", False) and drafted):
            wrong.append(f"{found.get('sglext')}, {found['metrics']}")
        for choice in found["choices"]:
            own = choice.get("text") or choice.get("message", {}).get("content") or ""
            stops = asked.get("stop", [])
            if any(stop in own for stop in ([stops] if isinstance(stops, str) else stops)):
                wrong.append(f"goes on behind {stops}: {own}")
            if bool(choice["logprobs"]) != ("logprobs" in asked):
                wrong.append(f"log-probabilities: {choice['logprobs']}")
            if asked.get("semspec", {}).get("steps") and "steps" not in choice.get("semspec", {}):
                wrong.append("no steps")
            if asked.get("response_format") == SCHEMA and choice["finish_reason"] == "stop":
                json.loads(own)
        for why in wrong:
            self.tally.fail(f"{why}, asked {json.dumps(asked)}")
        self.tally.add(outcome)

    def stream(self, rng: random.Random, slowly: bool = False) -> None:
        asked = {**self.chat(rng), **streaming(rng)}
        self.streamed(asked, CHAT, "slow" if slowly else "stream", slowly)

    def streamed(
        self, asked: Mapping[str, Any], path: str, outcome: str, slowly: bool = False
    ) -> list[dict[str, Any]]:
        """Ask for a stream, read it to its end, and look at it; return its events, none where there was no stream."""
        with contextlib.closing(self.connect()) as connection:
            connection.request("POST", path, json.dumps(asked), self.headers.told)
            got = connection.getresponse()
            if got.status != 200:
                self.error(got.status, got.read(), ())
                return []
            raw = b""
            while part := got.read(64 if slowly else 4096):
                raw += part
                if slowly:
                    time.sleep(0.002)
        events = raw.decode().strip().split("\n\n")
        if events[-1] != "data: [DONE]":
            self.tally.fail(f"a stream without its end: {events[-1][:200]}")
        told = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
        ends = [c["index"] for one in told for c in one["choices"] if c["finish_reason"]]
        if sorted(ends) != list(range(choices_of(asked))):
            self.tally.fail(f"choices ended: {ends} of {choices_of(asked)}")
        options = asked.get("stream_options", {})
        usages = [one["usage"] for one in told if one.get("usage")]
        expected = len(told) if "continuous_usage_stats" in options else 1 if options else 0
        if len(usages) != expected:
            self.tally.fail(f"{len(usages)} of {len(told)} events tell usage: {options}")
        if usages and not 0 < usages[-1]["completion_tokens"] <= most_tokens(asked):
            self.tally.fail(f"{usages[-1]} of {most_tokens(asked)} tokens")
        self.tally.add(outcome)
        return told

    def slow(self, rng: random.Random) -> None:
        self.stream(rng, slowly=True)

    def text(self, rng: random.Random) -> None:
        """Have a text or ids continued."""
        asked = completion(rng)
        if rng.random() < 0.5:
            self.answered(asked, COMPLETION, "text")
        else:
            self.streamed({**asked, **streaming(rng)}, COMPLETION, "text")

    def again(self, rng: random.Random) -> None:
        """Ask what was asked before, and expect the same text."""
        at = rng.randrange(len(KNOWN))
        status, told = self.post(json.dumps(asked_before(at)).encode())
        if status != 200:
            self.error(status, told, ())
            return
        if (found := said(told)) != self.known[at]:
            self.tally.fail(f"another text than before: {found}")
        self.tally.add("again")

    def look(self, rng: random.Random) -> None:
        """Ask for a page, the counters, or what is not there."""
        path = rng.choice(list(LOOKS))
        expected, holds = LOOKS[path]
        with contextlib.closing(self.connect()) as connection:
            connection.request("GET", path, headers=self.headers.told)
            got = connection.getresponse()
            text = got.read().decode()
        if got.status != expected or holds not in text:
            self.tally.fail(f"GET {path}: {got.status} {text[:200]}")
        self.tally.add("look")

    def leave(self, rng: random.Random) -> None:
        """Go away in the middle of an answer."""
        asked = {**self.chat(rng), **(streaming(rng) if rng.random() < 0.5 else {})}
        body = json.dumps(asked).encode()
        with socket.create_connection(self.address, timeout=PATIENCE) as connection:
            connection.sendall(self.head(len(body)) + body)
            time.sleep(rng.random() * 0.3)
        self.tally.add("left")

    def half(self, rng: random.Random) -> None:
        """Go away in the middle of a request."""
        with socket.create_connection(self.address, timeout=PATIENCE) as connection:
            connection.sendall(self.head(5000) + b'{"messages"')
            time.sleep(rng.random() * 0.05)
        self.tally.add("half")

    def head(self, length: int) -> bytes:
        own = (f"{name}: {value}" for name, value in self.headers.told.items())
        lines = f"POST {CHAT} HTTP/1.1", "host: localhost", *own
        return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()

    def odd(self, rng: random.Random) -> None:
        """Ask what is refused, and expect to be told why."""
        turns: dict[str, Any] = {"messages": [TURN], "max_tokens": 64}
        which = rng.choice(("bytes", "chat", "chat", "able", "header", "prompt"))
        missing = [name for name, able in self.able.items() if not able]
        if which == "bytes":
            self.error(*self.post(rng.choice(ODD), rng.choice((CHAT, COMPLETION))), (400,))
        elif which == "header":
            said, param = rng.choice(REFUSED_HEADERS)
            self.headers.told["x-semspec"] = said
            self.error(*self.post(json.dumps(turns).encode()), (400,), param)
        elif which == "prompt":
            fields, param = rng.choice(REFUSED_PROMPTS)
            self.error(*self.post(json.dumps(fields).encode(), COMPLETION), (400,), param)
        elif which == "able" and missing:  # asked of a server that is not able to it
            fields = ABILITIES[rng.choice(missing)]
            self.error(*self.post(json.dumps({**turns, **fields}).encode()), (400,), next(iter(fields)))  # fmt: skip
        else:
            fields, param = rng.choice(REFUSED)
            self.error(*self.post(json.dumps({**turns, **fields}).encode()), (400,), param)

    def large(self, rng: random.Random) -> None:
        status, told = self.post(b" " * ((1 << 20) + rng.randrange(1, 99)))
        self.error(status, told, (413,))


def resident(pid: int) -> int:
    """Return the bytes of memory that a process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024


def asked_before(at: int) -> dict[str, Any]:
    """Return a question whose answer does not depend on chance, nor on whether drafts can be had."""
    turns = [{"role": "user", "content": KNOWN[at]}]
    return {"messages": turns, "temperature": 0, "max_tokens": 90, "semspec": {"off": True}}


def said(told: bytes) -> str:
    message = json.loads(told)["choices"][0]["message"]
    return f"{message['reasoning_content']}</think>{message['content']}"


def under_way(address: tuple[str, int]) -> float:
    with contextlib.closing(http.client.HTTPConnection(*address, timeout=PATIENCE)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    return sum(
        float(n) for n in re.findall(r"^semspec:(?:running|waiting)\{.*\} (\S+)$", text, re.M)
    )


class Killer:
    """Kills one of several SGLang servers every now and then, and starts it again."""

    def __init__(self, servers: Sequence[Mortal], every: float, seed: int) -> None:
        self.servers, self.every, self.rng = servers, every, random.Random(seed)
        self.kills: collections.Counter[int] = collections.Counter()
        self.error: Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._over.wait(self.every * (0.5 + self.rng.random())):
                which = self.rng.randrange(len(self.servers))
                one = self.servers[which]
                one.kill()
                self.kills[which] += 1
                one.ended()
                self._over.wait(4 * self.rng.random())
                one.start()
        except Exception as error:
            self.error = error


@contextlib.contextmanager
def sglang_servers() -> Iterator[list[Mortal]]:
    """Start two servers of the target and one of the draft."""
    from sglang_pair import mortal

    servers = [mortal(role) for role in ("target", "target", "draft")]
    try:
        for one in servers:
            one.start()
        yield servers
    finally:
        for one in servers:
            if one.process is not None and one.process.poll() is None:
                one.interrupt()


def soak(
    url: str, started: Started | None, given: Options, servers: Sequence[Mortal] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Ask all requests; return the figures, and what was wrong."""
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    tally = Tally()
    client = Client((host, int(port)), tally)
    client.learn()
    began = time.perf_counter()
    memory: list[tuple[int, int]] = []  # requests so far, bytes
    killer = Killer(servers, given.kill_every, given.seed) if servers else None
    with ThreadPoolExecutor(given.workers) as pool, killer or contextlib.nullcontext():
        for first in range(0, given.requests, given.every):
            end = min(first + given.every, given.requests)
            list(pool.map(lambda number: client.ask(number, given.seed), range(first, end)))
            if started is not None:
                memory.append((end, resident(started.process.pid)))
            seconds = time.perf_counter() - began
            kills = f", {killer.kills.total()} kills" if killer else ""
            size = f", {megabytes(memory[-1][1])}" if memory else ""
            echo(f"{end} requests in {seconds:.0f} s{kills}{size}, {len(tally.wrong)} wrong", flush=True)  # fmt: skip
    if killer and killer.error is not None:
        raise UserError(f"a server was not started again: {killer.error}") from killer.error
    for _ in range(200):
        if not (left := under_way(client.address)):
            break
        time.sleep(0.1)
    if left:
        tally.fail(f"{left:g} choices are still under way")
    figures: dict[str, Any] = {"requests": given.requests, "workers": given.workers}
    figures["seconds"] = round(time.perf_counter() - began)
    if killer:
        figures["kills"] = {"target": killer.kills[0] + killer.kills[1], "draft": killer.kills[2]}
    figures |= {"able": dict(client.able), "under_way": left}
    if (asked := sum(tally.outcomes.values())) != given.requests and not tally.wrong:
        tally.fail(f"{asked} of {given.requests} requests have come to an end")
    if started is not None:
        if grown := growth(memory):
            tally.fail(grown)
        figures["rss"] = memory
        figures["end"] = end_under_load(client, started, given)
        check_log(started.log, tally)
    figures |= {"outcomes": dict(sorted(tally.outcomes.items())), "wrong": len(tally.wrong)}
    return figures, tally.wrong


def megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def settled(memory: Sequence[Sequence[int]]) -> list[int]:
    """Return the bytes that were noted once memory had settled."""
    return [size for requests, size in memory if requests >= SETTLED]


def growth(memory: Sequence[Sequence[int]]) -> str:
    """Return what is wrong with how memory has grown; nothing where it is flat."""
    sizes = settled(memory)
    if sizes and max(sizes) > sizes[0] * GROWTH:
        return f"memory has grown from {sizes[0]:,} to {max(sizes):,} bytes"
    return ""


def end_under_load(client: Client, started: Started, given: Options) -> dict[str, Any]:
    """Send SIGTERM while every worker waits for an answer, every second one in a stream; all must come whole."""
    tally = client.tally

    def ask(number: int) -> bool:
        client.named("")
        asked = {**asked_before(number % len(KNOWN)), "ignore_eos": True, "max_tokens": LAST}
        try:
            if number % 2:
                asked |= {"stream": True, "stream_options": {"include_usage": True}}
                events = client.streamed(asked, CHAT, "at the end")
                usage = events[-1]["usage"] if events else None
            else:
                status, told = client.post(json.dumps(asked).encode())
                usage = json.loads(told)["usage"] if status == 200 else None
        except Exception as error:
            tally.fail(f"an answer that was under way at the end: {type(error).__name__}: {error}")
            return False
        whole = usage is not None and usage["completion_tokens"] == LAST
        if not whole:
            tally.fail(f"an answer that was under way at the end: {usage}")
        return whole

    with ThreadPoolExecutor(given.workers) as pool:
        waits = [pool.submit(ask, number) for number in range(given.workers)]
        until = time.monotonic() + PATIENCE
        while (busy := under_way(client.address)) < given.workers and time.monotonic() < until:
            time.sleep(0.005)
        started.process.send_signal(signal.SIGTERM)
        whole = sum(wait.result() for wait in waits)
    if busy < given.workers:
        tally.fail(f"{busy:g} of {given.workers} answers were under way at the end")
    code = started.process.wait(PATIENCE)
    if code:
        tally.fail(f"the server ended with {code}")
    del tally.outcomes["at the end"]
    return {"of": given.workers, "streams": given.workers // 2, "whole": whole, "code": code}


def check_log(log: Path, tally: Tally) -> None:
    """Hold the log against what was asked: one line for each request, and none twice."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    told = collections.Counter(
        int(line["request"].removeprefix(NAMED))
        for line in lines
        if str(line.get("request")).startswith(NAMED)
    )
    for number, kind in tally.kinds.items():
        fewest = 0 if kind in AT_MOST_ONCE else 1
        if not fewest <= told[number] <= 1:
            tally.fail(f"{kind} {number} has {told[number]} lines in the log")


def text(found: Mapping[str, Any]) -> str:
    """Return what stands between the page's marks."""
    return "\n".join(markdown(HEADINGS, [_cells(name, row) for name, row in found["rows"].items()]))


def _cells(name: str, row: Mapping[str, Any]) -> list[str]:
    kills, end, sizes = row.get("kills"), row["end"], settled(row["rss"])
    note = f" ({row['note']})" if "note" in row else ""
    most = f", {megabytes(max(sizes))} at most" if len(sizes) > 2 else ""
    return [
        name,
        f"{row['requests']:,} in {row['seconds']:,} s{note}",
        f"{kills['target']} of the target's, {kills['draft']} of the draft's" if kills else "",
        str(row["wrong"]),
        f"{megabytes(sizes[0])} after the first {SETTLED:,}, {megabytes(sizes[-1])} at the end ({100 * (sizes[-1] / sizes[0] - 1):+.1f} %){most}",
        f"{end['whole']} of {end['of']}, {end['streams']} of them streams, exit code {end['code']}",
        row["provenance"]["git"]["revision"][:10],
    ]


FIGURES = FiguresPage(
    "soak",
    "docs/measurements/serving.md",
    MARKS,
    text,
    "the code has changed since the server was soaked",
)


def digest() -> str:
    return code_digest(ROOT / "semspec", ROOTS)


def with_row(
    found: Mapping[str, Any] | None, name: str, row: Mapping[str, Any], of: str
) -> dict[str, Any]:
    """Return all figures with those of one kind of server, in the place of its earlier ones."""
    rows = {**found["rows"], name: row} if found is not None else {name: row}
    return {"digest": of, "rows": dict(sorted(rows.items()))}


def main() -> int:
    if {"--help", "-h"} & set(sys.argv[1:]):
        echo(f"{__doc__}\nOptions:\n{described(Options)}")
        return 0
    a, words = parser(__doc__, **FIGURES.options).parse_known_args()
    if (ended := FIGURES.asked(a, digest)) is not None:
        return ended
    given, more = read_known(Options, words, "scripts.soak")
    if given.url and more:
        raise UserError(f"{more[0]}: options of a server are for one that is started here: leave url= out")  # fmt: skip
    # before the run: of this code, and this load
    of, collected = digest(), provenance.collect(given.seed)
    with contextlib.ExitStack() as stack:
        options, servers, started = ["max_new_tokens=150"], list[Any](), None
        if not given.url:
            if given.engine == "sglang":
                servers = stack.enter_context(sglang_servers())
                first, second, draft = (one.url for one in servers)
                urls = f"engine.target_url=[{first},{second}]", f"engine.draft_url={draft}"
                options += ["engine=sglang", *urls, "engine.patience=1", "accept=logprob"]
            else:
                options += ["engine=hf"]
            started = stack.enter_context(server(*options, *more))
        figures, wrong = soak(given.url or started.url, started, given, servers)
    if started is not None and given.requests >= WHOLE:
        row = {**figures, "why": wrong[:20], "options": more, "provenance": collected}
        name = NAMES[given.engine] + (f", `{' '.join(more)}`" if more else "")
        FIGURES.write(with_row(read_json(FIGURES.results), name, row, of))
    echo(json.dumps(figures))
    for why in wrong[:20]:
        echo(why, newline=" ")
    return int(bool(wrong))


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
