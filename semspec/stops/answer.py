"""Dynasor and DEER: force a short answer now and then, and decide by its confidence and agreement.

At the end of a step, close the thinking, begin the answer, and write the likeliest answer up to its closing brace;
none of it becomes part of the text. The confidence is the geometric mean of the tokens' probabilities (DEER), and it
counts in full only once the same answer has come ``agree`` times in a row (Dynasor).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from semspec.errors import UserError
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.stops._trial import Trial, TrialSession
from semspec.types import LOGPROBS, Answer, Context, Generate, Query, Sampling, Stops, What


@register("stop", "answer")
@dataclass(frozen=True, kw_only=True)
class ForcedAnswer(Trial):
    """Ends the thinking once forced short answers agree and are confident (Dynasor, DEER)."""

    agree: int = 2  # times in a row that the same answer has to come
    longest: int = 24  # most tokens of a forced answer

    needs: ClassVar[frozenset[What]] = frozenset({What.LOGPROBS})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("agree", "longest"):
            if getattr(self, name) < 1:
                raise UserError(f"stop.{name}={getattr(self, name)}: give at least 1")

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        yield cls(answer=" is", threshold=0.05, longest=4, agree=2, answer_tokens=4, words="")

    def open(self, kit: Kit) -> AnswerSession:
        return AnswerSession(self, kit)


class AnswerSession(TrialSession):
    stop: ForcedAnswer
    last = ""
    times = 0  # how often the last answer has come in a row

    def score(self, context: Context) -> Plan[float]:
        reply: Answer = yield Query(
            "target",
            context,
            Sampling(0.0),
            self.kit.rng,
            tokens=self.tail,
            reads=(LOGPROBS,),
            generate=Generate(self.stop.longest, Braced(self.kit.piece, self.stop.answer)),
        )
        said = self.kit.decode(reply.tokens).strip()
        self.times = self.times + 1 if said == self.last else 1
        self.last = said
        confidence = float(reply[LOGPROBS].double().mean().exp())
        return min(confidence, 1.0) * min(self.times, self.stop.agree) / self.stop.agree


class Braced:
    """A boundary at the brace that closes the one opened by the answer's beginning."""

    def __init__(self, piece: Callable[[int], str], begun: str) -> None:
        self._piece = piece
        self._depth = max(begun.count("{") - begun.count("}"), 0)
        self._opened = self._depth > 0

    @property
    def stops(self) -> Stops:
        return Stops(texts=("}",)) if self._opened else Stops(texts=("\n",))

    def feed(self, token: int) -> int | None:
        text = self._piece(token)
        if not self._opened:  # without a brace, the answer is one line
            return 0 if "\n" in text else None
        for char in text:
            self._depth += (char == "{") - (char == "}")
            if self._depth <= 0:
                return 0
        return None
