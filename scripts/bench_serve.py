"""`make serving`: the server under load, with drafts and without, and what it adds to the same run without a server.

    python scripts/bench_serve.py [--clients 1 4 16 64] [--turns 5] [--only load] [options of semspec.serve after --]
    python scripts/bench_serve.py --check      measure nothing: what is out of date?

Two servers run at once, one of which lets drafts follow the load (adaptive=true). The same questions go to the target
alone (`off`), with drafts, and with drafts that follow the load, in turn, so that what else the machine does meets all
three; while one is asked the other server idles. A ratio is of whole turns, with a bootstrap over them. Figures
go to results/serving.json and as tables to docs/measurements/serving.md. What was measured before a kill is kept.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from figures_page import FiguresPage, Kept
from script_kit import markdown, parser, server

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
PATIENCE = 900.0  # seconds for an answer, and for a server to load and to measure costs
BASE = ("temperature=0", "max_new_tokens=512", "queue=256", f"concurrency={max(CLIENTS)}")
ARMS: dict[str, tuple[str, Mapping[str, Any]]] = {  # the server and what a request says
    "target alone": ("fixed", {"off": True}),
    "drafts": ("fixed", {}),
    "drafts that follow the load": ("adaptive", {}),
}
SERVERS = {"fixed": (), "adaptive": ("adaptive=true",)}
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


def ask(port: int, problem: BenchmarkProblem, semspec: Mapping[str, Any]) -> Answer:
    """Ask one question in a stream and read it to its end."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": problem.question}],
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"semspec": semspec} if semspec else {}),
    }
    began, first, tokens = time.perf_counter(), 0.0, 0
    thought, said = [], []
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})  # fmt: skip
        got = connection.getresponse()
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


def turn(
    port: int, asked: Sequence[Sequence[BenchmarkProblem]], semspec: Mapping[str, Any]
) -> tuple[float, list[Answer]]:
    """Let every client ask its questions one after the other; return seconds and answers."""

    def client(own: Sequence[BenchmarkProblem]) -> list[Answer]:
        return [ask(port, problem, semspec) for problem in own]

    began = time.perf_counter()
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = [answer for own in pool.map(client, asked) for answer in own]
    return time.perf_counter() - began, answers


def load_figures(
    ports: Mapping[str, int],
    benchmark: Benchmark,
    problems: Sequence[BenchmarkProblem],
    clients: int,
    turns: int,
) -> list[dict[str, Any]]:
    """Measure all arms in turn with so many clients; return a row for each."""
    asked = [problems[at * EACH : (at + 1) * EACH] for at in range(clients)]
    order = [problem for own in asked for problem in own]
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    answers: dict[str, list[Answer]] = {arm: [] for arm in ARMS}
    for number in range(turns):
        for arm, (name, semspec) in ARMS.items():
            took, got = turn(ports[name], asked, semspec)
            seconds[arm].append(took)
            answers[arm] += got
            print(f"{clients:3d} clients, turn {number + 1} of {turns}: {arm}: {sum(a.tokens for a in got) / took:.0f} tokens/s", flush=True)  # fmt: skip
    # tokens a second, and not seconds: texts of other drafts are other texts
    size = len(order)
    speeds = {
        arm: [
            sum(a.tokens for a in answers[arm][n * size : (n + 1) * size]) / took
            for n, took in enumerate(seconds[arm])
        ]
        for arm in ARMS
    }
    plain = speeds["target alone"]
    rows = []
    for arm, own in speeds.items():
        got, firsts = answers[arm], [answer.first for answer in answers[arm]]
        right = [benchmark.grade(p, a.text).correct for p, a in zip(order * turns, got, strict=True)]  # fmt: skip
        rows.append(
            {
                "clients": clients,
                "arm": arm,
                "tokens_per_second": median(own),
                "ratio": median(a / b for a, b in zip(own, plain, strict=True)),
                "ratio_interval": ratio_interval(list(zip(own, plain, strict=True))),
                "first": median(firsts),
                "first_p90": quantile(firsts, 0.9),
                "right": sum(map(bool, right)) / len(right),
                "answers": len(got),
            }
        )
    return rows


def overhead_figures(
    port: int, solver: Solver, problems: Sequence[BenchmarkProblem], turns: int
) -> dict[str, Any]:
    """Solve the same problems one after the other in this process and through the server, in turn.

    Greedy, so that the texts are the same; each pair of times is of one problem.
    """
    list(solver.solve(problems[:1], "speculative"))
    ask(port, problems[0], {})
    pairs = []
    for number in range(turns):
        for problem in problems:
            if number % 2:  # who is first changes
                answer, served = _timed(lambda p=problem: ask(port, p, {}))
            (done,), own = _timed(lambda p=problem: list(solver.solve([p], "speculative")))
            if not number % 2:
                answer, served = _timed(lambda p=problem: ask(port, p, {}))
            if answer.tokens != len(done.outcome.tokens):
                raise UserError(f"{problem.id}: {answer.tokens} tokens from the server, {len(done.outcome.tokens)} without it")  # fmt: skip
            pairs.append((served, own))
    return {
        "problems": len(problems),
        "turns": turns,
        "ratio": sum(s for s, _ in pairs) / sum(o for _, o in pairs),
        "ratio_interval": ratio_interval(pairs),
        "milliseconds": 1000 * median(s - o for s, o in pairs),
    }


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def text(found: Mapping[str, Any]) -> str:
    """Return what stands between the page's marks."""
    machine = found["provenance"]["machine"]
    lines = []
    if over := found.get("overhead"):
        low, high = over["ratio_interval"]
        lines += [
            f"**What the server adds**: {100 * (over['ratio'] - 1):+.1f} % [{100 * (low - 1):+.1f}, {100 * (high - 1):+.1f}] of the same run"
            f" without a server ({over['milliseconds']:+.1f} ms an answer, median; {over['problems']} questions, {over['turns']} times, one at a time).",
            "",
        ]
    if rows := found.get("load"):
        lines += [f"Machine: {machine['cpu']}, {machine['cores']} cores. {found['turns']} turns, {EACH} questions of each client in a turn.", ""]  # fmt: skip
        lines += markdown(HEADINGS, [_cells(row) for row in rows])
    return "\n".join(lines).rstrip("\n")


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


def main() -> int:
    """Measure and write the page, or say what is out of date."""
    own, options = sys.argv[1:], list[str]()
    if "--" in own:
        at = own.index("--")
        own, options = own[:at], own[at + 1 :]
    a = parser(
        __doc__,
        clients=(CLIENTS, "at a time"),
        turns=(5, "of every arm"),
        only=(["overhead", "load"], "what is measured"),
        problems=(24, "questions by which the server's own time is measured"),
        **FIGURES.options,
    ).parse_args(own)
    if (ended := FIGURES.asked(a, digest)) is not None:
        return ended
    common = [*BASE, *options]
    config.register_configs()
    engine = [o for o in common if not o.startswith("queue=")]
    # fixed drafts, as the server has them unless told otherwise
    made = config.build(config.compose(["adaptive=false", *engine, "quiet=true"]))
    count = max(a.problems, max(a.clients) * EACH)
    problems = list(islice(made.benchmark.problems(), count))
    found: dict[str, Any] = {
        "digest": digest(),
        "provenance": provenance.collect(),
        "options": options,
        "turns": a.turns,
    }
    of = {"digest": found["digest"], "machine": found["provenance"]["machine"]["cpu"]}
    of |= {"options": options, "turns": a.turns, "problems": a.problems}
    kept = Kept(ROOT / "runs/serving.json", of)
    with ExitStack() as stack:
        ports = {
            name: stack.enter_context(server(*common, *more)).port for name, more in SERVERS.items()
        }
        if "overhead" in a.only:
            with Solver(made) as solver:
                ask_both = partial(overhead_figures, ports["fixed"], solver)
                found["overhead"] = kept.part(
                    "overhead", partial(ask_both, problems[: a.problems], a.turns)
                )
        if "load" in a.only:
            ask_all = partial(load_figures, ports, made.benchmark, problems)
            found["load"] = [
                row
                for clients in a.clients
                for row in kept.part(f"{clients} clients", partial(ask_all, clients, a.turns))
            ]
    FIGURES.keep(found, set(a.only) == {"overhead", "load"} and not options)
    kept.over()
    return 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
