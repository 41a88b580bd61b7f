"""Measure after decoding how far accepted draft tokens moved the target's next step, for any token rule.

The target reads a finished text once more. At each accepted draft token that differs from its likeliest token, it
reads both and compares what follows (ARC-Decode, A.3.2). Decoding itself is not affected.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from semspec.decoding.arc_bound import bounds, lts, normalised_entropy
from semspec.deferred import Tensor, torch
from semspec.protocols import Kit, Plan
from semspec.results.metrics import mean, quantile, wilson
from semspec.rules.arc import Calibrated, Known
from semspec.solver import Solution, Solver
from semspec.training.calibration.next_step import (
    Measure,
    Swap,
    differences,
    divergences,
    read_text,
)
from semspec.types import Context, Outcome

_KEYS = itertools.count(1 << 42)  # of contexts: the solver counts its own from 1


@dataclass(frozen=True, slots=True)
class Accepted:
    """A draft token that was kept, and what was measured for it."""

    place: int  # in the output
    depth: int  # in its draft, from 0
    likeliest: bool  # it is the target's likeliest token, so nothing changes
    js: float
    u: float | None = None  # the bound, if the rule has one
    score: float | None = None  # LTS


@dataclass(frozen=True, slots=True)
class Kept:
    """Where in the output a draft token was kept."""

    at: int
    root: int  # place of the first token of its draft
    judged: bool  # the rule drew the token before the draft, so it knows that row


def kept_places(outcome: Outcome) -> list[Kept]:
    """Return the places of all kept draft tokens."""
    found = []
    at, judged = 0, False
    for done in outcome.rounds:
        if done.drafted:
            found += [Kept(at + i, at, judged) for i in range(len(done.kept))]
        at += len(done.kept) + len(done.written) + len(done.handed)
        judged = bool(done.drafted) and not done.handed
    return found


def audit_text(
    context: Context, outcome: Outcome, kit: Kit, measure: Measure, known: Known | None
) -> Plan[list[Accepted]]:
    """Measure every kept draft token of one output; ``context`` holds the prompt."""
    tokens = outcome.tokens
    rows = yield from read_text(context, tokens, kit)
    best = rows.argmax(-1).tolist()
    kept = [
        k
        for k in kept_places(outcome)
        if not kit.stop_ids & {tokens[k.at], best[k.at]}  # an end of text has no next step
    ]
    swaps = [Swap(k.at, tokens[k.at], best[k.at]) for k in kept if tokens[k.at] != best[k.at]]
    js = iter((yield from divergences(context, tokens, swaps, kit, measure)).tolist())
    if known is None:
        u: list[float | None] = [None] * len(kept)
        score = u
    else:
        u, score = yield from _bounds(context, tokens, rows, kept, kit, known)
    return [
        Accepted(k.at, k.at - k.root, tokens[k.at] == best[k.at],
                 0.0 if tokens[k.at] == best[k.at] else next(js), *more)
        for k, *more in zip(kept, u, score, strict=True)
    ]  # fmt: skip


def _bounds(
    context: Context,
    tokens: Sequence[int],
    rows: Tensor,
    kept: Sequence[Kept],
    kit: Kit,
    known: Known,
) -> Plan[tuple[list[Any], list[Any]]]:
    """Return U and LTS of every kept token, as the rule computed them."""
    if not kept:
        return [], []
    setting, p = known.setting, rows[[k.at for k in kept]]
    drafted, likeliest = [tokens[k.at] for k in kept], p.argmax(-1).tolist()
    distances, margins = yield from differences(
        drafted, likeliest, p, context, kit, known.embeddings
    )
    if setting.buckets is None:
        u = bounds(distances, margins, setting.constants)
        return u.tolist(), lts(u, setting.constants.tau).tolist()
    us, scores = [], []
    for i, k in enumerate(kept):
        # the row before the root gives its entropy, if the rule saw it (as in ``ArcSession``)
        entropy = float(normalised_entropy(rows[k.root - 1])) if k.judged else 1.0
        by = setting.buckets.of(torch.tensor([k.at - k.root], device=rows.device), entropy)
        u = bounds(distances[i : i + 1], margins[i : i + 1], by)
        us.append(float(u))
        scores.append(float(lts(u, by.tau)))
    return us, scores


def audited(
    solver: Solver, solutions: Iterable[Solution], measure: Measure | None = None
) -> Iterator[list[Accepted]]:
    """Yield the kept draft tokens of each solution, in the order in which the measurements end."""
    config = solver.config
    measure = measure or Measure(temperature=config.temperature)
    known = solver.rule.known if isinstance(solver.rule, Calibrated) else None

    def plans() -> Iterator[tuple[Context, Plan[list[Accepted]]]]:
        for done in solutions:
            prompt, ids = solver.text.prompt(done.problem.question, done.problem.system)
            context = Context(next(_KEYS), ids)
            kit = solver.kit(done.problem.id, prompt, "speculative", "audit")
            yield context, audit_text(context, done.outcome, kit, measure, known)

    for finished in solver.driver.run(plans(), config.concurrency):
        yield finished.value


def summary(kept: Sequence[Accepted], theta: float | None = None) -> dict[str, Any]:
    """Return figures by the reason for keeping: mean and 99th percentile of JS, coverage with Wilson interval."""
    other = [a for a in kept if not a.likeliest]
    parts = {"all kept": kept, "not the likeliest": other}
    if theta is not None and any(a.score is not None for a in kept):
        parts["of these, by the bound"] = [a for a in other if (a.score or 0.0) >= theta]
        parts["of these, by the lossless rule"] = [a for a in other if (a.score or 0.0) < theta]
    return {name: figures(part) for name, part in parts.items()}


def figures(kept: Sequence[Accepted]) -> dict[str, Any]:
    js = [a.js for a in kept]
    bounded = [a for a in kept if a.u is not None]
    held = sum(a.js <= a.u for a in bounded if a.u is not None)
    return {
        "tokens": len(kept),
        "js_mean": mean(js),
        "js_p99": quantile(js, 0.99),
        "coverage": held / len(bounded) if bounded else None,
        "coverage_interval": wilson(held, len(bounded)),
    }
