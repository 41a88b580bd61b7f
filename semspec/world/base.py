"""The base of the embedded world's domains: problems, paraphrased solutions, and their meaning.

Every step of a solution is written in one of several surface forms drawn at random, so that two
steps can say the same thing with different tokens. The same forms, read backwards as regular
expressions, are the oracle: a step's text gives its *meaning*, and a meaning can be checked
against the problem. That makes semantic equivalence and truth exact here, where real benchmarks
need a judge.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

Meaning = tuple[str, ...]
"""A canonical meaning: its kind ("goal", "start", "value", "recap", "final") and what it claims."""

LETTERS = "abcdefghkmnpqrstuvwxyz"  # without i, j, l, o: easily misread


@dataclass(frozen=True, slots=True)
class Definition:
    """One line of a problem: ``name`` is ``operation`` applied to its operands."""

    name: str
    operation: tuple[str, ...]  # canonical, e.g. ("*", "2", "k"); names and constants as text
    expression: str  # as the question writes it: "2 * k"


@dataclass(frozen=True)
class Problem:
    """A question whose every intermediate value is known."""

    domain: str
    question: str
    names: tuple[str, ...]  # in the order of the question; the last one is asked for
    definitions: tuple[Definition, ...]  # one for each of names[1:]
    values: Mapping[str, str] = field(hash=False)  # name -> value as written: "07", "Friday"

    @property
    def target(self) -> str:
        return self.names[-1]

    @property
    def answer(self) -> str:
        return self.values[self.target]


class Form:
    """A sentence with slots that can be written (``format``) and read back (``match``)."""

    def __init__(self, text: str, slots: Mapping[str, str]) -> None:
        self.text = text
        seen: set[str] = set()

        def slot(found: re.Match[str]) -> str:
            name = found.group(1)
            if name in seen:  # the same slot twice must read the same twice
                return f"(?P={name})"
            seen.add(name)
            return f"(?P<{name}>{slots[name]})"

        literal = re.sub(r"([.\\?*+()|^$\[\]])", r"\\\1", text)
        self.pattern = re.compile(re.sub(r"\{(\w)\}", slot, literal))

    def format(self, **values: str) -> str:
        return self.text.format(**values)

    def match(self, text: str) -> Mapping[str, str] | None:
        found = self.pattern.fullmatch(text)
        return found.groupdict() if found else None


def question_pattern(opening: str, given: str, rest: str, lines: bool = False) -> re.Pattern[str]:
    """Compile the pattern of a question, within a line or, with ``lines``, over several.

    It is tried with ``given`` at the first ``opening`` only, of every line or of the whole text: if the
    rest does not follow there, it follows no later one, and a search stays linear.
    """
    start, flags = (r"\A", re.DOTALL) if lines else ("^", re.MULTILINE)
    return re.compile(rf"{start}(?>.*?{re.escape(opening)}{given}){rest}", flags)


def question_of(found: re.Match[str], opening: str) -> str:
    """Return the text that a ``question_pattern`` matched, without the text before the question."""
    return found.string[found.string.rfind(opening, 0, found.start(1)) : found.end()]


class Domain(ABC):
    """One kind of problem of the embedded world."""

    name: ClassVar[str]
    opening: ClassVar[str]  # how a question begins
    # groups: first name, its value, the definitions, the name asked for
    question: ClassVar[re.Pattern[str]]
    forms: ClassVar[Mapping[str, Sequence[Form]]]  # kind of step -> its surface forms

    def __init__(self, shortest: int = 3, longest: int = 7) -> None:
        self.shortest, self.longest = shortest, longest  # definitions in a problem

    def make(self, rng: random.Random) -> Problem:
        """Draw a problem."""
        names = rng.sample(LETTERS, rng.randint(self.shortest, self.longest) + 1)
        lines = [
            f"{name} is {self.draw_expression(rng, names[:i])}"
            for i, name in enumerate(names[1:], 1)
        ]
        question = f"{self.opening} {names[0]}={self.draw_value(rng)}, {', '.join(lines)}. Find {names[-1]}."
        problem = self.find(question)
        assert problem is not None and problem.question == question, question
        return problem

    @abstractmethod
    def draw_value(self, rng: random.Random) -> str:
        """Draw a value, as written."""

    @abstractmethod
    def draw_expression(self, rng: random.Random, known: Sequence[str]) -> str:
        """Draw an expression over ``known`` names, of which the last is the likeliest."""

    def find(self, text: str) -> Problem | None:
        """Return the problem of this domain that ``text`` states, or None."""
        if not (found := self.question.search(text)):
            return None
        first, value, lines, asked = found.groups()
        values, definitions = {first: value}, list[Definition]()
        for line in lines.split(", "):
            name, _, expression = line.partition(" is ")
            operation = self.read_expression(expression)
            result = self.compute(operation, values) if operation else None
            if operation is None or result is None or name in values or name not in LETTERS:
                return None
            values[name] = result
            definitions.append(Definition(name, operation, expression))
        if asked != definitions[-1].name:
            return None
        question = question_of(found, self.opening)
        return Problem(self.name, question, tuple(values), tuple(definitions), values)

    @abstractmethod
    def substitute(self, expression: str, values: Mapping[str, str]) -> str:
        """Return ``expression`` with its operands' values put in: ``2 * k=74``."""

    @abstractmethod
    def compute(self, operation: tuple[str, ...], values: Mapping[str, str]) -> str | None:
        """Return the value of ``operation``, or None if an operand is unknown."""

    @abstractmethod
    def read_expression(self, text: str) -> tuple[str, ...] | None:
        """Parse ``2 * k`` or ``2 * k=74`` as a canonical operation, values kept, or return None."""

    def solve(self, rng: random.Random, problem: Problem, recap: float = 0.2) -> list[str]:
        """Return a true solution, its wording and its occasional recaps drawn from ``rng``."""
        values, steps = problem.values, list[str]()

        def write(kind: str, **slots: str) -> None:
            steps.append(rng.choice(self.forms[kind]).format(**slots))

        write("goal", t=problem.target)
        write("start", v=problem.names[0], r=values[problem.names[0]])
        for i, (u, definition) in enumerate(zip(problem.names, problem.definitions, strict=False)):
            v, expression = definition.name, definition.expression
            write("value", v=v, E=expression, X=self.substitute(expression, values), r=values[v])
            if i < len(problem.definitions) - 1 and rng.random() < recap:
                write("recap", u=u, p=values[u], v=v, r=values[v])
        write("final", t=problem.target, r=problem.answer)
        return steps

    def meaning(self, text: str) -> Meaning | None:
        """Return the meaning of a step, whatever its wording; None if it cannot be read."""
        found = self.surface(text)
        return self._canonical(found[0], found[2]) if found else None

    def surface(self, text: str) -> tuple[str, int, Mapping[str, str]] | None:
        """Return the form that a step is written in: its kind, its index and its slots; or None."""
        text = text.strip()
        for kind, forms in self.forms.items():
            for index, form in enumerate(forms):
                if (slots := form.match(text)) is not None:
                    return kind, index, slots
        return None

    def _canonical(self, kind: str, slots: Mapping[str, str]) -> Meaning | None:
        if kind in ("goal", "start", "final"):
            return (kind, *(slots[name] for name in "tvr" if name in slots))
        if kind == "recap":
            pair = sorted([(slots["u"], slots["p"]), (slots["v"], slots["r"])])
            return ("recap", *pair[0], *pair[1])
        assert kind == "value", kind
        stated, used = self.read_expression(slots["E"]), self.read_expression(slots["X"])
        if stated is None or used is None:
            return None
        return ("value", slots["v"], " ".join(stated), " ".join(used), slots["r"])

    def is_true(self, problem: Problem, meaning: Meaning | None) -> bool:
        """Return whether every claim of the step holds in ``problem``."""
        if meaning is None:
            return False
        kind, *claims = meaning
        if kind == "goal":
            return claims[0] == problem.target
        if kind == "value":
            for definition in problem.definitions:
                if definition.name == claims[0]:
                    filled = self.substitute(definition.expression, problem.values)
                    used = self.read_expression(filled)
                    assert used is not None, definition
                    true = " ".join(definition.operation), " ".join(used)
                    return claims[1:] == [*true, problem.values[definition.name]]
            return False
        pairs = list(zip(claims[::2], claims[1::2], strict=True))
        if kind == "start" and claims[0] != problem.names[0]:
            return False
        if kind == "final" and claims[0] != problem.target:
            return False
        return all(problem.values.get(name) == value for name, value in pairs)

    def is_next(self, problem: Problem, before: Sequence[Meaning], meaning: Meaning | None) -> bool:
        """Return whether the step is true *and* may come after ``before`` in a solution."""
        if meaning is None or not self.is_true(problem, meaning):
            return False
        kind, kinds = meaning[0], [m[0] for m in before]
        known = ("start" in kinds) + kinds.count("value")
        if kind == "goal":
            return not before
        if kind == "start":
            return kinds == ["goal"]
        if kind == "value":
            return 0 < known < len(problem.names) and meaning[1] == problem.names[known]
        if kind == "recap":
            latest = set(problem.names[max(0, known - 2) : known])
            after_value = 2 <= known < len(problem.names) and kinds[-1] == "value"
            return after_value and {meaning[1], meaning[3]} == latest
        assert kind == "final", kind
        return known == len(problem.names)
