"""The server under load: concurrent clients ask the target alone, with drafts, and with drafts that follow the load."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any

from semspec.errors import UserError
from semspec.protocols import Benchmark, BenchmarkProblem
from semspec.results.metrics import quantile, ratio_interval
from serving.setups import PATIENCE

PLAIN = "target alone"
ARMS: dict[str, tuple[str, Mapping[str, Any]]] = {  # the server and what a request says
    PLAIN: ("fixed", {"off": True}),
    "drafts": ("fixed", {}),
    "drafts that follow the load": ("adaptive", {}),
}
# next to each other: on a machine that slows down meanwhile, a slow arm between the two would decide their ratio
MEASURED = (PLAIN, "drafts that follow the load", "drafts")
DECIDING = MEASURED[:2]  # whether drafts that follow the load are ever slower: worth more turns
SERVERS = {"fixed": ("adaptive=false",), "adaptive": ()}
FLUSHES = 100  # tries to empty a cache of SGLang, 0.1 s apart: it refuses while a request is being given up


@dataclass(frozen=True)
class Answer:
    """One answer and its times."""

    tokens: int
    first: float  # seconds to the first piece of text
    text: str


class Client:
    """One client, which keeps its connection open as OpenAI's does."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def ask(self, problem: BenchmarkProblem, semspec: Mapping[str, Any]) -> Answer:
        """Ask one question as a stream and read it to its end."""
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": problem.question}],
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"semspec": semspec} if semspec else {}),
        }
        began, first, tokens = time.perf_counter(), 0.0, 0
        thought, said = [], []
        kind = {"content-type": "application/json"}
        self.connection.request("POST", "/v1/chat/completions", json.dumps(body), kind)
        got = self.connection.getresponse()
        if got.status != 200:
            raise UserError(f"the server answered {got.status}: {got.read()[:300].decode()}")
        for line in got:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            if "error" in event:
                raise UserError(f"the server ended the stream: {json.dumps(event)[:300]}")
            for choice in event["choices"]:
                delta = choice["delta"]
                if not first and (delta.get("content") or delta.get("reasoning_content")):
                    first = time.perf_counter() - began
                thought.append(delta.get("reasoning_content") or "")
                said.append(delta.get("content") or "")
        return Answer(tokens, first, "".join(thought) + "</think>" + "".join(said))

    def close(self) -> None:
        self.connection.close()


def turn(
    port: int, asked: Sequence[Sequence[BenchmarkProblem]], semspec: Mapping[str, Any]
) -> tuple[float, list[Answer]]:
    """Let every client ask its questions one after the other; return seconds and answers."""

    def client(own: Sequence[BenchmarkProblem]) -> list[Answer]:
        with closing(Client(port)) as asking:
            return [asking.ask(problem, semspec) for problem in own]

    began = time.perf_counter()
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = [answer for own in pool.map(client, asked) for answer in own]
    return time.perf_counter() - began, answers


def flush(url: str) -> None:
    """Empty the cache of one of SGLang's servers."""
    for _ in range(FLUSHES):
        try:
            with urllib.request.urlopen(f"{url}/flush_cache", b"", timeout=PATIENCE):
                return
        except urllib.error.HTTPError:
            time.sleep(0.1)
    raise UserError(f"{url} does not empty its cache: some request is still running there")


def load_turn(
    ports: Mapping[str, int],
    benchmark: Benchmark,
    problems: Sequence[BenchmarkProblem],
    clients: int,
    each: int,
    arms: Sequence[str] = MEASURED,
    swapped: bool = False,
    caches: Sequence[str] = (),
) -> dict[str, Any]:
    """Let this many clients ask the arms in turn; return each arm's seconds and answers.

    ``swapped``: the first two change places. ``caches``: SGLang's servers, whose caches are emptied before each arm. They would
    hold the earlier arms' texts, and SGLang's attention on a CPU slows down by a quarter as its cache fills and scatters.
    """
    arms = [*arms[1::-1], *arms[2:]] if swapped else arms
    asked = [problems[at * each : (at + 1) * each] for at in range(clients)]
    order = [problem for own in asked for problem in own]
    found = {}
    for arm in arms:
        name, semspec = ARMS[arm]
        for url in caches:
            flush(url)
        took, got = turn(ports[name], asked, semspec)
        right = sum(benchmark.grade(p, a.text).correct for p, a in zip(order, got, strict=True))
        tokens = sum(answer.tokens for answer in got)
        firsts = [answer.first for answer in got]
        found[arm] = {"seconds": took, "tokens": tokens, "firsts": firsts, "right": right}
        print(f"{clients:3d} clients: {arm}: {tokens / took:.0f} tokens/s", flush=True)
    return found


def load_rows(table: str, clients: int, turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each arm at this number of clients."""
    rows = []
    for arm in ARMS:
        mine = [one for one in turns if arm in one]
        # tokens per second, not seconds: other drafts give other texts
        pairs = [tuple(one[a]["tokens"] / one[a]["seconds"] for a in (arm, PLAIN)) for one in mine]
        firsts = [first for one in mine for first in one[arm]["firsts"]]
        rows.append(
            {
                "table": table,
                "clients": clients,
                "turns": len(mine),
                "arm": arm,
                "tokens_per_second": median(own for own, _ in pairs),
                "ratio": median(own / plain for own, plain in pairs),
                "ratio_interval": ratio_interval(pairs),
                "first": median(firsts),
                "first_p90": quantile(firsts, 0.9),
                "right": sum(one[arm]["right"] for one in mine) / len(firsts),
                "answers": len(firsts),
            }
        )
    return rows
