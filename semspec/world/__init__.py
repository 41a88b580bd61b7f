"""The embedded world: small problems with paraphrased solutions and an exact oracle.

The tiny pair in ``hub_artifacts/`` was trained on its chains (``DOMAINS``), from which the ``synthetic``
benchmark draws. The other tasks (``TASKS``) test drafting by copying, see ``reuse.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from semspec.world.base import LAST, LETTERS, Domain, Meaning, Problem, Style
from semspec.world.residues import Residues
from semspec.world.reuse import Editing, Grounded, Reuse, ReuseProblem
from semspec.world.weekdays import Weekdays

__all__ = [
    "Domain",
    "Meaning",
    "Problem",
    "Reuse",
    "ReuseProblem",
    "Style",
]  # besides the names below

DOMAINS: dict[str, Domain] = {domain.name: domain for domain in (Residues(), Weekdays())}
TASKS: dict[str, Reuse] = {task.name: task for task in (Editing(), Grounded())}

MOST_DEFINITIONS = len(LETTERS) - 1  # each needs a different name

THINK_OPEN, THINK_CLOSE, STEP_END = "<think>\n", "\n</think>\n\n", "\n\n"


def find_problem(text: str) -> Problem | None:
    """Return the problem of the embedded world that a question or prompt states, if any."""
    kinds: list[Domain | Reuse] = [*DOMAINS.values(), *TASKS.values()]
    return next((problem for kind in kinds if (problem := kind.find(text))), None)


def _kind(problem: Problem) -> Domain | Reuse:
    return DOMAINS.get(problem.domain) or TASKS[problem.domain]


def meaning(problem: Problem, step: str) -> Meaning | None:
    """Return the meaning of ``step`` in ``problem``'s domain, or None if it has none.

    The tags of the thinking are not part of a step's meaning. But exactly the last step (kind "final" or "close") has to
    close the thinking; a step that closes it too early or too late has no meaning.
    """
    closes = step.rstrip().endswith("</think>")
    text = step.replace("<think>", "").replace("</think>", "").strip()
    if text == render_answer(problem.answer):
        return ("answer", problem.answer) if not closes else None
    found = _kind(problem).meaning(text)
    return found if found is not None and (found[0] in LAST) == closes else None


def is_true(problem: Problem, step: Meaning | None) -> bool:
    if step is not None and step[0] == "answer":
        return step[1] == problem.answer
    return _kind(problem).is_true(problem, step)


def is_next(problem: Problem, before: Sequence[Meaning], step: Meaning | None) -> bool:
    """Return whether ``step`` is true and may follow ``before`` in a solution."""
    if step is not None and step[0] == "answer":
        return is_true(problem, step) and bool(before) and before[-1][0] in LAST
    if before and before[-1][0] in (*LAST, "answer"):
        return False
    return _kind(problem).is_next(problem, before, step)


def render_answer(answer: str) -> str:
    return f"The answer is \\boxed{{{answer}}}."


def render_solution(problem: Problem, steps: Sequence[str]) -> str:
    """Return the assistant's whole turn, thinking included, without the end-of-turn token."""
    return THINK_OPEN + STEP_END.join(steps) + THINK_CLOSE + render_answer(problem.answer)


def split_steps(turn: str) -> list[str]:
    """Return the steps of an assistant's turn, each with the ``"\\n\\n"`` that ends it."""
    parts = turn.removeprefix(THINK_OPEN).split(STEP_END)
    return [part + STEP_END for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
