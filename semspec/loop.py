"""The loop: draft, judge, commit, hand over; for tokens and for whole reasoning steps alike.

Pure: it yields queries and receives answers (``protocols.Plan``), and never sees an engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from time import perf_counter
from typing import Any, Literal, TypeVar

from semspec.decoding.pace import Pace
from semspec.decoding.thinking import Thinking
from semspec.decoding.trim import trim
from semspec.decoding.witness import Witness
from semspec.protocols import DraftSession, Kit, Plan, RuleSession
from semspec.types import (
    Answer,
    Context,
    Draft,
    Generate,
    Handover,
    Outcome,
    Purpose,
    Query,
    Room,
    Round,
    Verdict,
)

T = TypeVar("T")
U = TypeVar("U")


@dataclass(slots=True)
class Pen:
    """How the target writes what it is handed: plainly, or speculatively itself ("nested")."""

    drafter: DraftSession
    rule: RuleSession
    length: int  # tokens in a nested draft, or levels of a nested tree


@dataclass(slots=True)
class Extras:
    """What can be switched on beside drafter and rule."""

    pen: Pen | None = None
    ahead: bool = False  # draft the next units while these are judged
    thinking: Thinking | None = None  # given: what follows the thinking is the target's alone


def decode_plainly(context: Context, kit: Kit, budget: int) -> Plan[Outcome]:
    """The target alone: one handover to the end of the text."""
    done = Round()
    yield from _hand_over(context, kit, Handover(units=None), budget, done, None, Witness(()))
    return Outcome(context.output, _finish(context, kit), [done])


def speculate(
    context: Context,
    kit: Kit,
    drafter: DraftSession,
    rule: RuleSession,
    budget: int,
    pace: Pace,
    extras: Extras | None = None,
) -> Plan[Outcome]:
    """Solves one problem: at most ``budget`` new tokens, appended to ``context``."""
    extras = extras or Extras()
    thinking = extras.thinking
    pen = extras.pen
    witness = Witness([drafter] if pen is None else [drafter, pen.drafter])
    rounds: list[Round] = []
    left = budget
    waiting: Draft | None = None  # drafted ahead
    while left > 0:
        done = Round()
        before = len(context)
        if thinking is not None and thinking.over:
            yield from _hand_over(context, kit, Handover(units=None), left, done, pen, witness)
        else:
            draft = waiting
            done.ahead = waiting is not None
            if draft is None:
                units = pace.units()
                room = Room(left, units, pace.unit_cap())
                draft = (yield from _drafted(drafter, context, room, done)) if units else Draft()
            waiting = None
            trim(draft, left, kit.stop_ids, thinking)
            verdict, waiting = yield from _judge(
                context, drafter, rule, draft, left, pace, extras, done, kit, witness
            )
            _commit(context, kit, draft, verdict, left, done)
            witness.settle(context)
            left -= len(done.kept) + len(done.written)
            done.handed_over = verdict.handover is not None
            if verdict.handover is not None and left > 0 and not _stopped(context, kit):
                yield from _hand_over(context, kit, verdict.handover, left, done, pen, witness)
        left = budget - (len(context) - context.prompt_length)
        assert len(context) > before, "a round made no progress"
        rounds.append(done)
        if _stopped(context, kit):
            break
        if thinking is not None:
            thinking.feed(context.tokens[before:])
        pace.observe(done)
        drafter.observe(context, done)
    return Outcome(context.output, _finish(context, kit), rounds)


def _drafted(drafter: DraftSession, context: Context, room: Room, done: Round) -> Plan[Draft]:
    own = Round()
    draft = yield from _booked(drafter.draft(context, room), own, own="draft")
    draft.seconds = own.seconds.get("draft", 0.0)  # made ahead, it is judged in another round
    _count(own, done)
    for purpose, seconds in own.seconds.items():
        done.seconds[purpose] = done.seconds.get(purpose, 0.0) + seconds
    return draft


def _judge(
    context: Context,
    drafter: DraftSession,
    rule: RuleSession,
    draft: Draft,
    left: int,
    pace: Pace,
    extras: Extras,
    done: Round,
    kit: Kit,
    witness: Witness,
) -> Plan[tuple[Verdict, Draft | None]]:
    """The verdict, and the next draft where it was made meanwhile and is still of use."""
    if not draft.tokens:  # nothing to propose: the target writes one unit
        return Verdict(handover=Handover(units=1)), None
    judging = witness.judging(_booked(rule.judge(context, draft), done), context, draft)
    rest = left - len(draft.tokens)
    units = pace.units()
    stops = draft.tokens[-1] in kit.stop_ids or draft.parents is not None
    closes = extras.thinking is not None and extras.thinking.closes_at(draft.tokens) is not None
    if not extras.ahead or rest <= 0 or not units or stops or closes:
        return (yield from judging), None
    room = Room(rest, units, pace.unit_cap(), tail=tuple(draft.tokens))
    verdict, following = yield from together(judging, _drafted(drafter, context, room, done))
    goes_on = verdict.keep == len(draft.tokens) and not verdict.write and verdict.handover is None
    return verdict, following if goes_on and following.tokens else None


def together(first: Plan[T], second: Plan[U]) -> Plan[tuple[T, U]]:
    """Runs two plans side by side: while both have questions, these are asked at the same time."""
    plans: list[Plan[Any]] = [first, second]
    results: list[Any] = [None, None]
    asked: dict[int, Query | tuple[Query, ...]] = {}

    def step(i: int, answer: Any) -> None:
        try:
            asked[i] = plans[i].send(answer)
        except StopIteration as stop:
            asked.pop(i, None)
            results[i] = stop.value

    step(0, None)
    step(1, None)
    while asked:
        order = sorted(asked)
        groups = [q if isinstance(q, tuple) else (q,) for q in (asked[i] for i in order)]
        answers = list((yield tuple(chain.from_iterable(groups))))
        for i, group in zip(order, groups, strict=True):
            own, answers = tuple(answers[: len(group)]), answers[len(group) :]
            step(i, own if isinstance(asked[i], tuple) else own[0])
    return results[0], results[1]


def _commit(
    context: Context, kit: Kit, draft: Draft, verdict: Verdict, left: int, done: Round
) -> None:
    """Appends what the verdict keeps and writes: never past an end of text or the budget."""
    kept = _kept(draft, verdict)
    # a budget may cut a written token off: the law of the first ``budget`` tokens stays the same
    written = list(verdict.write)[: left - len(kept)]
    if kept and kept[-1] in kit.stop_ids:
        written = []
    done.drafted, done.ends, done.parents = draft.tokens, draft.ends, draft.parents
    done.kept, done.written = kept, written
    is_chain = draft.parents is None
    done.units_kept = sum(end <= verdict.keep for end in draft.ends) if is_chain else len(kept)
    done.scores, done.note = verdict.scores, verdict.note
    done.found, done.draft_seconds = draft.found, draft.seconds
    if draft.origins and draft.tokens:
        nodes = verdict.path if verdict.path is not None else range(verdict.keep)
        done.origin = draft.origins[nodes[len(kept) - 1]] if kept else "mismatch"
    context.extend(kept)
    context.extend(written)


def _kept(draft: Draft, verdict: Verdict) -> list[int]:
    nodes = verdict.path if verdict.path is not None else range(verdict.keep)
    return [draft.tokens[i] for i in nodes][: verdict.keep]


def _hand_over(
    context: Context,
    kit: Kit,
    handover: Handover,
    left: int,
    done: Round,
    pen: Pen | None,
    witness: Witness,
) -> Plan[None]:
    """The target writes on, until its units are complete."""
    limit = min(left, handover.limit or left)
    boundary = None
    if handover.units is not None:
        boundary = kit.boundary()
        begun = context.tokens[len(context) - handover.opened :] if handover.opened else []
        ended = [boundary.feed(token) is not None for token in begun]
        if any(ended):
            return  # what was written completes the unit
    generate = Generate(limit, boundary, handover.units or 1)
    if pen is not None:
        yield from _write_speculatively(context, kit, generate, done, pen, witness)
        return
    query = Query("target", context, kit.sampling, kit.rng, generate=generate, purpose="write")
    answer: Answer = yield witness.joined(query)
    _book(query, answer, done)
    done.handed, done.handed_ends = answer.tokens, answer.ends
    start = len(context)
    context.extend(answer.tokens)
    witness.wrote(start, answer)


def _write_speculatively(
    context: Context, kit: Kit, generate: Generate, done: Round, pen: Pen, witness: Witness
) -> Plan[None]:
    """The target's own units, by a loop of drafts and verdicts at token level inside the first.

    It is cut after the token that shows the last end. What was written beyond is dropped whatever it
    was, so what is kept has the inner rule's law: the target's own, if that rule is lossless.
    """
    boundary, ends, start = generate.boundary, done.handed_ends, len(context)
    while len(done.handed) < generate.limit and len(ends) < generate.units:
        left = generate.limit - len(done.handed)
        inner = Round()
        draft = yield from _drafted(pen.drafter, context, Room(left, pen.length, 1), inner)
        trim(draft, left, kit.stop_ids)
        if draft.tokens:
            judging = _booked(pen.rule.judge(context, draft), inner)
            verdict = yield from witness.judging(judging, context, draft)
        else:
            verdict = Verdict(handover=Handover(units=1))
        kept = _kept(draft, verdict)
        tokens = [*kept, *verdict.write][:left]
        written: tuple[int, Answer] | None = None
        if verdict.handover is not None and len(tokens) < left:
            query = Query(
                "target",
                context,
                kit.sampling,
                kit.rng,
                tokens=tokens,
                generate=Generate(1),
                purpose="write",
            )
            answer: Answer = yield witness.joined(query)
            _book(query, answer, inner)
            written = (len(context) + len(tokens), answer)
            tokens += answer.tokens
        assert tokens, "a nested round made no progress"
        taken = 0
        for token in tokens:
            taken += 1
            end = boundary.feed(token) if boundary is not None else None
            if end is not None:
                ends.append(len(context) + taken + end - start)
            if token in kit.stop_ids or (end is not None and len(ends) == generate.units):
                break
        done.nested_kept += min(taken, len(kept))
        done.handed += tokens[:taken]
        context.extend(tokens[:taken])
        witness.settle(context)
        if written is not None and taken == len(tokens):
            witness.wrote(*written)
        _count(inner, done)
        # all of it is time in which the target's own unit is written
        done.seconds["write"] = done.seconds.get("write", 0.0) + sum(inner.seconds.values())
        if _stopped(context, kit):
            return
        inner.drafted, inner.ends, inner.parents = draft.tokens, draft.ends, draft.parents
        inner.kept, inner.written = kept[:taken], tokens[len(kept) : taken]
        inner.units_kept = len(inner.kept)
        pen.drafter.observe(context, inner)


def _stopped(context: Context, kit: Kit) -> bool:
    return len(context) > context.prompt_length and context.tokens[-1] in kit.stop_ids


def _finish(context: Context, kit: Kit) -> Literal["eos", "budget"]:
    return "eos" if _stopped(context, kit) else "budget"


def _count(part: Round, done: Round) -> None:
    """Adds what went through the models in a part of a round."""
    for sums, own in (
        (done.passes, part.passes),
        (done.fed, part.fed),
        (done.cached, part.cached),
    ):
        for role, count in own.items():
            sums[role] = sums.get(role, 0) + count


def _book(query: Query, answer: Answer, done: Round) -> None:
    done.seconds[query.purpose] = done.seconds.get(query.purpose, 0.0) + answer.seconds
    if query.passes:
        done.fed[query.model] = done.fed.get(query.model, 0) + answer.fed
        done.cached[query.model] = done.cached.get(query.model, 0) + answer.cached
        # a generated token is a pass of its own; the prompt goes through with the first
        done.passes[query.model] = done.passes.get(query.model, 0) + max(1, len(answer.tokens))


def _booked(plan: Plan[T], done: Round, own: Purpose | None = None) -> Plan[T]:
    """Runs a plan through, booking the time of its queries by purpose, and as ``own`` its own."""
    began = perf_counter()
    try:
        asked = next(plan)
        while True:
            _book_own(own, perf_counter() - began, done)
            told = yield asked
            if isinstance(asked, tuple):
                for query, answer in zip(asked, told, strict=True):
                    _book(query, answer, done)
            else:
                _book(asked, told, done)
            began = perf_counter()
            asked = plan.send(told)
    except StopIteration as stop:
        _book_own(own, perf_counter() - began, done)
        return stop.value  # type: ignore[no-any-return]


def _book_own(own: Purpose | None, seconds: float, done: Round) -> None:
    if own is not None:
        done.seconds[own] = done.seconds.get(own, 0.0) + seconds
