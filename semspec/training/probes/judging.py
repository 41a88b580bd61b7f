"""Measure what a rule needs from a probe: does its score separate right drafted steps from wrong ones?

An AUROC against semantic probabilities of at least one half also rewards knowing how *often* a right step is said,
which no rule needs. Here, in the embedded world a step is *right* if the oracle says so and its context is true;
elsewhere, if the target says it at least now and then (``ACCEPTABLE``).

    metrics.judging.test     on held-out problems of the probe's own data
    metrics.judging.fresh    on drafted steps in fresh, true contexts, alone and with the other model's probe
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from semspec import world
from semspec.training.probes import metrics
from semspec.training.probes.contexts import Chain
from semspec.training.probes.dataset import Rows
from semspec.training.probes.shards import Sample

ACCEPTABLE = 0.05  # least semantic probability of an acceptable step
SMALLEST = 1e-6  # accept=semantic replaces a draft score of 0 by this
UNKNOWN = float("nan")
Figures = dict[str, Any]


def truths(chains: Sequence[Chain], samples: Iterable[Sample]) -> dict[str, list[float]]:
    """Return by context 1 for each sample that is right as the next step, else 0.

    If the context contains an error, all its samples are ``UNKNOWN``.
    """
    by_id = {chain.id: chain for chain in chains}
    found: dict[str, list[float]] = {}
    for name, members in groupby(samples, key=lambda sample: sample.context):
        group = list(members)
        chain = by_id[group[0].chain]
        problem = world.find_problem(chain.question)
        before = None if problem is None else _true(problem, chain.texts[: group[0].cut])
        if problem is None or before is None:
            found[name] = [UNKNOWN] * len(group)
            continue
        said = [world.meaning(problem, sample.text) for sample in group]
        found[name] = [float(world.is_next(problem, before, meaning)) for meaning in said]
    return found


def _true(problem: world.Problem, steps: Sequence[str]) -> list[world.Meaning] | None:
    """Return the meanings of the steps, or None if one of them is wrong."""
    before: list[world.Meaning] = []
    for step in steps:
        meaning = world.meaning(problem, step)
        if meaning is None or not world.is_next(problem, before, meaning):
            return None
        before.append(meaning)
    return before


def held_out(
    score: np.ndarray, rows: Rows, test: Sequence[int], role: str, seed: int
) -> Figures | None:
    """Return a probe's figures on the drafted test steps; None if it is unknown which are right."""
    known = _known(rows, test, role)
    if known is None:
        return None
    chosen, right, truth = known
    index = np.array(test)[chosen]
    figures = told_apart(score[chosen], right, [rows.chains[i] for i in index], seed)
    return {"truth": truth, **figures, "lowest": metrics.auroc(rows.lowest[index], right)}


def wrong_among(rows: Rows, training: Sequence[int], role: str) -> Figures | None:
    """Count the drafted training steps that can be judged, and the wrong ones among them; None if none can."""
    known = _known(rows, training, role)
    if known is None:
        return None
    _, right, truth = known
    return {"truth": truth, "steps": len(right), "wrong": int((right == 0).sum())}


def _known(
    rows: Rows, index: Sequence[int], role: str
) -> tuple[np.ndarray, np.ndarray, str] | None:
    """Return which of these rows are drafted steps that can be judged, whether each is right, and by which criterion.

    None if there are none, or if it is unknown which are right.
    """
    picked = np.array(index, dtype=int)
    drafted = rows.own[picked] == (role == "draft")
    if rows.right is not None:
        right, truth = rows.right[picked], "oracle"
    elif role == "target":
        right = (rows.target.numpy()[picked] >= ACCEPTABLE).astype(float)
        truth = f"semantic probability of at least {ACCEPTABLE:g}"
    else:  # the draft's own samples do not tell whether its steps are right
        return None
    chosen = np.flatnonzero(drafted & ~np.isnan(right))
    return (chosen, right[chosen], truth) if len(chosen) else None


def told_apart(
    score: np.ndarray, right: np.ndarray, groups: Sequence[str], seed: int = 0
) -> Figures:
    """Return the number of steps and of wrong ones, and the score's AUROC for right against wrong."""
    return {
        "steps": len(right),
        "wrong": int((right == 0).sum()),
        "auroc": metrics.auroc(score, right),
        "interval": list(metrics.auroc_interval(score, right, groups, seed)),
    }


def together(
    target: np.ndarray, draft: np.ndarray, right: np.ndarray, groups: Sequence[str], seed: int = 0
) -> Figures:
    """Return figures of accept=semantic with both probes: it keeps a step with probability min(1, f_T / f_D)."""
    ratio = target / np.maximum(draft, SMALLEST)
    kept, true = np.minimum(ratio, 1.0), right > 0

    def share(of: np.ndarray) -> Figures:
        """Return the mean probability that one of these steps is kept, and its interval."""

        def mean(rows: list[int]) -> float | None:
            among = kept[rows][of[rows]]
            return float(among.mean()) if len(among) else None

        whole = list(range(len(kept)))
        return {"kept": mean(whole), "interval": list(metrics.interval_of(mean, groups, seed))}

    return {
        **told_apart(ratio, right, groups, seed),
        "right_kept": share(true),
        "wrong_kept": share(~true),
    }


def section(judging: Mapping[str, Any]) -> str:
    """Return a card's section about right and wrong drafted steps; "" if nothing was measured."""
    rows, notes = [], list[str]()
    if test := judging.get("test"):
        rows += _rows("held-out problems", test)
        notes.append(f"Held-out problems: of this probe's data; right is by {test['truth']}.")
    if fresh := judging.get("fresh"):
        rows += _rows("fresh problems", fresh)
        notes.append(FRESH.format(**fresh))
    if not rows:
        return ""
    parts = [SECTION.format(rows="\n".join(rows), notes=" ".join(notes))]
    if pairs := judging.get("fresh", {}).get("pairs"):
        lines = (
            f"| `{name}` | {_auroc(pair)} | {_share(pair['right_kept'])} | {_share(pair['wrong_kept'])} |"
            for name, pair in sorted(pairs.items())
        )
        parts.append(PAIRS.format(rows="\n".join(lines)))
    return "\n".join(parts)


SECTION = """
## Right and wrong drafted steps

How well the probe separates right from wrong steps of the draft model, which is what a rule needs (AUROC).

| | steps | wrong | AUROC right / wrong [95 %] | of the lowest log-probability |
|---|---|---|---|---|
{rows}

{notes} Intervals by bootstrap over problems.
"""
FRESH = (
    "Fresh problems: {problems} of the embedded world (seed {seed}), drafted at T = {temperature:g} after true steps worded by the world;"
    " right is by the oracle."
)
PAIRS = """\
Together with a probe of the other model, on the same fresh steps: `accept=semantic` keeps a step with probability min(1, f_T / f_D).

| other probe | AUROC of f_T / f_D [95 %] | right steps kept [95 %] | wrong steps kept [95 %] |
|---|---|---|---|
{rows}
"""


def _rows(label: str, f: Mapping[str, Any]) -> list[str]:
    lowest = "-" if f.get("lowest") is None else f"{f['lowest']:.3f}"
    return [f"| {label} | {f['steps']:,} | {f['wrong']:,} | {_auroc(f)} | {lowest} |"]


def _auroc(f: Mapping[str, Any]) -> str:
    if f["auroc"] is None:
        return "-"
    return f"{f['auroc']:.3f}{_between(f['interval'])}"


def _share(f: Mapping[str, Any]) -> str:
    return "-" if f["kept"] is None else f"{f['kept']:.3f}{_between(f['interval'])}"


def _between(interval: Sequence[float]) -> str:
    return f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
