"""Tasks whose solutions repeat their question: edit a list of facts, or quote facts from a text.

They suit drafters that copy (prompt lookup, suffix automata): most of a true solution is in the question
word for word, as when a program is edited or a document quoted. The facts are worded like the chains, so
that the embedded pair's tokenizer knows them, but the pair was not trained on these tasks.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from semspec.world import base
from semspec.world.base import LETTERS, Domain, Form, Meaning, Problem
from semspec.world.residues import Residues
from semspec.world.weekdays import Weekdays

_SOURCES: tuple[Domain, ...] = (Residues(), Weekdays())
_VALUE = r"(?:\d\d|[A-Z][a-z]+day)"
_SLOTS = {**dict.fromkeys("tv", "[a-z]"), "r": _VALUE}
_MORE = [
    "The problem says that {v}={r}, which is one of the facts that we need in order to go on.",
    "At this point we know that {v}={r}, and this will be needed for what comes next.",
    "Now we look at {v}={r}, because it is the value that we were given at the start.",
    "Next there is the fact that {v}={r}, and this is all that the question says about it.",
]
_FINALS = [
    "All the facts are written down now, and therefore the answer to the question is {t}={r}.",
    "This was the last of the facts, so we are done and the result is {t}={r}.",
    "Since the question asks for {t}, we can stop here and give the value {t}={r}.",
    "Hence we arrive at {t}={r}, which is exactly what we were asked to find.",
]
_STARTS = [form.text for source in _SOURCES for form in source.forms["start"]]
FACTS = [Form(text, _SLOTS) for text in (*_STARTS, *_MORE)]
FINALS = [Form(text, _SLOTS) for text in _FINALS]


@dataclass(frozen=True)
class ReuseProblem(Problem):
    """A question whose solution is these lines, word for word, and a last step."""

    lines: tuple[str, ...] = ()
    given: str = ""  # the facts as the question states them


class Reuse(ABC):
    """One kind of task whose solution repeats its question."""

    name: ClassVar[str]
    opening: ClassVar[str]  # how a question begins
    question: ClassVar[re.Pattern[str]]

    def __init__(self, shortest: int = 4, longest: int = 8) -> None:
        self.shortest, self.longest = shortest, longest  # facts in a question

    def make(self, rng: random.Random) -> ReuseProblem:
        """Draw a problem."""
        source = rng.choice(_SOURCES)
        names = rng.sample(LETTERS, rng.randint(self.shortest, self.longest))
        forms = rng.sample(FACTS, len(names))
        named = zip(forms, names, strict=True)
        facts = [form.format(v=name, r=source.draw_value(rng)) for form, name in named]
        question = self.ask(rng, facts, names, source)
        problem = self.find(question)
        assert problem is not None and problem.question == question, question
        return problem

    @abstractmethod
    def ask(
        self, rng: random.Random, facts: Sequence[str], names: Sequence[str], source: Domain
    ) -> str:
        """Return the question about these facts."""

    @abstractmethod
    def find(self, text: str) -> ReuseProblem | None:
        """Return the problem of this kind that ``text`` states, or None."""

    def solve(self, rng: random.Random, problem: ReuseProblem) -> list[str]:
        """Return a true solution; only the wording of its last step is random."""
        final = rng.choice(FINALS).format(t=problem.target, r=problem.answer)
        return [*problem.lines, final]

    def meaning(self, text: str) -> Meaning | None:
        """Return the meaning of a step: a line's own text, or the last step's result."""
        text = text.strip()
        if slots := _slots(FINALS, text):
            return ("final", slots["t"], slots["r"])
        return ("line", text) if _slots(FACTS, text) else None

    def is_true(self, problem: Problem, meaning: Meaning | None) -> bool:
        assert isinstance(problem, ReuseProblem), problem
        if meaning is None:
            return False
        kind, *claims = meaning
        if kind == "line":
            return claims[0] in problem.lines
        return kind == "final" and claims == [problem.target, problem.answer]

    def is_next(self, problem: Problem, before: Sequence[Meaning], meaning: Meaning | None) -> bool:
        """Return whether the step is the next one: lines must keep their order."""
        assert isinstance(problem, ReuseProblem), problem
        if meaning is None or not self.is_true(problem, meaning):
            return False
        written = tuple(step[1] for step in before if step[0] == "line")
        if written != problem.lines[: len(written)]:
            return False
        if meaning[0] == "final":
            return written == problem.lines
        return written != problem.lines and meaning[1] == problem.lines[len(written)]

    def _problem(
        self, question: str, lines: Sequence[str], target: str, given: str
    ) -> ReuseProblem | None:
        values = dict(fact for fact in map(_read, lines) if fact is not None)
        if len(values) != len(lines) or target not in values:
            return None
        names = (*(name for name in values if name != target), target)
        return ReuseProblem(self.name, question, names, (), values, tuple(lines), given)


def _slots(forms: Sequence[Form], text: str) -> Mapping[str, str] | None:
    """Return the slots of the first form that matches the text, or None."""
    return next((slots for form in forms if (slots := form.match(text))), None)


def _read(line: str) -> tuple[str, str] | None:
    """Return name and value of a fact, or None."""
    slots = _slots(FACTS, line)
    return (slots["v"], slots["r"]) if slots else None


class Editing(Reuse):
    """Repeat a list of facts with one value changed."""

    name = "editing"
    opening = "Here are all the facts:"
    question = base.question_pattern(
        opening,
        r"\n\n",
        rf"(.+?)\n\nNow let ([a-z])=({_VALUE}),"
        r" and write down all the facts with this value\. Find ([a-z])\.",
        lines=True,
    )

    def ask(
        self, rng: random.Random, facts: Sequence[str], names: Sequence[str], source: Domain
    ) -> str:
        at = rng.randrange(len(names))
        old = _read(facts[at])
        assert old is not None, facts[at]
        while (new := source.draw_value(rng)) == old[1]:
            pass
        listed = "\n\n".join(facts)
        return (
            f"{self.opening}\n\n{listed}\n\nNow let {names[at]}={new}, and write down all"
            f" the facts with this value. Find {names[at]}."
        )

    def find(self, text: str) -> ReuseProblem | None:
        found = self.question.search(text)
        if not found or found[2] != found[4]:
            return None
        lines = found[1].split("\n\n")
        for i, fact in enumerate(map(_read, lines)):
            if fact is not None and fact[0] == found[2]:
                lines[i] = lines[i].replace(f"{fact[0]}={fact[1]}", f"{fact[0]}={found[3]}")
        question = base.question_of(found, self.opening)
        return self._problem(question, lines, found[4], found[1])


class Grounded(Reuse):
    """Quote some of the facts in a paragraph."""

    name = "grounded"
    opening = "Let us look at the facts:"
    question = base.question_pattern(
        opening, " ", r"(.+?) From these facts, give ([a-z](?:, [a-z])*)\. Find ([a-z])\."
    )

    def ask(
        self, rng: random.Random, facts: Sequence[str], names: Sequence[str], source: Domain
    ) -> str:
        asked = rng.sample(list(names), rng.randint(2, len(names) - 1))
        return (
            f"{self.opening} {' '.join(facts)} From these facts, give"
            f" {', '.join(asked)}. Find {asked[-1]}."
        )

    def find(self, text: str) -> ReuseProblem | None:
        found = self.question.search(text)
        if not found:
            return None
        sentences = re.split(r"(?<=\.) ", found[1])
        known = {fact[0]: line for line in sentences if (fact := _read(line)) is not None}
        asked = found[2].split(", ")
        if asked[-1] != found[3] or not set(asked) <= set(known) or len(known) != len(sentences):
            return None
        question = base.question_of(found, self.opening)
        return self._problem(question, [known[name] for name in asked], found[3], found[1])
