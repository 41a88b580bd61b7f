"""`make serving`: measure the server under load, with drafts and without, and its overhead over a run without a server.

    python scripts/bench_serve.py [--table hf tokens wrong] [--clients 1 4 16 64] [--turns 3] [--only load] [options of semspec.serve after --]
    .venv-sglang/bin/python scripts/bench_serve.py --table sglang     the same over two SGLang servers on this machine's CPU
    python scripts/bench_serve.py --check      measure nothing; print what is out of date

Two servers run at once; on one of them drafts follow the load (adaptive=true). The same questions go to the target
alone (`off`), with drafts, and with drafts that follow the load, in turn, so that other work on the machine affects all
three alike; while one server is asked, the other idles. A ratio is over whole turns, with a bootstrap over them.

The server's overhead is measured at the socket: from the request's first byte to the answer's last one, over a connection that stays open,
without the client's own work of writing and reading JSON. That server keeps no conversations (keep=0), since a run keeps none.

Every finished turn is saved (runs/serving.json), so that parts of the page can be measured one after the other and a kill does not
lose them. Once all parts are measured, figures go to results/serving.json and tables to
docs/measurements/serving.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count, islice, takewhile
from typing import Any

from figures_page import ROOT, FiguresPage, Kept
from script_kit import check_known, parser, server
from serving import page
from serving.load import DECIDING, MEASURED, SERVERS, load_rows, load_turn
from serving.overhead import LENGTHS, OVERHEAD, overhead_rows
from serving.setups import BASE, CLIENTS, TABLES, TURNS, pair_of

from semspec import config
from semspec.loading.settled import settle
from semspec.results.code_digest import code_digest
from semspec.solver import Solver
from semspec.storage import provenance
from semspec.storage.files import read_json

ROOTS = ("Server", "Solver", "Solve", "speculate")
FIGURES = FiguresPage(
    "serving",
    "docs/measurements/serving.md",
    page.MARKS,
    page.text,
    "the code has changed since the server was measured",
)


def digest() -> str:
    return code_digest(ROOT / "semspec", ROOTS)


def measure(a: argparse.Namespace, name: str, options: Sequence[str], kept: Kept) -> None:
    """Measure the requested parts of one table that are not measured yet."""
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
        # fixed drafts on both sides: decisions by a clock would differ from answer to answer
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
                    partial(
                        load_turn,
                        ports,
                        made.benchmark,
                        problems,
                        clients,
                        asked(clients),
                        MEASURED if number < TABLES[name].full else DECIDING,
                        swapped=bool(number % 2),
                        caches=[o.partition("=")[2] for o in common if "_url=" in o],
                    ),
                )


def part_of(table: str, clients: int, number: int) -> str:
    return f"{table}, {clients} clients, turn {number + 1}"


def gathered(kept: Kept) -> dict[str, Any]:
    """Return all measured figures, and which parts are missing."""
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
    """Measure and write the page, or print what is out of date."""
    own, options = sys.argv[1:], list[str]()
    if "--" in own:
        at = own.index("--")
        own, options = own[:at], own[at + 1 :]
    a = parser(
        __doc__,
        table=(["hf", "tokens", "wrong"], f"which tables: {', '.join(TABLES)}"),
        clients=(CLIENTS, "numbers of concurrent clients"),
        turns=(
            TURNS,
            "turns; the later ones have only the target alone and drafts that follow the load",
        ),
        only=([OVERHEAD, "load"], "what to measure"),
        partly=(
            False,
            "write the page even if parts are missing; it names them and marks older rows with their revision",
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
        found = page.with_earlier(found, read_json(FIGURES.results))
    FIGURES.keep(found, not options and (a.partly or not found["lacking"]))
    if not found["lacking"]:
        kept.over()
    return 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
