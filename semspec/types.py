"""The data that passes between drafters, rules, engines and the loop.

A **draft** is tokens plus the places where it may be cut; a **verdict** says how much of it to keep
and who writes next; a **query** is the only way to ask a model for anything, and an **answer** is
what comes back. See docs/architecture.md for one problem followed through all of them.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

Role = str
"""Which model a query is for: ``target``, ``draft``, or a name that a plugin gives to a model of its own
(``Rule.models``). Each role that is asked has an engine of its own."""

Purpose = Literal["draft", "verify", "write"]
"""How a query's time is booked: proposing, judging, or the target writing on its own."""

Finish = Literal["eos", "units", "limit", "paused", "scored"]
"""The reason an answer ended: end of text, enough units, the token limit, ``Generate.pause``, or nothing generated."""


class Context:
    """Prompt and output so far: append-only, so that an engine can keep a live KV session for it.

    An engine recognises a context by ``key``; because nothing before ``len(context)`` ever changes,
    it compares only what was appended since it last looked, and a round costs O(new tokens).

    ``draft_prompt`` is the prompt of a draft model that reads its own chat template, in its own ids.
    """

    __slots__ = ("draft_prompt", "key", "prompt_length", "tokens")

    def __init__(
        self, key: int, prompt: Sequence[int], draft_prompt: Sequence[int] | None = None
    ) -> None:
        self.key = key
        self.tokens: list[int] = list(prompt)
        self.prompt_length = len(self.tokens)
        self.draft_prompt = draft_prompt

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)


@dataclass(frozen=True, slots=True)
class Sampling:
    """The processing of a distribution before it is drawn from, alike for target and draft."""

    temperature: float = 0.6
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0  # times the largest probability, at least; 0: off

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


class What(enum.Enum):
    """A kind of reading that a forward pass can give.

    A *row* is the model's state at one position. Scoring n tokens gives n + 1 rows: row 0 is the
    last token of the context, row i is ``tokens[i - 1]``, so that row i predicts ``tokens[i]``. In a
    tree of n nodes row 0 is the root and row i + 1 is node i. Generating g tokens gives g rows:
    row i is the state that token i was drawn from.
    """

    __hash__ = object.__hash__  # there is one of each; an enum's own hash is slow

    PROBS = "probs"  # [rows, vocabulary] after temperature, top-k, top-p, min-p
    LOGITS = "logits"  # [rows, vocabulary] raw
    TOP_K = "top_k"  # (ids [rows, k], raw log-probabilities [rows, k])
    LOGPROBS = "logprobs"  # [tokens] log-probability of each scored or generated token, raw but for ``temperature``
    HIDDEN = "hidden"  # [rows, layers, width]; layers as in transformers' hidden_states
    POOLED = "pooled"  # [spans, layers, width] over each span's own tokens, reduced in the pass
    SCORE = "score"  # [spans] what the probe named says of each span, where the engine holds it
    EMBEDDINGS = "embeddings"  # [tokens, width] rows of the input embedding table; no pass needed
    ATTENTION = "attention"  # [layers, rows, positions] attention weights, averaged over heads


def names_of(reads: Iterable[What]) -> str:
    """List reads by name, for an error."""
    return ", ".join(sorted(what.value for what in reads))


@dataclass(frozen=True, slots=True)
class Read:
    """One thing to read in a pass."""

    what: What
    k: int = 0  # TOP_K
    # HIDDEN, ATTENTION: (): the last; POOLED: (): all and the embeddings. Of states, 0 is the
    # embeddings and -1 the last layer after the final norm
    layers: tuple[int, ...] = ()
    # POOLED, SCORE: over scored tokens; when generating, each unit
    spans: tuple[tuple[int, int], ...] = ()
    reduce: Literal["mean", "max", "last"] = "mean"  # POOLED
    probe: str = ""  # SCORE: the probe's digest, see ``artifacts.probe.Probe.digest``
    # LOGPROBS: at this temperature, which is not the sampling's; a server gives no higher one than 1
    temperature: float = 1.0


PROBS, LOGPROBS, EMBEDDINGS = Read(What.PROBS), Read(What.LOGPROBS), Read(What.EMBEDDINGS)
LAST_STATES = Read(What.HIDDEN, layers=(-1,))  # what the language model's head reads


@dataclass(frozen=True, slots=True)
class Stops:
    """Hints for a server to stop where a boundary may find an end; the boundary decides."""

    texts: tuple[str, ...] = ()  # a unit may end where one of these completes
    patterns: tuple[str, ...] = ()  # likewise, as regular expressions
    cap: int | None = None  # tokens in a unit at most
    never: bool = False  # no unit ends: who feeds the boundary only lets somebody listen


class Boundary(Protocol):
    """Find the ends of units while tokens stream by; one object for one stream."""

    def feed(self, token: int) -> int | None:
        """Return 0 if a unit ends after this token, -1 if it had ended before, None if there is no end.

        After -1 the token that revealed the end is the first of the next unit.
        """
        ...


@runtime_checkable
class Hinting(Boundary, Protocol):
    """A boundary that tells a server where it may stop."""

    @property
    def stops(self) -> Stops: ...


def stops_of(boundary: Boundary | None) -> Stops:
    """Return the hints of a boundary, if it gives any."""
    return boundary.stops if isinstance(boundary, Hinting) else Stops()


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a text is held to, as servers take it."""

    kind: Literal["json_schema", "structural_tag"]
    text: str  # JSON


@dataclass(frozen=True, slots=True)
class Generate:
    """The part of a query that asks the model to continue after its tokens.

    A token that only revealed the last end asked for (-1) stays in the answer, after ``ends[-1]``:
    dropping it and drawing again would favour tokens that do not open a unit.
    """

    limit: int  # tokens at most
    boundary: Boundary | None = None  # None: until end of text or the limit
    units: int = 1  # how many ends of ``boundary`` to wait for
    # a loop that the engine runs by itself, as its servers are told of it; the rounds come with the answer
    inside: Mapping[str, Any] | None = None
    # of such a loop: the rounds as they come, a few with each answer; who asks again behind them gets the next ones
    piecewise: bool = False
    # asked after every token; True: return what is there, who asked goes on later. An engine need not listen; one that
    # does feeds the boundary as tokens come
    pause: Callable[[], bool] | None = None
    # it may be given back before its limit, as "paused", where others of its batch wait for a verdict on their drafts
    gives_way: bool = False
    # what the text is held to from its first token on, by engines that can (``protocols.Constraining``)
    grammar: Grammar | None = None
    # above 0: who asks is likely to ask for what follows, so many tokens in all at most; an engine may write on meanwhile
    # (``protocols.Onward``), and drops what nobody asks for
    onward: int = 0


@dataclass(slots=True)
class Query:
    """One question to one model: this prefix; continue this far; read these things."""

    model: Role
    context: Context
    sampling: Sampling
    rng: random.Random  # the problem's own, so that batching cannot change what is drawn
    tokens: Sequence[int] = ()  # after the context, not part of it
    parents: Sequence[int] | None = None  # a tree: index of each token's parent, -1 for the context
    reads: tuple[Read, ...] = ()
    generate: Generate | None = None
    rows_from: int | None = None  # absolute position of row 0; None: the last token of the context
    purpose: Purpose = "verify"

    @property
    def passes(self) -> bool:
        """True if it goes through the model; rows of the embedding table alone do not."""
        looked_up = bool(self.reads) and all(r.what is What.EMBEDDINGS for r in self.reads)
        return self.generate is not None or not looked_up


@dataclass(slots=True)
class Answer:
    """A model's reply to one query."""

    tokens: list[int] = field(default_factory=list)  # generated
    ends: list[int] = field(default_factory=list)  # ends of units among ``tokens``
    finish: Finish = "scored"
    values: Mapping[Read, Any] = field(default_factory=dict)
    fed: int = 0  # tokens that went through the model
    cached: int = 0  # tokens of the prefix that did not have to
    seconds: float = 0.0  # wall time of the pass or passes; a batch counts whole for each member
    rounds: list[Round] = field(
        default_factory=list
    )  # of the engine's own loop: ``Generate.inside``
    # the engine writes onward (``Generate.onward``): the answer took its ``seconds``, however long it was waited for
    onward: bool = False

    def __getitem__(self, read: Read) -> Any:
        return self.values[read]

    def unit_ends(self) -> list[int]:
        """Return the ends of the generated units.

        What a limit or the end of the text left open counts as a unit; a token that only revealed
        the end of the last unit does not.
        """
        length = len(self.tokens)
        if self.finish == "units" or not length or (self.ends and self.ends[-1] == length):
            return list(self.ends)
        return [*self.ends, length]


@dataclass(frozen=True, slots=True)
class Room:
    """The room for a draft: this much, after the context and ``tail``."""

    tokens: int  # at most
    units: int  # how many units of the split to aim at
    unit_cap: int  # tokens in a unit at most
    tail: Sequence[int] = ()  # drafted before and still being judged: draft what follows it
    chain: bool = False  # a chain is wanted, also of a drafter that grows trees
    # where copies stand beside a model: who says which of them drafts; None: a copy, where there is one
    turns: Turns | None = None

    @property
    def limit(self) -> int:
        return min(self.tokens, self.units * self.unit_cap)


class Turns(Protocol):
    """Says who drafts in a round, where what is looked up stands beside a model: by the text and earlier rounds alone."""

    def model(self, found: Draft, room: Room) -> Room | None:
        """Return the room for the model's draft in place of what was found, which may be nothing; None: the model rests."""
        ...


@dataclass(frozen=True, slots=True)
class Gate:
    """Where a rule stops the draft model: before a token whose row is too uncertain.

    ``read`` is TOP_K or LOGITS; ``decoding.entropy`` says what the entropy of each is.
    """

    limit: float  # entropy of a row from which on it may not write
    each: Literal["unit", "token"]  # the rows that are looked at: a unit's first one, or every one
    read: Read


@dataclass(slots=True)
class Draft:
    """Proposed tokens, and where they may be cut.

    ``probs`` are the rows that the tokens were sampled from; None says that they were not sampled
    (retrieval, top-k trees): each is a point mass, and a lossless rule must treat it as one.

    In a tree every node is an end. Row i of ``probs`` is the row at the parent of node i, and siblings
    were drawn from it one after another, in the order of their indices, without replacement.
    """

    tokens: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # ascending; a tail without an end is no unit
    probs: Tensor | None = None
    parents: list[int] | None = None  # None: a chain; else parents first, -1 for the context
    evidence: Mapping[Read, Any] = field(
        default_factory=dict
    )  # what the draft model read for a rule
    origins: list[str] = field(default_factory=list)  # where each token was taken from, if known
    # how likely its drafter thinks each token is, given those before it; empty: it does not say
    likely: list[float] = field(default_factory=list)
    found: str = ""  # how a retrieval came by its draft: lexical, semantic, none
    grade: int = 0  # how good a match its drafter thinks it is, 0 to 9
    # entropies that the rule's gate saw, in order; ``halted``: at the last one it stopped the drafter
    doubts: list[float] = field(default_factory=list)
    halted: bool = False
    # that it took to make: the drafter's own work, stamped by the driver, and, added by the loop, its
    # questions
    seconds: float = 0.0
    passes: float = 0.0  # of these, for passes of models


@dataclass(slots=True)
class Handover:
    """The target writes on by itself: this many units, or until the end of the text."""

    units: int | None = 1  # None: to the end
    limit: int | None = None  # tokens at most, None: the splitter's cap or the budget
    opened: int = 0  # the last tokens of ``Verdict.write`` that begin the first of these units
    onward: bool = False  # the target is likely to write on behind these units, too


@dataclass(slots=True)
class Verdict:
    """Keep this much of a draft, write these tokens after it, then hand over (or not)."""

    keep: int = 0  # tokens of a chain, or of ``path``
    write: list[int] = field(default_factory=list)
    handover: Handover | None = None
    path: list[int] | None = None  # a tree: the accepted nodes, root to leaf
    scores: list[float] = field(default_factory=list)  # one a judged unit or token
    note: str = ""  # one line for a transcript: why
    counts: dict[str, int] = field(
        default_factory=dict
    )  # for a run's figures, see ``results.bound``


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a stopper says at the end of a step: whether the thinking is done."""

    done: bool
    score: float | None = None  # how sure the answer is by now, 0 to 1; None: it was not asked for
    why: str = ""  # one line for a transcript, where it is done
    hopeless: bool = False  # it is done because more thinking would not help


@dataclass(frozen=True, slots=True)
class Seen:
    """Rows that a drafter watched, for the positions ``start`` to ``start + count - 1`` of a context.

    The row of a position is the target's state after reading the token there: it predicts the next
    token. Segments may overlap what is known already.
    """

    start: int
    count: int
    values: Mapping[Read, Any]  # as in ``Answer.values``, cut to ``count`` rows


Writer = Literal["draft", "target"]


@dataclass(slots=True)
class Round:
    """The record of one turn of the loop; enough to replay and to colour a transcript."""

    drafted: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)  # by the rule: residual, bonus, correction
    handed: list[int] = field(default_factory=list)  # by the target after a handover
    handed_ends: list[int] = field(default_factory=list)  # ends of units among them
    handed_over: bool = False  # even where nothing was left to write: salvage may complete a unit
    nested_kept: int = 0  # of the handed tokens, those that a nested drafter proposed
    ahead: bool = False  # the draft was made while the one before it was judged
    parents: list[int] | None = None  # of the drafted tokens, where they are a tree
    scores: list[float] = field(default_factory=list)
    note: str = ""
    # of model passes, by purpose; under "draft" the drafter's own work, too
    seconds: dict[str, float] = field(default_factory=dict)
    draft_seconds: float = 0.0  # of ``drafted``; ``ahead``: in ``seconds`` of the round before
    passes: dict[str, int] = field(default_factory=dict)  # through the models, by role
    fed: dict[str, int] = field(default_factory=dict)  # tokens that went through them, by role
    cached: dict[str, int] = field(default_factory=dict)  # tokens of prefixes that did not have to
    units_kept: int = 0
    origin: str = ""  # of the last drafted token that was kept; "mismatch" where none was
    found: str = ""  # as in ``Draft``
    counts: dict[str, int] = field(default_factory=dict)  # as in ``Verdict``
    # where a stopper was asked: [tokens of the thinking, its score] of each end of a step ("asked"),
    # and in the round that closes the thinking, who closes it ("closed")
    stop: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> list[int]:
        """All that this turn appended."""
        return self.kept + self.written + self.handed


@dataclass(slots=True)
class Outcome:
    """One problem, solved."""

    tokens: list[int]
    finish: Literal["eos", "budget"]
    rounds: list[Round]
    seconds: float = 0.0
