"""Models, text and methods put together: solves questions in either mode.

solver = Solver(config)
for done in solver.solve(problems, "speculative"): ...
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Self

from semspec import registry
from semspec.config import RunConfig, drawn_by, plugin_names
from semspec.decoding.pace import Adaptive, Steady
from semspec.decoding.thinking import Thinking
from semspec.decoding.writing import Pen
from semspec.deferred import load_torch
from semspec.driver import Driver, Timed
from semspec.engines.bridge import BridgedEngine, bridged, build_bridge
from semspec.errors import UserError
from semspec.loop import Speculation, decode_plainly, speculate
from semspec.models import hub
from semspec.models.folders import Folders
from semspec.models.location import KnownModels, ModelConfig, canonical_name
from semspec.models.text import OPEN, Text
from semspec.protocols import (
    Bench,
    BenchmarkProblem,
    Drafter,
    Engine,
    Kit,
    Need,
    Plan,
    Plugin,
    Rule,
    Run,
    Source,
    Splitter,
)
from semspec.results.identity import identities
from semspec.results.records import Mode
from semspec.splitters.token import TokenBoundary
from semspec.storage.screen import LOG
from semspec.types import Context, Outcome, Role, Round


@dataclass(frozen=True, slots=True)
class Solution:
    """One problem solved in one mode."""

    problem: BenchmarkProblem
    mode: Mode
    outcome: Outcome
    text: str  # the assistant's whole turn, thinking included
    share: float | None  # of the wall time, where problems run freely beside each other
    overhead: float  # share of the time that was spent outside model passes


@dataclass(frozen=True)
class Survey:
    """What light files say of a run's models: their configurations and tokenizers, no weights."""

    models: Mapping[Role, ModelConfig]  # as given
    own_prompt: Mapping[Role, bool]  # whether a model reads a prompt of its own
    folders: Folders
    texts: Mapping[Role, Text]
    own: Run  # of the run's own pair
    nested: Run  # of the pair that helps the target to write

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Fetch the light files of all models; raise UserError for one that is not there."""
        models, own_prompt = models_of(config)
        folders = Folders.of(models, config.engine.holds_weights)
        texts = {
            role: Text(str(folder), thinking=models[role].thinking)
            for role, folder in folders.light.items()
        }
        prints = {role: text.fingerprint for role, text in texts.items()}
        own, nested = runs_of(config, prints, folders)
        return cls(models, own_prompt, folders, texts, own, nested)

    def sources(self, config: RunConfig) -> list[Source]:
        """Return all that the plugins are going to load; raise UserError where that is not known."""
        return [s for plugin, run in bound_plugins(config, self.own, self.nested) for s in plugin.loads(run)]  # fmt: skip

    def check(self, config: RunConfig) -> None:
        """Raise UserError for what cannot work, or cannot run on this machine: all that light files tell."""
        self.sources(config)
        for role, text in self.texts.items():
            if role != "target":
                build_bridge(self.texts["target"], text)  # refuses tokenizers that do not agree
        with hub.noted():
            config.engine.check_machine(self.folders.pinned, config.max_new_tokens)


def models_of(config: RunConfig) -> tuple[dict[Role, ModelConfig], dict[Role, bool]]:
    """Return the models of a configuration, and which of them read a prompt of their own."""
    pairs = [(config.nested, config.nested_accept)] if not config.nested.plain else []
    pairs.append((config.draft, config.accept))
    models: dict[Role, ModelConfig] = {"target": config.model}
    own_prompt: dict[Role, bool] = {}
    for drafter, rule in pairs:  # of two models with one role, the run's own pair has its own
        models |= {**rule.models(), **drafter.models()}
        own_prompt |= dict.fromkeys(drafter.models(), drafter.own_prompt)
    return models, {role: own_prompt.get(role, False) for role in models}


def runs_of(
    config: RunConfig,
    fingerprints: Mapping[Role, str | Callable[[], str]],
    folders: Folders | None = None,
) -> tuple[Run, Run]:
    """Return the facts that plugins are bound to: of the run's own pair, and of the nested one."""
    models, _ = models_of(config)
    facts = KnownModels({role: (model, fingerprints[role]) for role, model in models.items()})
    here = config.engine.holds_weights

    def run(split: str, drafter: Drafter) -> Run:
        return Run(
            models=facts,
            folders=folders.light if folders else {},
            split=split,
            sampling=config.sampling,
            offers=config.engine.offers,
            drafts=drawn_by(drafter),
            given=models,
            fetch=folders.fetch if folders and here else None,
        )

    return run(config.split, config.draft), run("token", config.nested)


def bound_plugins(config: RunConfig, own: Run, nested: Run) -> list[tuple[Plugin, Run]]:
    """Return the plugins that are bound, each with its run."""
    found = [(config.accept, own), (config.draft, own), (config.benchmark, own)]
    if not config.nested.plain:
        found += [(config.nested_accept, nested), (config.nested, nested)]
    return found


class Engines:
    """Loads engines, each once, for any number of solvers that take turns; closing it closes them all.

    What an engine needs beside itself, such as servers, is made ready at the first load, for all models that are
    expected by then. Its logs go into the folder ``logs``, lines about its progress to ``tell``.
    """

    def __init__(
        self, logs: Path | None = None, tell: Callable[[str], object] = lambda line: None
    ) -> None:
        self._logs, self._tell = logs, tell
        self._expected: dict[str, dict[tuple[Role, Path], Need]] = {}  # by engine
        self._ready: dict[str, Any] = {}  # options to load with, or why there are none
        self._hosts = ExitStack()
        self._loaded: dict[tuple[object, ...], Engine] = {}
        self.keys = count(1)  # of contexts: engines know them by their keys

    def expect(self, engine: Any, needs: Sequence[Need]) -> None:
        """Take note of models that are going to be loaded."""
        known = self._expected.setdefault(repr(engine), {})
        for need in needs:
            before = known.get((need.role, need.folder), need)
            known[need.role, need.folder] = replace(
                need,
                probes=tuple(dict.fromkeys([*before.probes, *need.probes])),
                max_new_tokens=max(before.max_new_tokens, need.max_new_tokens),
                problems=max(before.problems, need.problems),
            )

    def load(self, engine: Any, folder: Path, role: Role, probes: tuple[str, ...]) -> Engine:
        key = (repr(engine), folder, role, probes)
        if key not in self._loaded:
            ready = self._made_ready(engine)
            self._loaded[key] = ready.load(str(folder), role=role, probes=probes)
        return self._loaded[key]

    def _made_ready(self, engine: Any) -> Any:
        key = repr(engine)
        if key not in self._ready:
            needs = list(self._expected[key].values())
            logs = self._logs or Path(tempfile.gettempdir()) / f"semspec-servers-{os.getpid()}"
            try:
                hosted = engine.hosting(needs, logs, self._tell)
                self._ready[key] = self._hosts.enter_context(hosted)
            except UserError as error:  # it would fail for the next solver, too
                self._ready[key] = error
        if isinstance(self._ready[key], UserError):
            raise self._ready[key]
        return self._ready[key]

    def close(self) -> None:
        for engine in self._loaded.values():
            engine.close()
        self._loaded.clear()
        self._ready.clear()
        self._hosts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _length(config: RunConfig, group: str, reach: int) -> int:
    """Return the length of drafts: the drafter's own reach, or else the option for it.

    Warns where the option was given and has no effect.
    """
    option = f"{group}_length"
    given: int = getattr(config, option)
    if reach and given != getattr(RunConfig, option) and not config.quiet:
        LOG.warning(
            "%s=%d has no effect: %s=%s drafts up to %d tokens at a time, as its own options say;"
            " leave %s out, or change those (docs/drafters.md)",
            *(option, given, group, plugin_names(config)[group], reach, option),
        )
    return reach or given


def opening(prompt: str) -> str:
    """Return the opened thinking at the end of a prompt; it belongs to the assistant's turn."""
    return prompt[prompt.rindex(OPEN) :] if prompt.rstrip().endswith(OPEN) else ""


class Solver:
    """Holds the models of a configuration; close it, or use it as a context manager.

    ``identify`` is given the identities (``semspec.results.identity``) of all ``files`` before any weights
    load, then those of ``servers``, and may refuse them with a UserError. ``shared``: engines that other
    solvers use, too, and that outlive this one; all these solvers are made before the first of them loads.
    """

    def __init__(
        self,
        config: RunConfig,
        identify: Callable[[str, Mapping[str, str]], None] = lambda part, found: None,
        shared: Engines | None = None,
    ) -> None:
        self.config = config
        self._own, self._shared = shared is None, shared or Engines()
        self._identify = identify
        with hub.noted() as found:
            self._bind()
        self._files = identities(found)
        identify("files", self._files)
        if self._own:
            self.fetch()
            self.load()

    def fetch(self) -> None:
        """Fetch the weights that are missing here, and tell the engines which models are to be expected."""
        config = self.config
        if config.engine.holds_weights:
            self._survey.folders.fetch_all()
        needs = [
            Need(role, folder, self.probes.get(role, ()), config.max_new_tokens, config.concurrency)
            for role, folder in self._survey.folders.light.items()
        ]
        self._shared.expect(config.engine, needs)

    def load(self) -> None:
        """Load the models, if the engines are shared; a solver with its own ones has done so.

        The engines load nothing before all their solvers have fetched their weights.
        """
        self._load_all()
        if self.served:
            self._identify("servers", self.served)

    def _bind(self) -> None:
        """Bind the plugins, before any weights are fetched that they can do without."""
        config = self.config
        self.engines: dict[Role, Engine] = {}
        survey = self._survey = Survey.of(config)
        survey.check(config)
        self.text, self.draft_text = survey.texts["target"], survey.texts.get("draft")
        own, nested = survey.own, survey.nested
        self.splitter: Splitter = registry.plugin("split", config.split).cls().bind(own)
        self.probes = {role: (str(at),) for role, at in config.accept.probe_sources(own).items()}
        # rules first: a drafter may ask for the target's weights
        self.rule, self.drafter = config.accept.bind(own), config.draft.bind(own)
        self.nested, self.nested_rule = config.nested, config.nested_accept
        if not config.nested.plain:
            self.nested_rule = config.nested_accept.bind(nested)
            self.nested = config.nested.bind(nested)
        reach = self.drafter.reach if config.split == "token" else 0
        self.draft_length = _length(config, "draft", reach)
        self.nested_length = _length(config, "nested", self.nested.reach)

    def _load_all(self) -> None:
        load_torch()  # some rules and drafters ask for it first in the middle of a problem
        self.served: dict[str, str] = {}  # by role: what its servers say that they hold
        try:
            self.engines["target"] = self._load("target")
            for role in self._survey.texts:
                if role != "target":
                    self.engines[role] = self._load_other(role)
        except BaseException:
            self.close()
            raise
        self.driver = Driver(self.engines)

    def _load(self, role: Role) -> Engine:
        folder, text = self._survey.folders.light[role], self._survey.texts[role]
        engine = self._shared.load(self.config.engine, folder, role, self.probes.get(role, ()))
        if served := getattr(engine, "served", None):  # of engines over servers
            self.served[f"{role}'s server"] = served
        engine.stop_ids |= (
            text.stop_ids
        )  # a tokenizer may name an end that the weights' files do not
        return engine

    def _load_other(self, role: Role) -> Engine:
        text = self._survey.texts[role]
        engine = self._load(role)
        bridge = build_bridge(
            self.text,
            text,
            target_vocabulary=self.engines["target"].vocabulary,
            draft_vocabulary=engine.vocabulary,
        )
        if bridge is None:
            return engine
        return bridged(engine, bridge, self._survey.own_prompt[role])

    def measure(
        self,
        problems: Sequence[BenchmarkProblem],
        recorded: Mapping[str, Any] | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Let the rule measure what it needs of the loaded pair, on questions whose answers it is not shown.

        ``recorded``: what ``rule.measured()`` was in an earlier start of the same run.
        """
        config = self.config
        drafts = config.draft.models()
        identity = {
            "files": sorted(set(self._files.values())),
            "servers": dict(self.served),
            "drafter": registry.name_of(config.draft),
            **{name: getattr(config, name) for name in ("split", "longest_unit")},
            **{
                name: getattr(config.sampling, name)
                for name in ("temperature", "top_k", "top_p", "min_p")
            },
        }
        bench = Bench(
            identity=identity,
            target=canonical_name(config.model),
            drafts=not config.draft.plain,
            draft=canonical_name(drafts["draft"]) if "draft" in drafts else None,
            solve=lambda rule, budget: self._tried(rule, problems, budget),
            recorded=recorded,
            tell=tell,
        )
        self.rule = self.rule.measure(bench)

    def _tried(
        self, rule: Rule, problems: Sequence[BenchmarkProblem], budget: int
    ) -> Generator[int, None, None]:
        """Solve problems again and again with another rule; yield how many tokens each has."""
        own, self.rule = self.rule, rule
        limit = self.config.max_new_tokens
        try:
            for number in count(1) if problems else ():
                asked = (replace(p, id=f"{p.id}, measured {number}") for p in problems)
                while group := list(islice(asked, self.config.concurrency)):
                    for done in self.solve(group, "speculative", min(budget, limit)):
                        yield len(done.outcome.tokens)
        finally:
            self.rule = own

    @property
    def free(self) -> bool:
        """True if problems run freely beside each other, not in lockstep."""
        return self.driver.free

    def kit(self, problem_id: str, prompt: str, mode: Mode, who: str = "") -> Kit:
        """Make the kit of a drafter or a rule for one problem.

        The random numbers depend on seed, problem, mode and on who draws them alone: a drafter that
        works ahead while the rule judges must not change what the rule draws.
        """
        config = self.config
        return Kit(
            prompt=prompt,
            sampling=config.sampling,
            boundary=lambda: self.splitter.open(self.text.piece, config.longest_unit),
            stop_ids=self.engines["target"].stop_ids,
            piece=self.text.piece,
            decode=self.text.decode,
            encode=self.text.encode,
            aside=lambda question, prefill: self.text.aside(question, prefill)[1],
            rng=random.Random(f"{config.seed} {problem_id} {mode} {who}".rstrip()),
            evidence=self.rule.evidence(),
            salvage=config.salvage,
            max_repeats=config.max_repeats if config.split != "token" else 0,
            trees=self.rule.trees and config.split == "token",
            layers=self.engines["target"].layers,
        )

    def solve(
        self, problems: Sequence[BenchmarkProblem], mode: Mode, budget: int | None = None
    ) -> Iterator[Solution]:
        """Solves problems, ``concurrency`` at a time; yields them as they end."""
        begun: dict[int, tuple[BenchmarkProblem, str]] = {}

        def plans() -> Iterator[tuple[Context, Plan[Outcome]]]:
            for problem in problems:
                context, prompt, plan = self._begin(problem, mode, budget, [])
                begun[context.key] = (problem, prompt)
                yield context, plan

        for done in self.driver.run(plans(), self.config.concurrency):
            problem, prompt = begun.pop(done.context.key)
            outcome = replace(done.value, seconds=done.seconds)
            yield Solution(
                problem,
                mode,
                outcome,
                self._turn(prompt, outcome.tokens),
                done.share,
                1 - done.model_seconds / done.seconds if done.seconds else 0.0,
            )

    def stream(self, problem: BenchmarkProblem) -> Generator[Round, None, None]:
        """Solve one problem speculatively and yield its rounds as they end.

        To close the iterator gives the problem up and frees the engines' sessions.
        """
        rounds: list[Round] = []
        context, _, plan = self._begin(problem, "speculative", None, rounds)
        yielded = 0
        with closing(self.driver.turns([(context, plan)])) as turns:
            for done in turns:
                rounds = rounds if done is None else done.value.rounds
                yield from rounds[yielded:]
                yielded = len(rounds)

    def _begin(
        self, problem: BenchmarkProblem, mode: Mode, budget: int | None, rounds: list[Round]
    ) -> tuple[Context, str, Plan[Outcome]]:
        """Return a problem's context, its prompt as text, and the plan that solves it.

        A speculative plan adds its rounds to ``rounds`` as they end.
        """
        prompt, ids = self.text.prompt(problem.question, problem.system)
        draft_prompt = self.draft_prompt(problem.question, problem.system)
        context = Context(next(self._shared.keys), ids, draft_prompt)
        longest = max(len(ids), len(draft_prompt or ()))
        room = self._room(problem, longest, budget or self.config.max_new_tokens)
        return context, prompt, self._plan(context, problem.id, prompt, mode, room, rounds)

    def _plan(
        self,
        context: Context,
        problem_id: str,
        prompt: str,
        mode: Mode,
        room: int,
        rounds: list[Round],
    ) -> Plan[Outcome]:
        config, kit = self.config, self.kit(problem_id, prompt, mode)
        if mode == "plain" or (self.drafter.plain and self.nested.plain):
            return decode_plainly(context, kit, room)
        pace = Adaptive if config.adaptive else Steady
        problem = Speculation(
            context,
            kit,
            room,
            Timed(self.drafter.open(self.kit(problem_id, prompt, mode, "draft"))),
            self.rule.open(kit),
            pace(self.draft_length, config.longest_unit),
            pen=None if self.nested.plain else self._pen(problem_id, prompt, mode),
            ahead=config.ahead,
            thinking=Thinking(self.text.piece) if config.answer_by == "target" else None,
            rounds=rounds,
        )
        return speculate(problem)

    def _pen(self, problem_id: str, prompt: str, mode: Mode) -> Pen:
        """The target's own writing, token by token."""
        kit = replace(
            self.kit(problem_id, prompt, mode, "nested"),
            boundary=TokenBoundary,
            evidence=self.nested_rule.evidence(),
            salvage=False,
            max_repeats=0,
            trees=self.nested_rule.trees,
        )
        return Pen(Timed(self.nested.open(kit)), self.nested_rule.open(kit), self.nested_length)

    def draft_prompt(self, question: str, system: str | None = None) -> list[int] | None:
        """Return the draft's own prompt, where it reads one; see ``Context.draft_prompt``."""
        engine = self.engines.get("draft")
        if self.draft_text is None or not isinstance(engine, BridgedEngine):
            return None
        return self.draft_text.prompt(question, system)[1] if engine.own_prompt else None

    def _room(self, problem: BenchmarkProblem, prompt: int, budget: int) -> int:
        limit: int = min(engine.context_limit for engine in self.engines.values())
        limit -= self.rule.reserve
        if prompt >= limit:
            raise UserError(
                f"the prompt of '{problem.id}' has {prompt} tokens, but the models' context ends at"
                f" {limit}: shorten it, or choose models with a longer context"
            )
        return min(budget, limit - prompt)

    def said(self, tokens: Sequence[int]) -> str:
        """Tokens of the target as text, without ends of text."""
        stop_ids = self.engines["target"].stop_ids
        return self.text.decode([t for t in tokens if t not in stop_ids])

    def _turn(self, prompt: str, tokens: Sequence[int]) -> str:
        """The turn as text; templates of reasoning models open the thinking in the prompt."""
        return opening(prompt) + self.said(tokens)

    def close(self) -> None:
        if self._own:
            self._shared.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
