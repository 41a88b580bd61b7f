"""Rules for whole steps inside SGLang: the package's own loop, one plan for each request.

The plan (``loop.speculate``) is the one that a run drives over engines, with salvage and nested writing. Here SGLang drives
it: a question to the draft model is answered before a pass, by a model in the worker, and a question to the target by the pass
that verifies the draft. What the plan appends to the text after that answer is what SGLang's verification is made to keep,
no token more and none less. So the law of a text is the loop's, at any temperature, and nothing of it is written twice.

SGLang writes the first token of a text itself, in the pass over the prompt; the plan begins behind it. Who sends the prompt's
last token apart (``protocol.PROMPT_END``) has it put there, so that the plan begins where that of a run does. A step is as long
as a draft at most (``step_cap``): one that goes on is judged in parts, as by the loop with the same cap.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from semspec.decoding.pace import Steady
from semspec.decoding.pooling import Pool
from semspec.decoding.sampling import draw_next, log_probabilities, probabilities
from semspec.decoding.units import unit_ends
from semspec.decoding.writing import Pen
from semspec.drafters.lm import LanguageModel
from semspec.driver import Timed
from semspec.errors import UserError
from semspec.loop import Speculation, speculate
from semspec.protocols import DraftSession, Kit, Plan, Rule
from semspec.rules.lossless import Lossless
from semspec.sglang_plugin.load import Lightly, Load
from semspec.sglang_plugin.rounds import figures, whole
from semspec.splitters.token import TokenBoundary
from semspec.storage.screen import LOG
from semspec.types import (
    Answer,
    Boundary,
    Context,
    Draft,
    Handover,
    Outcome,
    Query,
    Read,
    Round,
    Verdict,
    What,
)

NESTED_LENGTH = 5  # as in a run
ENDLESS = 1 << 30  # where nothing is cut


@lru_cache(maxsize=256)
def lossless_instead(trouble: str) -> None:
    """Log, once, why some requests do not get their rule."""
    LOG.warning("some requests are verified losslessly: %s", trouble)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is drafted and judged at a time."""

    units: int  # steps
    cap: int  # tokens in a step at most
    nested: int  # tokens drafted at a time in a step that the target writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A request's rule for steps, and how much is drafted at a time."""

    rule: Rule
    draft_length: int = 1  # steps
    step_cap: int = 0  # tokens in a step at most; 0: as many as fit a draft
    nested_length: int = NESTED_LENGTH  # tokens drafted at a time in a step that the target writes
    max_repeats: int = 0  # a drafted step that was written this often before is rejected; 0: never

    def __post_init__(self) -> None:
        if self.draft_length < 1 or self.nested_length < 1 or min(self.step_cap, self.max_repeats) < 0:  # fmt: skip
            raise UserError(
                f"draft_length={self.draft_length}, nested_length={self.nested_length},"
                f" step_cap={self.step_cap}, max_repeats={self.max_repeats}: give at least 1, 1, 0 and 0"
            )

    def within(self, width: int) -> Sizes:
        """Return sizes by which no draft exceeds ``width`` tokens: a longer step is drafted and judged in parts."""
        units = min(self.draft_length, width)
        cap = min(self.step_cap or width, width // units)
        return Sizes(units, cap, min(self.nested_length, width))

    def along(self) -> Sizes:
        """Return sizes for drafts that others make: whatever they propose is judged."""
        return Sizes(ENDLESS, self.step_cap or ENDLESS, ENDLESS)


class Elsewhere:
    """A loop that another rank runs, whose decision is followed."""

    reads_states = False


class Solving:
    """One request's text, written by the loop while SGLang runs the passes."""

    def __init__(
        self, problem: Speculation, plan: Plan[Outcome], whole_rounds: bool = False
    ) -> None:
        self.problem, self.context, self.whole_rounds = problem, problem.context, whole_rounds
        self.start = self.known = len(self.context)  # ``known``: how much of the text it has seen
        self.asked: Query | None = None  # None: the plan has ended
        self._plan, self._reported, self._since = plan, 0, 0.0
        self._told = self.start - self.context.prompt_length  # tokens of the output, by ``report``
        self._pools: dict[Read, Pool] = {}  # of the pass that is under way
        self._go_on(None)

    def _go_on(self, answer: Answer | None) -> None:
        try:
            asked = next(self._plan) if answer is None else self._plan.send(answer)
        except StopIteration:
            self.asked = None
            return
        assert isinstance(asked, Query), "a plan inside SGLang asks one question at a time"
        self.asked, self._since = asked, time.perf_counter()

    @property
    def drafts(self) -> Query | None:
        """The question that waits for the draft model."""
        return self.asked if self.asked is not None and self.asked.model != "target" else None

    @property
    def verifies(self) -> Query | None:
        """The draft that waits for the target's pass."""
        return self.asked if self.asked is not None and self.asked.model == "target" else None

    @property
    def draft(self) -> Draft:
        """That draft; an empty one where the plan has ended."""
        return Draft() if self.verifies is None else Draft(list(self.verifies.tokens))

    def drafted(self, answer: Answer) -> None:
        """Take the draft model's answer."""
        assert self.drafts is not None
        self._go_on(answer)

    @property
    def reads_states(self) -> bool:
        """Whether its draft's pass is read for more than logits."""
        query = self.verifies
        return query is not None and any(read.what is What.POOLED for read in query.reads)

    def open_pools(self, top: int, width: int, device: torch.device) -> None:
        """Make room for the states of a pass, of a model whose last layer is ``top``."""
        assert self.verifies is not None
        self._pools = {
            read: Pool(read.reduce, read.spans, read.layers or range(top + 1), width, device)
            for read in self.verifies.reads
            if read.what is What.POOLED
        }

    @property
    def layers(self) -> frozenset[int]:
        """The layers whose states it reads."""
        return frozenset().union(*(pool.layers for pool in self._pools.values()))

    def states(self, layer: int, x: Tensor) -> None:
        """Take a layer's states [nodes, width] of the draft's tokens, and of padding after them."""
        for pool in self._pools.values():
            pool.states((layer,), x[None], 0)

    def verified(self, logits: Tensor) -> list[int]:
        """Take the target's rows [nodes, vocabulary] over the draft; return the tokens that the text gains."""
        query = self.verifies
        assert query is not None and query.parents is None
        count, before = len(query.tokens), len(self.context)
        values: dict[Read, Any] = {read: pool.value() for read, pool in self._pools.items()}
        rows, self._pools = logits[: count + 1], {}
        for read in query.reads:
            if read not in values:
                values[read] = _value(read, query, rows)
        written = []
        if query.generate is not None:  # nothing was drafted: the target writes a token
            assert query.generate.limit == 1, "the target writes one token a pass"
            row = probabilities(rows[-1], query.sampling)
            written.append(draw_next(row, query.sampling, query.rng))
        seconds = time.perf_counter() - self._since
        answer = Answer(written, values=values, fed=count + 1, cached=before - 1, seconds=seconds)
        self._go_on(answer)
        gained, self.known = self.context.tokens[before:], len(self.context)
        assert 1 <= len(gained) <= count + 1, f"a pass over {count} tokens gave {len(gained)}"
        return gained

    @property
    def between_steps(self) -> bool:
        """Whether nothing is written of the next step, nor drafted."""
        now = self.problem.now
        fresh = now is not None and not now.drafted and not now.handed_over
        return fresh and self.drafts is not None

    def opened(self) -> int:
        """Count the tokens of an unfinished step that the target is writing; 0 where none was rejected."""
        settled = self.start + sum(len(done.tokens) for done in self.problem.rounds)
        return unfinished(self.problem.kit.boundary(), self.context.tokens[settled : self.known])

    def report(self) -> list[dict[str, Any]] | None:
        """Return the rounds that have ended since the last report, as JSON; None if none has."""
        new = self.problem.rounds[self._reported :]
        self._reported += len(new)
        if not self.whole_rounds:
            return [figures(done) for done in new] or None
        told = []
        for done in new:
            told.append(whole(done, self._told))
            self._told += len(done.tokens)
        return told or None


def unfinished(boundary: Boundary, tokens: Sequence[int]) -> int:
    """Count the tokens behind the last end of a unit, for a boundary that has read nothing."""
    ends = unit_ends(boundary, tokens)
    return len(tokens) - (ends[-1] if ends else 0)


def _value(read: Read, query: Query, rows: Tensor) -> Any:
    """Return what a pass's raw logits [tokens + 1, vocabulary] say to a read."""
    if read.what is What.PROBS:
        return probabilities(rows, query.sampling)
    if read.what is What.LOGITS:
        return rows
    if read.what is What.TOP_K:
        top = rows.float().log_softmax(-1).topk(min(read.k, rows.shape[-1]), -1)
        return top.indices, top.values
    assert read.what is What.LOGPROBS, f"{read.what.value} cannot be read in a verifying pass"
    tokens = torch.tensor(query.tokens, dtype=torch.long, device=rows.device)
    return log_probabilities(rows[:-1], read.temperature).gather(-1, tokens[:, None])[:, 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where and how far a loop writes."""

    context: Context  # its output may have tokens
    budget: int  # tokens of the whole output
    seed: object = None
    # the output's last tokens, so many, begin a step that the target has to finish: its draft was rejected before
    opened: int = 0
    whole_rounds: bool = False  # they are reported so that they can be read back


class Drafter(Protocol):
    """What proposes the drafts of a loop."""

    def open(self, kit: Kit) -> DraftSession: ...


def begin(
    asked: Steps,
    start: Start,
    kit: Kit,
    split: Callable[[int], Boundary],
    sizes: Sizes,
    drafter: Drafter | None = None,
    load: Load | None = None,
) -> Solving:
    """Begin a loop; ``split`` opens a boundary with a cap. Drafts are a small model's, if not said."""

    # generators of their own, as in a run: what a drafter draws must not change what the rule draws; and of each
    # beginning: what was drawn before must not be drawn again
    behind = len(start.context) - start.context.prompt_length

    def made(who: str, **changes: Any) -> Kit:
        rng = random.Random(None if start.seed is None else f"{start.seed} {behind} {who}")
        return replace(kit, rng=rng, **changes)

    own: dict[str, Any] = {"boundary": lambda: split(sizes.cap), "evidence": asked.rule.evidence()}
    own |= {"salvage": True, "max_repeats": asked.max_repeats}
    inner = made("nested", boundary=TokenBoundary, evidence=Lossless().evidence())
    drafter = drafter or LanguageModel()
    nested = Lightly(sizes.nested, 1, load=load)
    problem = Speculation(
        start.context,
        judging := made("rule", **own),
        start.budget,
        Timed(drafter.open(made("draft", **own))),
        asked.rule.open(judging),
        Steady(sizes.units, sizes.cap),
        pen=Pen(Timed(drafter.open(inner)), Lossless().open(inner), nested),
    )
    return Solving(problem, _resumed(problem, start.opened), start.whole_rounds)


def _resumed(problem: Speculation, opened: int) -> Plan[Outcome]:
    """Have the target finish the step that the text ends in, if it has to; then go on as in the loop."""
    if opened and problem.left > 0 and not problem.ended:
        done = Round()
        yield from problem.hand_over(Verdict(handover=Handover(units=1, opened=opened)), done)
        if done.tokens:
            problem.observe(done)
            problem.rounds.append(done)
    return (yield from speculate(problem))
