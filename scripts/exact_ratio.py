"""Apply SemanticSpec's rule without probes: judge drafted steps by semantic probabilities counted from samples.

    python scripts/exact_ratio.py --samples runs/doubting/samples-target [--smoothing 0.5]

It reads samples of train_probe from the embedded world (role=target, with many drafted steps per context). P_T is the
share of the target's own steps with the same meaning as a drafted step, P_D the share among the other drafted steps. A
step is kept with probability min(1, P_T / P_D) (SemanticSpec, eq. 2). The oracle says which steps are right.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from script_kit import parser

from semspec import world
from semspec.errors import UserError
from semspec.training.probes.contexts import FILE, Chain, read_chains
from semspec.training.probes.metrics import auroc
from semspec.training.probes.sample import FOLDER
from semspec.training.probes.shards import Sample, read_samples


@dataclass(frozen=True)
class Judged:
    """A drafted step and its counted semantic probability under each model."""

    right: bool
    target: float
    draft: float

    @property
    def kept(self) -> float:
        """P(keep) = min(1, P_T / P_D)."""
        return min(1.0, self.target / self.draft)


def right_steps(
    problem: world.Problem, before: Sequence[str], means: Sequence[world.Meaning | None]
) -> list[bool]:
    """Return which steps, by their meanings, are right after a text that may contain mistakes.

    A mistake stands until it is taken back, and a step that takes it back is right. Steps of the text that claim nothing are
    skipped.
    """
    known = [world.meaning(problem, step) for step in before]
    said = [meaning for meaning in known if meaning is not None]
    return [world.is_next(problem, said, meaning) for meaning in means]


def judged(samples: list[Sample], problem: world.Problem, before: list[str], smoothing: float) -> list[Judged]:  # fmt: skip
    """Judge the drafted steps of one context.

    ``smoothing`` is added to each count, and to the totals for one unseen meaning, so that no share is 0.
    """
    means = [world.meaning(problem, sample.text) for sample in samples]
    own = [m for m, s in zip(means, samples, strict=True) if s.writer == "own"]
    drafted = [m for m, s in zip(means, samples, strict=True) if s.writer != "own"]
    of_target, of_draft = Counter(own), Counter(drafted)

    def share(count: int, total: int) -> float:
        return (count + smoothing) / (total + 2 * smoothing)

    right = right_steps(problem, before, drafted)
    return [
        Judged(true, share(of_target[m], len(own)), share(of_draft[m], len(drafted)))
        for m, true in zip(drafted, right, strict=True)
    ]


def posed(chain: Chain) -> world.Problem:
    """Return the problem that a chain solves."""
    problem = world.find_problem(chain.question)
    if problem is None:
        raise UserError(f"{chain.id} is no problem of the embedded world")
    return problem


def main() -> int:
    a = parser(__doc__, samples=(Path, "the folder of train_probe"), smoothing=0.5).parse_args()
    chains = {chain.id: chain for chain in read_chains(a.samples / FILE)}
    if not chains:
        raise UserError(f"{a.samples} holds no {FILE}: name the folder= of train_probe")
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in read_samples(a.samples / FOLDER):
        groups[sample.context].append(sample)
    found: list[Judged] = []
    for samples in groups.values():
        chain = chains[samples[0].chain]
        found += judged(samples, posed(chain), chain.texts[: samples[0].cut], a.smoothing)
    right = np.array([float(j.right) for j in found])
    if not found or right.all() or not right.any():
        raise UserError("no drafted steps, or all are alike: sample with role=target drafted=14")
    print(f"{len(found):,} drafted steps of {len(groups):,} contexts, {right.mean():.0%} right")
    for name, scores in {
        "P_T": [j.target for j in found],
        "P_D": [j.draft for j in found],
        "P_T / P_D": [j.target / j.draft for j in found],
    }.items():
        print(f"AUROC of {name:10s} {auroc(np.array(scores), right):.3f}")
    for truth in (True, False):
        kept = [j.kept for j in found if j.right == truth]
        print(f"{'right' if truth else 'wrong'} steps are kept with {np.mean(kept):.3f}")
    return 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
