"""Many configurations on the same problems, turn by turn: what the tables of docs/ are made with.

Every problem is solved by every configuration in turn, the order rotating, so that all of them meet
the same machine and the same problems. One line a problem and configuration; killed, it goes on. Some
configurations are only there for a comparison and stop after ``few`` problems.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from semspec import config
from semspec.config import build, compose
from semspec.errors import UserError
from semspec.results import reuse
from semspec.results.figures import Solve
from semspec.results.metrics import mcnemar, mean, quantile, ratio, ratio_interval, wilson
from semspec.results.significance import paired_difference
from semspec.solver import Solution, Solver
from semspec.storage import provenance
from semspec.storage.files import LineFile, cut_torn_line, parse, whole_lines, write_json
from semspec.training.calibration.audit import audited

Line = dict[str, Any]
Column = tuple[str, Callable[[Line], str]]

# what a draft pass costs of a target pass where both wait for memory: a pair of 0.5 B and 10 B, say
DRAFT_PASS = 0.05


def with_interval(name: str, form: str, scale: float = 1.0) -> Callable[[Line], str]:
    """A figure with its interval: ``0.98 [0.97, 0.99]``."""

    def told(row: Line) -> str:
        value = format(scale * row[name], form) + ("x" if name == "speedup" else "")
        interval = row[f"{name}_interval"]
        if interval is None:  # of one problem
            return value
        low, high = (format(scale * x, form) for x in interval)
        return f"{value} [{low}, {high}]"

    return told


def told(name: str, form: str) -> Callable[[Line], str]:
    """A figure, where there is one."""
    return lambda row: "" if row[name] is None else format(row[name], form)


QUALITY_AND_SPEED: tuple[Column, ...] = (
    ("problems", lambda row: str(row["problems"])),
    ("pass@1 [95 %]", with_interval("pass_at_1", ".3f")),
    ("change, points", with_interval("gain", "+.1f", 100)),
    ("speed-up [95 %]", with_interval("speedup", ".2f")),
)

LENGTHS: tuple[Column, ...] = (
    ("tau", told("accept_length", ".2f")),
    ("tokens a target pass", told("tokens_per_target_pass", ".2f")),
)


@dataclass(frozen=True)
class Survey:
    """What is compared: names, with the arguments that each stands for."""

    main: Mapping[str, tuple[str, ...]]  # "plain" first
    few: Mapping[str, tuple[str, ...]]
    columns: tuple[Column, ...]
    seed: int  # of the problems
    json: Path
    common: tuple[str, ...] = ()  # arguments of all
    baseline: str = "plain"  # what speed and quality are held against
    rivals: Mapping[str, str] = field(default_factory=dict)  # what some are held against as well
    audit: bool = False  # also measure how far kept tokens moved the next step (semspec.audit)

    @property
    def all(self) -> dict[str, tuple[str, ...]]:
        return {**self.main, **self.few}

    def measure(
        self, temperature: float, problems: int, few: int, out: Path, only: Sequence[str]
    ) -> dict[str, str]:
        """Solves what is not in ``out`` yet; the configurations that cannot be had here, and why."""
        cut_torn_line(out)
        done = {(line["config"], line["id"]) for line in read(out)}
        left_out: dict[str, str] = {}
        solvers: dict[str, Solver] = {}
        for name, overrides in self.all.items():
            if only and name not in only:
                continue
            arguments = [*self.common, *overrides, f"temperature={temperature}"]
            arguments.append(f"benchmark.seed={self.seed}")
            try:
                solvers[name] = Solver(build(compose(config.expand_shorthands(arguments))))
            except UserError as error:
                print(f"{name}: left out: {error}", file=sys.stderr)
                left_out[name] = str(error)
        some = next(iter(solvers.values())).config.benchmark
        todo = list(islice(some.problems(), problems))
        for solver in solvers.values():  # first passes allocate
            list(solver.solve(todo[:1], "speculative", budget=48))
        out.parent.mkdir(parents=True, exist_ok=True)
        with LineFile(out) as lines:
            for number, problem in enumerate(todo):
                names = [n for n in solvers if n in self.main or number < few]
                turn = number % len(names)
                for name in [*names[turn:], *names[:turn]]:
                    if (name, problem.id) in done:
                        continue
                    (solved,) = solvers[name].solve([problem], "speculative")
                    grade = solvers[name].config.benchmark.grade(problem, solved.text)
                    own = Solve.from_outcome(solved.outcome, solved.text, grade)
                    lines.append(
                        {
                            "config": name,
                            "temperature": temperature,
                            "id": problem.id,
                            "correct": own.correct,
                            "seconds": own.seconds,
                            "overhead": solved.overhead,
                            "tokens": own.tokens,
                            "target_tokens": own.written_tokens + own.handed_tokens,
                            "units": own.drafted_units,
                            "kept": own.kept_units,
                            "drafts": own.drafts,
                            "gained": own.gained_tokens,
                            "target_passes": own.target_passes,
                            "draft_passes": own.draft_passes,
                            "drafted_tokens": own.drafted_tokens,
                            "draft_seconds": own.draft_seconds,
                            "verify_seconds": own.verify_seconds,
                            "write_seconds": own.write_seconds,
                            "rounds": own.rounds,
                            **({"reuse": own.reuse} if own.reuse else {}),
                            **(_moved(solvers[name], solved) if self.audit else {}),
                        }
                    )
                if (number + 1) % 10 == 0:
                    print(f"{number + 1}/{problems}", flush=True)
        return left_out

    def summary(self, lines: Sequence[Line]) -> list[Line]:
        """One row a configuration; speed and loss against the baseline's solve of the same problems."""
        by: dict[str, dict[str, Line]] = defaultdict(dict)
        for line in lines:
            by[line["config"]][line["id"]] = line
        beside = by[self.baseline]
        rows = []
        for name in (n for n in self.all if n in by):
            own = [by[name][i] for i in by[name] if i in beside]
            row = {"config": name, **_figures(own, [beside[line["id"]] for line in own])}
            if (rival := self.rivals.get(name)) in by:
                row["over"] = {"config": rival, **_over(by[name], by[rival])}
            rows.append(row)
        return rows

    def show(self, rows: Sequence[Line], title: str, console: Console) -> None:
        table = Table("", title=title, title_justify="left")
        for heading, _ in self.columns:
            table.add_column(heading, justify="right")
        for row in rows:
            table.add_row(row["config"], *(told(row) for _, told in self.columns))
        console.print(table)

    def main_program(self, doc: str | None, argv: Sequence[str] | None = None) -> None:
        """The command line of a survey's script; ``argv`` in place of the process's own."""
        parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
        stem = self.json.stem
        parser.add_argument("--temperature", type=float, default=0.6)
        parser.add_argument("--problems", type=int, default=500)
        parser.add_argument("--few", type=int, default=150)
        parser.add_argument("--only", nargs="*", default=[], help="names of configurations")
        parser.add_argument("--out", type=Path, default=Path(f"runs/{stem}.jsonl"))
        parser.add_argument("--show", nargs="+", type=Path, help="tables of these, no measuring")
        parser.add_argument("--json", type=Path, default=self.json)
        a = parser.parse_args(argv)
        if not a.show:
            self.measure(a.temperature, a.problems, a.few, a.out, a.only)
            return
        lines = [line for path in a.show for line in read(path)]
        console = Console(width=160)
        told: Line = {"provenance": provenance.collect(), "seed": self.seed}
        for temperature in sorted({line["temperature"] for line in lines}):
            rows = self.summary([line for line in lines if line["temperature"] == temperature])
            told[f"T={temperature:g}"] = rows
            self.show(rows, f"T = {temperature:g}", console)
        write_json(a.json, json.loads(json.dumps(told)))


def choose(
    known: Iterable[str], what: str, survey: Callable[[str], Survey], doc: str | None
) -> None:
    """The command line of a script that has several surveys: the first word names one."""
    parser = argparse.ArgumentParser(
        description=(doc or "").splitlines()[0],
        epilog=f"Further options: {Path(sys.argv[0]).name} {what.upper()} --help",
    )
    parser.add_argument(what, choices=sorted(known))
    chosen = parser.parse_args(sys.argv[1:2])
    survey(getattr(chosen, what)).main_program(doc, sys.argv[2:])


def read(path: Path) -> list[Line]:
    return [line for raw in whole_lines(path) if (line := parse(raw)) is not None]


def _moved(solver: Solver, solved: Solution) -> Line:
    """Divergences of the next step, of kept tokens that are not the target's likeliest one."""
    if solver.drafter.plain or solver.rule.cuts != "tokens":
        return {}
    (kept,) = audited(solver, [solved])
    other = [a for a in kept if not a.likeliest]
    covered = [a.js <= a.u for a in other if a.u is not None]
    return {
        "kept_tokens": len(kept),
        "js": [round(a.js, 5) for a in other],
        "covered": sum(covered) if covered else None,
    }


def _divergence(own: Sequence[Line]) -> Line:
    js = [value for line in own for value in line.get("js", ())]
    kept = sum(line.get("kept_tokens", 0) for line in own)
    covered = [line["covered"] for line in own if line.get("covered") is not None]
    return {
        "other_share": ratio(len(js), kept),  # of the kept tokens: not the target's likeliest
        "js_mean": ratio(sum(js), kept),  # over all kept tokens: the likeliest move nothing
        "js_other": mean(js),
        "js_p99": quantile(js + [0.0] * (kept - len(js)), 0.99),
        "coverage": ratio(sum(covered), len(js)) if covered else None,
        "coverage_interval": wilson(sum(covered), len(js)) if covered else None,
    }


def _over(own: Mapping[str, Line], rival: Mapping[str, Line]) -> Line:
    both = [i for i in own if i in rival]
    figures = _figures([own[i] for i in both], [rival[i] for i in both])
    return {
        name: figures[name]
        for name in ("problems", "gain", "gain_interval", "speedup", "speedup_interval")
    }


def _figures(own: Sequence[Line], beside: Sequence[Line]) -> Line:
    def total(name: str) -> float:
        return sum(s.get(name, 0) for s in own)

    pairs = [(p["seconds"], s["seconds"]) for p, s in zip(beside, own, strict=True)]
    right = sum(s["correct"] for s in own)
    lost = sum(p["correct"] and not s["correct"] for p, s in zip(beside, own, strict=True))
    won = sum(s["correct"] and not p["correct"] for p, s in zip(beside, own, strict=True))
    n, tokens = len(own), total("tokens")
    both = right - won
    passes = total("target_passes")
    return {
        "problems": n,
        "pass_at_1": right / n,
        "pass_at_1_interval": wilson(right, n),
        "gain": (won - lost) / n,
        "gain_interval": paired_difference(both, lost, won, n - both - lost - won),
        "lost": lost,
        "won": won,
        "pass_at_1_p": mcnemar(lost, won),
        "speedup": sum(p for p, _ in pairs) / sum(s for _, s in pairs),
        "speedup_interval": ratio_interval(pairs),
        "speedup_median": quantile([p / s for p, s in pairs], 0.5),
        "target_share": total("target_tokens") / tokens,
        "acceptance": total("kept") / max(1, total("units")),
        "overhead": sum(s["overhead"] * s["seconds"] for s in own) / total("seconds"),
        "accept_length": ratio(total("gained"), total("drafts")),
        "tokens_per_target_pass": ratio(tokens, passes),
        "cost_model": ratio(tokens, passes + DRAFT_PASS * total("draft_passes")),
        # of what a chain's drafter wrote, what a rule was shown; the rest was drafted ahead in vain
        "drafted_tokens_per_draft_pass": ratio(total("drafted_tokens"), total("draft_passes")),
        "seconds_per_round": {
            purpose: ratio(total(f"{purpose}_seconds"), total("rounds"))
            for purpose in ("draft", "verify", "write")
        },
        "reuse": reuse.figures(sum((Counter(s.get("reuse", {})) for s in own), Counter[str]())),
        **_divergence(own),
    }
