"""Speculative Thinking (Yang et al. 2025, arXiv:2504.12329): opening words decide who writes on.

The draft model writes. Where one of its paragraphs opens with words that check, doubt or confirm, the
target takes over from the start of the paragraph for a limited number of tokens; then the draft model
goes on, even in the middle of the paragraph. After many doubts the target writes a longer recap.
Numbers and words are those of the public code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Literal, Self

from semspec.errors import UserError
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.rules._base import RuleBase
from semspec.rules._steps import StepSession, unit_spans
from semspec.types import Context, Draft, Handover, Verdict

Mood = Literal["verify", "negative", "positive"]


@register("accept", "triggers")
@dataclass(frozen=True, kw_only=True)
class Triggers(RuleBase):
    """Lets the target write some tokens if a step begins with certain words (Speculative Thinking)."""

    verify: tuple[str, ...] = ("verify", "think again", "recap", "check")
    negative: tuple[str, ...] = ("wait", "alternatively", "hold on", "another")
    positive: tuple[str, ...] = ("yeah", "yes", "final answer", "confident")
    opening: int = 20  # the words are searched in this many first tokens of a paragraph
    tokens: int = 20  # that the target writes after negative and positive openings
    verify_tokens: int = 125  # that it writes after openings that verify
    patience: int = 15  # negative or verifying openings before the target writes a recap
    patience_growth: int = 5
    patience_most: int = 30
    recap_tokens: int = 125  # that the target writes as a recap
    recap_growth: int = 25
    recap_most: int = 200
    recap_text: str = "Let me go over the steps so far and look for errors:"  # opens a recap

    splits: ClassVar[frozenset[str] | None] = frozenset({"paragraph"})
    salvages: ClassVar[bool] = False  # the target makes no pass over the draft

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, int) and value < (0 if option.name.endswith("growth") else 1):
                raise UserError(
                    f"accept.{option.name}={value} is too small: leave it out, or give 1"
                )
        for name in ("patience", "recap"):
            first = getattr(self, "patience" if name == "patience" else "recap_tokens")
            if getattr(self, f"{name}_most") < first:
                raise UserError(
                    f"accept.{name}_most={getattr(self, f'{name}_most')} is less than the {first}"
                    f" that it begins with: give at least {first}"
                )
        for group in ("verify", "negative", "positive"):
            words = tuple(word.strip().lower() for word in getattr(self, group))
            if not all(words):
                raise UserError(f"accept.{group} has an empty word, which is everywhere: drop it")
            object.__setattr__(self, group, words)

    def mood(self, opening: str) -> Mood | None:
        """Classify an opening by the words in it: positive only if confirming words outnumber the others.

        Only whole words count: in the public code "yesterday" has a "yes" in it.
        """
        checks, doubts, confirms = (
            _count(words, opening) for words in (self.verify, self.negative, self.positive)
        )
        if confirms > checks + doubts:
            return "positive"
        if checks:
            return "verify"
        return "negative" if doubts else None

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        """Yield words that the toy's few tokens (" It", " is", an empty line, ".") can spell."""
        yield cls(
            verify=("is .",),
            negative=("it",),
            positive=("is is",),
            tokens=2,
            verify_tokens=3,
            patience=2,
            recap_tokens=4,
            recap_text=" It",
        )

    def open(self, kit: Kit) -> TriggersSession:
        return TriggersSession(kit, self)


def _count(words: Sequence[str], text: str) -> int:
    text = " ".join(text.lower().split())
    return sum(len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text)) for word in words)


class TriggersSession(StepSession):
    def __init__(self, kit: Kit, rule: Triggers) -> None:
        super().__init__(kit)
        self.rule = rule
        self.negatives = 0  # since the last recap; openings that verify count, too
        self.patience, self.recap = rule.patience, rule.recap_tokens

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        """Judge by the opening words alone, without asking a model."""
        yield from ()
        assert draft.parents is None, "a tree has no steps"
        _, begins = self.follow(context)
        spans = unit_spans(draft)
        stale = self.repeated(context, draft, spans)
        for unit, (start, end) in enumerate(spans):
            if begins or unit:  # else it continues a paragraph that the target was stopped in
                verdict = self._decide(start, draft.tokens[start:end])
                if verdict is not None:
                    return verdict
            if unit == stale:
                return self._hand_over(start, self.rule.tokens, "repeats an earlier step")
        return Verdict(len(draft.tokens))

    def _decide(self, start: int, paragraph: Sequence[int]) -> Verdict | None:
        rule = self.rule
        if self.negatives >= self.patience:
            verdict = self._hand_over(start, self.recap, f"a recap after {self.negatives} doubts")
            verdict.write = self.kit.encode(rule.recap_text) if rule.recap_text else []
            self.negatives = 0
            self.patience = min(self.patience + rule.patience_growth, rule.patience_most)
            self.recap = min(self.recap + rule.recap_growth, rule.recap_most)
            return verdict
        mood = rule.mood(self.kit.decode(paragraph[: rule.opening]))
        if mood is None:
            return None
        self.negatives += mood != "positive"
        limit = rule.verify_tokens if mood == "verify" else rule.tokens
        return self._hand_over(start, limit, f"{mood} opening")

    @staticmethod
    def _hand_over(start: int, limit: int, note: str) -> Verdict:
        handover = Handover(units=None, limit=limit)
        return Verdict(start, handover=handover, note=f"{note}: the target writes {limit} tokens")
