"""A small language model as a drafter inside SGLang: ``SEMSPEC_LM``.

The model runs in the worker, beside the target, with the package's own forward pass (``engine=hf``): one session per
request, all requests of a batch together, rolled back by cropping the cache. If a request's rule judges whole steps, its
loop (``steps``) asks for drafts; for other requests the model drafts a chain of its most likely tokens, which SGLang verifies.
"""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semspec.drafters.lm import LanguageModel
from semspec.errors import UserError
from semspec.models.location import ModelConfig, ModelFacts, canonical_name, read_facts
from semspec.models.text import Text
from semspec.protocols import Engine, Kit, Plan, Run
from semspec.registry import plugin
from semspec.sglang_plugin import compat_ranks, compat_worker
from semspec.sglang_plugin import compat_speculative as compat
from semspec.sglang_plugin.answers import Rows
from semspec.sglang_plugin.drafts import Drafts, Rules, Session, kit_of, worth_it
from semspec.sglang_plugin.load import Load, checked
from semspec.sglang_plugin.payoff import Payoff, Proposed
from semspec.sglang_plugin.protocol import PROMPT_END, WHOLE, problem_options
from semspec.sglang_plugin.rounds import mark
from semspec.sglang_plugin.steps import (
    NESTED_LENGTH,
    Elsewhere,
    Solving,
    Start,
    Steps,
    begin,
    lossless_instead,
    unfinished,
)
from semspec.sglang_plugin.timing import CLOCK
from semspec.storage.screen import LOG, last_line
from semspec.types import Answer, Context, Draft, Query, Role, Room, Sampling, What

NAME = compat.SMALL_MODEL
WIDTH = 65  # default number of nodes, with the last token: a step of 64 tokens
AWAY = 1024  # remember so many requests that were interrupted in a step that the target must finish
AGAIN = 32  # passes after which drafting is tried again where it did not pay
REST = 32  # passes without drafts until the decision is made anew


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options of the small model."""

    model: str | None = None  # a folder, a Hub repository[@revision], embedded/NAME
    length: int = NESTED_LENGTH  # tokens drafted at a time if tokens are judged one by one
    by_load: tuple[Any, ...] = ()  # [[requests, tokens], ...]: shorter drafts in larger batches
    split: str = "paragraph"  # what a step is, for rules that judge steps
    # draft only where that pays; true: tokens, for requests without a rule for steps; "steps": whole steps, too
    adaptive: bool | str = True
    dtype: str = "auto"  # as in engine=hf
    device: str | None = None  # None: the target's

    def __post_init__(self) -> None:
        if self.length < 1:
            raise UserError(f"drafting.lm.length={self.length}: give at least 1")
        if self.adaptive not in (True, False, "steps"):
            raise UserError(f'drafting.lm.adaptive={self.adaptive!r}: give true, false or "steps"')
        checked(self.by_load)


class Once:
    """A single draft without a loop, with the interface of ``steps.Solving`` for drafting."""

    def __init__(self, plan: Plan[Draft]) -> None:
        self._plan, self.draft = plan, Draft()
        self.drafts: Query | None = None
        self._go_on(None)

    def _go_on(self, answer: Answer | None) -> None:
        try:
            asked = next(self._plan) if answer is None else self._plan.send(answer)
            assert isinstance(asked, Query)
            self.drafts = asked
        except StopIteration as stop:
            self.drafts, self.draft = None, stop.value

    def drafted(self, answer: Answer) -> None:
        self._go_on(answer)


@dataclass(frozen=True, slots=True)
class Told:
    """What the rank with the small model tells the other ranks before a pass."""

    trees: Sequence[tuple[Sequence[int], Sequence[int]]]
    judged: Sequence[bool]  # by request: whether a loop judges its draft
    exactly: Sequence[bool]  # whether its text has a loop, which may rest
    rests: bool


class SmallModel(Drafts):
    """What all ranks of a worker share; only the first rank has the small model."""

    # requests without drafts, and the number of passes left until the decision is made anew
    _resting: tuple[list[str], int] = [], 0

    @property
    def nothing_judged(self) -> bool:
        return not any(self.loops)

    def rests(self, rids: Sequence[str]) -> bool:
        resting, left = self._resting
        if not left or rids != resting:
            return False
        self._resting = resting, left - 1
        if self.payoff is not None:
            self.payoff.again_so()
        return True

    def prompt_end(self, request: Any) -> int | None:
        """Return the prompt's last token if the request has sent it separately."""
        return _of_problem(request).get(PROMPT_END)


class Following(SmallModel):
    """The other ranks: they follow the first rank's drafts and decisions."""

    def meet(self, requests: Sequence[tuple[str, Any, Sequence[int], Sequence[int]]]) -> None:
        self._met = [request for _, request, *_ in requests]

    def batch_get(
        self, rids: Sequence[str], tails: Sequence[Sequence[int]], lengths: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        told: Told = compat_ranks.agreed_object(None)
        for request, own in zip(self._met, told.exactly, strict=True):
            if own:
                compat.goes_on_exactly(request)
        self.loops = [Elsewhere() if judged else None for judged in told.judged]
        self._resting = (list(rids), REST) if told.rests else ([], 0)
        return self._laid_out([tail[-1] for tail in tails], told.trees)


class ModelDrafts(SmallModel):
    """Drafts of a small model for all requests of a worker."""

    def __init__(
        self,
        n: int,
        kit: Kit,
        rows: Rows,
        model: Engine,
        rules: Rules | None,
        options: ModelOptions,
        facts: Callable[[], Mapping[Role, ModelFacts]] = dict,
    ) -> None:
        """``facts``: which models target and draft are, for rules that were trained for them."""
        payoff = Payoff(again=AGAIN) if options.adaptive else None
        super().__init__(LanguageModel(), n, kit, rows, payoff, rules)
        self.model, self.options, self.facts = model, options, facts
        self.ask = CLOCK.timed("draft", model.answer)
        self.splitter = plugin("split", options.split).cls()
        self.load = Load(checked(options.by_load))
        self._keys = count(1)
        self._held = 0  # bytes logged last
        self.bound = lru_cache(maxsize=256)(self._bound)
        # interrupted requests by id: the request, and where the target began a step that it must finish
        self._away: OrderedDict[str, tuple[weakref.ref[Any], int]] = OrderedDict()

    def meet(self, requests: Sequence[tuple[str, Any, Sequence[int], Sequence[int]]]) -> None:
        for rid, request, prompt, output in requests:
            known = self._sessions.get(rid)
            if known is not None and known.request is request:
                gone_on = len(prompt) + len(output) - len(known.context)
                if gone_on > 0:  # the text grew in passes without drafting
                    known.context.extend(output[-gone_on:])
                continue
            self.erase_match_state([rid])  # drop an earlier request with this id
            if (last := self.prompt_end(request)) is not None:  # the output's first token
                prompt, output = [*prompt, last], output[1:]
            context = Context(next(self._keys), prompt)
            context.extend(output)
            session = Session(request, self.drafter.open(self.kit), context)
            self._sessions[rid] = session

    def _decided(
        self,
        sessions: Sequence[Session],
        trees: Sequence[tuple[Sequence[int], Sequence[int]]],
    ) -> None:
        judged = [loop is not None for loop in self.loops]
        exactly = [session.loop is not None or session.resting is not None for session in sessions]
        compat_ranks.agreed_object(Told(trees, judged, exactly, bool(self._resting[1])))

    def _paying(self, *_: Any) -> bool:
        return True  # decided before anything is drafted

    def _pays(self, rids: Sequence[str], sessions: Sequence[Session]) -> bool:
        """Return whether to draft for these requests."""
        if self.payoff is None or not self.may_drop:
            return True
        steps = [_by_steps(session) for session in sessions]
        if any(steps) and self.options.adaptive != "steps":
            self.payoff.skipped()  # steps are always drafted, and their passes take another time
            return True
        proposed = [
            Proposed(rid, None, int(self._may_draft(session)), int(own))
            for rid, session, own in zip(rids, sessions, steps, strict=True)
        ]
        return worth_it(self.payoff, sessions, proposed, time.perf_counter())

    def _may_draft(self, session: Session) -> bool:
        return not session.silent and len(session.context) < self.model.context_limit

    def _proposed(self, sessions: Sequence[Session]) -> list[Draft]:
        """Draft for all requests together; a running loop says what to draft for its request."""
        known = {id(session): rid for rid, session in self._sessions.items()}
        rids = [known[id(session)] for session in sessions]
        for rid, session in zip(rids, sessions, strict=True):
            self._look(rid, session)
        self.load.requests = len(sessions)
        length = self.load.tokens(min(self.options.length, self.n - 1))
        pays = self._pays(rids, sessions)
        if not pays:
            length = 0
        room = Room(self.n - 1, length, 1)
        asking: list[Solving | Once | None] = []
        self.marks.clear()
        for i, session in enumerate(sessions):
            if not self._may_draft(session):
                asking.append(None)
                continue
            if pays:
                self._wake(session)
            elif session.loop is not None and session.loop.between_steps:
                # while the target writes alone, no loop is needed
                session.loop, session.resting = None, len(session.context)
            if session.told_resting != (session.resting is not None):
                self._mark(i, session)
            if session.resting is not None:
                asking.append(None)
            elif session.loop is not None or not length:
                asking.append(session.loop)
            else:
                asking.append(Once(session.drafting.draft(session.context, room)))
        own = [one for one in asking if one is not None]
        tries = self.payoff is not None and self.payoff.tries
        self._resting = ([], 0) if own or tries else (rids, REST)
        while waiting := [(one, query) for one in own if (query := one.drafts) is not None]:
            queries = [query for _, query in waiting]
            answers = self.ask(queries) if pays else [Answer() for _ in queries]
            for (one, _), answer in zip(waiting, answers, strict=True):
                one.drafted(answer)
        self._account()
        self.loops = [
            one if isinstance(one, Solving) and one.verifies is not None else None for one in asking
        ]
        return [Draft() if one is None else one.draft for one in asking]

    def _look(self, rid: str, session: Session) -> None:
        """Start a request's loop if necessary, and drop it if SGLang has extended the text without it."""
        loop = session.loop
        if loop is not None and loop.asked is not None and loop.known < len(session.context):
            self._remember(rid, session)
            session.loop, session.begun = None, False
        if session.begun:
            return
        session.begun = True
        if self.rules is None:
            return
        params = compat.params_of(session.request)
        session.silent = self.rules.off(params)
        if (asked := self._asked(session)) is None:
            return
        begun = None
        if (left := self._away.pop(rid, None)) is not None and left[0]() is session.request:
            begun, session.told_resting = left[1], True  # the client may have been told so
        compat.goes_on_exactly(session.request)
        self._begin(session, asked, begun)

    def _asked(self, session: Session) -> Steps | None:
        """Return a request's rule for steps with its artifacts; None if it has none."""
        assert self.rules is not None
        params = compat.params_of(session.request)
        asked = self.rules.steps(params)
        if asked is None or session.silent:
            return None
        try:
            return self.bound(asked, compat.sampling_of(params))
        except UserError as error:  # the server's own settings do not suit this request
            lossless_instead(str(error))
            return None

    def _begin(self, session: Session, asked: Steps, begun: int | None) -> None:
        """Start a loop after a session's text, whose part from ``begun`` on the target has written by itself."""
        params = compat.params_of(session.request)
        ends = compat.ends_of(params, self.kit.stop_ids)
        kit = replace(self.kit, sampling=compat.sampling_of(params), stop_ids=ends)
        split, sizes = partial(self.splitter.open, kit.piece), asked.within(self.n - 1)
        opened = 0
        if begun is not None:
            opened = unfinished(split(sizes.cap), session.context.tokens[begun:])
        start = Start(
            context=session.context,
            budget=compat.budget_of(params) - (self.prompt_end(session.request) is not None),
            seed=compat.seed_of(params),
            opened=opened,
            whole_rounds=_of_problem(session.request).get(WHOLE, False),
        )
        session.loop = begin(asked, start, kit, split, sizes, load=self.load)

    def _mark(self, place: int, session: Session) -> None:
        """Report to a client that reads rounds whether the request's loop rests now."""
        session.told_resting = session.resting is not None
        if _of_problem(session.request).get(WHOLE, False):
            at = len(session.context) - session.context.prompt_length
            self.marks[place] = [mark(at, session.told_resting)]

    def _wake(self, session: Session) -> None:
        """Restart a session's resting loop."""
        if session.resting is None:
            return
        begun, session.resting = session.resting, None
        if (asked := self._asked(session)) is not None:
            self._begin(session, asked, begun)

    def _bound(self, asked: Steps, sampling: Sampling) -> Steps:
        """Return a rule with its artifacts loaded; raise UserError if they do not fit."""
        if What.POOLED not in asked.rule.needs:
            return asked
        if not compat.reads_verification(self.rows.runner):
            raise UserError(
                'rules with a probe need {"probe": {}} beside "drafting", a single'
                " rank, and on a GPU --disable-cuda-graph"
            )
        drafts = canonical_name(ModelConfig(path=str(self.options.model)))
        run = Run(models=self.facts(), split=self.options.split, sampling=sampling, drafts=drafts)
        return replace(asked, rule=asked.rule.bind(run))

    def erase_match_state(self, rids: Sequence[str]) -> None:
        for rid in rids:
            session = self._sessions.pop(rid, None)
            if session is None:
                continue
            self._remember(rid, session)
            self.model.forget(session.context)

    def _remember(self, rid: str, session: Session) -> None:
        """Remember a request whose text ends within a step that the target must finish, in case it is retracted and returns."""
        loop, begun = session.loop, session.resting
        if loop is not None and loop.asked is not None and (opened := loop.opened()):
            begun = loop.known - opened
        if begun is not None:
            self._away[rid] = (weakref.ref(session.request), begun)
            while len(self._away) > AWAY:
                self._away.popitem(last=False)

    def reset(self) -> None:
        self.erase_match_state(list(self._sessions))

    def _account(self) -> None:
        """Log the model's memory whenever it has changed."""
        held: dict[str, int] = self.model.memory_bytes()  # type: ignore[attr-defined]
        if (total := sum(held.values())) != self._held:
            self._held = total
            shown = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in held.items())
            LOG.info("SEMSPEC_LM: %s", shown)


def _by_steps(session: Session) -> bool:
    """Return whether a request's steps are judged, or would be if drafting did not rest."""
    loop = session.loop
    return session.resting is not None or (loop is not None and loop.asked is not None)


def _of_problem(request: Any) -> Mapping[str, Any]:
    """Return a request's options for a whole problem; malformed ones were refused on arrival."""
    try:
        return problem_options(compat.asked(compat.params_of(request)))
    except ValueError:
        return {}


def register(options: ModelOptions) -> None:
    """Register SEMSPEC_LM before SGLang checks its arguments against the known names."""

    def worker() -> type:
        return compat_worker.tree_worker(lambda runner, n: _loaded(options, runner, n))

    compat_worker.register_algorithm(NAME, WIDTH, worker)


def _loaded(options: ModelOptions, runner: Any, n: int) -> SmallModel:
    """Load the small model beside the target, before SGLang distributes the remaining memory."""
    try:
        return _load(options, runner, n)
    except UserError as error:  # any other exception reaches the user as a page of traceback
        raise last_line(f"semspec's SGLang plugin: {error}") from error


def _load(options: ModelOptions, runner: Any, n: int) -> SmallModel:
    if options.model is None:
        raise UserError(
            f'{NAME} needs a small model: set SEMSPEC_LM=MODEL, or {{"drafting": {{"lm": {{"model": ...}}}}}}'
        )
    if compat_ranks.splits_batches(runner):
        raise UserError(f"{NAME} does not support --enable-dp-attention: leave it out")
    rules: Any = compat.rules_of(runner)
    path, revision, tokenizer = compat.place(runner)
    text = Text(tokenizer, revision)
    kit = kit_of(runner, text)
    if not compat_ranks.leads():
        return Following(LanguageModel(), n, kit, Rows((), runner), rules=rules)
    place = ModelConfig(path=options.model)
    folder = place.fetch()
    if Text(str(folder)).fingerprint != text.fingerprint:
        raise UserError(
            f"{options.model} has another tokenizer than {path}: use a draft model of the"
            " same family"
        )
    device = options.device or str(compat.device(runner))
    engine = plugin("engine", "hf").cls(device=device, dtype=options.dtype, threads=0)
    model = engine.load(str(folder), role="draft")

    @cache
    def facts() -> Mapping[Role, ModelFacts]:
        at, fingerprint = ModelConfig(path=path, revision=revision), text.fingerprint
        return {"target": read_facts(at, fingerprint), "draft": read_facts(place, fingerprint)}

    drafts = ModelDrafts(n, kit, Rows((), runner), model, rules, options, facts)
    if rules is not None:
        named = canonical_name(place)
        alone = 1 if compat.eager(runner) else n  # rows that the target reads without drafts
        told = {"draft": named, "split": options.split, "width": n - 1, "alone": alone}
        rules.drafted_by(told)
        rules.counted_in(drafts.passes)
    if rules is not None and (usual := rules.usual()) is not None:
        drafts.bound(usual, Sampling(1.0))  # report at the start what cannot work
    return drafts
