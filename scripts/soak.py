"""Keep a live server busy with all that clients do, right and wrong, and look for what is lost, hangs or grows.

    python scripts/soak.py requests=10000 workers=12
    python scripts/soak.py url=http://127.0.0.1:8000 requests=2000

Without ``url=`` it starts the embedded pair. Every answer must be JSON of the right form, every stream must end, no
request may hang, and after all of them nothing may be under way; the memory of a server that it has started may not grow by
more than a tenth after the first thousand. Ends with a line of figures, and 1 if something was wrong.
"""

from __future__ import annotations

import collections
import contextlib
import http.client
import json
import random
import re
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from script_kit import server

from semspec.jobs.options import option, read
from semspec.storage.screen import echo

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
PATIENCE = 300.0  # seconds for one answer
SETTLED = 1_000  # requests after which memory may not grow any more
GROWTH = 1.1
ODD = (
    b"",
    b"{",
    b"null",
    b"[[[[",
    b"\xff\xfe",
    b'{"messages": 3}',
    b'{"messages": [{"role": "user"}]}',
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is asked of which server."""

    # fmt: off
    url: str = option("", "a server that runs; without it one is started")
    requests: int = option(10_000, "how many", least=1)
    workers: int = option(12, "at a time", least=1)
    seed: int = option(0, "of what is asked")
    # fmt: on


@dataclass
class Tally:
    """What has come of the requests."""

    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, outcome: str) -> None:
        self.outcomes[outcome] += 1

    def fail(self, why: str) -> None:
        self.wrong.append(why[:500])


def body(rng: random.Random) -> dict[str, Any]:
    """Return a chat with random parameters, all of which a server takes."""
    x = rng.randrange(100)
    told: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"Modulo 100, let x={x}, k is x - {rng.randrange(9)}. Find k. {'é🙂' * rng.randrange(3)}"}],
        "max_tokens": rng.choice((1, 2, 17, 64, 150)),
    }  # fmt: skip
    choices: dict[str, Any] = {
        "temperature": lambda: rng.choice((0, 0.3, 0.6, 1.0)),
        "top_p": lambda: rng.choice((0.5, 0.95, 1)),
        "top_k": lambda: rng.choice((-1, 0, 5)),
        "seed": lambda: rng.randrange(5),
        "n": lambda: rng.choice((1, 2, 3)),
        "stop": lambda: rng.choice(("is", ["74", "\n"])),
        "logprobs": lambda: True,
        "ignore_eos": lambda: True,
        "semspec": lambda: rng.choice(
            (
                {"off": True},
                {"steps": True},
                {"rule": "logprob", "threshold": -5, "draft_length": 3},
            )
        ),
    }
    for name in rng.sample(list(choices), rng.randrange(4)):
        told[name] = choices[name]()
    if told["max_tokens"] > 60 and rng.random() < 0.2:
        told["thinking_token_budget"] = rng.randrange(30)
    return told


class Client:
    """One worker's requests."""

    def __init__(self, address: tuple[str, int], tally: Tally) -> None:
        self.address, self.tally = address, tally

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.address, timeout=PATIENCE)

    def ask(self, number: int, seed: int) -> None:
        rng = random.Random(f"{seed} {number}")
        kinds = [self.whole, self.stream, self.leave, self.slow, self.odd, self.large, self.half]
        kind = rng.choices(kinds, weights=(40, 25, 12, 5, 10, 4, 4))[0]
        try:
            kind(rng)
        except Exception as error:
            self.tally.fail(f"{kind.__name__} {number}: {type(error).__name__}: {error}")

    def post(self, told: bytes, path: str = CHAT) -> tuple[int, bytes]:
        with contextlib.closing(self.connect()) as connection:
            connection.request("POST", path, told, {"content-type": "application/json"})
            got = connection.getresponse()
            return got.status, got.read()

    def error(self, status: int, told: bytes, expected: tuple[int, ...]) -> None:
        found = json.loads(told)["error"]
        if status not in (*expected, 429) or not found["message"]:
            self.tally.fail(f"{status}: {found}")
        self.tally.add(str(status))

    def whole(self, rng: random.Random) -> None:
        asked = body(rng)
        status, told = self.post(json.dumps(asked).encode())
        if status != 200:
            self.error(status, told, ())
            return
        found = json.loads(told)
        if len(found["choices"]) != asked.get("n", 1):
            self.tally.fail(f"{len(found['choices'])} choices of {asked.get('n', 1)}")
        most = asked["max_tokens"] * asked.get("n", 1)
        if not 0 < found["usage"]["completion_tokens"] <= most:
            self.tally.fail(f"{found['usage']} of {most} tokens")
        self.tally.add("whole")

    def stream(self, rng: random.Random, slowly: bool = False) -> None:
        asked = {**body(rng), "stream": True}
        with contextlib.closing(self.connect()) as connection:
            connection.request(
                "POST", CHAT, json.dumps(asked), {"content-type": "application/json"}
            )
            got = connection.getresponse()
            if got.status != 200:
                self.error(got.status, got.read(), ())
                return
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
        if sorted(ends) != list(range(asked.get("n", 1))):
            self.tally.fail(f"choices ended: {ends} of {asked.get('n', 1)}")
        self.tally.add("slow" if slowly else "stream")

    def slow(self, rng: random.Random) -> None:
        self.stream(rng, slowly=True)

    def leave(self, rng: random.Random) -> None:
        """Go away in the middle of an answer."""
        asked = json.dumps({**body(rng), "stream": rng.random() < 0.5}).encode()
        with socket.create_connection(self.address, timeout=PATIENCE) as connection:
            connection.sendall(self.head(len(asked)) + asked)
            time.sleep(rng.random() * 0.3)
        self.tally.add("left")

    def half(self, rng: random.Random) -> None:
        """Go away in the middle of a request."""
        with socket.create_connection(self.address, timeout=PATIENCE) as connection:
            connection.sendall(self.head(5000) + b'{"messages"')
            time.sleep(rng.random() * 0.05)
        self.tally.add("half")

    def head(self, length: int) -> bytes:
        lines = f"POST {CHAT} HTTP/1.1", "host: localhost", "content-type: application/json"
        return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()

    def odd(self, rng: random.Random) -> None:
        if rng.random() < 0.5:
            status, told = self.post(rng.choice(ODD), rng.choice((CHAT, COMPLETION)))
        else:
            name, value = rng.choice((("temperature", -1), ("n", 0), ("tools", [1]), ("top_p", "x"), ("nonsense", 1), ("max_tokens", 10**9)))  # fmt: skip
            status, told = self.post(json.dumps({**body(rng), name: value}).encode())
        self.error(status, told, (400,))

    def large(self, rng: random.Random) -> None:
        status, told = self.post(b" " * ((1 << 20) + rng.randrange(1, 99)))
        self.error(status, told, (413,))


def resident(pid: int) -> int:
    """Return the bytes of memory that a process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024


def under_way(address: tuple[str, int]) -> float:
    with contextlib.closing(http.client.HTTPConnection(*address, timeout=PATIENCE)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    return sum(
        float(n) for n in re.findall(r"^semspec:(?:running|waiting)\{.*\} (\S+)$", text, re.M)
    )


def soak(url: str, pid: int | None, given: Options) -> int:
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    address = (host, int(port))
    tally, client = Tally(), Client(address, Tally())
    client.tally = tally
    began, settled = time.perf_counter(), 0
    with ThreadPoolExecutor(given.workers) as pool:
        for first in range(0, given.requests, SETTLED):
            numbers = range(first, min(first + SETTLED, given.requests))
            list(pool.map(lambda number: client.ask(number, given.seed), numbers))
            if pid is not None and not settled:
                settled = resident(pid)
            seconds = time.perf_counter() - began
            echo(
                f"{numbers.stop} requests in {seconds:.0f} s, {len(tally.wrong)} wrong", flush=True
            )
    for _ in range(200):
        if not (left := under_way(address)):
            break
        time.sleep(0.1)
    if left:
        tally.fail(f"{left:g} choices are still under way")
    if pid is not None and resident(pid) > settled * GROWTH:
        tally.fail(f"memory has grown from {settled:,} to {resident(pid):,} bytes")
    echo(json.dumps({"outcomes": dict(sorted(tally.outcomes.items())), "wrong": len(tally.wrong)}))
    for why in tally.wrong[:20]:
        echo(why, newline=" ")
    return int(bool(tally.wrong) or sum(tally.outcomes.values()) != given.requests)


def main() -> int:
    given = read(Options, sys.argv[1:], "scripts.soak")
    if given.url:
        return soak(given.url, None, given)
    with server("max_new_tokens=150") as started:
        return soak(started.url, started.pid, given)


if __name__ == "__main__":
    sys.exit(main())
