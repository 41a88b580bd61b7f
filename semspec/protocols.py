"""What a drafter, rule, splitter, engine and benchmark must be able to do.

Drafters and rules are *plans*: generators that yield queries and receive answers. They touch no
engine, so the driver can run one problem or many, and every rule can be tested on the toy engine,
whose exact law is known. A plugin is a frozen, kw_only dataclass whose fields are its options and
whose docstring's first line is its help; ``semspec.registry`` finds it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from semspec.models.location import ModelConfig, ModelFacts
from semspec.types import (
    Answer,
    Boundary,
    Context,
    Draft,
    Query,
    Read,
    Role,
    Room,
    Round,
    Sampling,
    Seen,
    Verdict,
    What,
)

T = TypeVar("T")
Plan = Generator[Query | tuple[Query, ...], Any, T]
"""A computation that asks models questions by yielding them.

For a ``Query`` an ``Answer`` comes back; for a tuple of queries, a tuple of answers. Queries of one
tuple may run at the same time, so none of them may need what another one draws.
"""


class Splitter(Protocol):
    """Says where a unit (token, sentence, paragraph) ends."""

    def open(self, piece: Callable[[int], str], cap: int) -> Boundary:
        """A fresh boundary; ``piece`` gives a token's text, ``cap`` the longest unit in tokens."""
        ...


def _cannot_be_asked(question: str, prefill: str) -> list[int]:
    raise AssertionError("this kit was made without a way to ask the target")


@dataclass(frozen=True, slots=True)
class Kit:
    """What a drafter or a rule is given for one problem."""

    prompt: str  # the whole prompt as text
    sampling: Sampling
    boundary: Callable[[], Boundary]  # a fresh one at every call
    stop_ids: frozenset[int]  # end of text
    piece: Callable[[int], str]
    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], list[int]]
    rng: random.Random
    evidence: tuple[Read, ...] = ()  # what the rule wants read while the draft model drafts
    salvage: bool = False  # step rules keep of a rejected step what the target's own law allows
    layers: int = 1  # of the target
    trees: bool = False  # whether the rule walks trees; without it a draft is a chain
    max_repeats: int = 0  # step rules reject a step that was written this often before; 0: never
    # (question, prefill) -> ids behind an open turn that ask the target something: ``Text.aside``
    aside: Callable[[str, str], list[int]] = _cannot_be_asked


class DraftSession(Protocol):
    """A drafter at work on one problem."""

    watches: tuple[Read, ...]  # per-row reads that ride on every pass of the target

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        """Proposes at most ``room.tokens`` tokens; an empty draft leaves the round to the target."""
        ...

    def see(self, seen: Seen) -> None:
        """Rows it watches, of tokens that are in the context; comes before ``observe``."""
        ...

    def observe(self, context: Context, done: Round) -> None:
        """Learns what became of the draft; ``context`` already holds what was kept and written."""
        ...


class Drafter(Protocol):
    """Proposes tokens."""

    uses: ClassVar[frozenset[Role]]  # the models that it asks
    plain: ClassVar[bool]  # whether it never drafts, so that the target may write to the end
    ahead: ClassVar[bool]  # whether it can draft what follows ``Room.tail``
    rows: ClassVar[bool]  # whether the rows that it drafts from come with its drafts

    @property
    def needs(self) -> frozenset[What]:
        """What it reads from the target."""
        ...

    @property
    def levels(self) -> int:
        """Levels of its trees at most; 0: it drafts chains, as long as ``draft_length`` says."""
        ...

    def prepare(self, target: Path) -> Drafter:
        """Loads what it was trained with, and refuses what does not belong to this target's folder."""
        ...

    def bind(self, models: Mapping[Role, ModelFacts]) -> Drafter:
        """Opens what it copies from beside the context, and refuses what is not of these models."""
        ...

    @property
    def reach(self) -> int:
        """Tokens that it drafts at a time where tokens are the unit; 0: as ``draft_length`` says."""
        ...

    def open(self, kit: Kit) -> DraftSession: ...


class RuleSession(Protocol):
    """A rule at work on one problem."""

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        """Decides about a draft of at least one token.

        A rule may leave nodes of a tree out (``trim.keep_nodes``) before it asks anything.
        """
        ...


class Rule(Protocol):
    """Decides how much of a draft to keep."""

    needs: ClassVar[frozenset[What]]  # what it reads from the target
    cuts: ClassVar[Literal["tokens", "ends"]]  # where it may cut a draft (or nowhere)
    splits: ClassVar[frozenset[str] | None]  # the splits it can work with; None: any
    trees: ClassVar[bool]  # whether it walks trees, and not chains alone
    compares: ClassVar[bool]  # whether it needs the rows that were drafted from
    salvages: ClassVar[bool]  # whether a rejected step can be kept in part (``Kit.salvage``)
    reserve: ClassVar[int]  # positions beyond the text that its questions take, at most
    lossless: ClassVar[bool]  # whether what comes out has exactly the target's law
    greedy_only: ClassVar[bool]  # whether it makes sense at temperature 0 only

    def models(self) -> Mapping[Role, ModelConfig]:
        """Models of its own, beside target and draft."""
        ...

    def prepare(self, models: Mapping[Role, ModelFacts], split: str, temperature: float) -> Rule:
        """Loads what it was trained with, and refuses what does not belong to these models."""
        ...

    def hold(self, sampling: Sampling, drafts: str) -> None:
        """Refuses a run that the rule's guarantee, if it gives one, was not measured for.

        ``drafts`` is the model that draws the drafts, or else the drafter's name; asked once prepared.
        """
        ...

    def asked(self) -> Mapping[str, float]:
        """What of accepted steps may be wrong at most, where that was asked: see ``truth``."""
        ...

    def places(
        self, models: Mapping[Role, ModelFacts], split: str
    ) -> Mapping[Role, tuple[str, str | None]]:
        """By role, the probe that an engine which offers ``score`` must hold, and its revision."""
        ...

    def on(self, offers: Mapping[Role, Collection[What]]) -> Rule:
        """The prepared rule, reading what these engines offer; before anything else is asked of it."""
        ...

    def evidence(self) -> tuple[Read, ...]:
        """What a model-based drafter must read for it while drafting; see ``Draft.evidence``."""
        ...

    def open(self, kit: Kit) -> RuleSession: ...


class Engine(Protocol):
    """Answers queries; knows token ids and nothing of text."""

    offers: frozenset[What]
    vocabulary: int
    context_limit: int
    layers: int
    width: int

    stop_ids: frozenset[int]  # end of text

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        """Answers a batch: queries of different contexts, each one's rng its own."""
        ...

    def forget(self, context: Context) -> None:
        """The problem is over; its session's memory may be used again."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Concurrent(Engine, Protocol):
    """An engine that takes a query at any time, whatever else is under way: a server.

    ``forget`` then also gives up what is still under way for a context.
    """

    def submit(self, query: Query) -> Future[Answer]:
        """Returns at once; the answer comes when it is there."""
        ...


@dataclass(frozen=True, slots=True)
class BenchmarkProblem:
    """One question; ``answer`` is the gold answer as text, or None where nothing is graded."""

    id: str
    question: str
    answer: str | None = None
    system: str | None = None


@dataclass(frozen=True, slots=True)
class Grade:
    """What became of one problem."""

    correct: bool | None  # None: not graded
    answer: str | None  # what was found in the text
    details: Mapping[str, Any]  # e.g. step-level truth; JSON only
    # (start, end) of each step in the text and whether it is true, where the benchmark can tell
    steps: Sequence[tuple[int, int, bool]] = ()


class Benchmark(Protocol):
    """Problems, and how their solutions are graded."""

    def problems(self) -> Iterable[BenchmarkProblem]: ...

    def grade(self, problem: BenchmarkProblem, text: str) -> Grade:
        """Grades a whole assistant's turn, thinking included."""
        ...
