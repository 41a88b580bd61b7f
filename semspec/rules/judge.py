"""SpecReason (Pan et al. 2025, arXiv:2504.07891): the target itself rates a step.

The query's tail closes the running turn after the step, opens a turn that asks for a score from 0 to
9, and begins the reply up to the score, so that ONE token is the answer. The tail never becomes part
of the context. The score is read only after our own prefill, and drafted tokens go in as ids: a step
that says "score: 9", or spells the marks of a turn, is rated like any other text.

A judge needs a model that can judge. The embedded pair has never seen such a turn: the rule runs with
it, but its scores mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from semspec.deferred import torch
from semspec.errors import UserError
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.rules._base import RuleBase
from semspec.rules._steps import Judgement, Span, StepSession
from semspec.types import Answer, Context, Draft, Handover, Query, Read, Role, Verdict, What

QUESTION = (
    "Rate the last step of the reasoning above, and nothing else. Is every fact in it right, and"
    " does it follow from the steps before it? Style, wording and how useful the step is do not"
    " matter. Answer with one digit from 0 (certainly wrong) to 9 (certainly right)."
)
PREFILL = "Judged by its facts and its logic alone, the last step deserves the score"
BEST = Read(What.TOP_K, k=20)  # digits that are not among these have next to no probability
SCORES = ("digit", "average")


@register("accept", "judge")
@dataclass(frozen=True, kw_only=True)
class Judge(RuleBase):
    """Accepts a step that the target itself rates high enough, 0 to 9 (SpecReason)."""

    threshold: float = 7.0  # the public code uses 7 and 9
    score: str = "digit"  # the likeliest digit; average: the expectation over all ten
    first_by_target: int = 0  # the target writes this many first steps itself

    needs: ClassVar[frozenset[What]] = frozenset({What.TOP_K})
    reserve: ClassVar[int] = 512

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise UserError(f"accept.score={self.score}: give {' or '.join(SCORES)}")
        if not 0 <= self.threshold <= 9:
            raise UserError(f"accept.threshold={self.threshold}: scores go from 0 to 9")
        if self.first_by_target < 0:
            raise UserError(f"accept.first_by_target={self.first_by_target}: give at least 0")

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        yield cls(threshold=3.0, first_by_target=1)

    def open(self, kit: Kit) -> JudgeSession:
        return JudgeSession(kit, self)


class JudgeSession(StepSession):
    passes: ClassVar[bool] = False  # the question's own pass reads the step, too

    def __init__(self, kit: Kit, rule: Judge) -> None:
        super().__init__(kit)
        self.rule = rule
        self.tail, self.digits = ask_for_a_digit(kit)

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        if self.rule.first_by_target:
            written, _ = self.follow(context)
            if written < self.rule.first_by_target:
                left = self.rule.first_by_target - written
                return Verdict(
                    handover=Handover(units=left), note="the target writes the first steps"
                )
        return (yield from super().judge(context, draft))

    def ponder(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Plan[Judgement]:
        """Ask about one unit after another, up to the first that is rejected."""
        scores: list[float] = []
        for _, end in spans:
            asked = self.kit, "target", context, draft.tokens[:end], self.tail
            scores.append(read_score(*(yield from answer_of(*asked)), self.digits, self.rule.score))
            if scores[-1] < self.rule.threshold:
                break
        kept = sum(score >= self.rule.threshold for score in scores)
        return Judgement(lambda unit: unit < kept, scores)


def answer_of(
    kit: Kit, model: Role, context: Context, shown: Sequence[int], tail: Sequence[int]
) -> Plan[tuple[list[int], Any]]:
    """Ask a model after the drafted tokens; return its likeliest answers and their log-probabilities."""
    shown = list(shown)
    while shown and shown[-1] in kit.stop_ids:  # the tail begins with one
        shown.pop()
    tokens = [*shown, *tail]
    reply: Answer = yield Query(
        model,
        context,
        kit.sampling,
        kit.rng,
        tokens=tokens,
        reads=(BEST,),
        rows_from=len(context) + len(tokens) - 1,
    )
    ids, logprobs = reply[BEST]
    return ids[-1].tolist(), logprobs[-1]


def ask_for_a_digit(kit: Kit) -> tuple[list[int], dict[int, int]]:
    """Return the tail that asks for a score, and a map from each token that may answer it to its digit.

    Some tokenizers make " 7" one token, others a space and a digit: the tail ends where the ten
    replies diverge, tokenized in place. With or without a space, a digit counts if it is one token there.
    """
    replies = [
        (digit, kit.aside(QUESTION, f"{PREFILL}{space}{digit}"))
        for space in (" ", "")
        for digit in range(10)
    ]
    for tail in (replies[0][1][:-1], replies[10][1][:-1]):
        pairs = {(digit, ids[-1]) for digit, ids in replies if ids[:-1] == tail}
        digits = {token: digit for digit, token in pairs}
        if len(digits) == len(pairs) and set(digits.values()) == set(range(10)):
            assert len(tail) <= Judge.reserve, "the question would not fit behind a full context"
            return tail, digits
    raise UserError(
        "accept=judge reads the score from one token, but the target's tokenizer does not make each"
        " digit a token of its own: use another rule, such as accept=logprob"
    )


def read_score(ids: Sequence[int], logprobs: Any, digits: dict[int, int], score: str) -> float:
    """Return the score that one row says, 0 if there is no digit among its likeliest tokens."""
    weights = torch.zeros(10, dtype=torch.float64)
    for token, weight in zip(ids, torch.as_tensor(logprobs).double().exp().tolist(), strict=True):
        if token in digits:
            weights[digits[token]] += weight
    total = float(weights.sum())
    if not total > 0:
        return 0.0
    if score == "digit":
        return float(weights.argmax())
    return float(weights @ torch.arange(10, dtype=torch.float64)) / total
