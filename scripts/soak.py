"""`make soak`: send a live server requests of all kinds, valid and invalid, and look for what is lost, hangs or grows.

    python scripts/soak.py [requests=10000] [workers=12] [options of semspec.serve, adaptive=false for one]
    .venv-sglang/bin/python scripts/soak.py engine=sglang requests=1000
    python scripts/soak.py url=http://127.0.0.1:8000 requests=2000
    python scripts/soak.py --check      send no requests; report whether the figures are older than the code

Without ``url=`` it starts a server of the embedded pair. With ``engine=sglang`` that server uses two SGLang servers of the target and one of the draft. One of
the three at a time is killed and restarted (``kill_every=``), so that a replica of the target is always left.

What must hold:

- Every reply has the status that its request calls for. An answer is JSON of the right form and within its limits; an error names the field at fault.
- Every stream ends, no request hangs, and nothing is in progress once all requests have finished.
- Some questions are asked greedily over and over, and their texts stay the same.
- If the server was started here, its log has one line for each request, and its memory, recorded every 1,000 requests, grows by no more than a tenth after the first thousand.
- At the end that server gets SIGTERM while it is writing answers, every second one as a stream. All answers arrive complete, and the server ends by itself.

It prints a line of figures; the exit code is 1 if something was wrong. Figures of 10,000 requests or more go to results/soak.json, with a row in docs/measurements/serving.md.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from script_kit import Started, parser, server
from soak_client import PATIENCE, Client, Tally, under_way
from soak_fleet import Killer, sglang_servers
from soak_report import FIGURES, NAMES, check_log, digest, growth, megabytes, resident, with_row
from soak_requests import CHAT, KNOWN, asked_before

from semspec.errors import UserError
from semspec.jobs.options import described, option, read_known
from semspec.storage import provenance
from semspec.storage.files import read_json
from semspec.storage.screen import echo

if TYPE_CHECKING:
    from tests.support.sglang_servers import Mortal

WHOLE = 10_000  # requests of a run whose figures are kept, at least
LAST = 300  # tokens of each answer that is in progress at the end


@dataclass(frozen=True, kw_only=True)
class Options:
    """The load, and the server that gets it; all other options are passed to the server that is started."""

    # fmt: off
    url: str = option("", "the address of a running server; default: start one")
    requests: int = option(WHOLE, "how many requests", least=1)
    workers: int = option(12, "requests at a time", least=1)
    seed: int = option(0, "seed of the random requests")
    every: int = option(1_000, "requests between two records of the server's memory", least=1)
    engine: str = option("hf", "the engine of the server", choices=("hf", "sglang"))
    kill_every: float = option(20.0, "mean seconds between two kills of an SGLang server", least=1)
    # fmt: on


def soak(
    url: str, started: Started | None, given: Options, servers: Sequence[Mortal] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Send all requests; return the figures, and what was wrong."""
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
        raise UserError(f"a killed server did not restart: {killer.error}") from killer.error
    for _ in range(200):
        if not (left := under_way(client.address)):
            break
        time.sleep(0.1)
    if left:
        tally.fail(f"{left:g} choices are still running")
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
            tally.fail(f"an answer that was running at the end: {type(error).__name__}: {error}")
            return False
        whole = usage is not None and usage["completion_tokens"] == LAST
        if not whole:
            tally.fail(f"an answer that was running at the end: {usage}")
        return whole

    with ThreadPoolExecutor(given.workers) as pool:
        waits = [pool.submit(ask, number) for number in range(given.workers)]
        until = time.monotonic() + PATIENCE
        while (busy := under_way(client.address)) < given.workers and time.monotonic() < until:
            time.sleep(0.005)
        started.process.send_signal(signal.SIGTERM)
        whole = sum(wait.result() for wait in waits)
    if busy < given.workers:
        tally.fail(f"{busy:g} of {given.workers} answers were running at the end")
    code = started.process.wait(PATIENCE)
    if code:
        tally.fail(f"the server ended with exit code {code}")
    del tally.outcomes["at the end"]
    return {"of": given.workers, "streams": given.workers // 2, "whole": whole, "code": code}


def main() -> int:
    if {"--help", "-h"} & set(sys.argv[1:]):
        echo(f"{__doc__}\nOptions:\n{described(Options)}")
        return 0
    a, words = parser(__doc__, **FIGURES.options).parse_known_args()
    if (ended := FIGURES.asked(a, digest)) is not None:
        return ended
    given, more = read_known(Options, words, "scripts.soak")
    if given.url and more:
        raise UserError(f"{more[0]}: server options need a server that this script starts: leave out url=")  # fmt: skip
    # taken before the run: the code may change while it lasts
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
    return int(bool(wrong))


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
