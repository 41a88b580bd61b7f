"""Load the models of a configuration, and bind its plugins to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

from semspec import registry
from semspec.choices.inside import choose, small_inside
from semspec.choices.survey import Survey
from semspec.config import RunConfig
from semspec.datastores.growing import GrowingStore
from semspec.decoding.pacing import Pacing
from semspec.decoding.stopping import room_to_think
from semspec.deferred import load_torch
from semspec.drafters.opening import Opener
from semspec.driver import Driver
from semspec.engines.bridge import BridgedEngine, bridged
from semspec.engines.pool import Engines
from semspec.errors import UserError
from semspec.models import hub
from semspec.models.location import ModelFacts
from semspec.models.text import Text
from semspec.protocols import Engine, Need, OnServers, Splitter, Stopper
from semspec.results import tables
from semspec.results.identity import identities
from semspec.types import Context, Role


class Loaded:
    """Holds the models of a configuration; close it, or use it as a context manager.

    ``identify`` gets the identities (``semspec.results.identity``) of all ``files`` before any weights load, then
    those of ``servers``, and may refuse them with a UserError. ``shared``: engines that other solvers use too and
    that outlive this one; create all these solvers before the first of them loads. ``beside``: copy from a
    problem's references with any drafter, not only with drafters that do so by themselves. ``tell`` gets lines
    about the progress of this object's own engines; ``waits`` is passed to them.
    """

    def __init__(
        self,
        config: RunConfig,
        identify: Callable[[str, Mapping[str, str]], None] = lambda part, found: None,
        shared: Engines | None = None,
        beside: bool = False,
        tell: Callable[[str], None] = lambda line: None,
        waits: bool = True,
    ) -> None:
        self.config, self.beside = config, beside
        self._own, self._shared = shared is None, shared or Engines(tell=tell, waits=waits)
        self._identify = identify
        with hub.noted() as found:
            self._bind()
        self.files = identities(found)
        identify("files", self.files)
        if self._own:
            self.fetch()
            self.load()

    def fetch(self) -> None:
        """Fetch missing weights, and tell the engines which models to expect."""
        config = self.config
        small = small_inside(config, lambda: self._survey.folders.light["draft"])
        self._engine = config.engine if small is None else config.engine.drafting(small)
        if config.engine.holds_weights:
            self._survey.folders.fetch_all()
        needs = [
            Need(
                role,
                folder,
                self.probes.get(role, ()),
                config.max_new_tokens,
                config.concurrency,
                small if role == "target" else None,
            )
            for role, folder in self._survey.folders.light.items()
            if self._engine.reaches(role)
        ]
        self._shared.expect(self._engine, needs)

    def load(self) -> None:
        """Load the models if the engines are shared; with its own engines, the constructor has done so.

        Call it only after all solvers of the shared engines have fetched their weights.
        """
        load_torch()  # otherwise some rules and drafters would import it in the middle of a problem
        self.served: dict[str, str] = {}  # by server: the models it reports
        try:
            self._load_all()
        except BaseException:
            self.close()
            raise
        self.driver = Driver(self.engines, self.pacing.costs)
        self.stop_ids = self.engines["target"].stop_ids
        if self.served:
            self._identify("servers", self.served)

    def _bind(self) -> None:
        """Bind the plugins before fetching any weights that they do not need."""
        config = self.config
        self.engines: dict[Role, Engine] = {}
        survey = self._survey = Survey.of(config)
        survey.check(config)
        self.text, self.draft_text = survey.texts["target"], survey.texts.get("draft")
        own, nested = survey.own, survey.nested
        self.stop: Stopper = config.stop.bind(own)
        if not self.stop.plain and self.room_to_think(config.max_new_tokens) < 1:
            raise UserError(
                f"max_new_tokens={config.max_new_tokens} leaves no room for thinking beside"
                " the closing text and the answer: give more, or a smaller"
                " stop.answer_tokens"
            )
        self.splitter: Splitter = registry.plugin("split", config.split).cls().bind(own)
        self._sources = config.accept.probe_sources(own)
        self.probes = {role: (str(at),) for role, at in self._sources.items()}
        # rules first: a drafter may ask for the target's weights
        self.rule, self.drafter = config.accept.bind(own), config.draft.bind(own)
        self.nested, self.nested_rule = config.nested, config.nested_accept
        if not config.nested.plain:
            self.nested_rule = config.nested_accept.bind(nested)
            self.nested = config.nested.bind(nested)
        self.draft_length = config.length("draft", self.reach, self.drafter.chains)
        self.nested_length = config.length("nested", self.nested.reach, self.nested.chains)
        remembered = max(self.drafter.remembers, self.nested.remembers)
        self.earlier = GrowingStore(remembered << 20) if remembered else None
        self.pacing = self._pacing()
        self.opener = Opener()

    def room_to_think(self, room: int) -> int:
        """Return how many of ``room`` tokens the thinking may take; the stopper keeps some for the answer."""
        return room_to_think(self.stop.closing, self.text.encode, room)

    @property
    def facts(self) -> ModelFacts:
        """The facts to which the target's artifacts are bound."""
        return self._survey.own.models["target"]

    @property
    def drafts_here(self) -> bool:
        """True if the loop here can draft; False if the small model is only inside the target's server."""
        return all(role in self.engines for role in self._survey.texts)

    @property
    def drafts(self) -> bool:
        """True if anything is drafted, even if only for the target's own steps."""
        return not (self.drafter.plain and self.nested.plain)

    def can_draft(self, references: bool) -> bool:
        """Return whether anything can be drafted for a problem that comes with references, or without."""
        return (
            self.drafter.can_draft(references)
            or self.nested.can_draft(references)
            or (self.beside and references)
        )

    @property
    def reach(self) -> int:
        """Tokens per draft by the drafter's own options; 0: ``draft_length`` decides."""
        return self.drafter.reach if self.config.split == "token" else 0

    @property
    def own_reach(self) -> bool:
        """True if only the drafter's own options decide how many tokens it drafts, and ``draft_length`` has no effect."""
        return bool(self.reach) and not (self.config.adaptive and self.drafter.chains)

    @property
    def free(self) -> bool:
        """True if problems run freely, not in lockstep."""
        return self.driver.free

    def _load_all(self) -> None:
        target = self.engines["target"] = self._load("target")
        self._choose_inside()
        for role, text in self._survey.texts.items():
            needed = self.inside is None or self._engine.reaches(role)
            if role != "target" and needed:
                engine, own_prompt = self._load(role), self._survey.own_prompt[role]
                self.engines[role] = bridged(engine, text, target, self.text, own_prompt)

    def _load(self, role: Role) -> Engine:
        folder, text = self._survey.folders.light[role], self._survey.texts[role]
        engine = self._shared.load(self._engine, folder, role, self.probes.get(role, ()))
        if isinstance(engine, OnServers) and engine.served:
            self.served[f"{role}'s server"] = engine.served
        # a tokenizer may name an end-of-text token that the model's own files do not
        engine.stop_ids |= text.stop_ids
        return engine

    def _choose_inside(self) -> None:
        """Find out whether the target's server runs the loop; raise UserError if it was asked to and cannot."""
        target = self.engines["target"]
        there = target.inside if isinstance(target, OnServers) else None
        chosen, line = choose(self.config, there, self._sources)
        self.inside = there if chosen else None
        if self.inside is not None:
            self.pacing = Pacing()  # nothing is drafted here, so costs do not matter
            served = self.served.get("target's server"), f"inside it {self.inside['draft']}"
            self.served["target's server"] = ", ".join(filter(None, served))
        if line:
            self._shared.tell(line)

    def _pacing(self) -> Pacing:
        """Return what decides how much to draft: by costs yet to be measured, or recorded by an earlier run."""
        config = self.config
        pairs = {"draft": self.drafter, "nested": self.nested}
        drafting = {who: drafter for who, drafter in pairs.items() if not drafter.plain}
        if not config.adaptive or not drafting:
            return Pacing()
        recorded = tables.read(config.costs) if config.costs else tables.Recorded()
        given = drafting, config.concurrency, recorded.costs, recorded.fill
        return Pacing.adaptive(*given, refers=self.beside)

    def context(self, ids: Sequence[int], draft_ids: Sequence[int] | None = None) -> Context:
        """Return a new context for a prompt; ``draft_ids``: the draft model's own prompt, if it reads one."""
        return Context(next(self._shared.keys), ids, draft_ids)

    def rewind(self, context: Context) -> None:
        """Prepare engines for a context with the same key that goes on from an earlier token."""
        for engine in self.engines.values():
            if isinstance(engine, BridgedEngine):
                engine.forget(context)

    @property
    def context_limit(self) -> int:
        """Return the most tokens that prompt and output may have together."""
        longest: int = min(engine.context_limit for engine in self.engines.values())
        longest -= max(self.rule.reserve, self.stop.reserve)
        return longest

    def draft_prompt(self, question: str, system: str | None = None) -> list[int] | None:
        """Return the draft's own prompt if it reads one; see ``Context.draft_prompt``."""
        text = self.own_prompt_text
        return text.prompt(question, system)[1] if text else None

    @property
    def own_prompt_text(self) -> Text | None:
        """Return the draft's text if it reads a prompt of its own."""
        engine = self.engines.get("draft")
        own = isinstance(engine, BridgedEngine) and engine.own_prompt
        return self.draft_text if own else None

    def said(self, tokens: Sequence[int]) -> str:
        """Decode the target's tokens, without end-of-text tokens."""
        stop_ids = self.engines["target"].stop_ids
        return self.text.decode([t for t in tokens if t not in stop_ids])

    def retire(self) -> None:
        """Stop restarting servers that end from now on, because this process is about to end."""
        self._shared.retire()

    def close(self) -> None:
        if self._own:
            self._shared.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
