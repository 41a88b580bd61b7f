"""Freeze the accepted length of every drafter with every rule into results/acceptance.json, with intervals.

    python scripts/acceptance.py                     measure all, write the file (minutes)
    python scripts/acceptance.py --only "suffix"     only combinations with this in their name; the others stay
    python scripts/acceptance.py --missing           only what the file lacks: resumes after a kill
    python scripts/acceptance.py --check             measure, and report what has fallen below its interval

The combinations are those of ``make tables``, on fixed problems and seeds. The accepted length (tau) is the number of
tokens per verification: kept ones and the rule's own. Its interval is a bootstrap over problems, at least 5 % wide on
either side, so that drawing in another order does not count as a loss. tests/integration/test_acceptance.py holds the code to it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Container, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from script_kit import parser

from semspec.cli.reproduce import build
from semspec.config import RunConfig
from semspec.engines.pool import Engines
from semspec.errors import UserError
from semspec.jobs import experiments
from semspec.results.metrics import ratio_interval
from semspec.solver import Solver
from semspec.storage.files import read_json, write_json

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "results/acceptance.json"
LEVELS = {
    "token": "ours/table-token",
    "greedy": "ours/table-greedy",
    "step": "ours/table-step",
}
PROBLEMS, TOKENS = 2, 64
FIXED = [
    f"problems={PROBLEMS}",
    f"max_new_tokens={TOKENS}",
    "adaptive=false",
    "seed=0",
    "plain=false",
]
WIDTH = 0.05  # of the interval at least, on either side
FIRST = ("/lossless", "/greedy", "/logprob")  # rules that are measured first
Row = dict[str, Any]


def combinations(
    only: Sequence[str] = (), but: Container[str] = ()
) -> Iterator[tuple[str, RunConfig]]:
    """Yield every valid combination with its name: "token/suffix/lossless"."""
    found: list[tuple[str, experiments.Job]] = []
    for level, experiment in LEVELS.items():
        for job in experiments.jobs(experiments.load(experiment), "tiny", FIXED):
            pair = (job.row, job.block) if level == "greedy" else (job.block, job.row)
            found.append(("/".join((level, *pair)), job))
    found.sort(key=lambda one: not one[0].endswith(FIRST))
    for name, job in found:
        if name in but or (only and not any(part in name for part in only)):
            continue
        with contextlib.suppress(UserError):
            yield name, build(job)[0]


def measure(config: RunConfig, engines: Engines) -> Row | None:
    """Solve the problems and return the accepted length with its interval; None if nothing was drafted."""
    pairs = []
    with Solver(config, shared=engines) as solver:
        solver.fetch()
        solver.load()
        solver.measure(())
        problems = list(islice(config.benchmark.problems(), PROBLEMS))
        for done in solver.solve(problems, "speculative"):
            drafts = [one for one in done.outcome.rounds if one.drafted]
            pairs.append((sum(len(r.kept) + len(r.written) for r in drafts), len(drafts)))
    gained, rounds = (sum(side) for side in zip(*pairs, strict=True))
    if not rounds:
        return None
    tau = gained / rounds
    drafted = [(float(g), float(r)) for g, r in pairs if r]
    low, high = ratio_interval(drafted) or (tau, tau)
    return {
        "tau": round(tau, 4),
        "interval": [round(min(low, tau * (1 - WIDTH)), 4), round(max(high, tau * (1 + WIDTH)), 4)],
        "verifications": rounds,
    }


def measure_all(
    only: Sequence[str] = (), but: Container[str] = ()
) -> Iterator[tuple[str, Row | None]]:
    """Yield the accepted length of each combination; skip those that cannot be bound here."""
    with Engines() as engines:
        for name, config in combinations(only, but):
            with contextlib.suppress(UserError):
                yield name, measure(config, engines)


def fallen(known: Row, found: Row | None) -> bool:
    """Return whether an accepted length is below its interval; a higher one is fine."""
    return found is None or found["tau"] < known["interval"][0]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(
        __doc__,
        only=([], "parts of names"),
        missing=(False, "only what the file lacks"),
        check=(False, "compare with the file, and write nothing"),
    ).parse_args(arguments)
    stored: dict[str, Row] = (read_json(FILE) or {}).get("accepted", {})
    kept = dict(stored) if options.only or options.missing else {}
    settings = {"problems": PROBLEMS, "options": FIXED, "experiments": list(LEVELS.values())}
    below = []
    for name, found in measure_all(options.only, stored if options.missing else ()):
        if options.check and name in stored and fallen(stored[name], found):
            below.append(name)
        if found is None:
            continue
        low, high = found["interval"]
        print(f"{name:60} {found['tau']:6.3f} [{low:.3f}, {high:.3f}]", flush=True)
        kept[name] = found
        if not options.check:  # each at once, so that a kill loses one
            write_json(FILE, {"settings": settings, "accepted": dict(sorted(kept.items()))})
    if options.check:
        sys.exit(f"below their intervals: {', '.join(below)}" if below else 0)


if __name__ == "__main__":
    main()
