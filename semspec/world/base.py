"""The base of the embedded world's domains: problems, paraphrased solutions, and their meaning.

Every step of a solution is written in a randomly drawn surface form, so two steps can say the same
thing with different tokens. The same forms, used as regular expressions, are the oracle: a step's text
gives its *meaning*, and a meaning can be checked against the problem. So semantic equivalence and truth
are exact here, where real benchmarks need a judge.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

Meaning = tuple[str, ...]
"""A canonical meaning: its kind ("goal", "start", "value", "recap", "doubt", "check", "close", "final") and what it claims."""

LAST = "final", "close"  # kinds of steps that end the thinking
LETTERS = "abcdefghkmnpqrstuvwxyz"  # without i, j, l, o: easily misread


@dataclass(frozen=True, slots=True)
class Style:
    """How a solution is written: probabilities of what happens at each value."""

    recap: float = 0.2  # repeat the last two values
    mistake: float = 0.0  # make a mistake, followed by a doubt and a right step
    late: float = 0.3  # notice a mistake only one value later
    check: float = 0.0  # check a value
    review: float = 0.0  # check one more value before the answer, repeatedly
    unstated: float = 0.0  # close without stating the answer, which then has to be looked up


PLAIN = Style()

# these are the same in every domain
DOUBTS = [
    "Wait, that is not right: {v}={r} cannot be true, so let us do this step again.",
    "Hmm, there is a mistake here, because {v}={r} does not follow; we have to go back.",
    "But no, {v}={r} is wrong, and before we go on we must do this once more.",
    "Let me stop here: looking at the question again, {v}={r} is not correct.",
]
CHECKS = [
    "Let us check this once more: {X} does give {v}={r}, so we can rely on it.",
    "To be sure, we go over it again: {X} makes {v}={r}, just as before.",
    "It is better to look twice: with {X} we get {v}={r} again, which is right.",
    "Let me make certain of {v}: {X} gives {v}={r}, and so nothing has to be changed.",
]

CLOSINGS = [
    "All the values are known now, so we can stop here and answer the question.",
    "We are done with the definitions, and we can go on to the answer.",
    "This is all that we need to know, so the answer can be given now.",
    "Nothing has to be changed, so let us answer what we were asked.",
]


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
    values: Mapping[str, str] = field(hash=False)  # name -> value as written, e.g. "07", "Friday"

    @property
    def target(self) -> str:
        return self.names[-1]

    @property
    def answer(self) -> str:
        return self.values[self.target]


class Form:
    """A sentence with slots, to be written (``format``) and read back (``match``)."""

    def __init__(self, text: str, slots: Mapping[str, str]) -> None:
        self.text = text
        seen: set[str] = set()

        def slot(found: re.Match[str]) -> str:
            name = found.group(1)
            if name in seen:  # a repeated slot must match the same text
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

    Only the first ``opening`` with ``given`` is tried, in every line or in the whole text: if the rest does not
    follow there, it follows no later one, so a search stays linear.
    """
    start, flags = (r"\A", re.DOTALL) if lines else ("^", re.MULTILINE)
    return re.compile(rf"{start}(?>.*?{re.escape(opening)}{given}){rest}", flags)


def question_of(found: re.Match[str], opening: str) -> str:
    """Return the text that a ``question_pattern`` matched, without what precedes the question."""
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
        """Draw an expression over ``known`` names, most likely with the last one."""

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
        """Return ``expression`` with its operands' values filled in: ``2 * k=74``."""

    @abstractmethod
    def compute(self, operation: tuple[str, ...], values: Mapping[str, str]) -> str | None:
        """Return the value of ``operation``, or None if an operand is unknown."""

    @abstractmethod
    def read_expression(self, text: str) -> tuple[str, ...] | None:
        """Parse ``2 * k`` or ``2 * k=74`` as a canonical operation, with its values, or return None."""

    def solve(self, rng: random.Random, problem: Problem, style: Style = PLAIN) -> list[str]:
        """Return a solution; its wording and the events of ``style`` are drawn from ``rng``.

        All steps are true except mistakes (``is_true`` finds them), and a doubt takes each mistake back.
        """
        values, names, steps = problem.values, problem.names, list[str]()

        def write(kind: str, **slots: str) -> None:
            steps.append(rng.choice(self.forms[kind]).format(**slots))

        def write_value(line: Definition, known: Mapping[str, str], kind: str = "value") -> str:
            filled = self.substitute(line.expression, known)
            result = self._result(line, known)
            write(kind, v=line.name, E=line.expression, X=filled, r=result)
            return result

        write("goal", t=problem.target)
        write("start", v=names[0], r=values[names[0]])
        lines = problem.definitions
        for i, (u, line) in enumerate(zip(names, lines, strict=False)):
            if style.mistake and rng.random() < style.mistake:
                wrong = self.write_mistake(rng, problem, i, write)
                if i + 1 < len(lines) and rng.random() < style.late:
                    write_value(lines[i + 1], {**values, line.name: wrong})
                write("doubt", v=line.name, r=wrong)
            v = line.name
            write_value(line, values)
            if style.check and rng.random() < style.check:
                write_value(line, values, "check")
            if i < len(lines) - 1 and rng.random() < style.recap:
                write("recap", u=u, p=values[u], v=v, r=values[v])
        while style.review and rng.random() < style.review:
            write_value(rng.choice(lines), values, "check")
        if style.unstated and rng.random() < style.unstated:
            write("close")
        else:
            write("final", t=problem.target, r=problem.answer)
        return steps

    def _result(self, line: Definition, known: Mapping[str, str]) -> str:
        result = self.compute(line.operation, known)
        assert result is not None, line
        return result

    def write_mistake(
        self, rng: random.Random, problem: Problem, at: int, write: Callable[..., None]
    ) -> str:
        """Write a wrong step for a definition, and return the wrong value that it claims.

        It uses a wrong operand or another definition, or else claims a wrong result.
        """
        line, values = problem.definitions[at], dict(problem.values)
        known = problem.names[: at + 1]  # before this line
        truth = values[line.name]
        for kind in rng.sample(("operand", "operand", "definition"), 3):
            expression, filled, result = line.expression, values, truth
            if kind == "operand":
                used = [name for name in known if name in line.operation]
                filled = values | {rng.choice(used): self.draw_mistaken_value(rng, problem, known)}
                result = self._result(line, filled)
            elif others := problem.definitions[:at]:
                expression = rng.choice(others).expression
                operation = self.read_expression(expression)
                assert operation is not None, expression
                result = self.compute(operation, values) or truth
            if result != truth:
                break
        else:
            expression, filled = line.expression, values
            result = rng.choice(
                [v for v in (self.draw_value(rng) for _ in range(20)) if v != truth]
            )
        write("value", v=line.name, E=expression, X=self.substitute(expression, filled), r=result)
        return result

    def draw_mistaken_value(
        self, rng: random.Random, problem: Problem, known: Sequence[str]
    ) -> str:
        """Draw the value of a wrong name, like a slip of memory, or any value."""
        if len(known) > 1 and rng.random() < 0.8:
            return problem.values[rng.choice(known)]
        return self.draw_value(rng)

    def meaning(self, text: str) -> Meaning | None:
        """Return the meaning of a step in any wording; None if it cannot be read."""
        found = self.surface(text)
        return self._canonical(found[0], found[2]) if found else None

    def surface(self, text: str) -> tuple[str, int, Mapping[str, str]] | None:
        """Return the kind, form index and slots of a step's wording; None if it has no form."""
        text = text.strip()
        for kind, forms in self.forms.items():
            for index, form in enumerate(forms):
                if (slots := form.match(text)) is not None:
                    return kind, index, slots
        return None

    def _canonical(self, kind: str, slots: Mapping[str, str]) -> Meaning | None:
        if kind in ("goal", "start", *LAST):
            return (kind, *(slots[name] for name in "tvr" if name in slots))
        if kind == "doubt":
            return ("doubt", slots["v"], slots["r"])
        if kind == "check":
            used = self.read_expression(slots["X"])
            return None if used is None else ("check", slots["v"], " ".join(used), slots["r"])
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
        if kind == "doubt":
            return claims[0] in problem.values and claims[1] != problem.values[claims[0]]
        if kind in ("value", "check"):
            for definition in problem.definitions:
                if definition.name == claims[0]:
                    filled = self.substitute(definition.expression, problem.values)
                    used = self.read_expression(filled)
                    assert used is not None, definition
                    true = [" ".join(used), problem.values[definition.name]]
                    if kind == "value":
                        true = [" ".join(definition.operation), *true]
                    return claims[1:] == true
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
        known, claimed = self._stand(problem, before)
        if kind == "goal":
            return not before
        if kind == "start":
            return kinds == ["goal"]
        if kind == "value":
            return 0 < known < len(problem.names) and meaning[1] == problem.names[known]
        if kind == "recap":
            latest = set(problem.names[max(0, known - 2) : known])
            after_value = 2 <= known < len(problem.names) and kinds[-1] in ("value", "check")
            return after_value and {meaning[1], meaning[3]} == latest
        if kind == "check":
            return meaning[1] in problem.names[1:known]
        if kind == "doubt":
            return claimed.get(meaning[1]) == meaning[2]
        assert kind in LAST, kind
        return known == len(problem.names)

    def _stand(self, problem: Problem, before: Sequence[Meaning]) -> tuple[int, dict[str, str]]:
        """Return how many names have values after some steps, and the claimed values.

        A doubt takes back the value of its name and all later ones.
        """
        known, claimed = 0, dict[str, str]()
        for kind, *claims in before:
            if kind == "start" and not known:
                known = 1
            elif kind == "value":
                known += 1
                claimed[claims[0]] = claims[-1]
            elif kind == "doubt" and claimed.pop(claims[0], None) == claims[1]:
                # a name that is not in the problem was counted when its value was claimed
                first = problem.names.index(claims[0]) if claims[0] in problem.names else known - 1
                known = min(known, first)
        return known, claimed
