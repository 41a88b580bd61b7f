"""The loop: draft, judge, commit, hand over, observe, for tokens and for whole steps.

It is pure: it yields queries and receives answers (``protocols.Plan``), never sees an engine and reads no
clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from semspec.decoding.booking import drafted
from semspec.decoding.pace import Pace
from semspec.decoding.plans import together
from semspec.decoding.stopping import Stopping
from semspec.decoding.thinking import Thinking
from semspec.decoding.trim import trim
from semspec.decoding.writing import Writing, kept_tokens
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

UNASKED = 32  # most tokens that the target writes in a row while a stopper waits for ends of steps


def speculate(problem: Speculation) -> Plan[Outcome]:
    """Solve one problem in rounds, until its text ends or its budget is spent."""
    try:
        if problem.inside is not None:
            yield from problem.serve(problem.inside)
        while problem.left > 0 and not problem.ended and not problem.closing:
            done = problem.now = Round()
            draft = yield from problem.draft(done)
            verdict = yield from problem.judge(draft, done)
            problem.commit(draft, verdict, done)
            yield from problem.hand_over(verdict, done)
            problem.observe(done)
            done = yield from problem.consider(done)
            problem.rounds.append(done)
        return problem.outcome(problem.rounds)
    finally:
        problem.over()


def decode_plainly(
    context: Context,
    kit: Kit,
    budget: int,
    stopping: Stopping | None = None,
    grammar: Grammar | None = None,
) -> Plan[Outcome]:
    """Solve one problem with the target alone: one handover to the end of the text.

    With a stopper, the thinking is written step by step, with the same random numbers. ``grammar`` constrains the whole
    output.
    """
    writing, rounds = Writing(context, kit, budget, grammar=grammar), list[Round]()
    while not rounds or (writing.left > 0 and not writing.ended):
        done, listening = Round(), stopping is not None and stopping.listening
        yield from writing.write(Handover(units=1 if listening else None), done)
        if stopping is not None:
            done = yield from stopping.considered(context, done)
        rounds.append(done)
        if stopping is not None and stopping.why:
            break
    return writing.outcome(rounds)


@dataclass(slots=True)
class Speculation(Writing):
    """One problem in progress: its text, and everything that works on it.

    Each method is one part of a round and records its result in ``done``.
    """

    drafter: DraftSession
    rule: RuleSession
    pace: Pace
    # draft the next units while the current ones are judged
    ahead: bool = field(default=False, kw_only=True)
    # if given, the target alone writes what follows the thinking
    thinking: Thinking | None = field(default=None, kw_only=True)
    # if given, the target's engine runs the rounds by itself with these options
    inside: Mapping[str, Any] | None = field(default=None, kw_only=True)
    # take those rounds as they come instead of all at the end, because somebody reads along
    piecewise: bool = field(default=False, kw_only=True)
    # if given, it may ask to close the thinking, which the caller then does (``stopping.closed``)
    stopping: Stopping | None = field(default=None, kw_only=True)
    # whoever reads along asks the target about its steps
    stepwise: bool = field(default=False, kw_only=True)
    # finished rounds, also for whoever reads along
    rounds: list[Round] = field(default_factory=list, kw_only=True)
    now: Round | None = field(default=None, init=False)  # the round in progress, likewise
    _waiting: Draft | None = field(default=None, init=False)  # drafted ahead and still usable

    def sessions(self) -> list[DraftSession]:
        """List the active drafters: the problem's own, then the pen's."""
        return [self.drafter] if self.pen is None else [self.drafter, self.pen.drafter]

    def serve(self, asked: Mapping[str, Any]) -> Plan[None]:
        """Let the engine write the text, and take its rounds."""
        while self.left > 0 and not self.ended:
            own = "target", self.context, self.kit.sampling, self.kit.rng
            generate = Generate(self.left, inside=asked, piecewise=self.piecewise)
            answer: Answer = yield Query(*own, generate=generate, purpose="write")
            for done in answer.rounds:
                self.now = done
                self.context.extend(done.tokens)
                self.rounds.append(done)

    @property
    def answering(self) -> bool:
        """True when the thinking is over and only the target may write."""
        return self.thinking is not None and self.thinking.over

    @property
    def _stopper_asks(self) -> bool:
        """True if a stopper asks at ends of steps whether the thinking is done."""
        return self.stopping is not None and self.stopping.asks

    @property
    def _by_token(self) -> bool:
        """True if the unit of drafts is a token."""
        return stops_of(self.kit.boundary()).cap == 1

    @property
    def closing(self) -> bool:
        """True when the thinking has to be closed after the last round."""
        return self.stopping is not None and bool(self.stopping.why)

    def draft(self, done: Round) -> Plan[Draft]:
        """Draft what comes next, cut to what could be committed."""
        if self.answering:
            return Draft()
        draft, self._waiting = self._waiting, None
        done.ahead = draft is not None
        if draft is None:
            draft = yield from self._propose((), done)
        trim(draft, self.left, self.kit.stop_ids, self.thinking)
        self.pace.cut(draft)
        return draft

    def _propose(self, tail: Sequence[int], done: Round) -> Plan[Draft]:
        """Ask the drafter to continue the context and ``tail``, as far as the pace says."""
        self.pace.behind(len(self.context) + len(tail))
        units = self.pace.units()
        if not units:
            return Draft()
        pace = self.pace
        size = self.left - len(tail), units, pace.unit_cap()
        room = Room(*size, tail, chain=pace.chain, turns=pace.turns)
        draft = yield from drafted(self.drafter.draft(self.context, room), done)
        if not draft.lent:
            pace.asked(units, draft.seconds, draft.passes)
        return draft

    def judge(self, draft: Draft, done: Round) -> Plan[Verdict]:
        """Return the verdict; meanwhile draft ahead where that may be useful."""
        if self.answering:
            return Verdict(handover=Handover(units=None))
        units = self.pace.alone(self.left)
        # what is written past the thinking's end is dropped
        if self._stopper_asks:
            units = min(units, UNASKED if self._by_token else 1)
        # the target cannot write on while it gets other queries at ends of steps
        onward = self.pace.onward and not self._stopper_asks and not self.stepwise
        alone = Handover(units, onward=onward)
        judging = self.judged(self.rule, draft, done, alone)
        if not self._goes_on_after(draft):
            return (yield from judging)
        proposing = self._propose(tuple(draft.tokens), done)
        verdict, following = yield from together(judging, proposing)
        whole = verdict.keep == len(draft.tokens) and not verdict.write
        if whole and verdict.handover is None and following.tokens:
            self._waiting = following
        return verdict

    def _goes_on_after(self, draft: Draft) -> bool:
        """Return whether drafting ahead is on and a draft could follow this one."""
        if not self.ahead or not draft.tokens or draft.halted or draft.parents is not None:
            return False
        if len(draft.tokens) >= self.left or draft.tokens[-1] in self.kit.stop_ids:
            return False
        return self.thinking is None or self.thinking.closes_at(draft.tokens) is None

    def commit(self, draft: Draft, verdict: Verdict, done: Round) -> None:
        """Append what the verdict keeps and writes, never past an end of text or the budget."""
        kept = kept_tokens(draft, verdict)
        # the budget may cut off a written token: the distribution of the first ``budget`` tokens stays the same
        written = list(verdict.write)[: self.left - len(kept)]
        if kept and kept[-1] in self.kit.stop_ids:
            written = []
        done.drafted, done.ends, done.parents = draft.tokens, draft.ends, draft.parents
        done.kept, done.written = kept, written
        is_chain = draft.parents is None
        done.units_kept = sum(end <= verdict.keep for end in draft.ends) if is_chain else len(kept)
        done.scores, done.note, done.counts = verdict.scores, verdict.note, verdict.counts
        done.found, done.draft_seconds = draft.found, draft.seconds
        if draft.origins and draft.tokens:
            nodes = verdict.path if verdict.path is not None else range(verdict.keep)
            done.origin = draft.origins[nodes[len(kept) - 1]] if kept else "mismatch"
        self.context.extend([*kept, *written])
        self.witness.settle()

    def hand_over(self, verdict: Verdict, done: Round) -> Plan[None]:
        """Let the target write if the verdict says so and there is room."""
        handover = verdict.handover
        done.handed_over = handover is not None and not self.answering
        if handover is not None and self.left > 0 and not self.ended:
            self.witness.resting = self.pace.resting
            yield from self.write(handover, done, self.pace.gives_way)

    def observe(self, done: Round) -> None:
        """Let pace, thinking and drafter learn from the round; at an end of text, only the pace."""
        assert done.tokens, "a round made no progress"
        if not self.answering:  # the pace had no say in the target's own answer
            self.pace.observe(done)
        if self.ended:
            return
        if self.thinking is not None:
            self.thinking.feed(done.tokens)
        self.drafter.observe(self.context, done)

    def over(self) -> None:
        """Tell the paces that the problem has ended or was given up."""
        self.pace.over()
        if self.pen is not None:
            self.pen.pace.over()

    def consider(self, done: Round) -> Plan[Round]:
        """Ask the stopper whether the thinking is done; return the round, cut where the thinking closes."""
        if self.stopping is None or not self.stopping.listening:
            return done
        return (yield from self.stopping.considered(self.context, done))
