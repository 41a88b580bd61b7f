"""The loop: draft, judge, commit, hand over; for tokens and for whole reasoning steps alike.

Pure: it yields queries and receives answers (``protocols.Plan``), and never sees an engine.
"""

from __future__ import annotations

from typing import Literal, TypeVar

from semspec.protocols import DraftSession, Kit, Plan, RuleSession
from semspec.types import (
    Answer,
    Context,
    Draft,
    Generate,
    Handover,
    Outcome,
    Query,
    Round,
    Verdict,
)

T = TypeVar("T")


def decode_plainly(context: Context, kit: Kit, budget: int) -> Plan[Outcome]:
    """The target alone: one handover to the end of the text."""
    done = Round()
    yield from _hand_over(context, kit, Handover(units=None), budget, done)
    return Outcome(context.output, _finish(context, kit), [done])


def speculate(
    context: Context, kit: Kit, drafter: DraftSession, rule: RuleSession, budget: int
) -> Plan[Outcome]:
    """Solves one problem: at most ``budget`` new tokens, appended to ``context``."""
    rounds: list[Round] = []
    left = budget
    while left > 0:
        done = Round()
        draft = yield from _booked(drafter.draft(context, left), done)
        _cut_after_stop(draft, kit.stop_ids)
        assert len(draft.tokens) <= left, "a drafter proposed more tokens than there was room for"
        if draft.tokens:
            verdict = yield from _booked(rule.judge(context, draft), done)
        else:  # nothing to propose: the target writes one unit
            verdict = Verdict(handover=Handover(units=1))
        _commit(context, kit, draft, verdict, left, done)
        left -= len(done.kept) + len(done.written)
        if verdict.handover is not None and left > 0 and not _stopped(context, kit):
            yield from _hand_over(context, kit, verdict.handover, left, done)
            left -= len(done.handed)
        assert done.kept or done.written or done.handed, "a round made no progress"
        rounds.append(done)
        if _stopped(context, kit):
            break
        drafter.observe(context, done)
    return Outcome(context.output, _finish(context, kit), rounds)


def _commit(
    context: Context, kit: Kit, draft: Draft, verdict: Verdict, left: int, done: Round
) -> None:
    """Appends what the verdict keeps and writes: never past an end of text or the budget."""
    nodes = verdict.path if verdict.path is not None else range(verdict.keep)
    kept = [draft.tokens[i] for i in nodes][: verdict.keep]
    # a budget may cut a written token off: the law of the first ``budget`` tokens stays the same
    written = list(verdict.write)[: left - len(kept)]
    if kept and kept[-1] in kit.stop_ids:
        written = []
    done.drafted, done.ends, done.parents = draft.tokens, draft.ends, draft.parents
    done.kept, done.written = kept, written
    chain = draft.parents is None
    done.units_kept = sum(end <= verdict.keep for end in draft.ends) if chain else len(kept)
    done.scores, done.note = verdict.scores, verdict.note
    context.extend(kept)
    context.extend(written)


def _hand_over(
    context: Context, kit: Kit, handover: Handover, left: int, done: Round
) -> Plan[None]:
    boundary = None if handover.units is None else kit.boundary()
    query = Query(
        "target",
        context,
        kit.sampling,
        kit.rng,
        generate=Generate(min(left, handover.limit or left), boundary, handover.units or 1),
        purpose="write",
    )
    answer = yield query
    _book(query, answer, done)
    done.handed, done.handed_ends = answer.tokens, answer.ends
    context.extend(answer.tokens)


def _cut_after_stop(draft: Draft, stop_ids: frozenset[int]) -> None:
    """Nothing follows an end of text: a chain's tokens after it are dropped."""
    if draft.parents is not None:
        return
    for i, token in enumerate(draft.tokens):
        if token in stop_ids and i + 1 < len(draft.tokens):
            del draft.tokens[i + 1 :]
            draft.ends = [end for end in draft.ends if end <= i] + [i + 1]
            if draft.probs is not None:
                draft.probs = draft.probs[: i + 1]
            return


def _stopped(context: Context, kit: Kit) -> bool:
    return len(context) > context.prompt_length and context.tokens[-1] in kit.stop_ids


def _finish(context: Context, kit: Kit) -> Literal["eos", "budget"]:
    return "eos" if _stopped(context, kit) else "budget"


def _book(query: Query, answer: Answer, done: Round) -> None:
    done.seconds[query.purpose] = done.seconds.get(query.purpose, 0.0) + answer.seconds
    # a generated token is a pass of its own; the prompt goes through with the first
    done.passes[query.model] = done.passes.get(query.model, 0) + max(1, len(answer.tokens))


def _booked(plan: Plan[T], done: Round) -> Plan[T]:
    """Runs a plan through, booking the time of its queries by purpose."""
    try:
        query = next(plan)
        while True:
            answer = yield query
            _book(query, answer, done)
            query = plan.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
