"""Step-level rules on the embedded pair: what each is worth beside the target alone, in one run.

    python scripts/bench_steps.py --temperature 0.6 [--problems 500] [--few 150] [--out runs/steps.jsonl]

Every problem is solved by every configuration in turn, the order rotating, so that all of them meet
the same machine and the same problems. One line a problem and configuration; killed, it goes on. Some
configurations are only there for a comparison and stop after ``--few`` problems.
``--show FILE...`` prints tables of what is there and writes docs/steps.json.
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

from rich.console import Console
from rich.table import Table

from semspec import config, provenance, run
from semspec.errors import UserError
from semspec.files import LineFile, cut_torn_line, parse, whole_lines, write_json
from semspec.metrics import quantile, ratio_interval, wilson
from semspec.solver import Solver

SEED = 20261207  # of the problems: neither trained, calibrated nor evaluated on before
PLUS = ("accept=semantic_plus",)
MAIN = {
    "plain": ("draft=none",),
    "semantic (paper)": ("accept=semantic",),
    "semantic_plus": PLUS,
    "semantic_plus, salvage, nested": (*PLUS, "salvage=true", "nested=lm"),
    "random, rate 0.96": ("accept=random", "accept.rate=0.96"),  # as much as semantic accepts
    "logprob -4": ("accept=logprob",),
    "logprob -4, salvage, nested": ("accept=logprob", "salvage=true", "nested=lm"),
}
FEW = {
    "semantic, last layer": ("accept=semantic", "probe=last_layer"),
    "semantic, probes of residues": (
        "accept=semantic",
        "accept.target_probe=embedded/probe-tiny-target-residues",
        "accept.draft_probe=embedded/probe-tiny-draft-residues",
    ),
    "semantic, probes of weekdays": (
        "accept=semantic",
        "accept.target_probe=embedded/probe-tiny-target-weekdays",
        "accept.draft_probe=embedded/probe-tiny-draft-weekdays",
    ),
    "threshold on the paper's features": ("accept=semantic_plus", "features=paper"),
    "semantic_plus, threshold 0.1": (*PLUS, "threshold=0.1"),
    "semantic_plus, salvage": (*PLUS, "salvage=true"),
    "semantic_plus, nested": (*PLUS, "nested=lm"),
    "semantic_plus, ahead": (*PLUS, "ahead=true"),
    "semantic_plus, adaptive to 4": (*PLUS, "adaptive=true", "draft_length=4"),
    "semantic_plus, 2 steps": (*PLUS, "draft_length=2"),
    "semantic_plus, all four": (
        *PLUS,
        *("salvage=true", "nested=lm", "ahead=true", "adaptive=true", "draft_length=4"),
    ),
    "rsd 0.5": ("accept=rsd", "threshold=0.5"),
    "semantic_risk 0.02": ("accept=semantic_risk", "risk=0.02"),
    "semantic_risk 0.05": ("accept=semantic_risk", "risk=0.05"),
    "semantic_risk 0.10": ("accept=semantic_risk", "risk=0.10"),
    "random (paper)": ("accept=random",),
    "random, rate 0.9": ("accept=random", "accept.rate=0.9"),
    "logprob -2": ("accept=logprob", "threshold=-2"),
    "logprob -8": ("accept=logprob", "threshold=-8"),
    "logprob -14": ("accept=logprob", "threshold=-14"),
    "token level, lossless": ("accept=lossless", "split=token", "draft_length=5"),
    "oracle": ("accept=oracle",),
}


def measure(temperature: float, problems: int, few: int, out: Path, only: Sequence[str]) -> None:
    cut_torn_line(out)
    done = {(line["config"], line["id"]) for line in _read(out)}
    solvers: dict[str, Solver] = {}
    for name, overrides in (MAIN | FEW).items():
        if only and name not in only:
            continue
        arguments = [*overrides, f"temperature={temperature}", f"benchmark.seed={SEED}"]
        try:
            solvers[name] = Solver(run.build(run.compose(config.expand_shorthands(arguments))))
        except UserError as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
    some = next(iter(solvers.values())).config.benchmark
    todo = list(islice(some.problems(), problems))
    for solver in solvers.values():  # first passes allocate
        list(solver.solve(todo[:1], "speculative", budget=48))
    out.parent.mkdir(parents=True, exist_ok=True)
    with LineFile(out) as lines:
        for number, problem in enumerate(todo):
            names = [n for n in solvers if n in MAIN or number < few]
            turn = number % len(names)
            for name in [*names[turn:], *names[:turn]]:
                if (name, problem.id) in done:
                    continue
                (solved,) = solvers[name].solve([problem], "speculative")
                grade = solvers[name].config.benchmark.grade(problem, solved.text)
                rounds = solved.outcome.rounds
                judged = [r for r in rounds if r.drafted]
                lines.append(
                    {
                        "config": name,
                        "temperature": temperature,
                        "id": problem.id,
                        "correct": grade.correct,
                        "seconds": solved.outcome.seconds,
                        "overhead": solved.overhead,
                        "tokens": len(solved.outcome.tokens),
                        "target_tokens": sum(len(r.written) + len(r.handed) for r in rounds),
                        "units": sum(len(r.ends) for r in judged),
                        "kept": sum(r.units_kept for r in judged),
                    }
                )
            if (number + 1) % 10 == 0:
                print(f"{number + 1}/{problems}", flush=True)


def _read(path: Path) -> list[dict[str, Any]]:
    return [line for raw in whole_lines(path) if (line := parse(raw)) is not None]


def summary(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a configuration; speed and loss against the plain solve of the same problems."""
    by: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for line in lines:
        by[line["config"]][line["id"]] = line
    plain = by["plain"]
    rows = []
    for name in (n for n in MAIN | FEW if n in by):
        own = [by[name][i] for i in by[name] if i in plain]
        beside = [plain[line["id"]] for line in own]
        pairs = [(p["seconds"], s["seconds"]) for p, s in zip(beside, own, strict=True)]
        right = sum(s["correct"] for s in own)
        lost = sum(p["correct"] and not s["correct"] for p, s in zip(beside, own, strict=True))
        won = sum(s["correct"] and not p["correct"] for p, s in zip(beside, own, strict=True))
        n = len(own)
        gain = (won - lost) / n
        spread = 1.96 * (max(lost + won - (won - lost) ** 2 / n, 0.0)) ** 0.5 / n  # paired
        rows.append(
            {
                "config": name,
                "problems": n,
                "pass_at_1": right / n,
                "pass_at_1_interval": wilson(right, n),
                "gain": gain,
                "gain_interval": (gain - spread, gain + spread),
                "lost": lost,
                "won": won,
                "speedup": sum(p for p, _ in pairs) / sum(s for _, s in pairs),
                "speedup_interval": ratio_interval(pairs),
                "speedup_median": quantile([p / s for p, s in pairs], 0.5),
                "target_share": sum(s["target_tokens"] for s in own)
                / sum(s["tokens"] for s in own),
                "acceptance": sum(s["kept"] for s in own) / max(1, sum(s["units"] for s in own)),
                "overhead": sum(s["overhead"] * s["seconds"] for s in own)
                / sum(s["seconds"] for s in own),
            }
        )
    return rows


def show(rows: Sequence[dict[str, Any]], title: str, console: Console) -> None:
    table = Table(title=title, title_justify="left")
    heads = ("", "problems", "pass@1 [95 %]", "change, points", "speed-up [95 %]", "median")
    for heading in (*heads, "by target", "accepted"):
        table.add_column(heading, justify="right" if heading else "left")
    for r in rows:
        (low, high), (a, b), (c, d) = (
            r["pass_at_1_interval"],
            r["gain_interval"],
            r["speedup_interval"],
        )
        table.add_row(
            r["config"],
            str(r["problems"]),
            f"{r['pass_at_1']:.3f} [{low:.3f}, {high:.3f}]",
            f"{100 * r['gain']:+.1f} [{100 * a:+.1f}, {100 * b:+.1f}]",
            f"{r['speedup']:.2f}x [{c:.2f}, {d:.2f}]",
            f"{r['speedup_median']:.2f}x",
            f"{100 * r['target_share']:.0f} %",
            f"{100 * r['acceptance']:.0f} %",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--few", type=int, default=150)
    parser.add_argument("--only", nargs="*", default=[], help="names of configurations")
    parser.add_argument("--out", type=Path, default=Path("runs/steps.jsonl"))
    parser.add_argument("--show", nargs="+", type=Path, help="tables of these files, no measuring")
    parser.add_argument("--json", type=Path, default=Path("docs/steps.json"))
    arguments = parser.parse_args()
    if not arguments.show:
        a = arguments
        measure(a.temperature, a.problems, a.few, a.out, a.only)
        return
    lines = [line for path in arguments.show for line in _read(path)]
    console = Console(width=160)
    told: dict[str, Any] = {"provenance": provenance.collect(), "seed": SEED}
    for temperature in sorted({line["temperature"] for line in lines}):
        rows = summary([line for line in lines if line["temperature"] == temperature])
        told[f"T={temperature:g}"] = rows
        show(rows, f"T = {temperature:g}", console)
    write_json(arguments.json, json.loads(json.dumps(told)))


if __name__ == "__main__":
    sys.exit(main())
