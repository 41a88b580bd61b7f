"""How much is drafted in the problems of one solver: fixed lengths, or by what drafts cost and are worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from semspec.decoding.beliefs import Beliefs
from semspec.decoding.budget import Adaptive
from semspec.decoding.budget_beside import SUFFIX, Beside, Copies, Lookups
from semspec.decoding.budget_steps import AdaptiveSteps
from semspec.decoding.costs import Costs
from semspec.decoding.economy import COPIED, DRAWN, Economy
from semspec.decoding.pace import Pace, Steady
from semspec.protocols import Drafter, DraftSession, Rule
from semspec.types import Sampling


@dataclass(frozen=True, slots=True)
class Pacing:
    """What is known of costs, and of each drafter; nothing where lengths are fixed."""

    costs: Costs | None = None
    economies: Mapping[str, Economy] = field(default_factory=dict)  # by who drafts: draft, nested

    @classmethod
    def adaptive(
        cls,
        drafters: Mapping[str, Drafter],
        concurrency: int,
        costs: Costs,
        fill: Callable[[Economy], None] = lambda _: None,
    ) -> Self:
        """Return what decides by costs; ``fill`` lets an economy begin with what another run has learned."""
        economies: dict[str, Economy] = {}
        for who, drafter in drafters.items():
            economies[who] = economy = Economy(
                costs,
                who,
                concurrency,
                model="draft" in drafter.models(),
                beliefs=Beliefs(DRAWN if (drafter.beside or drafter).rows else COPIED),
            )
            fill(economy)
            if drafter.beside is not None:
                economies[who + SUFFIX] = copies = Lookups(
                    costs, who + SUFFIX, concurrency, beliefs=Beliefs(COPIED)
                )
                fill(copies)
        return cls(costs, economies)

    def of_tokens(
        self,
        who: str,
        pair: tuple[Drafter, Rule],
        session: DraftSession,
        sampling: Sampling,
        longest: int,
        cap: int = 1,
        chain: int = 0,
    ) -> Pace:
        """Return who decides in one problem that is drafted by tokens.

        Of a drafter that grows trees ``longest`` is in levels, and ``chain`` the longest chain in a tree's place.
        """
        if (economy := self.economies.get(who)) is None:
            return Steady(longest, cap)
        drafter, rule = pair
        economy, both = economy.opened(), {"watches": bool(session.watches), "exact": rule.lossless}
        both["recalls"] = session.recalls
        copies = self.economies.get(who + SUFFIX)
        if drafter.beside is None or not isinstance(copies, Lookups):
            own = _own(drafter, sampling, longest, chain)
            return Adaptive(economy=economy, **own, **both)
        model, lookups = drafter.beside, copies.opened().beside(economy)
        copying = Copies(economy=lookups, longest=longest, **both)
        own = _own(model, sampling, model.reach or chain, chain)
        return Beside(economy=economy, copying=copying, **own, **both)

    def of_steps(self, who: str, pair: tuple[Drafter, Rule], longest: int, cap: int) -> Pace:
        """Return who decides in one problem that is drafted by longer units, of ``cap`` tokens at most."""
        if (economy := self.economies.get(who)) is None:
            return Steady(longest, cap)
        drafter, rule = pair
        return AdaptiveSteps(
            economy=economy.opened(),
            longest=longest,
            cap=cap,
            copies=not drafter.rows,
            by_token=rule.cuts == "tokens",
        )


def _own(drafter: Drafter, sampling: Sampling, longest: int, chain: int) -> dict[str, Any]:
    """Return what the pace of a drafter is told of it; ``chain``: the longest chain in a tree's place."""
    tree = drafter.levels > 0 and not drafter.drawn(sampling)
    return {
        "longest": longest,
        "copies": not drafter.rows,
        "cuts": not drafter.rows or tree,
        "longest_chain": chain if drafter.chains else 0,
        "greedy": sampling.greedy,
    }
