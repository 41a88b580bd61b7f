"""Measure the embedded pair on fresh problems and write its model cards.

    python scripts/evaluate_tiny_pair.py [--problems 500] [--models hub_artifacts]

Each model solves alone, on problems of both domains that neither training nor any test has seen (another
seed), greedily and at T = 0.6; the oracle reads every step.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from script_kit import HUB, check_known, markdown, parser, read
from tiny_reward_data import alone

from semspec import world
from semspec.results.metrics import wilson
from semspec.solver import Solution, Solver
from semspec.storage.files import write_json

SEED = 20261121  # of the problems
TEMPERATURES = (0.0, 0.6)
PROBLEMS = 500


def evaluate(folder: Path, temperature: float, count: int) -> dict[str, Any]:
    """Measure one model alone at one temperature."""
    tally = Tally()
    for solver, done, problem in alone(folder, temperature, count, SEED, at_once=25):
        correct = solver.config.benchmark.grade(done.problem, done.text).correct
        tally.add(done, problem, correct, solver)
    return tally.figures()


class Tally:
    """Counts over the solutions of one model."""

    def __init__(self) -> None:
        self.correct: dict[str, list[bool]] = defaultdict(list)
        self.steps = self.unreadable = self.tokens = self.cut_off = 0
        self.first_errors: Counter[str] = Counter()
        self.surfaces: dict[str, set[int]] = defaultdict(set)

    def add(self, done: Solution, problem: Any, correct: bool | None, solver: Solver) -> None:
        assert correct is not None
        self.correct[problem.domain].append(correct)
        self.cut_off += done.outcome.finish == "budget"
        before: list[world.Meaning] = []
        for step in world.split_steps(done.text):
            if "</think>" not in step and step.endswith("\n\n"):
                self.tokens += len(solver.text.encode(step))
                self.steps += 1
            said = world.meaning(problem, step)
            self.unreadable += said is None
            written = world.DOMAINS[problem.domain].surface(step.replace("\n</think>", ""))
            if written is not None:
                self.surfaces[written[0]].add(written[1])
            if not world.is_next(problem, before, said):
                self.first_errors["unreadable" if said is None else said[0]] += 1
                return
            before.append(said)  # type: ignore[arg-type]

    def figures(self) -> dict[str, Any]:
        everything = [c for answers in self.correct.values() for c in answers]
        return {
            "problems": len(everything),
            "pass_at_1": sum(everything) / len(everything),
            "pass_at_1_interval": wilson(sum(everything), len(everything)),
            "by_domain": {name: sum(a) / len(a) for name, a in sorted(self.correct.items())},
            "cut_off": self.cut_off,
            "tokens_per_step": self.tokens / self.steps,
            "surface_forms": {kind: len(forms) for kind, forms in sorted(self.surfaces.items())},
            "first_errors": dict(self.first_errors.most_common()),
        }


CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [semspec, speculative-decoding, tiny]
---
# {title}

{what} Trained from nothing on a CPU by `scripts/train_tiny_pair.py` ({minutes:.0f} CPU minutes for this model,
its ancestors included), for semspec. Llama architecture,
{layers} layers, width 128, {parameters:.2f} M parameters, bfloat16, vocabulary 704, context 2,048.

It knows two kinds of problems and nothing else: residue chains ("Modulo 100, let x=76, k is x - 2, b is
2 * k. Find b.") and weekday chains ("Counting weekdays, let x=Tuesday, k is 9 days after x. Find k.").
It thinks in paragraphs between `<think>` and `</think>`; every step is worded in one of at least four ways,
and `"\\n\\n"`, which ends a step, is one token.

## Measured

{count} fresh problems (seed {seed}), half of each kind, the model alone:

{table}

Figures by `scripts/evaluate_tiny_pair.py`; `evaluation.json` has them all.
"""

WHAT = {
    "tiny-target": "The target of semspec's embedded pair: it solves nearly every problem.",
    "tiny-draft": "The draft of semspec's embedded pair: it writes well and computes well, but often "
    "picks the wrong value for a name that was mentioned long ago, so that it errs in meaning, "
    "not in form.",
}


def card(name: str, folder: Path, found: dict[str, Any]) -> str:
    columns = [lines(found[f"T={t:g}"]) for t in TEMPERATURES]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    size = (folder / "model.safetensors").stat().st_size
    return CARD.format(
        title=name,
        what=WHAT[name],
        minutes=read(folder / "training.json")["seconds"] / 60,
        layers=read(folder / "config.json")["num_hidden_layers"],
        parameters=size / 2 / 1e6,
        count=found["T=0"]["problems"],
        seed=SEED,
        table="\n".join(markdown(["", "greedy", "T = 0.6"], rows)),
    )


def lines(f: dict[str, Any]) -> dict[str, str]:
    """Return the lines of the card's table for a temperature."""
    low, high = f["pass_at_1_interval"]
    errors = dict(f["first_errors"])
    unreadable = errors.pop("unreadable", 0)
    return {
        "pass@1 [95 %]": f"{f['pass_at_1']:.3f} [{low:.3f}, {high:.3f}]",
        **{domain: f"{share:.3f}" for domain, share in f["by_domain"].items()},
        "tokens in a step": f"{f['tokens_per_step']:.1f}",
        "first error of a wrong solution: unreadable": str(unreadable),
        "... or readable and wrong": str(sum(errors.values())),
        "wordings seen of a kind of step, at least": str(min(f["surface_forms"].values())),
    }


def main() -> None:
    only = ([], "one of the two models")
    a = parser(__doc__, problems=PROBLEMS, models=HUB, only=only).parse_args()
    check_known(a.only, WHAT)
    console = Console()
    for name in a.only or WHAT:
        folder = a.models / name
        found = {f"T={t:g}": evaluate(folder, t, a.problems) for t in TEMPERATURES}
        write_json(folder / "evaluation.json", found)
        (folder / "README.md").write_text(card(name, folder, found), encoding="utf-8")
        console.print(name, found)


if __name__ == "__main__":
    sys.exit(main())
