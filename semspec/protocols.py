"""Every kind of plugin, and the one life that all of them lead.

Drafters and rules are *plans*: generators that yield queries and receive answers. They touch no
engine, so the driver can run one problem or many, and every rule can be tested on the toy engine,
whose exact law is known. A plugin is a frozen, kw_only dataclass whose fields are its options and
whose docstring's first line is its help; ``semspec.registry`` finds it.

The life of a plugin, in this order (``config.build``, ``solver.Solver``):

1. It is built from its options. ``__post_init__`` raises UserError for options that make no sense.
2. ``check_setup(setup)`` raises UserError where it cannot work in this configuration: before a model loads.
3. ``models()`` names the models that it brings along, by role (drafters and rules). Their light files are
   fetched: configurations and tokenizers.
4. ``loads(run)`` names what it is going to load, and raises UserError where that is not known: before
   anything heavy is fetched. ``plan=true`` shows it.
5. ``bind(run)`` returns a copy that has what it was trained with, and raises UserError where that does
   not belong to the run's models or does not hold for the run: before weights are fetched (drafters, rules, splitters).
6. ``measure(bench)`` returns a copy that has what can only be measured on the loaded pair (rules).
7. ``open(kit)`` begins one problem; a splitter opens a stream, an engine loads a model.

``example(folder)`` gives the contract tests plugins to try: ``tests/contract`` names none.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Protocol,
    Self,
    TypeVar,
    runtime_checkable,
)

from semspec import registry
from semspec.errors import UserError
from semspec.models.location import ModelConfig, ModelFacts
from semspec.models.wanted import Wanted
from semspec.types import (
    Answer,
    Boundary,
    Context,
    Draft,
    Gate,
    Opinion,
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

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

T = TypeVar("T")
Plan = Generator[Query | tuple[Query, ...], Any, T]
"""A computation that asks models questions by yielding them.

For a ``Query`` an ``Answer`` comes back; for a tuple of queries, a tuple of answers. Queries of one
tuple may run at the same time, so none of them may need what another one draws.
"""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A drafter, its rule and the engine, as a configuration combines them; no model is loaded yet.

    A run has two: its own pair, and the nested pair that helps the target to write.
    """

    drafter: Drafter
    rule: Rule
    engine: EngineOptions
    split: str
    sampling: Sampling
    salvage: bool = False
    ahead: bool = False
    nested: bool = False

    @property
    def draft_option(self) -> str:
        """The option that chooses the drafter."""
        return "nested" if self.nested else "draft"

    @property
    def accept_option(self) -> str:
        """The option that chooses the rule."""
        return "nested_accept" if self.nested else "accept"

    @property
    def drafter_choice(self) -> str:
        """The drafter as it is chosen on the command line: ``draft=lm``."""
        return f"{self.draft_option}={registry.name_of(self.drafter)}"

    @property
    def rule_choice(self) -> str:
        """The rule as it is chosen on the command line: ``accept=lossless``."""
        return f"{self.accept_option}={registry.name_of(self.rule)}"

    @property
    def engine_choice(self) -> str:
        """The engine as it is chosen on the command line: ``engine=hf``."""
        return f"engine={registry.name_of(self.engine)}"

    def check_models(self, choice: str, models: Collection[Role], others: str) -> None:
        """Raise UserError if the engine cannot run the models that a plugin brings along."""
        roles = self.engine.roles
        if roles is not None and (missing := sorted(set(models) - roles)):
            raise UserError(
                f"{choice} asks a model of its own ({', '.join(missing)}), which"
                f" {self.engine_choice} does not run: use engine=hf, or another {others}"
            )


@dataclass(frozen=True, kw_only=True)
class Run:
    """The facts of a run that plugins are bound to."""

    models: Mapping[Role, ModelFacts]
    split: str
    sampling: Sampling
    folders: Mapping[Role, Path] = field(
        default_factory=dict
    )  # of the models, maybe without weights
    offers: Collection[What] = ()  # what the engine can read
    rule: str = ""  # that decides about drafts, by name
    # the model that draws the drafts, or the name of a drafter without one; None: nothing is drafted,
    # and nothing that was promised about drafts has to hold
    drafts: str | None = None
    given: Mapping[Role, ModelConfig] = field(default_factory=dict)  # where its models are
    fetch: Callable[[Role], Path] | None = None  # weights, if they are not in ``folders``

    @property
    def places(self) -> Mapping[Role, ModelConfig]:
        """Where its models are, as commands name them."""
        return self.given or {
            role: ModelConfig(path=facts.name, revision=facts.revision)
            for role, facts in self.models.items()
        }

    def weights(self, role: Role) -> Path:
        """Return a model's folder with its weights: the one thing in ``bind`` that may take hours."""
        return self.folders[role] if self.fetch is None else self.fetch(role)


@dataclass(frozen=True, slots=True)
class Source:
    """Where something is that a plugin loads: a folder, ``embedded/NAME`` or ``owner/name``."""

    what: str
    place: str
    revision: str | None
    wanted: Wanted  # the files that are loaded of it
    first: str | None = None  # the command that has to be run before it can be loaded


class Plugin(Protocol):
    """The life that all kinds of plugins share; a plugin overrides what it needs."""

    def check_setup(self, setup: Setup) -> None:
        """Raise UserError, with a way out, if it cannot work in this configuration."""
        return

    def loads(self, run: Run) -> Sequence[Source]:
        """Return what ``bind`` is going to load; raise UserError, with the next command, where it is not known."""
        return ()

    def bind(self, run: Run) -> Self:
        """Return the plugin with everything that it was trained with; see ``bound``."""
        return self

    def bound(self, **found: Any) -> Self:
        """Return a copy that carries what ``bind`` found.

        A plugin declares these attributes as ``ClassVar``, so that they are no options.
        """
        made = copy.copy(self)
        for name, value in found.items():
            object.__setattr__(made, name, value)  # frozen: its options are, for the whole run
        return made

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        """Yield plugins that do something on small models, for the contract tests.

        They get a target and a draft like ``models.location.EXAMPLE``, with ``EXAMPLE_VOCABULARY``
        tokens; artifacts of a plugin's own are saved below ``folder``, which is empty.
        """
        yield cls()


class Splitter(Plugin, Protocol):
    """Tells where a unit (token, sentence, paragraph) ends."""

    def open(self, piece: Callable[[int], str], cap: int) -> Boundary:
        """Return a fresh boundary; ``piece`` gives a token's text, ``cap`` the longest unit in tokens."""
        ...


def _cannot_be_asked(question: str, prefill: str) -> list[int]:
    raise AssertionError("this kit was made without a way to ask the target")


@dataclass(frozen=True, slots=True)
class Kit:
    """The tools and numbers of one problem, for a drafter or a rule."""

    prompt: str  # the whole prompt as text
    sampling: Sampling
    boundary: Callable[[], Boundary]  # a fresh one at every call
    stop_ids: frozenset[int]  # end of text
    piece: Callable[[int], str]
    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], list[int]]
    rng: random.Random
    evidence: tuple[Read, ...] = ()  # what the rule wants read while the draft model drafts
    gate: Gate | None = None  # how far the rule lets the draft model write
    salvage: bool = False  # step rules keep of a rejected step what the target's own law allows
    layers: int = 1  # of the target
    trees: bool = False  # whether the rule walks trees; without it a draft is a chain
    max_repeats: int = 0  # step rules reject a step that was written this often before; 0: never
    # (question, prefill) -> ids behind an open turn that ask the target something: ``Text.aside``
    aside: Callable[[str, str], list[int]] = _cannot_be_asked
    references: Sequence[Sequence[int]] = ()  # ``BenchmarkProblem.references`` in the target's ids
    earlier: Earlier | None = None  # answers to earlier questions, where a drafter remembers them


class Earlier(Protocol):
    """Answers to earlier questions of the same tenant, to copy from."""

    def find(
        self, tail: Sequence[int], longest: int, least: int, length: int
    ) -> tuple[int, NDArray[np.int64]] | None:
        """Return the longest match of at least ``least`` tokens, ``longest`` at most, with ``tail``'s end.

        Beside its length stands what followed [places, length], -1 after an end; None: nothing matches.
        """
        ...


class DraftSession(Protocol):
    """A drafter at work on one problem."""

    watches: tuple[Read, ...]  # per-row reads that ride on every pass of the target

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        """Propose at most ``room.tokens`` tokens; an empty draft leaves the round to the target."""
        ...

    def see(self, seen: Seen) -> None:
        """Take rows that it watches, of tokens that are in the context; comes before ``observe``."""
        ...

    def observe(self, context: Context, done: Round) -> None:
        """Learn which tokens were kept and written; ``context`` already holds them."""
        ...


class Drafter(Plugin, Protocol):
    """Proposes tokens; ``draft`` is the role of a language model that it drafts with."""

    plain: ClassVar[bool]  # whether it never drafts, so that the target may write to the end
    ahead: ClassVar[bool]  # whether it can draft what follows ``Room.tail``
    rows: ClassVar[bool]  # whether the rows that it drafts from come with its drafts

    @property
    def needs(self) -> frozenset[What]:
        """Kinds of reads of the target that it asks for."""
        ...

    @property
    def levels(self) -> int:
        """Levels of its trees at most; 0: it drafts chains, as long as ``draft_length`` says.

        One with levels that drafts by a model's rows drafts a chain, too, where ``Room.chain`` asks for it.
        """
        ...

    def models(self) -> Mapping[Role, ModelConfig]:
        """Return models of its own, by role; ``target`` is there anyway."""
        ...

    @property
    def own_prompt(self) -> bool:
        """True if its model may read the prompt in its own chat template if the target's does not fit."""
        ...

    def drawn(self, sampling: Sampling) -> bool:
        """Tell whether siblings in its trees are draws from their rows, not point masses."""
        ...

    @property
    def reach(self) -> int:
        """Tokens that it drafts at a time where tokens are the unit; 0: as ``draft_length`` says."""
        ...

    @property
    def refers(self) -> bool:
        """True if it copies from ``Kit.references`` by itself."""
        ...

    @property
    def remembers(self) -> int:
        """Return the MiB of earlier answers that it asks for as ``Kit.earlier``; 0: none."""
        ...

    def open(self, kit: Kit) -> DraftSession: ...


def drafts_chains(drafter: Drafter) -> bool:
    """Tell whether a drafter that grows trees drafts a chain, too, where ``Room.chain`` asks for it."""
    return bool(drafter.levels) and drafter.rows


class RuleSession(Protocol):
    """A rule at work on one problem."""

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        """Decide about a draft of at least one token, or one that the rule's gate has halted.

        A rule may leave nodes of a tree out (``trim.keep_nodes``) before it asks anything.
        """
        ...


@dataclass(frozen=True, slots=True)
class InServer:
    """What a rule says of itself so that it can run inside a serving engine, beside what it reads (``Rule.needs``).

    A rule that cuts at ends runs there as it is, in a loop of each request, if all that it needs is in ``VERIFIED``.
    One that cuts at tokens says in ``Rule.keeps`` what it keeps of many drafts at once.
    """

    asked: Mapping[str, type] = field(default_factory=dict)  # options that a request may set: types
    server: tuple[str, ...] = ()  # options that are set where the server starts, if at all
    told: tuple[str, ...] = ()  # options that ``Rule.asked_inside`` expresses by those of ``asked``
    bound: bool = False  # whether it goes by ARC-Decode's bound: ``Verified.bound``


VERIFIED = frozenset({What.PROBS, What.LOGITS, What.LOGPROBS, What.TOP_K, What.POOLED})
"""What the pass that verifies a draft inside a serving engine can be read for."""


class Verified(Protocol):
    """Drafts that a serving engine's target has read, of requests with one rule and one sampling."""

    logits: Tensor  # [requests * n, vocabulary] raw
    tokens: Tensor  # [requests, n]: node 0 is a text's last token
    parents: Tensor  # [requests, n], -1 for none
    sampling: Sampling
    bound: Any  # ARC-Decode's bound of the model, for rules that ask for it

    @property
    def p(self) -> Tensor:
        """The target's distributions [requests * n, vocabulary], after temperature, top-k, top-p and min-p."""
        ...

    @property
    def rows(self) -> Tensor:
        """[requests * n] the row that judges each node."""
        ...

    @property
    def flat(self) -> Tensor:
        """[requests * n] the tokens."""
        ...


@dataclass(frozen=True, slots=True)
class ProbeSource:
    """Where a probe is: a folder, ``embedded/NAME`` or ``owner/name``."""

    place: str
    revision: str | None = None
    allow_mismatch: bool = False  # it may have been trained for something else

    def __str__(self) -> str:
        return f"{self.place}@{self.revision}" if self.revision else self.place


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A loaded pair and a run's questions, for a rule that measures something before the first problem."""

    # what the pair and its sampling are, as JSON: equal where what was measured holds, too
    identity: Mapping[str, Any]
    target: str  # its name
    drafts: bool  # whether anything is drafted
    draft: str | None  # the name of the small model that drafts, if one does
    sampling: Sampling
    # solves the questions with another rule, over and over with other random numbers, each with so many tokens at most;
    # yields how many tokens each has
    solve: Callable[[Rule, int], Generator[int, None, None]]
    recorded: Mapping[str, Any] | None = None  # what an earlier start of this run has recorded
    tell: Callable[[str], None] = lambda _: None  # says how it goes
    standing: Rule | None = (
        None  # as it is for the same pair with other options, such as the server's own temperature
    )


class Rule(Plugin, Protocol):
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
    may_change: ClassVar[tuple[str, ...]]  # options that may differ when a run goes on
    in_server: ClassVar[InServer | None]  # None: it cannot run inside a serving engine

    def models(self) -> Mapping[Role, ModelConfig]:
        """Return models of its own, by role; ``target`` is there anyway."""
        ...

    @property
    def idle(self) -> bool:
        """True if speculative sampling alone decides."""
        ...

    def asked_inside(self) -> Mapping[str, Any]:
        """Return the options that a server which runs the rule inside is asked for."""
        ...

    def keeps(self, seen: Verified) -> Tensor:
        """Return which nodes it keeps whatever speculative sampling says: bool [requests * n]."""
        ...

    @classmethod
    def default_for(cls, target: str, split: str, given: Collection[str]) -> tuple[int, str] | None:
        """Rate the rule as the default for a target and a split, and say why; the highest is taken, 0 never.

        ``given`` names the options of the rule on the command line. None: not a default at all.
        """
        ...

    def asked_risk(self) -> Mapping[str, float]:
        """Return the risk that accepted steps are to keep, if one was asked; see ``step_truth``."""
        ...

    def probe_sources(self, run: Run) -> Mapping[Role, ProbeSource]:
        """Return by role the probe that an engine which offers ``score`` must hold."""
        ...

    def evidence(self) -> tuple[Read, ...]:
        """Return the reads that a model must make for it while it drafts; see ``Draft.evidence``."""
        ...

    def gate(self) -> Gate | None:
        """Return how far the draft model may write; see ``Draft.halted``."""
        ...

    def measure(self, bench: Bench) -> Self:
        """Return the rule with what it has measured on the loaded pair."""
        ...

    def measured(self) -> Mapping[str, Any]:
        """Return what ``measure`` has found, as JSON that a run records for its next start."""
        ...

    def origin(self) -> str:
        """Say in a line what it decides by and where that is from; "" where its options say all."""
        ...

    def open(self, kit: Kit) -> RuleSession: ...


class StopSession(Protocol):
    """A stopper at work on one problem."""

    def consider(self, context: Context, thought: int) -> Plan[Opinion]:
        """Say at the end of a step whether the thinking is done, after ``thought`` tokens of it.

        The context ends with the step. What is asked here must not draw from any random numbers but the
        kit's own, so that the text before a stop is what it would have been without.
        """
        ...


class Stopper(Plugin, Protocol):
    """Tells when the thinking is done; the thinking is then closed in words, and the answer follows."""

    plain: ClassVar[bool]  # whether it never stops anything
    needs: ClassVar[frozenset[What]]  # what it reads from the target

    @property
    def reserve(self) -> int:
        """Positions beyond the text that its questions take, at most."""
        ...

    @property
    def closing(self) -> Closing:
        """What closes the thinking, and what is kept back for the answer."""
        ...

    @property
    def audits(self) -> bool:
        """True if a run also solves what was stopped to its natural end, outside its times, and compares."""
        ...

    def asked_risk(self) -> float | None:
        """Return the asked probability of changing a right answer into a wrong one; None: none was asked."""
        ...

    def origin(self) -> str:
        """Say in a line what it decides by and where that is from; "" where its options say all."""
        ...

    def open(self, kit: Kit) -> StopSession: ...


@dataclass(frozen=True, slots=True)
class Closing:
    """How a thinking is closed before its own end."""

    words: str  # what is said last
    answer: str  # how the answer begins
    tokens: int  # kept back for the answer; 0: what suits the budget


@dataclass(frozen=True, slots=True)
class Need:
    """A model that the engines of one process are going to run."""

    role: Role
    folder: Path
    probes: tuple[str, ...] = ()  # that it holds, of all who use it
    max_new_tokens: int = 512
    problems: int = 1  # under way at a time


class EngineOptions(Plugin, Protocol):
    """The options of an engine: the plugin from which the engine of each model is made."""

    offers: ClassVar[frozenset[What]]  # what can be read
    roles: ClassVar[frozenset[Role] | None]  # the models that it can run; None: any
    may_change: ClassVar[tuple[str, ...]]  # options that may differ when a run goes on

    @property
    def holds_weights(self) -> bool:
        """True if weights are loaded on this machine; else a model's folder need not have them."""
        ...

    def verifies(self, setup: Setup) -> tuple[bool, str]:
        """Say if servers may verify drafts by themselves, so that nothing is read here; if not, how they could."""
        ...

    def reaches(self, role: Role) -> bool:
        """Return False for a model that nobody has said where to find: there may be no need for it."""
        ...

    @classmethod
    def suits(cls) -> tuple[int, str] | None:
        """Rate the engine for this machine, and say why: the highest is ``engine=auto``.

        0: it does not work here by itself. None: nobody wants it who does not name it.
        """
        ...

    def check_machine(self, models: Mapping[Role, ModelConfig], max_new_tokens: int) -> None:
        """Raise UserError if models cannot run on this machine, before any is fetched."""
        ...

    def needed(
        self, models: Mapping[Role, ModelConfig], max_new_tokens: int, problems: int
    ) -> Sequence[str]:
        """Say what models take of this machine, of what is there: a line for each device or server."""
        ...

    def hosting(
        self, needs: Sequence[Need], logs: Path, tell: Callable[[str], object]
    ) -> AbstractContextManager[Self]:
        """Make ready what all models of a process load from, such as servers; end that at exit.

        Yields the options to load them with. ``tell`` gets lines about progress.
        """
        ...

    def load(
        self,
        folder_or_repo: str,
        revision: str | None = None,
        role: Role = "target",
        probes: Sequence[str] = (),
    ) -> Engine:
        """Load the engine of one model, which holds these probes if it can."""
        ...


class Engine(Protocol):
    """Answers queries; knows token ids and nothing of text."""

    offers: frozenset[What]
    vocabulary: int
    context_limit: int
    layers: int
    width: int

    stop_ids: frozenset[int]  # end of text

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        """Answer a batch: queries of different contexts, each with its own rng."""
        ...

    def forget(self, context: Context) -> None:
        """Free the session of a problem that is over."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Concurrent(Engine, Protocol):
    """An engine that takes a query at any time, whatever else is under way: a server.

    ``forget`` then also gives up what is still under way for a context.
    """

    def submit(self, query: Query) -> Future[Answer]:
        """Take a query and return at once."""
        ...


@runtime_checkable
class Constraining(Engine, Protocol):
    """An engine that can hold what its model writes to a grammar (``Generate.grammar``)."""

    holds_grammars: bool


@runtime_checkable
class Caching(Engine, Protocol):
    """An engine whose KV cache is memory of this process, which nobody but the caller bounds."""

    def session_bytes(self, positions: int) -> int:
        """Return the memory that a context of so many tokens may take."""
        ...

    def free_bytes(self) -> int:
        """Return the memory of the engine's device that is free, beside all caches that are there."""
        ...

    def memory_bytes(self) -> Mapping[str, int]:
        """Return what is taken by ``weights`` and by ``cache``."""
        ...


@dataclass(frozen=True, slots=True)
class BenchmarkProblem:
    """One question; ``answer`` is the gold answer as text, or None where nothing is graded."""

    id: str
    question: str
    answer: str | None = None
    system: str | None = None
    prompt_ids: tuple[int, ...] | None = None  # the prompt as it is, instead of the question's
    references: Sequence[str] = ()  # what the answer may repeat: a predicted one, a file, documents
    tenant: str = ""  # whose question it is: answers are remembered for the same tenant alone
    attempt_of: str = ""  # the id of the problem that this is a further attempt at


@dataclass(frozen=True, slots=True)
class Grade:
    """The result of grading one problem."""

    correct: bool | None  # None: not graded
    answer: str | None  # what was found in the text
    details: Mapping[str, Any]  # e.g. step-level truth; JSON only
    # (start, end) of each step in the text and whether it is true, where the benchmark can tell
    steps: Sequence[tuple[int, int, bool]] = ()


class Benchmark(Plugin, Protocol):
    """Problems, and how their solutions are graded."""

    by_part: ClassVar[bool] = False  # figures tell acceptance in the thinking and after it apart

    @classmethod
    def of_prompt(cls, text: str) -> Self | None:
        """Return the benchmark that asks the user's own question; None: it asks others."""
        return None

    def problems(self) -> Iterable[BenchmarkProblem]: ...

    def grade(self, problem: BenchmarkProblem, text: str) -> Grade:
        """Grade a whole assistant's turn, thinking included."""
        ...
