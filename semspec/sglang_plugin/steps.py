"""Rules for whole steps inside SGLang: the package's own loop, one plan per request.

The plan (``loop.speculate``) is the one that a run drives over engines, with salvage and nested writing. Here SGLang drives
it: a model in the worker answers queries to the draft model before a pass, and the pass that verifies the draft answers
queries to the target. SGLang's verification is then made to keep exactly the tokens that the plan appends to the text. So a
text has the distribution that the loop gives it, at any temperature, and the loop exists only once.

SGLang itself writes the first token of a text, in the pass over the prompt, and the plan begins after it. If a request sends
the prompt's last token separately (``protocol.PROMPT_END``), that becomes the first token, so that the plan begins where it
does in a run. A step is at most as long as a draft (``step_cap``); a longer one is judged in parts, as in a run with that cap.
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
ENDLESS = 1 << 30  # no limit


@lru_cache(maxsize=256)
def lossless_instead(trouble: str) -> None:
    """Log, once, why some requests do not get their rule."""
    LOG.warning("some requests are verified losslessly: %s", trouble)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is drafted and judged at a time."""

    units: int  # steps
    cap: int  # the most tokens in a step
    nested: int  # tokens drafted at a time in a step that the target writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A request's rule for steps, and how much is drafted at a time."""

    rule: Rule
    draft_length: int = 1  # steps
    step_cap: int = 0  # the most tokens in a step; 0: as many as fit into a draft
    nested_length: int = NESTED_LENGTH  # tokens drafted at a time in a step that the target writes
    max_repeats: int = 0  # reject a drafted step that was written this often before; 0: never

    def __post_init__(self) -> None:
        if self.draft_length < 1 or self.nested_length < 1 or min(self.step_cap, self.max_repeats) < 0:  # fmt: skip
            raise UserError(
                f"draft_length={self.draft_length}, nested_length={self.nested_length},"
                f" step_cap={self.step_cap}, max_repeats={self.max_repeats}: give at least 1"
                " for both lengths, and 0 for the others"
            )

    def within(self, width: int) -> Sizes:
        """Return sizes so that no draft exceeds ``width`` tokens; a longer step is drafted and judged in parts."""
        units = min(self.draft_length, width)
        cap = min(self.step_cap or width, width // units)
        return Sizes(units, cap, min(self.nested_length, width))

    def along(self) -> Sizes:
        """Return sizes for drafts made elsewhere: everything that is proposed gets judged."""
        return Sizes(ENDLESS, self.step_cap or ENDLESS, ENDLESS)


class Elsewhere:
    """Stands for a loop that another rank runs; this rank follows its decisions."""

    reads_states = False


class Solving:
    """One request's text, written by the loop while SGLang runs the passes."""

    def __init__(
        self, problem: Speculation, plan: Plan[Outcome], whole_rounds: bool = False
    ) -> None:
        self.problem, self.context, self.whole_rounds = problem, problem.context, whole_rounds
        self.start = self.known = len(self.context)  # ``known``: length of the text it has seen
        self.asked: Query | None = None  # the plan's open query; None: the plan has ended
        self._plan, self._reported, self._since = plan, 0, 0.0
        self._told = self.start - self.context.prompt_length  # output tokens reported so far
        self._pools: dict[Read, Pool] = {}  # of the current pass
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
        """The query that waits for the draft model, if one does."""
        return self.asked if self.asked is not None and self.asked.model != "target" else None

    @property
    def verifies(self) -> Query | None:
        """The query that waits for the target's pass, if one does; its tokens are the draft."""
        return self.asked if self.asked is not None and self.asked.model == "target" else None

    @property
    def draft(self) -> Draft:
        """The draft that waits for the target's pass; empty if none does."""
        return Draft() if self.verifies is None else Draft(list(self.verifies.tokens))

    def drafted(self, answer: Answer) -> None:
        """Take the draft model's answer."""
        assert self.drafts is not None
        self._go_on(answer)

    @property
    def reads_states(self) -> bool:
        """Whether hidden states are read in the pass over its draft."""
        query = self.verifies
        return query is not None and any(read.what is What.POOLED for read in query.reads)

    def open_pools(self, top: int, width: int, device: torch.device) -> None:
        """Allocate the pools for a pass of a model whose last layer is ``top``."""
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
        """Take a layer's states [nodes, width] for the draft's tokens and the padding after them."""
        for pool in self._pools.values():
            pool.states((layer,), x[None], 0)

    def verified(self, logits: Tensor) -> list[int]:
        """Take the target's logits [nodes, vocabulary] over the draft; return the tokens that the text gains."""
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
        """Whether nothing of the next step has been written or drafted."""
        now = self.problem.now
        fresh = now is not None and not now.drafted and not now.handed_over
        return fresh and self.drafts is not None

    def opened(self) -> int:
        """Count the tokens of the unfinished step that the target is writing; 0 if there is none."""
        settled = self.start + sum(len(done.tokens) for done in self.problem.rounds)
        return unfinished(self.problem.kit.boundary(), self.context.tokens[settled : self.known])

    def report(self) -> list[dict[str, Any]] | None:
        """Return the rounds that have ended since the last report, as JSON; None if there are none."""
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
    """Count the tokens after the last end of a unit; ``boundary`` must be fresh."""
    ends = unit_ends(boundary, tokens)
    return len(tokens) - (ends[-1] if ends else 0)


def _value(read: Read, query: Query, rows: Tensor) -> Any:
    """Return the value of a read, given a pass's raw logits [tokens + 1, vocabulary]."""
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
    """Where a loop starts, and how far it may write."""

    context: Context  # its output need not be empty
    budget: int  # tokens of the whole output
    seed: object = None
    # how many of the output's last tokens begin a step that the target must finish, because its draft was rejected
    opened: int = 0
    whole_rounds: bool = False  # report rounds in the form that ``rounds.read`` restores


class Drafter(Protocol):
    """Proposes the drafts of a loop."""

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
    """Start a loop; ``split`` opens a boundary with a cap. The default drafter is a small model."""

    # separate generators, as in a run, so that a drafter's draws do not change the rule's; the text's length is part of
    # the seed, so that a loop that starts again does not repeat earlier draws
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
    """Let the target finish the step at the text's end, if it must; then run the loop."""
    if opened and problem.left > 0 and not problem.ended:
        done = Round()
        yield from problem.hand_over(Verdict(handover=Handover(units=1, opened=opened)), done)
        if done.tokens:
            problem.observe(done)
            problem.rounds.append(done)
    return (yield from speculate(problem))
