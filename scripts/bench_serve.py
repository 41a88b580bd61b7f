"""`make serving`: the server under load, with drafts and without, and what it adds to the same run without a server.

    python scripts/bench_serve.py [--engine hf] [--clients 1 4 16 64] [--turns 3] [--only load] [options of semspec.serve after --]
    .venv-sglang/bin/python scripts/bench_serve.py --engine sglang     the same over two SGLang servers on this machine's CPU
    python scripts/bench_serve.py --check      measure nothing: what is out of date?

Two servers run at once, one of which lets drafts follow the load (adaptive=true). The same questions go to the target
alone (`off`), with drafts, and with drafts that follow the load, in turn, so that what else the machine does meets all
three; while one is asked the other server idles. A ratio is of whole turns, with a bootstrap over them.

Every turn is kept when it is over (runs/serving.json), so that parts of the page can be measured one after the other and what was
measured before a kill is not measured again. Once all parts are there, figures go to results/serving.json and as tables to
docs/measurements/serving.md.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, islice, takewhile
from pathlib import Path
from statistics import median
from typing import Any

from figures_page import FiguresPage, Kept
from script_kit import check_known, markdown, parser, server

from semspec import config
from semspec.errors import UserError
from semspec.protocols import Benchmark, BenchmarkProblem
from semspec.results.code_digest import code_digest
from semspec.results.metrics import quantile, ratio_interval
from semspec.solver import Solver
from semspec.storage import provenance

ROOT = Path(__file__).resolve().parent.parent
MARKS = "<!-- serving: written by make serving -->", "<!-- end of serving -->"
ROOTS = ("Server", "Solver", "Solve", "speculate")
CLIENTS = [1, 4, 16, 64]
EACH = 2  # questions of a client in a turn
TURNS = 3  # of every part, at least
PATIENCE = 900.0  # seconds for an answer, and for a server to load and to measure costs
BASE = ("temperature=0", "max_new_tokens=512", "queue=256", f"concurrency={max(CLIENTS)}")
ENGINES = {"hf": "engine=hf", "sglang": "SGLang servers, accept=logprob"}
OVERHEAD = "overhead"
LENGTHS = (
    0,
    700,
)  # of answers by which the server's own time is measured; 0: as the model ends them
ARMS: dict[str, tuple[str, Mapping[str, Any]]] = {  # the server and what a request says
    "target alone": ("fixed", {"off": True}),
    "drafts": ("fixed", {}),
    "drafts that follow the load": ("adaptive", {}),
}
SERVERS = {"fixed": (), "adaptive": ("adaptive=true",)}
OVERHEAD_HEADINGS = (
    "answers",
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

    def ask(self, problem: BenchmarkProblem, semspec: Mapping[str, Any], length: int = 0) -> Answer:
        """Ask one question in a stream and read it to its end; ``length``: it goes on to so many tokens."""
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": problem.question}],
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"semspec": semspec} if semspec else {}),
            **({"ignore_eos": True, "max_tokens": length} if length else {}),
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
) -> dict[str, Any]:
    """Let so many clients ask all arms in turn; return each arm's seconds and answers."""
    asked = [problems[at * EACH : (at + 1) * EACH] for at in range(clients)]
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


def load_rows(
    engine: str, clients: int, turns: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return a row for each arm of so many clients."""
    # tokens a second, and not seconds: texts of other drafts are other texts
    speeds = {arm: [one[arm]["tokens"] / one[arm]["seconds"] for one in turns] for arm in ARMS}
    plain, rows = speeds["target alone"], []
    for arm, own in speeds.items():
        firsts = [first for one in turns for first in one[arm]["firsts"]]
        rows.append(
            {
                "engine": engine,
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


def overhead_figures(
    port: int, solver: Solver, problems: Sequence[BenchmarkProblem], turns: int, length: int
) -> dict[str, Any]:
    """Solve the same problems one after the other in this process and through the server, in turn.

    Greedy, so that the texts are the same; each pair of times is of one problem. ``length``: texts go on to so many tokens.
    """
    own_solver = solver.variant(ignore_eos=True) if length else solver
    client = Client(port)

    def own(problem: BenchmarkProblem) -> int:
        (done,) = own_solver.solve([problem], "speculative", length or None)
        return len(done.outcome.tokens)

    def served(problem: BenchmarkProblem) -> int:
        return client.ask(problem, {}, length).tokens

    with closing(client):
        for warm in (own, served):
            warm(problems[0])
        pairs = []
        for number in range(turns):
            for problem in problems:
                took = {}
                for way in (own, served) if number % 2 else (served, own):  # who is first changes
                    began = time.perf_counter()
                    tokens = way(problem)
                    took[way] = time.perf_counter() - began, tokens
                if took[served][1] != took[own][1]:
                    raise UserError(f"{problem.id}: {took[served][1]} tokens from the server, {took[own][1]} without it")  # fmt: skip
                pairs.append((took[served][0], took[own][0]))
    return {
        "problems": len(problems),
        "turns": turns,
        "length": length,
        "ratio": sum(s for s, _ in pairs) / sum(o for _, o in pairs),
        "ratio_interval": ratio_interval(pairs),
        "seconds": median(own for _, own in pairs),
        "milliseconds": 1000 * median(s - o for s, o in pairs),
    }


def text(found: Mapping[str, Any]) -> str:
    """Return what stands between the page's marks."""
    machine = found["provenance"]["machine"]
    lines = []
    if over := found.get(OVERHEAD):
        lines += ["**What the server adds** to the same run without a server, one answer at a time:", ""]  # fmt: skip
        lines += [*markdown(OVERHEAD_HEADINGS, [_over_cells(one) for one in over]), ""]
    lines += [f"Machine: {machine['cpu']}, {machine['cores']} cores. {EACH} questions of each client in a turn; {_turns(found['load'])}.", ""]  # fmt: skip
    for engine, title in ENGINES.items():
        if rows := [row for row in found["load"] if row["engine"] == engine]:
            lines += [f"**{title}**", "", *markdown(HEADINGS, [_cells(row) for row in rows]), ""]
    if found["lacking"]:
        lines += [f"Not measured: {'; '.join(found['lacking'])}."]
    return "\n".join(lines).rstrip("\n")


def _turns(rows: Sequence[Mapping[str, Any]]) -> str:
    counts = {row["turns"] for row in rows}
    if len(counts) < 2:
        return f"{max(counts, default=0)} turns"
    return f"{min(counts)} to {max(counts)} turns"


def _over_cells(over: Mapping[str, Any]) -> list[str]:
    ends = (100 * (end - 1) for end in over["ratio_interval"])
    return [
        f"of {over['length']} tokens" if over["length"] else "as the model ends them",
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
def pair_of(engine: str) -> Iterator[list[str]]:
    """Start what an engine stands on; yield the options that name it."""
    if engine == "hf":
        yield ["engine=hf"]
        return
    from sglang_pair import mortal

    # room for as many as ask, so that nobody waits within SGLang
    room = {"max_running_requests": max(CLIENTS), "max_total_tokens": max(CLIENTS) * 1024}
    roles = ("target", "draft")
    servers = {role: mortal(role, **room) for role in roles}
    try:
        for one in servers.values():
            one.start()
        yield ["engine=sglang", "accept=logprob", *(f"engine.{role}_url={servers[role].url}" for role in roles)]  # fmt: skip
    finally:
        for one in servers.values():
            if one.process is not None:
                one.interrupt()


def measure(a: argparse.Namespace, engine: str, options: Sequence[str], kept: Kept) -> None:
    """Measure what was asked for over one engine, as far as it is not there yet."""
    missing = {
        clients: [n for n in range(a.turns) if not kept.has(part_of(engine, clients, n))]
        for clients in a.clients
        if "load" in a.only
    }
    overhead = OVERHEAD in a.only and engine == "hf" and not kept.has(OVERHEAD)
    if not overhead and not any(missing.values()):
        return
    with ExitStack() as stack:
        common = [*BASE, *stack.enter_context(pair_of(engine)), *options]
        config.register_configs()
        # fixed drafts, as the server has them unless told otherwise
        own = [o for o in common if not o.startswith("queue=")]
        made = config.build(config.compose(["adaptive=false", *own, "quiet=true"]))
        most = max(a.problems, max(a.clients) * EACH)
        problems = list(islice(made.benchmark.problems(), most))
        ports = {
            name: stack.enter_context(server(*common, *more)).port for name, more in SERVERS.items()
        }
        if overhead:
            with Solver(made) as solver:
                asked = ports["fixed"], solver, problems[: a.problems], a.turns
                kept.part(OVERHEAD, lambda: [overhead_figures(*asked, n) for n in LENGTHS])
        for clients, turns in missing.items():
            for number in turns:
                kept.part(
                    part_of(engine, clients, number),
                    partial(load_turn, ports, made.benchmark, problems, clients),
                )


def part_of(engine: str, clients: int, number: int) -> str:
    return f"{engine}, {clients} clients, turn {number + 1}"


def gathered(kept: Kept) -> dict[str, Any]:
    """Return the figures of all that was measured, and which parts are missing."""
    lacking, load = [] if kept.has(OVERHEAD) else [OVERHEAD], []
    for engine in ENGINES:
        for clients in CLIENTS:
            names = (part_of(engine, clients, n) for n in count())
            turns = [kept.part(name, dict) for name in takewhile(kept.has, names)]
            if len(turns) < TURNS:
                lacking.append(f"{engine}, {clients} clients: {len(turns)} of {TURNS} turns")
            if turns:
                load += load_rows(engine, clients, turns)
    over = {OVERHEAD: kept.part(OVERHEAD, dict)} if kept.has(OVERHEAD) else {}
    return {**over, "load": load, "lacking": lacking}


def main() -> int:
    """Measure and write the page, or say what is out of date."""
    own, options = sys.argv[1:], list[str]()
    if "--" in own:
        at = own.index("--")
        own, options = own[:at], own[at + 1 :]
    a = parser(
        __doc__,
        engine=(["hf"], "engines: hf, sglang"),
        clients=(CLIENTS, "at a time"),
        turns=(TURNS, "of every arm"),
        only=([OVERHEAD, "load"], "what is measured"),
        problems=(12, "questions by which the server's own time is measured"),
        partly=(False, "write the page although parts are missing; it says which"),
        **FIGURES.options,
    ).parse_args(own)
    if (ended := FIGURES.asked(a, digest)) is not None:
        return ended
    check_known(a.engine, ENGINES)
    found: dict[str, Any] = {
        "digest": digest(),
        "provenance": provenance.collect(),
        "options": options,
    }
    of = {"digest": found["digest"], "machine": found["provenance"]["machine"]["cpu"]}
    kept = Kept(ROOT / "runs/serving.json", {**of, "options": options})
    for engine in a.engine:
        measure(a, engine, options, kept)
    found |= gathered(kept)
    FIGURES.keep(found, not options and (a.partly or not found["lacking"]))
    if not found["lacking"]:
        kept.over()
    return 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
