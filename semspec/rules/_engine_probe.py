"""A probe that sits inside an engine: rules ask for its scores in place of the states.

A rule works with either, ``Probe`` or ``Inside``; which one is decided once, when the rule is bound.
The engine that offers ``What.SCORE`` must give it: no falling back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semspec.artifacts.probe import Probe, Spans
from semspec.deferred import Tensor
from semspec.types import Read, What


@dataclass(frozen=True, slots=True)
class Inside:
    """A probe that the engine holds, under its digest."""

    digest: str

    def reads(self, spans: Spans) -> tuple[Read, ...]:
        return (Read(What.SCORE, spans=tuple((a, b) for a, b in spans), probe=self.digest),)

    def draft_reads(self) -> tuple[Read, ...]:
        return (Read(What.SCORE, probe=self.digest),)

    def score(self, values: Mapping[Read, Any], reads: Sequence[Read], spans: Spans) -> Tensor:
        (read,) = (read for read in reads if read.what is What.SCORE)
        scores: Tensor = values[read]
        return scores[: len(spans)]  # a generated tail may be no unit of the draft


Scorer = Probe | Inside


def for_engine(probe: Scorer, offers: Collection[What]) -> Scorer:
    """Return a remote handle if the engine scores probes itself, else the probe."""
    if isinstance(probe, Probe) and What.SCORE in offers and probe.features.pooling:
        return Inside(probe.digest)
    return probe
