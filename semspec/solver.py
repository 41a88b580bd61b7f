"""Solve problems in either mode with the models and plugins of a configuration.

solver = Solver(config)
for done in solver.solve(problems, "speculative"): ...
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from typing import Any

from semspec import registry
from semspec.choices.inside import why_not
from semspec.choices.survey import check_loaded, check_models, runs_of
from semspec.config import check
from semspec.decoding.costs import Costs, companies
from semspec.decoding.pacing import Pacing
from semspec.decoding.stopping import Stopping, closed
from semspec.decoding.sweep import of_draft, of_target
from semspec.drafters.opening import Opener
from semspec.driver import Driver
from semspec.errors import UserError
from semspec.loading.sessions import Sessions
from semspec.loop import decode_plainly, speculate
from semspec.models.location import canonical_name
from semspec.models.text import OPEN, opening
from semspec.protocols import Bench, BenchmarkProblem, Plan, Rule
from semspec.results import tables
from semspec.results.records import Mode
from semspec.results.stopped import thought
from semspec.stops.none import NoStop
from semspec.types import Context, Outcome, Role, Round

LEAD = 16  # tokens of the prompt remembered before its answer, where a match may begin


@dataclass(frozen=True, slots=True)
class Solution:
    """One problem solved in one mode."""

    problem: BenchmarkProblem
    mode: Mode
    outcome: Outcome
    text: str  # the assistant's whole turn, thinking included
    share: float | None  # its share of the wall time if problems run freely; None in lockstep
    overhead: float  # share of the time outside model passes


class Solver(Sessions):
    """Solves problems with the models of a configuration; see ``Loaded`` for its arguments."""

    # ---- before the first problem ---------------------------------------------------------------

    def load(self) -> None:
        """Load the models, and measure the costs of drafts if their lengths depend on them."""
        super().load()
        if (costs := self.pacing.costs) is not None and not costs.fixed:
            self._sweep(costs)

    def _sweep(self, costs: Costs) -> None:
        """Measure a few queries of each size; the first ones allocate and are not counted."""
        for driver in (Driver(self.engines), *(Driver(self.engines, costs),) * 3):
            for together in companies(self.config.concurrency, every=self.beside):
                for role in [role for role in ("target", "draft") if role in self.engines]:
                    plans = [self._questions(role) for _ in range(together)]
                    list(driver.run(plans, together))

    def _questions(self, role: Role) -> tuple[Context, Plan[None]]:
        text = "Count from one to a hundred, and say of each number whether it is even."
        context, prompt = self._context(BenchmarkProblem("costs", text))
        kit = self.kit("costs", prompt, "plain")
        room = min(e.context_limit for e in self.engines.values()) - len(context) - 1
        offers = self.engines[role].offers
        if role != "target":
            return context, of_draft(role, context, kit, offers, room)
        who = [d.open(kit) for d in (self.drafter, self.nested) if not d.plain]
        trees = self.rule.trees or (self.nested_rule.trees and not self.nested.plain)
        return context, of_target(context, kit, offers, room, who, trees)

    def told_costs(self) -> dict[str, Any]:
        """Return measured costs and learned worth as JSON; empty if draft lengths do not depend on them."""
        costs = self.pacing.costs
        return {} if costs is None else tables.told(costs, self.pacing.economies)

    def measure(
        self,
        problems: Sequence[BenchmarkProblem],
        recorded: Mapping[str, Any] | None = None,
        tell: Callable[[str], None] = lambda _: None,
        standing: Rule | None = None,
    ) -> None:
        """Let the rule measure what it needs on the loaded pair, on questions without their answers.

        ``recorded``: ``rule.measured()`` from an earlier start of the same run. ``standing``: the rule as measured for
        other options.
        """
        config = self.config
        drafts = config.draft.models()
        identity = {
            "files": sorted(set(self.files.values())),
            "servers": dict(self.served),
            "drafter": registry.name_of(config.draft),
            "split": config.split,
            "longest_unit": config.longest_unit,
            **asdict(config.sampling),
        }
        bench = Bench(
            identity=identity,
            target=canonical_name(config.model),
            drafts=not config.draft.plain,
            draft=canonical_name(drafts["draft"]) if "draft" in drafts else None,
            sampling=config.sampling,
            solve=lambda rule, budget: self._tried(rule, problems, budget),
            recorded=recorded,
            tell=tell,
            standing=standing,
        )
        self.rule = self.rule.measure(bench)

    def _tried(
        self, rule: Rule, problems: Sequence[BenchmarkProblem], budget: int
    ) -> Generator[int, None, None]:
        """Solve problems over and over with another rule; yield the number of tokens of each.

        Draft lengths are fixed, and the run's own pacing does not learn from these drafts: from a rule that keeps nothing it
        would learn that drafts are useless.
        """
        if not self.drafts_here:
            return
        own, self.rule = self.rule, rule
        stop, self.stop = self.stop, NoStop()
        pacing, self.pacing = self.pacing, Pacing(self.pacing.costs)
        limit = self.config.max_new_tokens
        try:
            for number in count(1) if problems else ():
                asked = (replace(p, id=f"{p.id}, measured {number}") for p in problems)
                while group := list(islice(asked, self.config.concurrency)):
                    for done in self.solve(group, "speculative", min(budget, limit)):
                        yield len(done.outcome.tokens)
        finally:
            self.rule, self.stop, self.pacing = own, stop, pacing

    # ---- problems -------------------------------------------------------------------------------

    def solve(
        self, problems: Sequence[BenchmarkProblem], mode: Mode, budget: int | None = None
    ) -> Iterator[Solution]:
        """Solve problems, ``concurrency`` at a time; yield solutions as they end."""
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
                opening(prompt) + self.said(outcome.tokens),
                done.share,
                1 - done.model_seconds / done.seconds if done.seconds else 0.0,
            )

    def stream(
        self, problem: BenchmarkProblem, budget: int | None = None
    ) -> Generator[Round, None, None]:
        """Solve one problem speculatively and yield its rounds as they end.

        Closing the iterator gives up the problem and frees the engines' sessions.
        """
        rounds: list[Round] = []
        context, _, plan = self._begin(problem, "speculative", budget, rounds, live=True)
        yielded = 0
        with closing(self.driver.turns([(context, plan)])) as turns:
            for done in turns:
                rounds = rounds if done is None else done.value.rounds
                yield from rounds[yielded:]
                yielded = len(rounds)

    def _begin(
        self,
        problem: BenchmarkProblem,
        mode: Mode,
        budget: int | None,
        rounds: list[Round],
        live: bool = False,
    ) -> tuple[Context, str, Plan[Outcome]]:
        """Return a problem's context, its prompt as text, and the plan that solves it.

        A speculative plan adds its rounds to ``rounds`` as they end; with ``live``, also if a server runs the loop.
        """
        context, prompt = self._context(problem)
        longest = max(len(context), len(context.draft_prompt or ()))
        room = self._room(problem, longest, budget or self.config.max_new_tokens)
        references = [self.text.encode(text) for text in problem.references]
        plain = mode == "plain" or not self.can_draft(bool(references))

        def writing(
            text: Context, name: str, before: list[Round], stopping: Stopping | None = None
        ) -> Plan[Outcome]:
            if plain:
                kit = self.kit(name, prompt, mode)
                if stopping is not None:
                    kit = replace(kit, boundary=self.step_boundary)
                return decode_plainly(text, kit, room, stopping)
            about = prompt, room, before, references, problem.tenant
            speculation = self.speculation(text, name, *about)
            speculation.stopping, speculation.piecewise = stopping, live
            return speculate(speculation)

        def answering(written: list[int], before: list[Round]) -> Plan[Outcome]:
            """Write what follows the closed thinking, with new sessions and random numbers."""
            return writing(self.behind(context, written), f"{problem.id}, answer", before)

        # without room for thinking and answer (a warm-up, the context's end), the stopper is not used
        if mode == "plain" or self.stop.plain or self.room_to_think(room) < 1:
            return context, prompt, writing(context, problem.id, rounds)
        stopping = self.stopping(problem.id, prompt, room)
        thinking = writing(context, problem.id, rounds, stopping)
        return context, prompt, closed(thinking, stopping, room, answering)

    def _context(self, problem: BenchmarkProblem) -> tuple[Context, str]:
        if problem.prompt_ids is not None:
            return self.context(problem.prompt_ids), self.text.decode(list(problem.prompt_ids))
        prompt, ids = self.text.prompt(problem.question, problem.system)
        draft_prompt = self.draft_prompt(problem.question, problem.system)
        return self.context(ids, draft_prompt), prompt

    def _room(self, problem: BenchmarkProblem, prompt: int, budget: int) -> int:
        limit = self.context_limit
        if prompt >= limit:
            raise UserError(
                f"the prompt of '{problem.id}' has {prompt} tokens, and the models' context"
                f" holds {limit}: shorten it, or choose models with a longer context"
            )
        return min(budget, limit - prompt)

    def remember(self, asked: BenchmarkProblem, tokens: Sequence[int]) -> None:
        """Remember an answer for later questions of its tenant, if the drafter uses earlier answers.

        Only this call remembers anything. If it is called in the order of the questions, and no two are solved at
        once, the answers are the same every time.
        """
        if self.earlier is not None:
            self.keep(asked.tenant, self.text.prompt(asked.question, asked.system)[1], tokens)

    def keep(self, tenant: str, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Remember what was written after a prompt, as ``remember`` does."""
        if self.earlier is not None:
            self.earlier.add(tenant, [*prompt[-LEAD:], *tokens])

    def thought(self, solution: Solution) -> int:
        """Count the tokens of a solution's thinking, without a stopper's closing words."""
        opened = solution.text.startswith(OPEN) and not self.said(
            solution.outcome.tokens
        ).startswith(OPEN)
        return thought(solution.outcome, self.text.piece, opened)

    # ---- variants that share the loaded models --------------------------------------------------

    def variant(self, ignore_eos: bool = False, **changes: Any) -> Solver:
        """Return a solver with the same loaded models and other options: sampling, rule, lengths, seed.

        Do not close it. Raise UserError for options that do not go together, and for a rule that needs models or
        probes that are not loaded.
        """
        made = copy.copy(self)
        made._own, made.config = False, replace(self.config, **changes)
        made.opener = Opener()
        if ignore_eos:
            made.stop_ids = frozenset()
        made._settle_lengths()
        if set(changes) == {"seed"}:  # happens for every request
            return made
        check(made.config)
        if set(changes) <= {"seed", "max_new_tokens", "draft_length"}:
            return made
        prints = {role: text.fingerprint for role, text in self._survey.texts.items()}
        check_models(made.config, prints)
        own, nested = runs_of(made.config, prints, self._survey.folders)
        made._sources = made.config.accept.probe_sources(own)
        if self.inside is not None:
            why = why_not(made.config, self.inside, made._sources)
            made.inside = None if why else self.inside
            if why and not self.drafts_here:
                raise UserError(f"the draft model runs inside the target's server, and {why}")
        if made.inside is None:
            check_loaded(made.config, self.engines, self.probes, made._sources)
        made.rule = made.config.accept.bind(own)
        made.stop = made.config.stop.bind(own)
        if not made.config.nested.plain:
            made.nested_rule = made.config.nested_accept.bind(nested)
        made.measure((), standing=self.rule)
        if not set(changes) <= {"seed", "max_new_tokens", "draft_length", "stop"}:
            made.pacing = self.pacing.apart()  # other drafts are accepted now
        return made

    def steady(self) -> Solver:
        """Return this solver with fixed draft lengths, so that a seed gives one text whatever else is running."""
        made = copy.copy(self)
        made._own, made.config = False, replace(self.config, adaptive=False)
        made.pacing = Pacing(self.pacing.costs)
        made._settle_lengths()
        return made

    def _settle_lengths(self) -> None:
        """Set the draft lengths by the options, unless a drafter's own options set them."""
        if not self.reach:
            self.draft_length = self.config.lengths["draft_length"]
        if not self.nested.reach:
            self.nested_length = self.config.lengths["nested_length"]

    def unstopped(self) -> Solver:
        """Return this solver without a stopper: the same seed gives the same text up to where it would stop, and beyond."""
        made = copy.copy(self)
        made._own, made.stop = False, NoStop()
        return made
