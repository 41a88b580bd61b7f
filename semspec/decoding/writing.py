"""The target's own writing: plain, or in rounds of token drafts ("nested")."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from semspec.decoding.booking import add, book, booked, drafted
from semspec.decoding.pace import Pace
from semspec.decoding.trim import trim
from semspec.decoding.witness import Witness
from semspec.protocols import DraftSession, Kit, Plan, RuleSession
from semspec.types import (
    Answer,
    Context,
    Draft,
    Generate,
    Grammar,
    Handover,
    Outcome,
    Query,
    Room,
    Round,
    Verdict,
    stops_of,
)


@dataclass(slots=True)
class Pen:
    """A drafter and a token rule that help the target write the units handed to it."""

    drafter: DraftSession
    rule: RuleSession
    pace: Pace  # how much to draft at a time


@dataclass(slots=True)
class Writing:
    """One problem's text in progress: at most ``budget`` tokens after the prompt."""

    context: Context
    kit: Kit
    budget: int
    pen: Pen | None = field(default=None, kw_only=True)  # None: the target writes plainly
    # constrains what the target writes plainly in one piece
    grammar: Grammar | None = field(default=None, kw_only=True)
    witness: Witness = field(init=False)

    def __post_init__(self) -> None:
        self.witness = Witness(self.context, self.sessions())

    def sessions(self) -> list[DraftSession]:
        """Return the active drafters, each of which may watch the target's passes."""
        return [] if self.pen is None else [self.pen.drafter]

    @property
    def left(self) -> int:
        """Tokens that may still be written."""
        return self.budget - (len(self.context) - self.context.prompt_length)

    @property
    def ended(self) -> bool:
        """True after an end of text."""
        context = self.context
        return len(context) > context.prompt_length and context.tokens[-1] in self.kit.stop_ids

    def outcome(self, rounds: list[Round]) -> Outcome:
        return Outcome(self.context.output, "eos" if self.ended else "budget", rounds)

    def judged(
        self, rule: RuleSession, draft: Draft, done: Round, alone: Handover | None = None
    ) -> Plan[Verdict]:
        """Let a rule judge a draft; for an empty draft, hand over ``alone``, or one unit."""
        if not draft.tokens and not draft.halted:
            return Verdict(handover=alone or Handover())
        judging = booked(rule.judge(self.context, draft), done)
        return (yield from self.witness.judging(judging, draft))

    def write(self, handover: Handover, done: Round, gives_way: bool = False) -> Plan[None]:
        """Let the target continue until its units are complete.

        ``gives_way``: if units are tokens, fewer will do when others wait for a verdict on their drafts.
        """
        limit = min(self.left, handover.limit or self.left)
        boundary = None
        if handover.units is not None:
            boundary = self.kit.boundary()
            begun = self.context.tokens[len(self.context) - handover.opened :]
            if any(boundary.feed(token) is not None for token in begun):
                return  # the text so far already completes the unit
        onward = self.left if handover.onward and self.pen is None else 0
        ask = partial(Generate, grammar=self.grammar, onward=onward)
        units = handover.units or 1
        if stops_of(boundary).cap == 1 and self.pen is None:
            # units are tokens, so no ends have to be found
            gives_way &= self.grammar is None  # a grammar restarts with each query
            generate = ask(min(limit, units), gives_way=gives_way)
            yield from self._write_plainly(generate, done)
            done.handed_ends = list(range(1, len(done.handed) + 1))
            return
        generate = ask(limit, boundary, units)
        if self.pen is not None:
            yield from self._write_nested(self.pen, generate, done)
            return
        yield from self._write_plainly(generate, done)

    def _write_plainly(self, generate: Generate, done: Round) -> Plan[None]:
        answer = yield from self._ask(generate, done)
        done.handed, done.handed_ends = answer.tokens, answer.ends
        self.context.extend(answer.tokens)
        self.witness.wrote(answer)

    def _ask(self, generate: Generate, done: Round, tokens: Sequence[int] = ()) -> Plan[Answer]:
        asked = ("target", self.context, self.kit.sampling, self.kit.rng)
        query = Query(*asked, tokens=tokens, generate=generate, purpose="write")
        answer: Answer = yield self.witness.joined(query)
        book(query, answer, done)
        return answer

    def _write_nested(self, pen: Pen, generate: Generate, done: Round) -> Plan[None]:
        """Write the target's units in rounds of token drafts and verdicts.

        The text is cut after the token that reveals the last end. Tokens beyond it are dropped whatever they are, so
        the kept ones follow the nested rule's distribution: the target's own if that rule is lossless.
        """
        context, stop_ids = self.context, self.kit.stop_ids
        while len(done.handed) < generate.limit and len(done.handed_ends) < generate.units:
            left = generate.limit - len(done.handed)
            inner = Round()
            draft = yield from self._draft_nested(pen, left, inner)
            if not draft.tokens and (alone := pen.pace.alone(left)) > 1:
                add(inner, done, "write")
                yield from self._write_on(pen, alone, generate, done)
                if self.ended:
                    return
                continue
            verdict = yield from self.judged(pen.rule, draft, inner)
            kept = kept_tokens(draft, verdict)
            tokens = [*kept, *verdict.write][:left]
            answer: Answer | None = None
            if verdict.handover is not None and len(tokens) < left:
                answer = yield from self._ask(Generate(1), inner, tokens)
                tokens += answer.tokens
            assert tokens, "a nested round made no progress"
            taken = _through_last_end(tokens, generate, done, stop_ids)
            done.nested_kept += min(taken, len(kept))
            done.handed += tokens[:taken]
            context.extend(tokens[:taken])
            self.witness.settle()
            if answer is not None and taken == len(tokens):
                self.witness.wrote(answer)
            # all of it counts as the target's writing time
            add(inner, done, "write")
            if self.ended:
                return
            inner.drafted, inner.ends, inner.parents = draft.tokens, draft.ends, draft.parents
            inner.kept, inner.written = kept[:taken], tokens[len(kept) : taken]
            inner.units_kept = len(inner.kept)
            pen.pace.observe(inner)
            pen.drafter.observe(context, inner)

    def _draft_nested(self, pen: Pen, left: int, inner: Round) -> Plan[Draft]:
        """Ask the pen's drafter for what its pace says, cut to what could be committed."""
        pen.pace.behind(len(self.context))
        if not (units := pen.pace.units()):
            return Draft()
        room = Room(left, units, 1, chain=pen.pace.chain, turns=pen.pace.turns)
        draft = yield from drafted(pen.drafter.draft(self.context, room), inner)
        pen.pace.asked(units, draft.seconds, draft.passes)
        trim(draft, left, self.kit.stop_ids)
        pen.pace.cut(draft)
        return draft

    def _write_on(self, pen: Pen, limit: int, generate: Generate, done: Round) -> Plan[None]:
        """Let the target write plainly while drafts do not pay, at most to the units' end."""
        self.witness.resting = pen.pace.resting
        units, inner = generate.units - len(done.handed_ends), Round()
        answer = yield from self._ask(Generate(limit, generate.boundary, units), inner)
        done.handed_ends += [len(done.handed) + end for end in answer.ends]
        done.handed += answer.tokens
        self.context.extend(answer.tokens)
        self.witness.wrote(answer)
        add(inner, done, "write")
        if not self.ended:
            inner.written = answer.tokens
            pen.pace.observe(inner)
            pen.drafter.observe(self.context, inner)


def kept_tokens(draft: Draft, verdict: Verdict) -> list[int]:
    """Return the tokens of a draft that a verdict keeps."""
    nodes = verdict.path if verdict.path is not None else range(verdict.keep)
    return [draft.tokens[i] for i in nodes][: verdict.keep]


def _through_last_end(
    tokens: Sequence[int], generate: Generate, done: Round, stop_ids: Collection[int]
) -> int:
    """Return how many tokens lead up to the last requested end or the text's; append ends to ``done.handed_ends``."""
    for taken, token in enumerate(tokens, start=1):
        end = generate.boundary.feed(token) if generate.boundary is not None else None
        if end is not None:
            done.handed_ends.append(len(done.handed) + taken + end)
        if token in stop_ids or (end is not None and len(done.handed_ends) == generate.units):
            return taken
    return len(tokens)
