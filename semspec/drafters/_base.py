"""Defaults for drafters, and the setup checks that follow from what a drafter declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from semspec.errors import UserError
from semspec.models.location import ModelConfig
from semspec.protocols import Drafter, Kit, Plan, Plugin, Setup
from semspec.types import Answer, Context, Query, Read, Role, Round, Sampling, Seen, What, names_of


class DrafterBase(Plugin):
    """Defaults of ``protocols.Drafter``; a drafter overrides what is different."""

    plain: ClassVar[bool] = False
    ahead: ClassVar[bool] = False
    rows: ClassVar[bool] = False

    def models(self) -> Mapping[Role, ModelConfig]:
        return {}

    @property
    def needs(self) -> frozenset[What]:
        return frozenset()

    @property
    def levels(self) -> int:
        return 0

    @property
    def reach(self) -> int:
        return self.levels

    @property
    def chains(self) -> bool:
        return bool(self.levels) and self.rows

    @property
    def beside(self) -> Drafter | None:
        return None

    @property
    def refers(self) -> bool:
        return False

    def can_draft(self, references: bool) -> bool:
        return not self.plain

    @property
    def remembers(self) -> int:
        return 0

    @property
    def own_prompt(self) -> bool:
        return False

    def drawn(self, sampling: Sampling) -> bool:
        return False

    def check_setup(self, setup: Setup) -> None:
        me = setup.drafter_choice
        if self.levels:
            self._check_trees(setup)
        if setup.ahead and not self.ahead:
            way = "leave ahead=true out, or use draft=lm"
            raise UserError(
                f"ahead=true: {me} cannot draft before the verdict on its last draft: {way}"
            )
        setup.check_models(me, self.models(), "drafter")
        if lacking := self.needs - setup.engine.offers:
            raise UserError(
                f"{me} needs the target's {names_of(lacking)}, which {setup.engine_choice}"
                " cannot return: use engine=hf, or another drafter"
            )

    def _check_trees(self, setup: Setup) -> None:
        trees = f"{setup.drafter_choice} drafts trees of tokens"
        if setup.split != "token":
            raise UserError(
                f"{trees}, and split={setup.split} drafts steps: use split=token, or tree=chain"
            )
        if not setup.rule.trees:
            raise UserError(
                f"{trees}, and {setup.rule_choice} judges only chains: use"
                f" {setup.accept_option}=lossless, or {setup.draft_option}.tree=chain"
            )
        if setup.ahead:
            raise UserError(
                f"ahead=true: {trees}, and the verdict decides which branch to continue:"
                " leave ahead=true out"
            )


def rows_of(
    context: Context, kit: Kit, reads: tuple[Read, ...], start: int, end: int = 0
) -> Plan[Seen]:
    """Ask the target for the context's rows from ``start`` on; a negative ``end`` drops the last ones."""
    answer: Answer = yield Query(
        "target", context, kit.sampling, kit.rng, reads=reads, rows_from=start
    )
    return Seen(start, len(context) + end - start, answer.values)


class CopyingDrafter(DrafterBase):
    """A drafter that copies runs of tokens, at most ``longest`` (an option)."""

    longest: int

    @property
    def reach(self) -> int:
        return self.longest


class MatchingDrafter(CopyingDrafter):
    """A drafter that copies what followed a match, and copies more after a longer one."""

    stretch: float
    shortest: int
    match: int

    def check_match(self) -> None:
        """Raise UserError if the lengths contradict each other."""
        if self.longest < 1 or not 1 <= self.shortest <= self.match or self.stretch <= 0:
            raise UserError(
                f"longest={self.longest}, stretch={self.stretch:g},"
                f" shortest={self.shortest}, match={self.match}: give longest of at least 1,"
                " stretch above 0, and shortest from 1 to match"
            )


class DraftSessionBase:
    """A session that watches nothing and learns nothing."""

    watches: tuple[Read, ...] = ()
    recalls: bool = True

    def see(self, seen: Seen) -> None:
        """Take rows of the target's passes; called only if ``watches`` asks for some."""

    def observe(self, context: Context, done: Round) -> None:
        """Learn what became of the draft."""
