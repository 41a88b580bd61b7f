"""Keep a live server busy with all that clients do, right and wrong, and look for what is lost, hangs or grows.

    python scripts/soak.py requests=10000 workers=12
    .venv-sglang/bin/python scripts/soak.py engine=sglang requests=1000 settled=300
    python scripts/soak.py url=http://127.0.0.1:8000 requests=2000

Without ``url=`` it starts the embedded pair. With ``engine=sglang`` that stands on two SGLang servers of the target and one of the draft, and one of
the three is killed every few seconds and started again; a replica of the target is always left.

Every answer must be JSON of the right form, every stream must end, no request may hang, and after all of them nothing may be under way. Some questions
are asked greedily over and over: their texts may not change. Of a server that was started here, the log must have one line for each request, and
its memory may not grow by more than a tenth after the first thousand. In the end it gets SIGTERM while answers are being written: all of them must come
whole, and it must end by itself. Ends with a line of figures, and 1 if something was wrong.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from script_kit import Started, server

from semspec.errors import UserError
from semspec.jobs.options import option, read
from semspec.storage.screen import echo

if TYPE_CHECKING:
    from tests.support.sglang_servers import Mortal

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
PATIENCE = 300.0  # seconds for one answer
GROWTH = 1.1  # of memory, at most
SHARE = 10  # parts in which the requests are asked, with a line after each
KNOWN = [
    f"Modulo 100, let x={x}, k is x - 2, m is {y} * k, and z is m + x. Find z."
    for x, y in ((76, 3), (41, 7), (8, 9), (55, 4))
]
NAMED = "soak-"  # how the requests' numbers begin
AT_MOST_ONCE = "left", "half"  # in the log: kinds whose client goes
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
    settled: int = option(1_000, "requests after which memory may not grow any more", least=1)
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

    def __init__(self, address: tuple[str, int], tally: Tally, known: Sequence[str]) -> None:
        """``known``: what is said to each of ``KNOWN``."""
        self.address, self.tally, self.known = address, tally, known
        self.headers = threading.local()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.address, timeout=PATIENCE)

    def ask(self, number: int, seed: int) -> None:
        rng = random.Random(f"{seed} {number}")
        kinds = [
            self.whole,
            self.stream,
            self.leave,
            self.slow,
            self.odd,
            self.large,
            self.half,
            self.again,
        ]
        kind = rng.choices(kinds, weights=(38, 23, 12, 5, 10, 4, 4, 4))[0]
        self.headers.told = {"content-type": "application/json", "x-request-id": f"{NAMED}{number}"}
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
            connection.request("POST", CHAT, json.dumps(asked), self.headers.told)
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
        own = (f"{name}: {value}" for name, value in self.headers.told.items())
        lines = f"POST {CHAT} HTTP/1.1", "host: localhost", *own
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


def soak(url: str, started: Started | None, given: Options, servers: Sequence[Mortal] = ()) -> int:
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    address = (host, int(port))
    tally, client = Tally(), Client(address, Tally(), [])
    client.tally = tally
    client.headers.told = {"content-type": "application/json"}
    known = [client.post(json.dumps(asked_before(at)).encode()) for at in range(len(KNOWN))]
    client.known = [said(told) for _, told in known]
    began, settled = time.perf_counter(), 0
    pid = started.process.pid if started else None
    ends = sorted({given.settled, given.requests, *range(0, given.requests, -(-given.requests // SHARE))})  # fmt: skip
    ends = [end for end in ends if 0 < end <= given.requests]
    killer = Killer(servers, given.kill_every, given.seed) if servers else None
    with ThreadPoolExecutor(given.workers) as pool, killer or contextlib.nullcontext():
        for first, end in zip([0, *ends], ends, strict=False):
            list(pool.map(lambda number: client.ask(number, given.seed), range(first, end)))
            if pid is not None and end == given.settled:
                settled = resident(pid)
            seconds = time.perf_counter() - began
            kills = f", {killer.kills.total()} kills" if killer else ""
            echo(f"{end} requests in {seconds:.0f} s{kills}, {len(tally.wrong)} wrong", flush=True)
    if killer and killer.error is not None:
        raise UserError(f"a server was not started again: {killer.error}") from killer.error
    for _ in range(200):
        if not (left := under_way(address)):
            break
        time.sleep(0.1)
    if left:
        tally.fail(f"{left:g} choices are still under way")
    figures: dict[str, Any] = {"seconds": round(time.perf_counter() - began)}
    if killer:
        figures["kills"] = {"target": killer.kills[0] + killer.kills[1], "draft": killer.kills[2]}
    if pid is not None and settled:
        figures["memory"] = [settled, resident(pid)]
        if figures["memory"][1] > settled * GROWTH:
            tally.fail(f"memory has grown from {settled:,} to {figures['memory'][1]:,} bytes")
    asked = sum(tally.outcomes.values())
    if started is not None:
        figures["ended_under_load"] = end_under_load(client, started, given)
        check_log(started.log, tally)
    figures |= {"outcomes": dict(sorted(tally.outcomes.items())), "wrong": len(tally.wrong)}
    echo(json.dumps(figures))
    for why in tally.wrong[:20]:
        echo(why, newline=" ")
    return int(bool(tally.wrong) or asked != given.requests)


def end_under_load(client: Client, started: Started, given: Options) -> int:
    """Send SIGTERM while every worker waits for an answer; return how many came whole, which must be all."""
    tally, numbers = client.tally, range(given.requests, given.requests + given.workers)

    def ask(number: int) -> int:
        client.headers.told = {"content-type": "application/json"}
        asked = {**asked_before(number % len(KNOWN)), "ignore_eos": True, "max_tokens": 150}
        status, told = client.post(json.dumps(asked).encode())
        whole = status == 200 and json.loads(told)["usage"]["completion_tokens"] == 150
        if not whole:
            tally.fail(f"an answer that was under way at the end: {status} {told[:200]!r}")
        return whole

    with ThreadPoolExecutor(given.workers) as pool:
        waits = [pool.submit(ask, number) for number in numbers]
        until = time.monotonic() + PATIENCE
        while under_way(client.address) < given.workers and time.monotonic() < until:
            time.sleep(0.005)
        started.process.send_signal(signal.SIGTERM)
        whole = sum(wait.result() for wait in waits)
    code = started.process.wait(PATIENCE)
    if code:
        tally.fail(f"the server ended with {code}")
    return whole


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


def main() -> int:
    given = read(Options, sys.argv[1:], "scripts.soak")
    if given.url:
        return soak(given.url, None, given)
    with contextlib.ExitStack() as stack:
        options, servers = ["max_new_tokens=150"], list[Any]()
        if given.engine == "sglang":
            servers = stack.enter_context(sglang_servers())
            first, second, draft = (one.url for one in servers)
            urls = f"engine.target_url=[{first},{second}]", f"engine.draft_url={draft}"
            options += ["engine=sglang", *urls, "engine.patience=1", "accept=logprob"]
        started = stack.enter_context(server(*options))
        return soak(started.url, started, given, servers)


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
