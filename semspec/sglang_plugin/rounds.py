"""The rounds of a request's loop in ``meta_info``: written by the worker, read by the client.

A round is reported in numbers (``figures``) or, on request, ``whole``; a run's record can then be rebuilt from the output's
ids and the report. Kept and written tokens are in the output, so the report contains only the rejected rest of each draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semspec.errors import UserError
from semspec.sglang_plugin.protocol import ROUNDS
from semspec.types import Round

RESTS = "rests"  # in a mark: whether the target writes alone from here on
TABLES = ("seconds", "passes", "fed", "cached", "counts")  # fields that are tables of numbers


def figures(done: Round) -> dict[str, Any]:
    """Return what became of a draft, in tokens and steps, as JSON."""
    return {
        "drafted": len(done.drafted),
        "steps": len(done.ends),
        "steps_kept": done.units_kept,
        "kept": len(done.kept),  # the draft's tokens in accepted steps
        # kept from the rejected step, and the target's token after these
        "salvaged": len(done.written),
        "target": len(done.handed),  # with which the target finished that step,
        "nested_kept": done.nested_kept,  # and those among them that the small model proposed
        "scores": [round(float(score), 4) for score in done.scores],
        "passes": done.passes.get("target", 0),
    }


def whole(done: Round, at: int) -> dict[str, Any]:
    """Return a round, whose first token has index ``at`` in the output, in a form that ``read`` restores."""
    assert done.parents is None and done.drafted[: len(done.kept)] == done.kept
    return {
        "at": at,
        "kept": len(done.kept),
        "written": len(done.written),
        "handed": len(done.handed),
        "gone": done.drafted[len(done.kept) :],
        "ends": done.ends,
        "handed_ends": done.handed_ends,
        "handed_over": done.handed_over,
        "nested_kept": done.nested_kept,
        "units_kept": done.units_kept,
        "scores": [float(score) for score in done.scores],
        "note": done.note,
        "draft_seconds": done.draft_seconds,
        **{name: getattr(done, name) for name in TABLES},
    }


def mark(at: int, rests: bool) -> dict[str, Any]:
    """Return the mark that after ``at`` tokens a loop rests because nothing is drafted, or starts again."""
    return {"at": at, RESTS: rests}


def read(
    meta_info: Mapping[str, Any],
    tokens: Sequence[int],
    server: str = "the server",
    known: int = 0,
    upto: int = 0,
    ended: bool = True,
) -> list[Round]:
    """Return the rounds of an output, without the first ``known`` reports, which cover ``upto`` tokens.

    Tokens without a round, which SGLang wrote between two loops or while a loop rested, become a round of the target. Raise
    UserError if the server reported no rounds or malformed ones. An output that has not ``ended`` may be longer than its rounds.
    """
    told = meta_info.get(ROUNDS)
    if not told and ended:
        raise UserError(
            f"{server} wrote without judging steps, and its log says why: start it as in"
            " docs/sglang_plugin.md, or give inside=false"
        )
    found: list[Round] = []
    try:
        for one in (told or [])[known:]:
            at = int(one["at"])
            if not upto <= at <= len(tokens):
                raise ValueError
            if at > upto:
                found.append(_between(tokens[upto:at]))
                upto = at
            if RESTS in one:
                continue
            done = _round(one, tokens[at:])
            if not done.tokens:
                raise ValueError
            found.append(done)
            upto = at + len(done.tokens)
        if upto > len(tokens):
            raise ValueError
        alone = ended or (told[-1].get(RESTS) is True if told else False)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{server} reported rounds in an unknown form: use the same version of semspec"
            " here and there"
        ) from error
    if alone and upto < len(tokens):
        found.append(_between(tokens[upto:]))
    return found


def _between(tokens: Sequence[int]) -> Round:
    return Round(handed=list(tokens), handed_over=True, note="written between two loops")


def _round(one: Mapping[str, Any], tokens: Sequence[int]) -> Round:
    parts, at = [], 0
    for name in ("kept", "written", "handed"):
        count = int(one[name])
        if not 0 <= count <= len(tokens) - at:
            raise ValueError
        parts.append(list(tokens[at : at + count]))
        at += count
    kept, written, handed = parts
    return Round(
        drafted=[*kept, *map(int, one["gone"])],
        ends=[int(end) for end in one["ends"]],
        kept=kept,
        written=written,
        handed=handed,
        handed_ends=[int(end) for end in one["handed_ends"]],
        handed_over=bool(one["handed_over"]),
        nested_kept=int(one["nested_kept"]),
        units_kept=int(one["units_kept"]),
        scores=[float(score) for score in one["scores"]],
        note=str(one["note"]),
        draft_seconds=float(one["draft_seconds"]),
        seconds={str(name): float(value) for name, value in one["seconds"].items()},
        passes=_counts(one["passes"]),
        fed=_counts(one["fed"]),
        cached=_counts(one["cached"]),
        counts=_counts(one["counts"]),
    )


def _counts(given: Any) -> dict[str, int]:
    return {str(name): int(value) for name, value in given.items()}
