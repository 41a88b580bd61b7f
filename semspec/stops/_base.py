"""Defaults and shared options of stoppers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from semspec import registry
from semspec.decoding.stopping import WORDS
from semspec.errors import UserError
from semspec.models.text import CLOSE
from semspec.protocols import Closing, Plan, Plugin, Setup
from semspec.types import Context, Opinion, What, names_of


class StopBase(Plugin):
    """Defaults of ``protocols.Stopper``, to override as needed."""

    plain: ClassVar[bool] = False
    needs: ClassVar[frozenset[What]] = frozenset()
    said: ClassVar[str] = WORDS

    @property
    def reserve(self) -> int:
        return 0

    def asked_risk(self) -> float | None:
        return None

    @property
    def audits(self) -> bool:
        return False

    def origin(self) -> str:
        return ""

    def described(self, option: str) -> Any:
        """Return an option's value as a calibration records and compares it."""
        return getattr(self, option)

    def check_setup(self, setup: Setup) -> None:
        if missing := self.needs - setup.engine.offers:
            raise UserError(
                f"stop={registry.name_of(self)} needs {names_of(missing)}, which"
                f" {setup.engine_choice} cannot return: use engine=hf, or stop=budget"
            )


@dataclass(frozen=True, kw_only=True)
class Closes(StopBase):
    """A stopper with options for closing the thinking."""

    words: str = WORDS  # the last words of the thinking
    answer: str = ""  # the beginning of the answer
    answer_tokens: int = 0  # reserved for the answer; 0: a quarter of the budget, at most 256
    # also solve stopped problems to their natural end, untimed, and compare
    audit: bool = False

    def __post_init__(self) -> None:
        for name in ("words", "answer"):
            if CLOSE in getattr(self, name):
                raise UserError(
                    f"stop.{name} contains {CLOSE}, which is added automatically: leave it out"
                )
        if self.answer_tokens < 0:
            raise UserError(
                f"stop.answer_tokens={self.answer_tokens}: give 0 (to fit the budget) or more"
            )

    @property
    def closing(self) -> Closing:
        return Closing(self.words, self.answer, self.answer_tokens)

    @property
    def audits(self) -> bool:
        return self.audit or self.asked_risk() is not None


class Never:
    """A session that never closes the thinking."""

    def consider(self, context: Context, thought: int) -> Plan[Opinion]:
        return Opinion(False)
        yield  # a plan is a generator even if it asks nothing
