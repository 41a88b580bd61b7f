"""Models, text and methods put together: solves questions in either mode.

solver = Solver(config)
for done in solver.solve(problems, "speculative"): ...
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Self

from semspec import registry
from semspec.config import RunConfig, drawn_by
from semspec.decoding.pace import Adaptive, Steady
from semspec.decoding.thinking import Thinking
from semspec.driver import Driver
from semspec.engines.bridge import BridgedEngine, bridged, build_bridge
from semspec.errors import UserError
from semspec.loop import Extras, Pen, decode_plainly, speculate
from semspec.models.location import KnownModels, ModelConfig
from semspec.models.text import OPEN, Text
from semspec.protocols import BenchmarkProblem, Engine, Kit, Plan
from semspec.results.records import Mode
from semspec.splitters.token import TokenBoundary
from semspec.types import Context, Outcome, Role


@dataclass(frozen=True, slots=True)
class Solution:
    """One problem solved in one mode."""

    problem: BenchmarkProblem
    mode: Mode
    outcome: Outcome
    text: str  # the assistant's whole turn, thinking included
    share: float | None  # of the wall time, where problems run freely beside each other
    overhead: float  # share of the time that was spent outside model passes


class Engines:
    """Loads engines, each once, for any number of solvers that take turns; closing it closes them all."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[object, ...], Engine] = {}
        self.keys = count(1)  # of contexts: engines know them by their keys

    def load(self, engine: Any, folder: Path, role: Role, probes: tuple[str, ...]) -> Engine:
        key = (repr(engine), folder, role, probes)
        if key not in self._loaded:
            self._loaded[key] = engine.load(str(folder), role=role, probes=probes)
        return self._loaded[key]

    def close(self) -> None:
        for engine in self._loaded.values():
            engine.close()
        self._loaded.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Solver:
    """Holds the models of a configuration; close it, or use it as a context manager.

    ``shared``: engines that other solvers use, too, and that outlive this one.
    """

    def __init__(self, config: RunConfig, shared: Engines | None = None) -> None:
        self.config = config
        self._own, self._shared = shared is None, shared or Engines()
        self.drafter, self.rule = config.draft, config.accept
        self.nested, self.nested_rule = config.nested, config.nested_accept
        self.splitter = registry.plugin("split", config.split).cls()
        self.engines: dict[Role, Engine] = {}
        # all folders first: what is missing is said before anything heavy begins
        here = config.engine.holds_weights
        target = config.model.fetch(here)
        drafting = next((d for d in (self.drafter, self.nested) if "draft" in d.uses), None)
        draft = drafting.model.fetch(here) if drafting is not None else None
        own = {role: model.fetch() for role, model in self.rule.models().items()}
        self.drafter, self.nested = self.drafter.prepare(target), self.nested.prepare(target)
        self.text = Text(str(target))
        self.draft_text = Text(str(draft)) if draft is not None else None
        known: dict[Role, tuple[ModelConfig, str]] = {
            "target": (config.model, self.text.fingerprint)
        }
        if self.draft_text is not None and drafting is not None:
            known["draft"] = (drafting.model, self.draft_text.fingerprint)
        facts = KnownModels(known)
        self.drafter, self.nested = self.drafter.bind(facts), self.nested.bind(facts)
        self.rule = self.rule.prepare(facts, config.split, config.temperature)
        if not self.drafter.plain:
            self.rule.hold(config.sampling, drawn_by(config, "draft"))
        places = config.accept.places(facts, config.split)
        self.probes = {r: (f"{p}@{rev}" if rev else p,) for r, (p, rev) in places.items()}
        if not self.nested.plain:
            self.nested_rule = self.nested_rule.prepare(facts, "token", config.temperature)
            self.nested_rule.hold(config.sampling, drawn_by(config, "nested"))
        # of drafts whose tokenizer is another one: their own chat template, by context
        self.draft_prompts: dict[int, list[int]] = {}
        try:
            self.engines["target"] = self._load(target, self.text, "target")
            if draft is not None and drafting is not None:
                self.engines["draft"] = self._load_other(draft, "draft", drafting.own_prompt)
            for role, folder in own.items():
                self.engines[role] = self._load_other(folder, role)
        except BaseException:
            self.close()
            raise
        self.rule = self.rule.on({role: engine.offers for role, engine in self.engines.items()})
        self.driver = Driver(self.engines)

    def _load(self, folder: Path, text: Text, role: Role) -> Engine:
        engine = self._shared.load(self.config.engine, folder, role, self.probes.get(role, ()))
        engine.stop_ids |= (
            text.stop_ids
        )  # a tokenizer may name an end that the weights' files do not
        return engine

    def _load_other(self, folder: Path, role: Role, own_prompt: bool = False) -> Engine:
        text = Text(str(folder))
        build_bridge(self.text, text)  # refuses tokenizers that do not agree, before weights load
        engine = self._load(folder, text, role)
        bridge = build_bridge(
            self.text,
            text,
            target_vocabulary=self.engines["target"].vocabulary,
            draft_vocabulary=engine.vocabulary,
        )
        if bridge is None:
            return engine
        prompts = self.draft_prompts
        return bridged(
            engine, bridge, (lambda context: prompts[context.key]) if own_prompt else None
        )

    @property
    def free(self) -> bool:
        """Whether problems run freely beside each other, and not in lockstep."""
        return self.driver.free

    def kit(self, problem_id: str, prompt: str, mode: Mode, who: str = "") -> Kit:
        """What a drafter or a rule is given.

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
                prompt, ids = self.text.prompt(problem.question, problem.system)
                context = Context(next(self._shared.keys), ids)
                longest = max(len(ids), self.prepare_draft_prompt(context, problem))
                room = self._room(problem, longest, budget or self.config.max_new_tokens)
                begun[context.key] = (problem, prompt)
                yield context, self._plan(context, problem.id, prompt, mode, room)

        for done in self.driver.run(plans(), self.config.concurrency):
            problem, prompt = begun.pop(done.context.key)
            self.draft_prompts.pop(done.context.key, None)
            outcome = replace(done.value, seconds=done.seconds)
            yield Solution(
                problem,
                mode,
                outcome,
                self._turn(prompt, outcome.tokens),
                done.share,
                1 - done.model_seconds / done.seconds if done.seconds else 0.0,
            )

    def _plan(
        self, context: Context, problem_id: str, prompt: str, mode: Mode, room: int
    ) -> Plan[Outcome]:
        config, kit = self.config, self.kit(problem_id, prompt, mode)
        if mode == "plain" or (self.drafter.plain and self.nested.plain):
            return decode_plainly(context, kit, room)
        drafter = self.drafter.open(self.kit(problem_id, prompt, mode, "draft"))
        pace = Adaptive if config.adaptive else Steady
        length = (self.drafter.reach if config.split == "token" else 0) or config.draft_length
        extras = Extras(
            pen=None if self.nested.plain else self._pen(problem_id, prompt, mode),
            ahead=config.ahead,
            thinking=Thinking(self.text.piece) if config.answer_by == "target" else None,
        )
        return speculate(
            context,
            kit,
            drafter,
            self.rule.open(kit),
            room,
            pace(length, config.longest_unit),
            extras,
        )

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
        length = self.nested.reach or self.config.nested_length
        return Pen(self.nested.open(kit), self.nested_rule.open(kit), length)

    def prepare_draft_prompt(self, context: Context, problem: BenchmarkProblem) -> int:
        """Prepares the draft's own prompt, where it reads one; how long that is."""
        engine = self.engines.get("draft")
        if not isinstance(engine, BridgedEngine) or engine.draft_prompt is None:
            return 0
        assert self.draft_text is not None
        _, ids = self.draft_text.prompt(problem.question, problem.system)
        self.draft_prompts[context.key] = ids
        return len(ids)

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
        text = self.said(tokens)
        opened = prompt.rstrip().endswith(OPEN)
        return prompt[prompt.rindex(OPEN) :] + text if opened else text

    def close(self) -> None:
        if self._own:
            self._shared.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
