"""The server's overhead over the same run without a server, measured at the socket."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from semspec.errors import UserError
from semspec.protocols import BenchmarkProblem
from semspec.results.metrics import ratio_interval
from semspec.solver import Solver
from serving.setups import PATIENCE

OVERHEAD = "overhead"
KINDS = {"stream": "streamed", "whole": "whole"}
LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass(frozen=True)
class Length:
    """A length of answers for which the server's own time is measured."""

    tokens: int  # 0: until the model ends them
    problems: int
    turns: int

    @property
    def part(self) -> str:
        return f"{OVERHEAD}, {self.tokens} tokens"


IDLE = 15.0  # seconds after which the server may soon close a connection
LENGTHS = (Length(0, 12, 12), Length(700, 12, 2), Length(1900, 4, 2))


class Wire:
    """A connection that only sends and receives bytes while the clock runs; a new one after a long pause."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connect()

    def _connect(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.used = time.monotonic()

    def ask(self, problem: BenchmarkProblem, kind: str, tokens: int) -> tuple[float, int]:
        """Return the seconds from a question's first byte to its answer's last, and the answer's tokens."""
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": problem.question}]}
        asked |= {"ignore_eos": True, "max_tokens": tokens} if tokens else {}
        if kind == "stream":
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps(asked).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        request, got, whole = head.encode() + body, bytearray(), None
        if time.monotonic() - self.used > IDLE:
            self.close()
            self._connect()
        began = time.perf_counter()
        self.socket.sendall(request)
        while whole is None or not whole(got):
            part = self.socket.recv(1 << 16)
            if not part:
                raise UserError("the server has closed the connection")
            got += part
            whole = whole or _end_of(got)
        seconds, self.used = time.perf_counter() - began, time.monotonic()
        usage = re.search(rb'"completion_tokens":(\d+)', got)
        if usage is None:
            raise UserError(f"the server answered {got[:300].decode()}")
        return seconds, int(usage[1])

    def close(self) -> None:
        self.socket.close()


def _end_of(got: bytearray) -> Callable[[bytearray], bool] | None:
    """Return the check whether a response is complete, which its head tells; None before the head is there."""
    end = got.find(b"\r\n\r\n")
    if end < 0:
        return None
    size = re.search(rb"(?i)content-length: *(\d+)", got[:end])
    if size is None:
        return lambda got: got.endswith(LAST_CHUNK)
    length = end + 4 + int(size[1])
    return lambda got: len(got) >= length


def overhead_rows(
    port: int, solver: Solver, problems: Sequence[BenchmarkProblem], of: Length
) -> list[dict[str, Any]]:
    """Solve the same problems in this process and through the server, in turn; return a row for each kind.

    Greedy, so that the texts are the same; each pair of times belongs to one problem.
    """
    own_solver, problems = (
        solver.variant(ignore_eos=True) if of.tokens else solver,
        problems[: of.problems],
    )

    def own(problem: BenchmarkProblem) -> tuple[float, int]:
        began = time.perf_counter()
        (done,) = own_solver.solve([problem], "speculative", of.tokens or None)
        return time.perf_counter() - began, len(done.outcome.tokens)

    with closing(Wire(port)) as wire:
        ways: dict[str, Callable[[BenchmarkProblem], tuple[float, int]]] = {"own": own}
        for kind in KINDS:
            ways[kind] = partial(wire.ask, kind=kind, tokens=of.tokens)
        for way in ways.values():
            way(problems[0])
        order, took = list(ways), {way: list[float]() for way in ways}
        for _ in range(of.turns):
            for problem in problems:
                order = order[1:] + order[:1]  # the two take turns in going first
                found = {name: ways[name](problem) for name in order}
                if len({tokens for _, tokens in found.values()}) > 1:
                    raise UserError(
                        f"{problem.id}: answers differ in length (seconds, tokens): {found}"
                    )
                for name, (seconds, _) in found.items():
                    took[name].append(seconds)
    rows = []
    for kind in KINDS:
        pairs = list(zip(took[kind], took["own"], strict=True))
        rows.append(
            {
                "problems": len(problems),
                "turns": of.turns,
                "length": of.tokens,
                "kind": kind,
                "ratio": sum(s for s, _ in pairs) / sum(o for _, o in pairs),
                "ratio_interval": ratio_interval(pairs),
                "seconds": median(own for _, own in pairs),
                "milliseconds": 1000 * median(s - o for s, o in pairs),
            }
        )
    return rows
