"""Session for rules that judge whole units: one target pass, units judged left to right, and salvage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from semspec.decoding.acceptance import lossless_chain
from semspec.decoding.sampling import draw_next, uniforms
from semspec.decoding.units import unit_ends
from semspec.deferred import Tensor, torch
from semspec.protocols import Kit, Plan
from semspec.types import PROBS, Answer, Context, Draft, Handover, Query, Read, Verdict

Span = tuple[int, int]
SHORTEST_REPEAT = 4  # tokens: shorter units ("So,") may well be said again


def unit_spans(draft: Draft) -> list[Span]:
    """Return the units of a draft as (start, end) over its tokens."""
    return list(pairwise([0, *draft.ends]))


def lowest_of(logprobs: Tensor, spans: Sequence[Span]) -> list[float]:
    """Return the log-probability of each unit's least likely token."""
    values = logprobs.tolist()
    return [min(values[start:end]) for start, end in spans]


@dataclass(slots=True)
class Judgement:
    """A rule's opinion of a draft's units."""

    accept: Callable[[int], bool]  # called left to right, up to the first unit that is rejected
    scores: Sequence[float] = ()  # one for each unit, for the record
    note: str = ""


class StepSession:
    """Judges the units of a draft with one pass of the target over all of them.

    SemanticSpec, algorithm 1, lines 9-16: everything from the first rejected unit on is discarded,
    and the target writes that unit itself. A rule overrides what it reads and how it judges.
    """

    passes: ClassVar[bool] = True  # whether the target reads the draft before the rule judges it

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self._written: Counter[str] = Counter()  # units of the output so far
        self._seen = -1  # how much of the context they cover
        self._boundary = kit.boundary()
        self._open: list[int] = []

    def reads(self, draft: Draft, spans: Sequence[Span]) -> tuple[Read, ...]:
        """Return the reads of the target's pass over the draft."""
        return ()

    def settled(self, draft: Draft, spans: Sequence[Span]) -> bool:
        """Return True if the draft's own evidence decides every unit: the target then makes no pass."""
        return False

    def weigh(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Judgement:
        """Judge every unit from the answer alone."""
        raise NotImplementedError

    def ponder(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Plan[Judgement]:
        """Judge like ``weigh``, for rules that must ask further questions."""
        yield from ()
        return self.weigh(context, draft, spans, answer)

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        assert draft.parents is None, "a tree has no steps"
        kit, spans = self.kit, unit_spans(draft)
        reads = self.reads(draft, spans)
        if kit.salvage and PROBS not in reads:
            reads = (*reads, PROBS)
        answer = Answer()
        if (reads or self.passes) and not self.settled(draft, spans):
            answer = yield Query(
                "target", context, kit.sampling, kit.rng, tokens=draft.tokens, reads=reads
            )
        judgement = yield from self.ponder(context, draft, spans, answer)
        stale = self.repeated(context, draft, spans)
        for unit, (start, end) in enumerate(spans):
            repeated = stale is not None and unit >= stale
            if not repeated and judgement.accept(unit):
                continue
            verdict = Verdict(
                start,
                handover=Handover(units=1),
                scores=list(judgement.scores[: unit + 1]),
                note="repeats an earlier step" if repeated else judgement.note,
            )
            if kit.salvage and PROBS in answer.values:
                self.salvage(verdict, draft, (start, end), answer[PROBS])
            return verdict
        # a token that revealed the last end opens the next unit, and is kept: dropping it and
        # drawing again would favour tokens that do not open a unit
        return Verdict(len(draft.tokens), scores=list(judgement.scores), note=judgement.note)

    def salvage(self, verdict: Verdict, draft: Draft, span: Span, p: Tensor) -> None:
        """Keep the part of a rejected step that the target could have written itself (ours).

        ``p`` [tokens + 1, V] are the target's rows, from the same pass. The POINT-MASS rule keeps x
        with probability p(x), else draws from p without x and stops. This follows the target's
        distribution, whatever was drafted and for whatever reason it was rejected; min(1, p/q) would
        not, because a step that was rejected for its content is no longer a sample of q.
        """
        kit, (start, end) = self.kit, span
        step, rows = draft.tokens[start:end], p[start : end + 1]
        tokens = torch.tensor(step, device=p.device)
        chances = uniforms(len(step), kit.sampling, kit.rng, p.device)
        kept, row = lossless_chain(rows, tokens, None, chances)
        verdict.write = step[:kept]
        if kept < len(step):
            verdict.write.append(draw_next(row, kit.sampling, kit.rng))
        verdict.handover = Handover(units=1, opened=len(verdict.write))
        verdict.note = f"{verdict.note}; {kept} of {len(step)} tokens salvaged".removeprefix("; ")

    def follow(self, context: Context) -> tuple[int, bool]:
        """Return the number of units of the output, and whether the next token begins a new one."""
        if self._seen < 0:
            self._seen = context.prompt_length
        for token in context.tokens[self._seen :]:
            self._open.append(token)
            end = self._boundary.feed(token)
            if end is not None:
                length = len(self._open) + end
                self._written[self._text(self._open[:length])] += 1
                self._open = self._open[length:]
        self._seen = len(context)
        return self._written.total(), not self._open

    def repeated(self, context: Context, draft: Draft, spans: Sequence[Span]) -> int | None:
        """Return the first drafted unit that was already written ``max_repeats`` times (a loop)."""
        if not self.kit.max_repeats or not spans:
            return None
        self.follow(context)
        # split as the output will be split: a sentence begins with the token that revealed the
        # previous end, which is already in the context, and the next draft continues a cut unit
        begun, last = len(self._open), len(self._open) + spans[-1][1]
        tokens = [*self._open, *draft.tokens]
        ends = [end for end in unit_ends(self.kit.boundary(), tokens) if end < last]
        new: Counter[str] = Counter()
        for start, end in pairwise([0, *ends, last]):
            if end - start < SHORTEST_REPEAT:
                continue
            text = self._text(tokens[start:end])
            if end > begun and self._written[text] + new[text] >= self.kit.max_repeats:
                return next(unit for unit, (_, stop) in enumerate(spans) if begun + stop > start)
            new[text] += 1
        return None

    def _text(self, tokens: Sequence[int]) -> str:
        return self.kit.decode(tokens).strip()
