"""`make serving`: the server under load, with drafts and without, and what it adds to the same run without a server.

    python scripts/bench_serve.py [--table hf tokens wrong] [--clients 1 4 16 64] [--turns 3] [--only load] [options of semspec.serve after --]
    .venv-sglang/bin/python scripts/bench_serve.py --table sglang     the same over two SGLang servers on this machine's CPU
    python scripts/bench_serve.py --check      measure nothing: what is out of date?

Two servers run at once, one of which lets drafts follow the load (adaptive=true). The same questions go to the target
alone (`off`), with drafts, and with drafts that follow the load, in turn, so that what else the machine does meets all
three; while one is asked the other server idles. A ratio is of whole turns, with a bootstrap over them.

What the server adds is taken at the socket: from the request's first byte to the answer's last one, over a connection that is kept,
without what a client does to write its JSON and to read it. That server keeps no conversations (keep=0), since a run keeps none.

Every turn is kept when it is over (runs/serving.json), so that parts of the page can be measured one after the other and what was
measured before a kill is not measured again. Once all parts are there, figures go to results/serving.json and as tables to
docs/measurements/serving.md.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, islice, takewhile
from pathlib import Path
from statistics import median
from typing import Any

from figures_page import FiguresPage, Kept
from make_variants import noisy, write
from safetensors.torch import load_file
from script_kit import HUB, check_known, markdown, parser, server

from semspec import config
from semspec.errors import UserError
from semspec.loading.settled import settle
from semspec.protocols import Benchmark, BenchmarkProblem
from semspec.results.code_digest import code_digest
from semspec.results.metrics import quantile, ratio_interval
from semspec.solver import Solver
from semspec.storage import provenance
from semspec.storage.files import read_json

ROOT = Path(__file__).resolve().parent.parent
MARKS = "<!-- serving: written by make serving -->", "<!-- end of serving -->"
ROOTS = ("Server", "Solver", "Solve", "speculate")
CLIENTS = [1, 4, 16, 64]
TURNS = 3  # of every part, at least
PATIENCE = 900.0  # seconds for an answer, and for a server to load and to measure costs
BASE = ("temperature=0", "max_new_tokens=512", "queue=256", f"concurrency={max(CLIENTS)}")
OVERHEAD = "overhead"
LEAST = 8  # questions in a turn: of fewer, one slow answer decides
NOISE = 3.0  # of a draft that is hardly ever right, as a share of its weights' own spread


@dataclass(frozen=True)
class Table:
    """A table of the page: one setup under several loads."""

    title: str
    clients: Sequence[int]
    options: Sequence[str] = ()
    each: int = 2  # questions of a client in a turn, where that makes enough of them

    def asked(self, clients: int) -> int:
        """Return how many questions each of so many clients asks in a turn."""
        return max(self.each, -(-LEAST // clients))


TOKENS = ("accept=lossless", "split=token", "draft_length=5")
TABLES = {
    "hf": Table("engine=hf", CLIENTS),
    "sglang": Table("SGLang servers, accept=logprob", CLIENTS, ["accept=logprob"]),
    "tokens": Table(f"engine=hf, {' '.join(TOKENS)}", CLIENTS, TOKENS, 1),
    "wrong": Table(
        "engine=hf, the same with a draft that is hardly ever right", CLIENTS, TOKENS, 1
    ),
    "wrong-sglang": Table(
        "SGLang servers, accept=logprob, with a draft that is hardly ever right",
        CLIENTS[:3],
        ["accept=logprob"],
        1,
    ),
}


@dataclass(frozen=True)
class Length:
    """Answers by which the server's own time is measured."""

    tokens: int  # 0: as the model ends them
    problems: int
    turns: int

    @property
    def part(self) -> str:
        return f"{OVERHEAD}, {self.tokens} tokens"


LENGTHS = (Length(0, 12, 12), Length(700, 12, 2), Length(1900, 4, 2))
KINDS = {"stream": "as a stream", "whole": "whole"}
ARMS: dict[str, tuple[str, Mapping[str, Any]]] = {  # the server and what a request says
    "target alone": ("fixed", {"off": True}),
    "drafts": ("fixed", {}),
    "drafts that follow the load": ("adaptive", {}),
}
SERVERS = {"fixed": ("adaptive=false",), "adaptive": ()}
OVERHEAD_HEADINGS = (
    "answers",
    "sent",
    "questions",
    "ms without a server, median",
    "ms added, median",
    "added in all [95 %]",
)
HEADINGS = (
    "clients",
    "",
    "tokens/s",
    "over the target alone [95 %]",
    "first token, median (90th) s",
    "right",
)


@dataclass(frozen=True)
class Answer:
    """One answer and when it came."""

    tokens: int
    first: float  # seconds to the first piece of text
    text: str


class Client:
    """One client, who keeps its connection as OpenAI's own does."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def ask(self, problem: BenchmarkProblem, semspec: Mapping[str, Any]) -> Answer:
        """Ask one question in a stream and read it to its end."""
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
                raise UserError(f"the server broke off: {json.dumps(event)[:300]}")
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


def load_turn(
    ports: Mapping[str, int],
    benchmark: Benchmark,
    problems: Sequence[BenchmarkProblem],
    clients: int,
    each: int,
) -> dict[str, Any]:
    """Let so many clients ask all arms in turn; return each arm's seconds and answers."""
    asked = [problems[at * each : (at + 1) * each] for at in range(clients)]
    order = [problem for own in asked for problem in own]
    found = {}
    for arm, (name, semspec) in ARMS.items():
        took, got = turn(ports[name], asked, semspec)
        right = sum(benchmark.grade(p, a.text).correct for p, a in zip(order, got, strict=True))
        tokens = sum(answer.tokens for answer in got)
        firsts = [answer.first for answer in got]
        found[arm] = {"seconds": took, "tokens": tokens, "firsts": firsts, "right": right}
        print(f"{clients:3d} clients: {arm}: {tokens / took:.0f} tokens/s", flush=True)
    return found


def load_rows(table: str, clients: int, turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each arm of so many clients."""
    # tokens a second, and not seconds: texts of other drafts are other texts
    speeds = {arm: [one[arm]["tokens"] / one[arm]["seconds"] for one in turns] for arm in ARMS}
    plain, rows = speeds["target alone"], []
    for arm, own in speeds.items():
        firsts = [first for one in turns for first in one[arm]["firsts"]]
        rows.append(
            {
                "table": table,
                "clients": clients,
                "turns": len(turns),
                "arm": arm,
                "tokens_per_second": median(own),
                "ratio": median(a / b for a, b in zip(own, plain, strict=True)),
                "ratio_interval": ratio_interval(list(zip(own, plain, strict=True))),
                "first": median(firsts),
                "first_p90": quantile(firsts, 0.9),
                "right": sum(one[arm]["right"] for one in turns) / len(firsts),
                "answers": len(firsts),
            }
        )
    return rows


class Wire:
    """A connection on which bytes are sent and received, and nothing else while a clock runs."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, problem: BenchmarkProblem, kind: str, length: int) -> tuple[float, int]:
        """Return the seconds from a question's first byte to its answer's last one, and the answer's tokens."""
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": problem.question}]}
        asked |= {"ignore_eos": True, "max_tokens": length} if length else {}
        if kind == "stream":
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps(asked).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        request, got = head.encode() + body, b""
        began = time.perf_counter()
        self.socket.sendall(request)
        while not _whole(got):
            part = self.socket.recv(1 << 16)
            if not part:
                raise UserError("the server has closed the connection")
            got += part
        seconds = time.perf_counter() - began
        usage = re.search(rb'"completion_tokens":(\d+)', got)
        if usage is None:
            raise UserError(f"the server answered {got[:300].decode()}")
        return seconds, int(usage[1])

    def close(self) -> None:
        self.socket.close()


def _whole(got: bytes) -> bool:
    """Return whether a response is there to its last byte."""
    head, found, body = got.partition(b"\r\n\r\n")
    if not found:
        return False
    size = re.search(rb"(?i)content-length: *(\d+)", head)
    return len(body) >= int(size[1]) if size else body.endswith(b"\r\n0\r\n\r\n")


def overhead_rows(
    port: int, solver: Solver, problems: Sequence[BenchmarkProblem], of: Length
) -> list[dict[str, Any]]:
    """Solve the same problems one after the other in this process and through the server, in turn; return a row for each kind.

    Greedy, so that the texts are the same; each pair of times is of one problem.
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
            ways[kind] = partial(wire.ask, kind=kind, length=of.tokens)
        for way in ways.values():
            way(problems[0])
        order, took = list(ways), {way: list[float]() for way in ways}
        for _ in range(of.turns):
            for problem in problems:
                order = order[1:] + order[:1]  # who is first changes
                found = {name: ways[name](problem) for name in order}
                if len({tokens for _, tokens in found.values()}) > 1:
                    raise UserError(f"{problem.id}: tokens by way of asking: {found}")
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


def text(found: Mapping[str, Any]) -> str:
    """Return what stands between the page's marks."""
    machine = found["provenance"]["machine"]
    lines = []
    if over := found.get(OVERHEAD):
        lines += ["**What the server adds** to the same run without a server, one answer at a time" + _of(found.get("earlier", {}).get(OVERHEAD)) + ":", ""]  # fmt: skip
        lines += [*markdown(OVERHEAD_HEADINGS, [_over_cells(one) for one in over]), ""]
    lines += [f"Machine: {machine['cpu']}, {machine['cores']} cores. {_turns(found['load'])}.", ""]  # fmt: skip
    for name, table in TABLES.items():
        if rows := [row for row in found["load"] if row["table"] == name]:
            lines += [
                f"**{table.title}**; questions of each client in a turn: {_asked(rows)}"
                + _of(found.get("earlier", {}).get(name)),
                "",
                *markdown(HEADINGS, [_cells(row) for row in rows]),
                "",
            ]
    if found["lacking"]:
        lines += [f"Not measured: {'; '.join(found['lacking'])}."]
    return "\n".join(lines).rstrip("\n")


def _of(revision: str | None) -> str:
    """Return what is said of a table that was not measured again."""
    return f" (of revision {revision[:10]})" if revision else ""


def with_earlier(found: dict[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return figures with the tables that were not measured again as they were, and the revisions that those are of."""
    if before is None:
        return found
    measured = {row["table"] for row in found["load"]}
    rows = [row for row in before["load"] if row["table"] not in measured]
    revision = before["provenance"]["git"]["revision"]
    of = {row["table"]: before.get("earlier", {}).get(row["table"], revision) for row in rows}
    load = sorted([*found["load"], *rows], key=lambda row: list(TABLES).index(row["table"]))
    over = found[OVERHEAD]
    if not over and (over := before.get(OVERHEAD)):
        of[OVERHEAD] = before.get("earlier", {}).get(OVERHEAD, revision)
    lacking = [part for part in found["lacking"] if part.partition(",")[0] not in of]
    return {**found, OVERHEAD: over, "load": load, "lacking": lacking, "earlier": of}


def _asked(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many questions each client asked in a turn, by the answers that were counted."""
    asked = {row["answers"] // (row["turns"] * row["clients"]) for row in rows}
    return " to ".join(str(n) for n in sorted({min(asked), max(asked)}))


def _turns(rows: Sequence[Mapping[str, Any]]) -> str:
    counts = {row["turns"] for row in rows}
    if len(counts) < 2:
        return f"{max(counts, default=0)} turns"
    return f"{min(counts)} to {max(counts)} turns"


def _over_cells(over: Mapping[str, Any]) -> list[str]:
    ends = (100 * (end - 1) for end in over["ratio_interval"])
    return [
        f"of {over['length']} tokens" if over["length"] else "as the model ends them",
        KINDS[over["kind"]],
        f"{over['problems']}, {over['turns']} times",
        f"{1000 * over['seconds']:.0f}",
        f"{over['milliseconds']:+.1f}",
        f"{100 * (over['ratio'] - 1):+.1f} % [{', '.join(f'{end:+.1f}' for end in ends)}]",
    ]


def _cells(row: Mapping[str, Any]) -> list[str]:
    ends = row["ratio_interval"]
    spoken = f"{row['ratio']:.2f}x" + (f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "")
    return [
        str(row["clients"]),
        row["arm"],
        f"{row['tokens_per_second']:.0f}",
        "" if row["arm"] == "target alone" else spoken,
        f"{row['first']:.2f} ({row['first_p90']:.2f})",
        f"{row['right']:.2f} of {row['answers']}",
    ]


FIGURES = FiguresPage(
    "serving",
    "docs/measurements/serving.md",
    MARKS,
    text,
    "the code has changed since the server was measured",
)


def digest() -> str:
    return code_digest(ROOT / "semspec", ROOTS)


@contextmanager
def pair_of(name: str) -> Iterator[list[str]]:
    """Start or make what a table's models are; yield the options of its servers."""
    options = list(TABLES[name].options)
    with ExitStack() as stack:
        draft = ""
        if name.startswith("wrong"):
            draft = stack.enter_context(tempfile.TemporaryDirectory())
            write(HUB / "tiny-draft", Path(draft), noisy(load_file(HUB / "tiny-draft" / "model.safetensors"), NOISE, 0))  # fmt: skip
            options += ["draft=lm", f"draft.model.path={draft}"]
        if name.endswith("sglang"):
            options += stack.enter_context(_sglang(draft))
        else:
            options.append("engine=hf")
        yield options


@contextmanager
def _sglang(draft: str) -> Iterator[list[str]]:
    """Start SGLang servers of the pair, or of the target and another draft; yield the options that name them."""
    from sglang_pair import mortal

    # room for as many as ask, so that nobody waits within SGLang
    room = {"max_running_requests": max(CLIENTS), "max_total_tokens": max(CLIENTS) * 1024}
    roles = ("target", "draft")
    models = {"draft": draft}
    servers = {role: mortal(role, models.get(role, ""), **room) for role in roles}
    try:
        for one in servers.values():
            one.start()
        yield ["engine=sglang", *(f"engine.{role}_url={servers[role].url}" for role in roles)]
    finally:
        for one in servers.values():
            if one.process is not None:
                one.interrupt()


def measure(a: argparse.Namespace, name: str, options: Sequence[str], kept: Kept) -> None:
    """Measure what was asked for of one table, as far as it is not there yet."""
    missing = {
        clients: [n for n in range(a.turns) if not kept.has(part_of(name, clients, n))]
        for clients in TABLES[name].clients
        if "load" in a.only and clients in a.clients
    }
    lengths = [of for of in LENGTHS if OVERHEAD in a.only and name == "hf" and not kept.has(of.part)]  # fmt: skip
    if not lengths and not any(missing.values()):
        return
    with ExitStack() as stack:
        common = [*BASE, *stack.enter_context(pair_of(name)), *options]
        config.register_configs()
        # fixed drafts on both sides: what is decided by a clock differs from answer to answer
        own = [o for o in common if not o.startswith("queue=")]
        made = config.build(config.compose(["adaptive=false", *own, "quiet=true"]))
        asked = TABLES[name].asked
        most = max(*(of.problems for of in LENGTHS), *(n * asked(n) for n in a.clients))
        problems = list(islice(made.benchmark.problems(), most))
        if lengths:
            with server(*common, "adaptive=false", "keep=0") as alone, Solver(made) as solver:
                settle()
                for of in lengths:
                    kept.part(of.part, partial(overhead_rows, alone.port, solver, problems, of))
        if not any(missing.values()):
            return
        ports = {
            arm: stack.enter_context(server(*common, *more)).port for arm, more in SERVERS.items()
        }
        for clients, turns in missing.items():
            for number in turns:
                kept.part(
                    part_of(name, clients, number),
                    partial(load_turn, ports, made.benchmark, problems, clients, asked(clients)),
                )


def part_of(table: str, clients: int, number: int) -> str:
    return f"{table}, {clients} clients, turn {number + 1}"


def gathered(kept: Kept) -> dict[str, Any]:
    """Return the figures of all that was measured, and which parts are missing."""
    over: list[dict[str, Any]] = []
    lacking, load = [of.part for of in LENGTHS if not kept.has(of.part)], []
    for of in LENGTHS:
        over += kept.part(of.part, list) if kept.has(of.part) else []
    for name, table in TABLES.items():
        for clients in table.clients:
            names = (part_of(name, clients, n) for n in count())
            turns = [kept.part(one, dict) for one in takewhile(kept.has, names)]
            if len(turns) < TURNS:
                lacking.append(f"{name}, {clients} clients: {len(turns)} of {TURNS} turns")
            if turns:
                load += load_rows(name, clients, turns)
    return {OVERHEAD: over, "load": load, "lacking": lacking}


def main() -> int:
    """Measure and write the page, or say what is out of date."""
    own, options = sys.argv[1:], list[str]()
    if "--" in own:
        at = own.index("--")
        own, options = own[:at], own[at + 1 :]
    a = parser(
        __doc__,
        table=(["hf", "tokens", "wrong"], f"which: {', '.join(TABLES)}"),
        clients=(CLIENTS, "at a time"),
        turns=(TURNS, "of every arm"),
        only=([OVERHEAD, "load"], "what is measured"),
        partly=(
            False,
            "write the page although parts are missing; it says which, and which tables are of earlier",
        ),
        **FIGURES.options,
    ).parse_args(own)
    if (ended := FIGURES.asked(a, digest)) is not None:
        return ended
    check_known(a.table, TABLES)
    found: dict[str, Any] = {
        "digest": digest(),
        "provenance": provenance.collect(),
        "options": options,
    }
    of = {"digest": found["digest"], "machine": found["provenance"]["machine"]["cpu"]}
    kept = Kept(ROOT / "runs/serving.json", {**of, "options": options})
    for name in a.table:
        measure(a, name, options, kept)
    found |= gathered(kept)
    if a.partly:
        found = with_earlier(found, read_json(FIGURES.results))
    FIGURES.keep(found, not options and (a.partly or not found["lacking"]))
    if not found["lacking"]:
        kept.over()
    return 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
