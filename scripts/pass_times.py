"""Time every pass through the models of `engine=hf`, to tell what a run costs from what a shared machine adds to it.

Other programs on a machine slow single passes down by half, at random: the target alone, run twice in turn, differs by three percent
over 32 problems. But a pass of one kind always does the same work. So a run's *usual* seconds are its seconds with each pass at the
median of all passes of its kind in the same comparison. What lies between the passes (drafting, judging, the loop) counts as measured.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeAlias

from semspec.engines._lean.model import Model
from semspec.engines._lean.step import Step

NEAR = 64  # positions: contexts in one range of so many count as alike

Kind: TypeAlias = tuple[object, ...]
"""What a pass's work depends on: the model, the code path, tokens, context."""


@dataclass
class Run:
    """The passes of a run and its seconds in all."""

    seconds: float = 0.0
    passes: dict[Kind, list[float]] = field(default_factory=lambda: defaultdict(list))


@contextmanager
def timed(run: Run) -> Iterator[None]:
    """Time a run and its passes."""
    with (
        _each(Step, "one", _kind_of_one, run),
        _each(Step, "few", _kind_of_few, run),
        _each(Model, "forward", _kind_of_many, run),
        _each(Model, "logits", lambda model, rows: ("logits", id(model), len(rows)), run),
    ):
        began = time.perf_counter()
        try:
            yield
        finally:
            run.seconds = time.perf_counter() - began


def _kind_of_one(step: Step, token: int, position: int, slot: int, cache: Any, tap: Any) -> Kind:
    return "one", id(step.model), position // NEAR


def _kind_of_few(
    step: Step,
    tokens: Sequence[int],
    positions: Sequence[int],
    mask: Any,
    start: int,
    slot: int,
    cache: Any,
    tap: Any,
) -> Kind:
    return "few", id(step.model), len(tokens), start // NEAR


def _kind_of_many(
    model: Model, ids: Sequence[int], place: Any, cache: Any, tap: Any, *attention: Any
) -> Kind:
    parts = tuple(
        (group.batch, group.longest, group.visible // NEAR, group.causal) for group in place.groups
    )
    return "many", id(model), len(ids), parts, bool(attention[-1])


@contextmanager
def _each(owner: type, name: str, kind: Callable[..., Kind], run: Run) -> Iterator[None]:
    """Let each call of a method add its seconds to a run."""
    method = getattr(owner, name)

    def passing(*given: Any) -> Any:
        began = time.perf_counter()
        result = method(*given)
        run.passes[kind(*given)].append(time.perf_counter() - began)
        return result

    setattr(owner, name, passing)
    try:
        yield
    finally:
        setattr(owner, name, method)


def usual_prices(runs: Sequence[Run]) -> dict[Kind, float]:
    """Return the median seconds of each kind of pass."""
    kinds = defaultdict[Kind, list[float]](list)
    for run in runs:
        for kind, seconds in run.passes.items():
            kinds[kind] += seconds
    return {kind: median(seconds) for kind, seconds in kinds.items()}


def usual_seconds(run: Run, prices: Mapping[Kind, float]) -> float:
    """Return a run's seconds with each pass at its usual price."""
    passing = sum(map(sum, run.passes.values()))
    usual = sum(len(seconds) * prices[kind] for kind, seconds in run.passes.items())
    return run.seconds - passing + usual


def slower(runs: Sequence[Run], others: Sequence[Run]) -> float | None:
    """Return how many times as long passes of the kinds that both have took in ``runs``; None without such passes.

    Passes of a kind do the same work, but drafting between them could still slow them down.
    """
    counts = [Counter[Kind](), Counter[Kind]()]
    for count, side in zip(counts, (runs, others), strict=True):
        for run in side:
            count.update({kind: len(seconds) for kind, seconds in run.passes.items()})
    both = counts[0] & counts[1]
    first, second = usual_prices(runs), usual_prices(others)
    least = sum(n * second[kind] for kind, n in both.items())
    return sum(n * first[kind] for kind, n in both.items()) / least if least else None
