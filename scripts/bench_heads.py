"""Token-level drafters on the embedded pair: the draft model, EAGLE-3 and Medusa, in one run.

    python scripts/bench_heads.py [--problems 60] [--out runs/heads.jsonl] [--json docs/heads.json]

Every problem is solved by every configuration in turn, the order rotating. One line a problem and
configuration; killed, it goes on. tau: tokens gained a verification. Quality stands beside speed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from bench_steps import _read
from rich.console import Console
from rich.table import Table

from semspec import config, provenance, run
from semspec.files import LineFile, cut_torn_line, write_json
from semspec.metrics import ratio_interval, wilson
from semspec.solver import Solver
from semspec.types import Round

SEED = 20261213  # of the problems: no training has seen them
TOKENS = ("accept=lossless", "split=token")
LENGTH = 5
CHAINS = {
    "plain": ("draft=none", "split=token"),
    "lm, chain": (*TOKENS, f"draft_length={LENGTH}"),
    "eagle3, chain": (*TOKENS, "draft=eagle3", "tree=chain", f"draft_length={LENGTH}"),
    "medusa, chain": (*TOKENS, "draft=medusa", "tree=chain", f"draft_length={LENGTH}"),
}
TREES = {
    "lm, dynamic tree": (*TOKENS, "tree=dynamic", f"draft_length={LENGTH}"),
    "eagle3, dynamic tree": (*TOKENS, "draft=eagle3", "tree=dynamic", f"draft_length={LENGTH}"),
    "medusa, static tree": (*TOKENS, "draft=medusa", "tree=static", f"draft_length={LENGTH}"),
}
CONFIGURATIONS = CHAINS | TREES


def _line(rounds: Sequence[Round]) -> dict[str, Any]:
    drafted = [r for r in rounds if r.drafted]
    kept = [len(r.kept) for r in drafted]
    lengths = [len(r.drafted) for r in drafted if r.parents is None]
    return {
        "rounds": len(drafted),
        "gained": sum(len(r.kept) + len(r.written) for r in drafted),
        "drafted": sum(len(r.drafted) for r in drafted),
        # of position i of a chain: how often it was reached, and how often kept
        "reached": [
            sum(k >= i and n > i for k, n in zip(kept, lengths, strict=False))
            for i in range(LENGTH)
        ],
        "kept": [sum(k > i for k in kept) for i in range(LENGTH)],
        "target_passes": sum(r.passes.get("target", 0) for r in rounds),
        "draft_seconds": sum(r.seconds.get("draft", 0.0) for r in rounds),
        "verify_seconds": sum(r.seconds.get("verify", 0.0) for r in rounds),
    }


def measure(temperature: float, problems: int, out: Path, only: Sequence[str]) -> None:
    cut_torn_line(out)
    done = {(line["config"], line["temperature"], line["id"]) for line in _read(out)}
    solvers = {}
    for name in only or CONFIGURATIONS:
        told = [*CONFIGURATIONS[name], f"temperature={temperature}", f"benchmark.seed={SEED}"]
        solvers[name] = Solver(run.build(run.compose(config.expand_shorthands(told))))
    some = next(iter(solvers.values())).config.benchmark
    todo = list(islice(some.problems(), problems))
    for solver in solvers.values():  # first passes allocate
        list(solver.solve(todo[:1], "speculative", budget=48))
    with LineFile(out) as lines:
        for number, problem in enumerate(todo):
            turn = number % len(solvers)
            for name in [*list(solvers)[turn:], *list(solvers)[:turn]]:
                if (name, temperature, problem.id) in done:
                    continue
                (solved,) = solvers[name].solve([problem], "speculative")
                outcome = solved.outcome
                grade = some.grade(problem, solved.text)
                lines.append(
                    {
                        "config": name,
                        "temperature": temperature,
                        "id": problem.id,
                        "correct": grade.correct,
                        "seconds": outcome.seconds,
                        "tokens": len(outcome.tokens),
                    }
                    | _line(outcome.rounds)
                )
            if (number + 1) % 10 == 0:
                print(f"T = {temperature:g}: {number + 1}/{problems}", flush=True)


def summary(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    by: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for line in lines:
        by[line["config"]][line["id"]] = line
    rows = []
    for name in (n for n in CONFIGURATIONS if n in by):
        own = [line for i, line in by[name].items() if i in by["plain"]]
        pairs = [(by["plain"][s["id"]]["seconds"], s["seconds"]) for s in own]

        def total(key: str, own: list[dict[str, Any]] = own) -> float:
            return float(sum(s[key] for s in own))

        right, rounds = sum(s["correct"] for s in own), total("rounds")
        positions = [
            [sum(s[k][i] for s in own) for i in range(LENGTH)] for k in ("kept", "reached")
        ]
        rows.append(
            {
                "config": name,
                "problems": len(own),
                "pass_at_1": right / len(own),
                "pass_at_1_interval": wilson(right, len(own)),
                "speedup": sum(p for p, _ in pairs) / total("seconds"),
                "speedup_interval": ratio_interval(pairs),
                "milliseconds_per_token": 1000 * total("seconds") / total("tokens"),
                "tau": total("gained") / rounds if rounds else None,
                "nodes": total("drafted") / rounds if rounds else None,
                "tokens_per_target_pass": total("tokens") / total("target_passes"),
                "draft_milliseconds_per_round": 1000 * total("draft_seconds") / max(1, rounds),
                "verify_milliseconds_per_round": 1000 * total("verify_seconds") / max(1, rounds),
                "acceptance_by_position": [
                    k / r if r else None for k, r in zip(*positions, strict=True)
                ],
            }
        )
    return rows


def show(rows: Sequence[dict[str, Any]], title: str, console: Console) -> None:
    table = Table(title=title, title_justify="left")
    heads = ("", "pass@1 [95 %]", "speed-up [95 %]", "tau", "nodes", "tokens a pass")
    for heading in (*heads, "draft ms", "verify ms", "kept at position 1, 2, ..."):
        table.add_column(heading, justify="right" if heading else "left")
    for r in rows:
        (low, high), (a, b) = r["pass_at_1_interval"], r["speedup_interval"]
        kept = [f"{x:.2f}" for x in r["acceptance_by_position"] if x is not None]
        table.add_row(
            r["config"],
            f"{r['pass_at_1']:.3f} [{low:.3f}, {high:.3f}]",
            f"{r['speedup']:.2f}x [{a:.2f}, {b:.2f}]",
            f"{r['tau']:.2f}" if r["tau"] else "",
            f"{r['nodes']:.1f}" if r["nodes"] else "",
            f"{r['tokens_per_target_pass']:.2f}",
            f"{r['draft_milliseconds_per_round']:.2f}",
            f"{r['verify_milliseconds_per_round']:.2f}",
            " ".join(kept),
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.6])
    parser.add_argument("--only", nargs="*", default=[], help="names of configurations")
    parser.add_argument("--out", type=Path, default=Path("runs/heads.jsonl"))
    parser.add_argument("--json", type=Path, default=Path("docs/heads.json"))
    a = parser.parse_args()
    a.out.parent.mkdir(parents=True, exist_ok=True)
    for temperature in a.temperatures:
        measure(temperature, a.problems, a.out, a.only)
    lines, console = _read(a.out), Console(width=180)
    told: dict[str, Any] = {"provenance": provenance.collect(), "seed": SEED}
    for temperature in sorted({line["temperature"] for line in lines}):
        rows = summary([line for line in lines if line["temperature"] == temperature])
        told[f"T={temperature:g}"] = rows
        show(rows, f"T = {temperature:g}", console)
    write_json(a.json, json.loads(json.dumps(told)))


if __name__ == "__main__":
    sys.exit(main())
