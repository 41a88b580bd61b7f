"""How much is drafted in the problems of one solver: fixed lengths, or by what drafts cost and are worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from semspec.decoding.beliefs import Beliefs
from semspec.decoding.budget import Adaptive
from semspec.decoding.budget_steps import AdaptiveSteps
from semspec.decoding.costs import Costs
from semspec.decoding.economy import COPIED, DRAWN, Economy
from semspec.decoding.pace import Pace, Steady
from semspec.protocols import Drafter, DraftSession, Rule, drafts_chains
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
        economies = {}
        for who, drafter in drafters.items():
            economies[who] = economy = Economy(
                costs,
                who,
                concurrency,
                model="draft" in drafter.models(),
                beliefs=Beliefs(DRAWN if drafter.rows else COPIED),
            )
            fill(economy)
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
        tree = drafter.levels > 0 and not drafter.drawn(sampling)
        return Adaptive(
            economy=economy.opened(),
            longest=longest,
            copies=not drafter.rows,
            cuts=not drafter.rows or tree,
            watches=bool(session.watches),
            exact=rule.lossless,
            longest_chain=chain if drafts_chains(drafter) else 0,
            greedy=sampling.greedy,
        )

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
