"""SemanticSpec's ablation: both semantic probabilities are drawn uniformly (section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.rules._steps import left_to_right
from semspec.types import Context, Draft, Query, Read, Verdict, What


@register("accept", "random")
@dataclass(frozen=True, kw_only=True)
class Random:
    """Accepts a step with probability min(1, f_T / f_D), both uniform: the paper's ablation."""

    needs: ClassVar[frozenset[What]] = frozenset()
    cuts: ClassVar[Literal["tokens", "ends"]] = "ends"
    splits: ClassVar[frozenset[str] | None] = None
    lossless: ClassVar[bool] = False
    greedy_only: ClassVar[bool] = False

    def evidence(self) -> tuple[Read, ...]:
        return ()

    def open(self, kit: Kit) -> RandomSession:
        return RandomSession(kit)


class RandomSession:
    def __init__(self, kit: Kit) -> None:
        self.kit = kit

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        kit = self.kit
        # all else is unchanged: the target reads the draft, so that the cost is the real one
        yield Query("target", context, kit.sampling, kit.rng, tokens=draft.tokens)
        ratios = []
        for _ in draft.ends:
            target, small = kit.rng.random(), kit.rng.random()
            ratios.append(min(1.0, target / max(small, 1e-12)))
        return left_to_right(draft, lambda unit: kit.rng.random() < ratios[unit], ratios)
