"""Models, text and methods put together: solves questions in either mode.

solver = Solver(config)
for done in solver.solve(problems, "speculative"): ...
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

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
from semspec.protocols import BenchmarkProblem, Drafter, Engine, Kit, Plan, Run, Splitter
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


class Solver:
    """Holds the models of a configuration; close it, or use it as a context manager."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.drafter, self.rule = config.draft, config.accept
        self.nested, self.nested_rule = config.nested, config.nested_accept
        self.engines: dict[Role, Engine] = {}
        # all folders first: a missing one is reported before anything heavy begins
        here = config.engine.holds_weights
        pairs = [(self.nested, self.nested_rule)] if not self.nested.plain else []
        pairs.append((self.drafter, self.rule))
        models: dict[Role, ModelConfig] = {"target": config.model}
        for (
            drafter,
            rule,
        ) in pairs:  # of two models with one role, that of the run's own pair counts
            models |= {**rule.models(), **drafter.models()}
        drafting = [drafter for drafter, _ in pairs if "draft" in drafter.models()]
        own_prompt = bool(drafting) and drafting[-1].own_prompt
        folders = {role: model.fetch(here) for role, model in models.items()}
        texts = {role: Text(str(folder)) for role, folder in folders.items()}
        self.text, self.draft_text = texts["target"], texts.get("draft")
        facts = KnownModels({role: (models[role], texts[role].fingerprint) for role in models})

        def run(split: str, drafter: Drafter) -> Run:
            return Run(
                models=facts,
                folders=folders,
                split=split,
                sampling=config.sampling,
                offers=config.engine.offers,
                drafts=drawn_by(drafter),
            )

        outer, nested = run(config.split, self.drafter), run("token", self.nested)
        self.splitter: Splitter = registry.plugin("split", config.split).cls().bind(outer)
        self.probes = {role: (str(at),) for role, at in self.rule.probe_sources(outer).items()}
        self.drafter, self.rule = self.drafter.bind(outer), self.rule.bind(outer)
        if not self.nested.plain:
            self.nested, self.nested_rule = self.nested.bind(nested), self.nested_rule.bind(nested)
        # of drafts whose tokenizer is another one: their own chat template, by context
        self.draft_prompts: dict[int, list[int]] = {}
        try:
            self.engines["target"] = self._load(folders["target"], self.text, "target")
            for role in [role for role in models if role != "target"]:
                own = own_prompt and role == "draft"
                self.engines[role] = self._load_other(folders[role], texts[role], role, own)
        except BaseException:
            self.close()
            raise
        self.driver = Driver(self.engines)
        self._contexts = 0

    def _load(self, folder: Path, text: Text, role: Role) -> Engine:
        engine: Engine = self.config.engine.load(
            str(folder), role=role, probes=self.probes.get(role, ())
        )
        engine.stop_ids |= (
            text.stop_ids
        )  # a tokenizer may name an end that the weights' files do not
        return engine

    def _load_other(self, folder: Path, text: Text, role: Role, own_prompt: bool) -> Engine:
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
                prompt, ids = self.text.prompt(problem.question, problem.system)
                self._contexts += 1
                context = Context(self._contexts, ids)
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
        for engine in self.engines.values():
            engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
