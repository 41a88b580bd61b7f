"""Let the engine run a probe: a rule then asks for scores instead of hidden states.

A rule works with a ``Probe`` or an ``Inside``; ``for_engine`` chooses once, when the rule is bound.
An engine that offers ``What.SCORE`` must deliver it: there is no fallback.
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
        return scores[: len(spans)]  # without the generated tail, which may be no unit of the draft


Scorer = Probe | Inside


def for_engine(probe: Scorer, offers: Collection[What]) -> Scorer:
    """Return a handle to the engine's copy if the engine scores such probes itself, else the probe."""
    if isinstance(probe, Probe) and What.SCORE in offers and probe.features.pooling:
        return Inside(probe.digest)
    return probe
