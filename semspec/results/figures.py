"""The recorded figures of one problem solved in one mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from semspec.decoding.trim import depths
from semspec.protocols import Grade
from semspec.results import bound, reuse
from semspec.results.metrics import LATER, SUMMED
from semspec.storage import json_schema
from semspec.types import Outcome, Round

_NUMBER = {"type": "number"}
_TEXT = {"type": ["string", "null"]}
_COUNTS: dict[str, Any] = {"type": "object", "additionalProperties": _NUMBER}
_SOLVE: dict[str, Any] = {
    "type": "object",
    "required": [*SUMMED, "finish", "correct", "details"],
    "properties": {
        **dict.fromkeys((*SUMMED, *LATER, "rounds"), _NUMBER),
        "text": {"type": "string"},
        "answer": _TEXT,
        "finish": {"type": "string"},
        "correct": {"type": ["boolean", "null"]},
        "details": {"type": "object"},
        "reuse": _COUNTS,
        "counts": _COUNTS,
    },
}
_LINE: dict[str, Any] = {
    **_SOLVE,
    "required": ["id", "plain", *_SOLVE["required"]],
    "properties": {
        **_SOLVE["properties"],
        "id": {"type": "string"},
        "question": _TEXT,
        "gold": _TEXT,
        "attempt_of": {"type": "string"},
        "plain": {"type": ["object", "null"]},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Solve:
    """The figures of one problem solved in one mode: everything that the metrics need."""

    text: str
    answer: str | None = None  # extracted from the text
    correct: bool | None = None  # None: not graded
    finish: str
    seconds: float  # from its first query to its last, including waits for other problems
    wall: float  # its share of the wall time of all problems solved together with it
    tokens: int
    rounds: int
    drafts: int  # rounds with a draft, which the rule judged
    drafted_units: int
    drafted_tokens: int
    kept_units: int
    kept_tokens: int
    written_tokens: int  # by the rule from the target's probabilities
    handed_tokens: int  # by the target after a handover
    gained_tokens: int  # kept + written, in rounds with a draft
    draft_passes: int
    target_passes: int
    draft_seconds: float
    verify_seconds: float
    write_seconds: float
    # tokens computed by a model, and prefix tokens found in its cache
    draft_fed: int = 0
    draft_cached: int = 0
    target_fed: int = 0
    target_cached: int = 0
    drafted_length: int = 0  # sum over drafts; a tree counts by its depth
    details: Mapping[str, Any] = field(default_factory=dict)
    reuse: Mapping[str, int] = field(default_factory=dict)  # ``reuse.count``
    counts: Mapping[str, int] = field(default_factory=dict)  # ``bound.count``

    @classmethod
    def from_outcome(
        cls, outcome: Outcome, text: str, grade: Grade | None = None, wall: float | None = None
    ) -> Solve:
        """Compute the figures of an outcome; ``wall`` is None if the problem was solved alone: its own seconds."""
        rounds = outcome.rounds
        alone = outcome.seconds or sum(sum(r.seconds.values()) for r in rounds)
        drafts = [r for r in rounds if r.drafted]
        by_role: dict[str, Any] = {
            f"{role}_{name}": sum(getattr(r, name).get(role, 0) for r in rounds)
            for role in ("draft", "target")
            for name in ("passes", "fed", "cached")
        }
        for purpose in ("draft", "verify", "write"):
            by_role[f"{purpose}_seconds"] = sum(r.seconds.get(purpose, 0.0) for r in rounds)
        return cls(
            text=text,
            answer=grade.answer if grade else None,
            correct=grade.correct if grade else None,
            finish=outcome.finish,
            seconds=alone,
            wall=alone if wall is None else wall,
            tokens=len(outcome.tokens),
            rounds=len(rounds),
            drafts=len(drafts),
            drafted_units=sum(len(r.ends) for r in drafts),
            drafted_tokens=sum(len(r.drafted) for r in drafts),
            drafted_length=sum(map(_length, drafts)),
            kept_units=sum(r.units_kept for r in drafts),
            kept_tokens=sum(len(r.kept) for r in drafts),
            written_tokens=sum(len(r.written) for r in rounds),
            handed_tokens=sum(len(r.handed) for r in rounds),
            gained_tokens=sum(len(r.kept) + len(r.written) for r in drafts),
            details=dict(grade.details) if grade else {},
            reuse=reuse.count(rounds),
            counts=bound.count(rounds),
            **by_role,
        )


def _length(done: Round) -> int:
    """Return the number of tokens on a draft's longest path."""
    return len(done.drafted) if done.parents is None else max(depths(done.parents))


def problem_line(
    problem_id: str,
    speculative: Solve,
    plain: Solve | None,
    gold: str | None = None,
    question: str | None = None,
    attempt_of: str = "",
) -> dict[str, Any]:
    """Return a line of problems.jsonl: the speculative solve, with the plain one under "plain"."""
    nested = asdict(plain) if plain else None
    further = {"attempt_of": attempt_of} if attempt_of else {}
    asked = {"id": problem_id, **further, "question": question, "gold": gold}
    return {**asked, **asdict(speculative), "plain": nested}


def damage(line: Any, plain: bool | None = None) -> str | None:
    """Say what is wrong with a line of problems.jsonl; None if figures can be computed from it.

    ``plain``: whether the run also solves every problem with the target alone; None if unknown.
    """
    try:
        json_schema.check(line, _LINE)
        if line["plain"] is not None:
            json_schema.check(line["plain"], _SOLVE, "plain")
    except ValueError as error:
        return str(error).replace("the config", "it")
    if plain is not None and plain != (line["plain"] is not None):
        return "plain is missing" if plain else "plain is there, and this run has none"
    return None
