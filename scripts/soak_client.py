"""The client of `make soak`: it sends requests of many kinds, and checks every reply."""

from __future__ import annotations

import collections
import contextlib
import http.client
import json
import random
import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from soak_requests import (
    ABILITIES,
    CHAT,
    COMPLETION,
    DRAFTED,
    HEADERS,
    KNOWN,
    LOOKS,
    ODD,
    REFUSED,
    REFUSED_HEADERS,
    REFUSED_PROMPTS,
    ROOMY,
    SCHEMA,
    TURN,
    asked_before,
    chat,
    choices_of,
    completion,
    most_tokens,
    said,
    streaming,
)

from semspec.errors import UserError
from semspec.storage.screen import echo

PATIENCE = 300.0  # seconds for one answer
NAMED = "soak-"  # how the requests' numbers begin
SHOWN = 20  # complaints that are shown as they come


@dataclass
class Tally:
    """How the requests ended, and what was wrong."""

    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=dict)  # by the request's number

    def add(self, outcome: str) -> None:
        self.outcomes[outcome] += 1

    def fail(self, why: str) -> None:
        """Count a complaint; the first ones are shown at once."""
        self.wrong.append(why[:500])
        if len(self.wrong) <= SHOWN:
            echo(f"wrong: {why[:500]}", newline=" ", flush=True)


class Client:
    """Sends requests of random kinds; all workers share one."""

    def __init__(self, address: tuple[str, int], tally: Tally) -> None:
        self.address, self.tally = address, tally
        self.known: Sequence[str] = []  # the answer to each question of ``KNOWN``
        self.able: Mapping[str, bool] = {}  # whether the server has each of ``ABILITIES``
        self.headers = threading.local()  # ``told``: those of the thread's next request

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.address, timeout=PATIENCE)

    def learn(self) -> None:
        """Find out what the server supports, and how it answers the known questions."""
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
        """Check an error reply: its status must be expected, or 429, and it must name the right field."""
        found = json.loads(told)["error"]
        blamed = str(found["param"] or "").startswith(param)
        if (status != 429 and (status not in expected or not blamed)) or not found["message"]:
            self.tally.fail(f"{status}, expected {expected} for {param}: {found}")
        self.tally.add(str(status))

    def chat(self, rng: random.Random) -> dict[str, Any]:
        """Return a valid chat; some of them have semspec's own settings in the header."""
        asked = chat(rng, self.able)
        if "semspec" not in asked and rng.random() < 0.15:
            fits = [one for one in HEADERS if "thinking" not in one or asked["max_tokens"] > ROOMY]
            fits = [one for one in fits if one != "off" or not set(DRAFTED) & set(asked)]
            self.headers.told["x-semspec"] = rng.choice(fits)
        return asked

    def whole(self, rng: random.Random) -> None:
        self.answered(self.chat(rng), CHAT, "whole")

    def answered(self, asked: Mapping[str, Any], path: str, outcome: str) -> None:
        """Request an answer that is not streamed, and check it."""
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
        # asked for, they come also while the draft's server is away: then all of them are 0
        if ("sglext" in found) != asked.get("return_spec_tokens_details", False):
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
        """Request a stream, read it to its end, and check it; return its events, or [] if the request was refused."""
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
        """Request the continuation of a text or of ids."""
        asked = completion(rng)
        if rng.random() < 0.5:
            self.answered(asked, COMPLETION, "text")
        else:
            self.streamed({**asked, **streaming(rng)}, COMPLETION, "text")

    def again(self, rng: random.Random) -> None:
        """Repeat a known question, and expect the same text."""
        at = rng.randrange(len(KNOWN))
        status, told = self.post(json.dumps(asked_before(at)).encode())
        if status != 200:
            self.error(status, told, ())
            return
        if (found := said(told)) != self.known[at]:
            self.tally.fail(f"another text than before: {found}")
        self.tally.add("again")

    def look(self, rng: random.Random) -> None:
        """Fetch the page, the counters, or a path that does not exist."""
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
        """Disconnect in the middle of an answer."""
        asked = {**self.chat(rng), **(streaming(rng) if rng.random() < 0.5 else {})}
        body = json.dumps(asked).encode()
        with socket.create_connection(self.address, timeout=PATIENCE) as connection:
            connection.sendall(self.head(len(body)) + body)
            time.sleep(rng.random() * 0.3)
        self.tally.add("left")

    def half(self, rng: random.Random) -> None:
        """Disconnect in the middle of a request."""
        with socket.create_connection(self.address, timeout=PATIENCE) as connection:
            connection.sendall(self.head(5000) + b'{"messages"')
            time.sleep(rng.random() * 0.05)
        self.tally.add("half")

    def head(self, length: int) -> bytes:
        own = (f"{name}: {value}" for name, value in self.headers.told.items())
        lines = f"POST {CHAT} HTTP/1.1", "host: localhost", *own
        return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()

    def odd(self, rng: random.Random) -> None:
        """Send what the server must refuse, and expect an error that says why."""
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
        elif which == "able" and missing:  # a field that this server does not support
            fields = ABILITIES[rng.choice(missing)]
            self.error(*self.post(json.dumps({**turns, **fields}).encode()), (400,), next(iter(fields)))  # fmt: skip
        else:
            fields, param = rng.choice(REFUSED)
            self.error(*self.post(json.dumps({**turns, **fields}).encode()), (400,), param)

    def large(self, rng: random.Random) -> None:
        status, told = self.post(b" " * ((1 << 20) + rng.randrange(1, 99)))
        self.error(status, told, (413,))


def under_way(address: tuple[str, int]) -> float:
    """Return how many choices the server is writing or has queued."""
    with contextlib.closing(http.client.HTTPConnection(*address, timeout=PATIENCE)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    return sum(
        float(n) for n in re.findall(r"^semspec:(?:running|waiting)\{.*\} (\S+)$", text, re.M)
    )
