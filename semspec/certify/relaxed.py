"""Servers that are relaxed on purpose: do they solve problems as well as their reference, within a margin?

A relaxed rule changes texts, so texts are not compared. Both servers solve the same problems, and what a user would notice
is tested for equivalence (``results/equivalence.py``): answers, their lengths, and how many are cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal

from semspec.certify.endpoints.http import Client
from semspec.certify.record import Record
from semspec.errors import UserError
from semspec.models.text import CLOSE, OPEN
from semspec.protocols import BenchmarkProblem
from semspec.report.progress import Steps
from semspec.results.equivalence import Answer, Equivalence, compared, sentence

Verdict = Literal["beyond the margin", "equivalent", "undecided"]
SIDES = ("server", "reference")


@dataclass(frozen=True)
class Chat:
    """A server with ``/v1/chat/completions``, and the fields of every request to it."""

    client: Client
    model: str
    fields: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.model} at {self.client.url}"

    def ask(self, problem: BenchmarkProblem, seed: int) -> dict[str, Any]:
        """Return one answer: its text with the thinking, its tokens, and whether it was cut off."""
        turns = [{"role": "system", "content": problem.system}] if problem.system else []
        turns.append({"role": "user", "content": problem.question})
        asked = {"model": self.model, "messages": turns, "seed": seed, **self.fields}
        told = self.client.post("/v1/chat/completions", asked)
        try:
            choice, tokens = told["choices"][0], int(told["usage"]["completion_tokens"])
            message, finish = choice["message"], choice.get("finish_reason")
            content = message.get("content") or ""
            thought = message.get("reasoning_content") or message.get("reasoning") or ""
            if not isinstance(content, str) or not isinstance(thought, str):
                raise TypeError
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{self.client.url}/v1/chat/completions answers without a message and its number of tokens"
            ) from error
        text = f"{OPEN}\n{thought}\n{CLOSE}\n{content}" if thought else content
        return {"text": text, "tokens": tokens, "cut_off": finish == "length"}


@dataclass
class Relaxed:
    """The findings about one server compared with its reference."""

    name: str
    reference: str
    benchmark: str
    temperature: float
    margin: float
    problems: int
    found: list[Equivalence]

    @property
    def verdict(self) -> Verdict:
        if any(one.verdict == "beyond" for one in self.found):
            return "beyond the margin"
        return (
            "equivalent" if all(one.verdict == "equivalent" for one in self.found) else "undecided"
        )


def make(
    server: Chat,
    reference: Chat,
    benchmark: Any,
    name: str,
    problems: int,
    margin: float,
    record: Record,
    steps: Steps,
) -> Relaxed:
    """Let both servers solve the problems, and compare their answers.

    They take turns in groups of problems, so that anything that slows the machine down affects both.
    """
    asked = list(islice(benchmark.problems(), problems))
    answers: dict[str, list[Answer]] = {side: [] for side in SIDES}
    sides = dict(zip(SIDES, (server, reference), strict=True))
    width = server.client.concurrency
    with steps.stage("problems", len(asked)) as stage, ThreadPoolExecutor(width) as pool:
        for start in range(0, len(asked), width):
            group = list(enumerate(asked[start : start + width], start))
            for side in SIDES if start // width % 2 == 0 else SIDES[::-1]:
                told = _told(sides[side], side, group, record, pool)
                pairs = zip(group, told, strict=True)
                answers[side] += [_answer(benchmark, problem, one) for (_, problem), one in pairs]
            stage.by(len(group))
    found = compared(answers["reference"], answers["server"], margin, paired=True)
    temperature = float(server.fields["temperature"])
    return Relaxed(server.name, reference.name, name, temperature, margin, len(asked), found)


def _told(
    chat: Chat,
    side: str,
    group: Sequence[tuple[int, BenchmarkProblem]],
    record: Record,
    pool: ThreadPoolExecutor,
) -> list[dict[str, Any]]:
    """Return a group's answers, which are stored once all of the group are there."""

    def ask() -> list[dict[str, Any]]:
        return list(pool.map(lambda one: chat.ask(one[1], one[0]), group))

    told: list[dict[str, Any]] = record.once(f"{side} {group[0][0]} to {group[-1][0]}", ask)
    return told


def _answer(benchmark: Any, problem: BenchmarkProblem, told: Mapping[str, Any]) -> Answer:
    grade = benchmark.grade(problem, told["text"])
    line = {"finish": "budget" if told["cut_off"] else "stop", "text": told["text"]}
    more = {"id": problem.id, "correct": grade.correct, "answer": grade.answer}
    return Answer.of_line({**line, **more, "tokens": told["tokens"]})


def sentences(found: Relaxed) -> list[str]:
    """Return the findings as sentences that claim no more than was tested."""
    said = {
        "beyond the margin": f"BEYOND THE MARGIN: it does not solve {found.benchmark} as well as its reference.",
        "equivalent": f"Equivalent: it solves {found.benchmark} as well as its reference, within the margin.",
        "undecided": "Undecided: give more problems or a wider margin.",
    }
    return [
        said[found.verdict],
        *(sentence(one)[:1].upper() + sentence(one)[1:] for one in found.found),
    ]


def as_json(found: Relaxed) -> dict[str, Any]:
    """Return the content of certificate.json."""
    return {
        "verdict": found.verdict,
        "server": found.name,
        "reference": found.reference,
        "benchmark": found.benchmark,
        "temperature": found.temperature,
        "margin": found.margin,
        "problems": found.problems,
        "sentences": sentences(found),
        "figures": [asdict(one) for one in found.found],
    }
