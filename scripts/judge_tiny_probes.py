"""Measure whether the probes of the embedded pair tell right drafted steps from wrong ones, and write it into their cards.

    python scripts/judge_tiny_probes.py [--problems 240] [--models hub_artifacts]

The draft model drafts a step after every prefix of true solutions of fresh problems. All probes score the same step
as under ``accept=semantic``, and the oracle says which steps are right. Takes two minutes of one core.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from score_steps import Chains, Told, ToldSession, told
from script_kit import HUB, parser, table

from semspec import world
from semspec.artifacts.probe import Probe
from semspec.config import build, compose
from semspec.protocols import Kit, Plan
from semspec.solver import Solver
from semspec.training.probes import metrics
from semspec.training.probes.card import card
from semspec.training.probes.judging import together, told_apart
from semspec.types import LOGPROBS, Answer, Context, Draft, Query, Read

SEED = 20261217  # of the problems; training, calibrations and benchmarks use others
PROBLEMS = 240
TEMPERATURE = 0.6
PREFIX = "probe-tiny-"
# probes that a rule uses together: of the target, of the draft
PAIRS = (
    ("target-paper", "draft-paper"),
    ("target-last-layer", "draft-last-layer"),
    ("target-plus", "draft-paper"),
    ("target-residues", "draft-residues"),
    ("target-weekdays", "draft-weekdays"),
    ("target-paper-sentence", "draft-paper-sentence"),
    ("target-plus-sentence", "draft-paper-sentence"),
)


@dataclass(frozen=True, slots=True)
class Scored:
    """A drafted step: each probe's score by name, the lowest log-probability, and the truth."""

    problem: str
    scores: Mapping[str, float]
    lowest: float
    right: bool


@dataclass(frozen=True, kw_only=True)
class Judging(Told):
    """Has all probes score the drafted steps after true ones."""

    probes: Sequence[Probe]
    scored: list[Scored] = field(default_factory=list)

    def evidence(self) -> tuple[Read, ...]:
        reads = (r for probe in self.probes if probe.role == "draft" for r in probe.draft_reads())
        return tuple(dict.fromkeys(reads))

    def open(self, kit: Kit) -> JudgingSession:
        return JudgingSession(kit, self)


class JudgingSession(ToldSession):
    def __init__(self, kit: Kit, rule: Judging) -> None:
        super().__init__(kit, [], rule.chains[kit.prompt])
        self.rule = rule
        posed = world.find_problem(kit.prompt)
        assert posed is not None
        self.posed, self.before = posed, list[world.Meaning]()

    def note(self, context: Context, draft: Draft, at: int) -> Plan[None]:
        """Have the target read the drafted step, and record the probes' scores."""
        kit, spans = self.kit, [(0, draft.ends[0])]
        step, rule = draft.tokens[: draft.ends[0]], self.rule
        readers = [probe for probe in rule.probes if probe.role == "target"]
        reads = (LOGPROBS, *(read for probe in readers for read in probe.reads(spans)))
        answer: Answer = yield Query(
            "target", context, kit.sampling, kit.rng, tokens=step, reads=tuple(dict.fromkeys(reads))
        )
        scores = {}
        for probe in rule.probes:
            values = answer.values if probe.role == "target" else draft.evidence
            asked = probe.reads(spans) if probe.role == "target" else probe.draft_reads()
            scores[probe.name] = float(probe.score(values, asked, spans)[0])
        said = world.meaning(self.posed, kit.decode(step).removesuffix("<|im_end|>"))
        right = world.is_next(self.posed, self.before, said)
        lowest = min(answer[LOGPROBS].tolist()[: len(step)])
        rule.scored.append(Scored(kit.prompt, scores, lowest, right))
        true = world.meaning(self.posed, kit.decode(self.steps[at]).removesuffix("<|im_end|>"))
        assert true is not None and world.is_next(self.posed, self.before, true)
        self.before.append(true)


def judged(probes: Sequence[Probe], split: str, problems: int) -> list[Scored]:
    """Score the drafted steps of fresh problems with the probes of one split."""
    options = ["draft=lm", "draft.model.path=embedded/tiny-draft", "draft_length=1", "accept=logprob"]  # fmt: skip
    options += ["accept.threshold=-4", f"split={split}", f"temperature={TEMPERATURE}"]
    options += [f"benchmark.seed={SEED}", "concurrency=40", "adaptive=false"]
    with Solver(build(compose(options))) as solver:
        asked = list(islice(solver.config.benchmark.problems(), problems))
        by_prompt = {solver.text.prompt(p.question, p.system)[0]: p for p in asked}
        chains: Chains = told(solver, by_prompt)
        rule = Judging(chains=chains, probes=probes)
        solver.rule = rule
        for _ in solver.solve(asked, "speculative"):
            pass
    return rule.scored


def conditions(problems: int = PROBLEMS) -> dict[str, Any]:
    """Return how the steps were drawn."""
    return {"problems": problems, "seed": SEED, "temperature": TEMPERATURE}


def figures(
    probe: Probe, digests: Mapping[str, str], scored: Sequence[Scored], problems: int
) -> dict[str, Any]:
    """Return what a card says of one probe; its digest shows whether the probe was trained again."""
    right = np.array([float(one.right) for one in scored])
    groups = [one.problem for one in scored]

    def of(name: str) -> np.ndarray:
        return np.array([one.scores[name] for one in scored])

    pairs = {}
    for target, draft in ((PREFIX + t, PREFIX + d) for t, d in PAIRS):
        if probe.name in (target, draft) and {target, draft} <= digests.keys():
            other = draft if probe.name == target else target
            both = together(of(target), of(draft), right, groups)
            pairs[other] = {"digest": digests[other], **both}
    lowest = metrics.auroc(np.array([one.lowest for one in scored]), right)
    return {
        **conditions(problems),
        "digest": probe.digest,
        **told_apart(of(probe.name), right, groups),
        "lowest": lowest,
        "pairs": pairs,
    }


def main() -> int:
    a = parser(__doc__, problems=PROBLEMS, models=HUB).parse_args()
    shown = table(
        "Right and wrong drafted steps", "probe", "steps", "wrong", "AUROC", "AUROC of f_T / f_D",
        "right kept", "wrong kept",
    )  # fmt: skip
    found = [Probe.load(str(folder)) for folder in sorted(Path(a.models).glob(PREFIX + "*"))]
    for split in sorted({probe.config["split"] for probe in found}):
        probes = [probe for probe in found if probe.config["split"] == split]
        scored = judged(probes, split, a.problems)
        digests = {probe.name: probe.digest for probe in probes}
        for probe in probes:
            fresh = figures(probe, digests, scored, a.problems)
            probe.config["metrics"].setdefault("judging", {})["fresh"] = fresh
            states = "states.svg" in probe.texts
            probe.texts["README.md"] = card(probe.name, probe.config, states)
            probe.save(Path(a.models) / probe.name)
            for pair in fresh["pairs"].values():
                rates = (pair["right_kept"]["kept"], pair["wrong_kept"]["kept"])
                cells = [fresh["auroc"], pair["auroc"], *rates]
                counts = (f"{fresh['steps']:,}", f"{fresh['wrong']:,}")
                shown.add_row(probe.name, *counts, *(f"{cell:.3f}" for cell in cells))
    Console().print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
