"""How much one solver drafts: fixed lengths, or by the cost and worth of drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from semspec.decoding.beliefs import Beliefs
from semspec.decoding.budget import Adaptive
from semspec.decoding.budget_beside import SUFFIX, Beside, Copies, Lookups
from semspec.decoding.budget_copied_steps import CopiedSteps
from semspec.decoding.budget_steps import AdaptiveSteps
from semspec.decoding.budget_steps_beside import StepsBeside
from semspec.decoding.costs import Costs
from semspec.decoding.economy import COPIED, DRAWN, Economy
from semspec.decoding.pace import Pace, Steady
from semspec.protocols import Drafter, DraftSession, Rule
from semspec.types import Sampling


@dataclass(frozen=True, slots=True)
class Pacing:
    """Costs and the economy of each drafter; empty where lengths are fixed."""

    costs: Costs | None = None
    economies: Mapping[str, Economy] = field(default_factory=dict)  # by drafter: draft, nested

    @classmethod
    def adaptive(
        cls,
        drafters: Mapping[str, Drafter],
        concurrency: int,
        costs: Costs,
        fill: Callable[[Economy], None] = lambda _: None,
        refers: bool = False,
    ) -> Self:
        """Return a pacing that decides by costs; ``fill`` may load what another run has learned.

        ``refers``: problems may come with references, which are copied from beside any drafter.
        """
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
            if drafter.beside is not None or (refers and drafter.rows):
                economies[who + SUFFIX] = copies = Lookups(
                    costs, who + SUFFIX, concurrency, beliefs=Beliefs(COPIED)
                )
                fill(copies)
        return cls(costs, economies)

    def apart(self) -> Self:
        """Return a pacing for another rule or sampling, with the same costs (``Economy.apart``)."""
        return type(self)(self.costs, {who: one.apart() for who, one in self.economies.items()})

    def of_tokens(
        self,
        who: str,
        pair: tuple[Drafter, Rule],
        session: DraftSession,
        sampling: Sampling,
        longest: int,
        cap: int = 1,
        chain: int = 0,
        refers: bool = False,
    ) -> Pace:
        """Return the pace of one problem that is drafted by tokens.

        For a tree drafter, ``longest`` is in levels and ``chain`` is the longest chain in place of a tree. ``refers``: the session
        copies from the problem's references beside the drafter.
        """
        if (economy := self.economies.get(who)) is None:
            return Steady(longest, cap)
        drafter, rule = pair
        economy = economy.opened()
        # both kinds of rules write the target's own text
        exact = rule.lossless or rule.greedy_only
        both = {"watches": bool(session.watches), "exact": exact, "recalls": session.recalls}
        model, copies = drafter.beside, self.economies.get(who + SUFFIX)
        if model is None and refers and drafter.rows:
            model = drafter  # its prices and chances are not those of copies
        if model is None or not isinstance(copies, Lookups):
            own = _own(drafter, sampling, longest, chain)
            return Adaptive(economy=economy, **own, **both)
        lookups = copies.opened().beside(economy)
        copying = Copies(economy=lookups, longest=longest, **both)
        own = _own(model, sampling, model.reach or chain, chain)
        return Beside(economy=economy, copying=copying, **own, **both)

    def of_steps(
        self,
        who: str,
        pair: tuple[Drafter, Rule],
        session: DraftSession,
        longest: int,
        cap: int,
        refers: bool = False,
    ) -> Pace:
        """Return the pace of one problem that is drafted by longer units, of at most ``cap`` tokens.

        ``refers``: the session copies from the problem's references beside the drafter.
        """
        if (economy := self.economies.get(who)) is None:
            return Steady(longest, cap)
        drafter, rule = pair
        own: dict[str, Any] = {"longest": longest, "cap": cap, "by_token": rule.cuts == "tokens"}
        if drafter.rows:
            kind = StepsBeside if refers else AdaptiveSteps
            return kind(economy=economy.opened(), **own)
        own |= {"watches": bool(session.watches), "recalls": session.recalls}
        return CopiedSteps(economy=economy.opened(), **own)


def _own(drafter: Drafter, sampling: Sampling, longest: int, chain: int) -> dict[str, Any]:
    """Return a drafter's own arguments for its pace; ``chain``: the longest chain in place of a tree."""
    tree = drafter.levels > 0 and not drafter.drawn(sampling)
    return {
        "longest": longest,
        "copies": not drafter.rows,
        "cuts": not drafter.rows or tree,
        "longest_chain": chain if drafter.chains else 0,
        "greedy": sampling.greedy,
    }
