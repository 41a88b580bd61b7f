"""Score own and drafted steps of a pair and label them with the oracle, to see what a threshold would accept.

    python scripts/score_steps.py --draft runs/drafts/noise-0.2 --out runs/steps.json
    python scripts/score_steps.py --target embedded/tiny-draft --draft runs/drafts/noise-0.1 --out runs/steps.json

The contexts are the target's own solutions. With ``--told`` they are true solutions worded by the embedded world, so that the
target writes nothing and there are no own steps. Steps after an error are left out: they are neither right nor wrong.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from script_kit import markdown, parser

from semspec import world
from semspec.calibration.threshold import choose
from semspec.config import build, compose
from semspec.protocols import BenchmarkProblem, Kit, Plan
from semspec.results.metrics import wilson
from semspec.rules._base import RuleBase
from semspec.rules._watching import Place, Watching, WatchingSession
from semspec.solver import Solver
from semspec.storage.files import write_json
from semspec.types import Context, Draft, Verdict

THRESHOLDS = [-14.0, -8.0, -6.0, -4.0, -3.0, -2.0, -1.5]
Chains = Mapping[str, Mapping[int, list[int]]]  # by prompt and place: the step there


@dataclass(frozen=True, kw_only=True)
class Told(RuleBase):
    """Keeps no draft and writes known steps in its place."""

    chains: Chains
    places: list[Place] = field(default_factory=list)

    def open(self, kit: Kit) -> ToldSession:
        return ToldSession(kit, self.places, self.chains[kit.prompt])


class ToldSession(WatchingSession):
    def __init__(self, kit: Kit, places: list[Place], steps: Mapping[int, list[int]]) -> None:
        super().__init__(kit, places)
        self.steps = steps

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        at = len(context) - context.prompt_length
        yield from self.note(context, draft, at)
        return Verdict(0, list(self.steps[at]))

    def note(self, context: Context, draft: Draft, at: int) -> Plan[None]:
        """Have the target read the drafted step, and record its scores."""
        step = draft.tokens[: draft.ends[0]]
        drafted = yield from self.lowest(context, step)
        self.places.append(Place(self.kit.prompt, at, 0.0, drafted, self.steps[at], step))


def told(solver: Solver, problems: Mapping[str, BenchmarkProblem]) -> Chains:
    """Return a true solution of every problem, worded by the embedded world and cut into steps."""
    chains: dict[str, dict[int, list[int]]] = {}
    for number, (prompt, problem) in enumerate(problems.items()):
        posed = world.find_problem(problem.question)
        assert isinstance(posed, world.Problem)
        solution = world.DOMAINS[posed.domain].solve(random.Random(number), posed)
        text = world.render_solution(posed, solution).removeprefix(world.THINK_OPEN)
        steps = [solver.text.encode(step) for step in world.split_steps(text)]
        steps[-1] += solver.text.encode("<|im_end|>")
        starts = [sum(map(len, steps[:n])) for n in range(len(steps))]
        chains[prompt] = dict(zip(starts, steps, strict=True))
    return chains


def rows(solver: Solver, places: list[Place], problems: Mapping[str, BenchmarkProblem]) -> list[Any]:  # fmt: skip
    """Return scores and truths of the steps up to each solution's first error."""
    found, by_prompt = [], defaultdict(list)
    for place in places:
        by_prompt[place.prompt].append(place)
    for prompt, own in by_prompt.items():
        posed = world.find_problem(problems[prompt].question)
        assert posed is not None
        before: list[world.Meaning] = []
        for place in sorted(own, key=lambda place: place.before):
            texts = [solver.said(step) for step in (place.own_step, place.drafted_step)]
            said = [world.meaning(posed, text) for text in texts]
            right, drafted_right = (world.is_next(posed, before, meaning) for meaning in said)
            found.append((place.own, right, place.drafted, drafted_right))
            if not right or said[0] is None:
                break
            before.append(said[0])
    return found


def main() -> None:
    a = parser(
        __doc__, target="embedded/tiny-target", draft="embedded/tiny-draft", out=Path, told=False,
        problems=120, seed=20261215, temperature=0.6, at_once=40, thresholds=THRESHOLDS,
    ).parse_args()  # fmt: skip
    options = [
        f"model.path={a.target}",
        "draft=lm",
        f"draft.model.path={a.draft}",
        "accept=logprob",
    ]
    options += [f"benchmark.seed={a.seed}", f"concurrency={a.at_once}", f"temperature={a.temperature}"]  # fmt: skip
    with Solver(build(compose(options))) as solver:
        asked = islice(solver.config.benchmark.problems(), a.problems)
        problems = {solver.text.prompt(p.question, p.system)[0]: p for p in asked}
        rule = Told(chains=told(solver, problems)) if a.told else Watching()
        solver.rule = rule
        for _ in solver.solve(list(problems.values()), "speculative"):
            pass
        found = rows(solver, rule.places, problems)
    write_json(a.out, found)
    lines = []
    for threshold in a.thresholds:
        kept = [right for _, _, drafted, right in found if drafted >= threshold]
        lost = sum(right and drafted < threshold for _, _, drafted, right in found)
        low, high = wilson(kept.count(False), len(kept)) or (0.0, 1.0)
        lines.append([f"{threshold:g}", f"{len(kept) / len(found):.3f}",
                      f"{kept.count(False)} [{low:.4f}, {high:.4f}]", str(lost)])  # fmt: skip
    print(
        "\n".join(
            markdown(
                ["threshold", "accepted", "wrong among the accepted", "right but rejected"], lines
            )
        )
    )
    if not a.told:
        print(choose([row[0] for row in found], [row[2] for row in found]))


if __name__ == "__main__":
    main()
