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
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Role = str
"""Which model a query is for: ``target``, ``draft``, or a plugin's name for a model of its own
(``Rule.models``). Each role has its own engine."""

Purpose = Literal["draft", "verify", "write"]
"""How a query's time is booked: proposing, judging, or the target writing by itself."""

Finish = Literal["eos", "units", "limit", "paused", "scored"]
"""Why an answer ended: end of text, enough units, the token limit, ``Generate.pause``, or nothing generated."""


class Context:
    """Prompt and output so far; append-only, so that an engine can keep a live KV cache for it.

    An engine recognises a context by ``key``. Nothing before ``len(context)`` ever changes, so it compares only
    what was appended since its last look, and a round costs O(new tokens).

    ``draft_prompt``: the prompt in the draft model's own chat template and token ids, if it reads one.
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
    """How a distribution is processed before sampling, the same for target and draft."""

    temperature: float = 0.6
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0  # least probability, relative to the largest; 0: off

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

    __hash__ = object.__hash__  # members are singletons, and an enum's own hash is slow

    PROBS = "probs"  # [rows, vocabulary] after temperature, top-k, top-p, min-p
    LOGITS = "logits"  # [rows, vocabulary] raw
    TOP_K = "top_k"  # (ids [rows, k], raw log-probabilities [rows, k])
    LOGPROBS = "logprobs"  # [tokens] log-probability of each scored or generated token at ``Read.temperature``
    HIDDEN = "hidden"  # [rows, layers, width]; layers as in transformers' hidden_states
    POOLED = "pooled"  # [spans, layers, width] over each span's own tokens, reduced in the pass
    SCORE = "score"  # [spans] score of each span by the named probe, if the engine holds it
    EMBEDDINGS = "embeddings"  # [tokens, width] rows of the input embedding table; needs no pass
    ATTENTION = "attention"  # [layers, rows, positions] attention weights, averaged over heads


def names_of(reads: Iterable[What]) -> str:
    """List reads by name, for an error message."""
    return ", ".join(sorted(what.value for what in reads))


@dataclass(frozen=True, slots=True)
class Read:
    """One thing to read in a pass."""

    what: What
    k: int = 0  # TOP_K
    # (): the last layer for HIDDEN and ATTENTION; all layers and the embeddings for POOLED. For states, 0 is
    # the embeddings and -1 the last layer after the final norm
    layers: tuple[int, ...] = ()
    # POOLED, SCORE: over scored tokens; when generating, each unit
    spans: tuple[tuple[int, int], ...] = ()
    reduce: Literal["mean", "max", "last"] = "mean"  # POOLED
    probe: str = ""  # SCORE: the probe's digest, see ``artifacts.probe.Probe.digest``
    # LOGPROBS: at this temperature, independent of the sampling's; a server can give at most 1
    temperature: float = 1.0

    def __hash__(self) -> int:
        return hash((self.what, self.layers))  # all fields take longer, and each row is looked up


PROBS, LOGPROBS, EMBEDDINGS = Read(What.PROBS), Read(What.LOGPROBS), Read(What.EMBEDDINGS)
LAST_STATES = Read(What.HIDDEN, layers=(-1,))  # what the language model's head reads


@dataclass(frozen=True, slots=True)
class Stops:
    """Hints where a server may stop because a boundary may find an end; the boundary decides."""

    texts: tuple[str, ...] = ()  # a unit may end where one of these is completed
    patterns: tuple[str, ...] = ()  # the same as regular expressions
    cap: int | None = None  # most tokens of a unit
    never: bool = False  # no unit ever ends: the boundary only listens


class Boundary(Protocol):
    """Finds the ends of units in a stream of tokens; one object per stream."""

    def feed(self, token: int) -> int | None:
        """Return 0 if a unit ends after this token, -1 if it ended before it, None if there is no end.

        After -1 the token that revealed the end is the first of the next unit.
        """
        ...


def stops_of(boundary: Boundary | None) -> Stops:
    """Return a boundary's ``stops``, which tell a server where it may stop; empty hints if it has none."""
    stops = getattr(boundary, "stops", None)
    return stops if isinstance(stops, Stops) else Stops()


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the generated text, in the form that servers take."""

    kind: Literal["json_schema", "structural_tag"]
    text: str  # JSON


@dataclass(frozen=True, slots=True)
class Generate:
    """The part of a query that asks the model to continue after its tokens.

    A token that only revealed the last requested end (-1) stays in the answer, after ``ends[-1]``:
    dropping it and drawing again would favour tokens that do not open a unit.
    """

    limit: int  # most tokens
    boundary: Boundary | None = None  # None: until end of text or the limit
    units: int = 1  # how many ends of ``boundary`` to wait for
    # options for a loop that the engine's server runs by itself; its rounds come with the answer
    inside: Mapping[str, Any] | None = None
    # return that loop's rounds as they come, a few with each answer; ask again for the next ones
    piecewise: bool = False
    # called after every token; if True, the engine returns what it has, and the caller goes on later. Engines may ignore
    # it; one that does not feeds the boundary as tokens come
    pause: Callable[[], bool] | None = None
    # the answer may end early, as "paused", if others of the batch wait for a verdict on their drafts
    gives_way: bool = False
    # constrains the text from its first token, for engines that can (``protocols.Constraining``)
    grammar: Grammar | None = None
    # if above 0, the caller is likely to ask for what follows, up to so many tokens in all; an engine may write on
    # meanwhile (``protocols.Onward``) and drops what nobody asks for
    onward: int = 0


@dataclass(slots=True)
class Query:
    """One request to one model: this prefix; continue this far; read these things."""

    model: Role
    context: Context
    sampling: Sampling
    rng: random.Random  # the problem's own, so that batching does not change the samples
    tokens: Sequence[int] = ()  # after the context, not part of it
    parents: Sequence[int] | None = None  # a tree: index of each token's parent, -1 for the context
    reads: tuple[Read, ...] = ()
    generate: Generate | None = None
    rows_from: int | None = None  # absolute position of row 0; None: the last token of the context
    purpose: Purpose = "verify"

    @property
    def passes(self) -> bool:
        """True if it needs a model pass; reading only the embedding table does not."""
        if self.generate is not None or not self.reads:
            return True
        return self.reads[0].what is not What.EMBEDDINGS or len(self.reads) > 1


@dataclass(slots=True)
class Answer:
    """A model's reply to one query."""

    tokens: list[int] = field(default_factory=list)  # generated
    ends: list[int] = field(default_factory=list)  # ends of units among ``tokens``
    finish: Finish = "scored"
    values: Mapping[Read, Any] = field(default_factory=dict)
    fed: int = 0  # tokens that went through the model
    cached: int = 0  # prefix tokens found in the KV cache
    seconds: float = 0.0  # wall time of the passes; a batch counts in full for each member
    # of the engine's own loop (``Generate.inside``)
    rounds: list[Round] = field(default_factory=list)
    # the engine writes onward (``Generate.onward``): ``seconds`` is the answer's time, not the caller's wait
    onward: bool = False

    def __getitem__(self, read: Read) -> Any:
        return self.values[read]

    def unit_ends(self) -> list[int]:
        """Return the ends of the generated units.

        A unit cut off by the limit or the end of the text counts; a token that only revealed the end of the last
        unit does not.
        """
        length = len(self.tokens)
        if self.finish == "units" or not length or (self.ends and self.ends[-1] == length):
            return list(self.ends)
        return [*self.ends, length]


@dataclass(frozen=True, slots=True)
class Room:
    """The allowed size of a draft after the context and ``tail``."""

    tokens: int  # most tokens
    units: int  # units of the split to aim at
    unit_cap: int  # most tokens of a unit
    tail: Sequence[int] = ()  # drafted tokens still being judged: draft what follows them
    chain: bool = False  # a tree drafter has to draft a chain too
    # who chooses between lookups and the model beside them; None: a lookup if it finds something
    turns: Turns | None = None

    @property
    def limit(self) -> int:
        return min(self.tokens, self.units * self.unit_cap)


class Turns(Protocol):
    """Chooses between lookup and model in a round, from the text and earlier rounds alone."""

    def model(self, found: Draft, room: Room) -> Room | None:
        """Return the room for the model's draft in place of ``found`` (maybe empty); None: the model rests."""
        ...


@dataclass(frozen=True, slots=True)
class Gate:
    """Where a rule stops the draft model: before a token whose row is too uncertain.

    ``read`` is TOP_K or LOGITS; ``decoding.entropy`` defines the entropy of each.
    """

    limit: float  # entropy of a row at which it has to stop
    each: Literal["unit", "token"]  # check the first row of each unit, or every row
    read: Read


@dataclass(slots=True)
class Draft:
    """Proposed tokens, and where they may be cut.

    ``probs`` are the rows that the tokens were sampled from. None means they were not sampled (retrieval, top-k
    trees): each is a point mass, and a lossless rule must treat it as one.

    In a tree every node is an end. Row i of ``probs`` is the row at the parent of node i, and siblings were
    sampled from it without replacement, in the order of their indices.
    """

    tokens: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # ascending; a tail without an end is not a unit
    probs: Tensor | None = None
    parents: list[int] | None = None  # None: a chain; else parents first, -1 for the context
    # the draft model's reads for the rule
    evidence: Mapping[Read, Any] = field(default_factory=dict)
    origins: list[str] = field(default_factory=list)  # source of each token, if known
    # the drafter's probability of each token given those before it; empty: not known
    likely: list[float] = field(default_factory=list)
    found: str = ""  # how a retrieval found its draft: lexical, semantic, none
    grade: int = 0  # the drafter's rating of the match, 0 to 9
    # entropies that the rule's gate saw, in order; ``halted``: the last one stopped the drafter
    doubts: list[float] = field(default_factory=list)
    halted: bool = False
    # copied from the problem's references beside another drafter, whose drafts it tells nothing of
    lent: bool = False
    # time to make it: the drafter's own work, stamped by the driver, plus its queries, added by the loop
    seconds: float = 0.0
    passes: float = 0.0  # the part of ``seconds`` spent in model passes


@dataclass(slots=True)
class Handover:
    """The target continues by itself: for so many units, or to the end of the text."""

    units: int | None = 1  # None: to the end
    limit: int | None = None  # most tokens; None: the splitter's cap or the budget
    opened: int = 0  # how many of the last tokens already belong to the first of these units
    onward: bool = False  # the target is likely to write on after these units


@dataclass(slots=True)
class Verdict:
    """Keep this much of a draft, write these tokens after it, then hand over (or not)."""

    keep: int = 0  # tokens of a chain, or of ``path``
    write: list[int] = field(default_factory=list)
    handover: Handover | None = None
    path: list[int] | None = None  # a tree: the accepted nodes, root to leaf
    scores: list[float] = field(default_factory=list)  # one per judged unit or token
    note: str = ""  # the reason, one line for a transcript
    # for a run's figures, see ``results.bound``
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Opinion:
    """A stopper's decision at the end of a step."""

    done: bool
    score: float | None = None  # confidence in the answer so far, 0 to 1; None: not measured
    why: str = ""  # one line for a transcript if done
    hopeless: bool = False  # done because more thinking would not help


@dataclass(frozen=True, slots=True)
class Seen:
    """Rows for a watching drafter, for the positions ``start`` to ``start + count - 1`` of a context.

    The row of a position is the target's state after reading the token there; it predicts the next token.
    Segments may overlap with earlier ones.
    """

    start: int
    count: int
    values: Mapping[Read, Any]  # as in ``Answer.values``, cut to ``count`` rows


Writer = Literal["draft", "target"]


@dataclass(slots=True)
class Round:
    """The record of one round of the loop, enough to replay it and to colour a transcript."""

    drafted: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)  # by the rule: residual, bonus, correction
    handed: list[int] = field(default_factory=list)  # by the target after a handover
    handed_ends: list[int] = field(default_factory=list)  # ends of units among them
    handed_over: bool = False  # also if nothing was left to write: salvage may complete a unit
    nested_kept: int = 0  # how many handed tokens a nested drafter proposed
    # of a text that a server drafted and verified by itself, in its last round: how many drafts had 0, 1, 2, ... tokens
    # accepted, and how many tokens they had together
    accepted_inside: list[int] = field(default_factory=list)
    drafted_inside: int = 0
    ahead: bool = False  # the draft was made while the previous one was judged
    parents: list[int] | None = None  # of the drafted tokens if they are a tree
    scores: list[float] = field(default_factory=list)
    note: str = ""
    # of model passes, by purpose; "draft" includes the drafter's own work
    seconds: dict[str, float] = field(default_factory=dict)
    # for ``drafted``; with ``ahead``, part of the previous round's ``seconds``
    draft_seconds: float = 0.0
    passes: dict[str, int] = field(default_factory=dict)  # by role
    fed: dict[str, int] = field(default_factory=dict)  # tokens through the models, by role
    cached: dict[str, int] = field(default_factory=dict)  # prefix tokens from the KV cache, by role
    units_kept: int = 0
    origin: str = ""  # of the last kept draft token; "mismatch" if none was kept
    found: str = ""  # as in ``Draft``
    counts: dict[str, int] = field(default_factory=dict)  # as in ``Verdict``
    # "asked": [tokens of the thinking, score] for each end of a step at which the stopper gave one; "closed",
    # in the round that closes the thinking: who closed it
    stop: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> list[int]:
        """Everything this round appended."""
        return self.kept + self.written + self.handed


@dataclass(slots=True)
class Outcome:
    """A solved problem."""

    tokens: list[int]
    finish: Literal["eos", "budget"]
    rounds: list[Round]
    seconds: float = 0.0
