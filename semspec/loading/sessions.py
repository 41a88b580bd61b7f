"""Open the kits and the sessions of drafters, rules and stoppers that work on one problem and hold its state."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from semspec import registry
from semspec.choices.inside import asked_of
from semspec.decoding.stopping import Stopping, behind
from semspec.decoding.thinking import Thinking
from semspec.decoding.writing import Pen
from semspec.drafters import reference
from semspec.driver import Timed
from semspec.loading.loaded import Loaded
from semspec.loop import Speculation
from semspec.protocols import DraftSession, Kit
from semspec.results.records import Mode
from semspec.splitters.paragraph import ParagraphBoundary
from semspec.splitters.token import TokenBoundary
from semspec.types import Boundary, Context, Round

LONGEST_STEP = 512  # most tokens of a step for the stopper where tokens are the unit


class Sessions(Loaded):
    """Opens what works on one problem, with the loaded models and plugins."""

    def kit(self, problem_id: str, prompt: str, mode: Mode, who: str = "") -> Kit:
        """Make the kit of a drafter or a rule for one problem.

        Its random numbers depend only on the seed, the problem, the mode and ``who`` draws them: a drafter that works
        ahead while the rule judges must not change what the rule draws.
        """
        config = self.config
        return Kit(
            prompt=prompt,
            sampling=config.sampling,
            boundary=lambda: self.splitter.open(self.text.piece, config.longest_unit),
            stop_ids=self.stop_ids,
            piece=self.text.piece,
            decode=self.text.decode,
            encode=self.text.encode,
            aside=lambda question, prefill: self.text.aside(question, prefill)[1],
            rng=random.Random(f"{config.seed} {problem_id} {mode} {who}".rstrip()),
            evidence=self.rule.evidence(),
            compares=self.rule.compares,
            gate=self.rule.gate(),
            salvage=config.salvage,
            max_repeats=config.max_repeats if config.split != "token" else 0,
            trees=self.rule.trees and config.split == "token",
            layers=self.engines["target"].layers,
        )

    def speculation(
        self,
        context: Context,
        problem_id: str,
        prompt: str,
        room: int,
        rounds: list[Round],
        references: Sequence[Sequence[int]] = (),
        tenant: str = "",
    ) -> Speculation:
        """Return a problem that ``loop.speculate`` can solve.

        ``references``: texts that the answer may repeat. It may also repeat earlier answers to ``tenant``.
        """
        mode: Mode = "speculative"
        config, kit = self.config, self.kit(problem_id, prompt, mode)
        texts: dict[str, Any] = {
            "references": references,
            "earlier": self.earlier.of(tenant) if self.earlier else None,
        }
        length = self.draft_length

        def opening() -> DraftSession:
            drafting = replace(self.kit(problem_id, prompt, mode, "draft"), **texts)
            drafter: DraftSession = self.drafter.open(drafting)
            if not refers:
                return drafter
            return reference.beside(drafter, drafting, self.draft_length, self.drafter.rows)

        refers = self.beside and bool(references) and not self.drafter.refers
        # with fixed lengths, drafting begins in the first round, so open at once
        waits = bool(self.pacing.economies) and not refers
        drafter = self.opener(opening) if waits else opening()
        if refers:
            length = max(length, reference.LONGEST) if config.split == "token" else length
        pen = None if self.nested.plain else self._pen(problem_id, prompt, mode, texts)
        thinking = Thinking(self.text.piece) if config.answer_by == "target" else None
        if thinking is not None:
            thinking.feed(context.output)
        pair, cap = (self.drafter, self.rule), config.longest_unit
        if config.split == "token":
            chain = config.lengths["draft_length"]
            pace = self.pacing.of_tokens(
                "draft", pair, drafter, config.sampling, length, cap, chain, refers
            )
        else:
            pace = self.pacing.of_steps("draft", pair, drafter, length, cap, refers)
        return Speculation(
            context,
            kit,
            room,
            Timed(drafter, self.pacing.costs),
            self.rule.open(kit),
            pace,
            pen=pen,
            ahead=config.ahead,
            thinking=thinking,
            rounds=rounds,
            inside=self._asked_inside(bool(references) and self.beside),
        )

    def _pen(self, problem_id: str, prompt: str, mode: Mode, texts: Mapping[str, Any]) -> Pen:
        """Return the pen that helps the target write its own units by tokens; ``texts``: what its drafter may copy from."""
        config = self.config
        kit = replace(
            self.kit(problem_id, prompt, mode, "nested"),
            **texts,
            boundary=TokenBoundary,
            evidence=self.nested_rule.evidence(),
            compares=self.nested_rule.compares,
            gate=None,
            salvage=False,
            max_repeats=0,
            trees=self.nested_rule.trees,
        )
        nested = self.nested.open(kit)
        pair = self.nested, self.nested_rule
        chain = config.lengths["nested_length"]
        pace = self.pacing.of_tokens(
            "nested", pair, nested, config.sampling, self.nested_length, chain=chain
        )
        return Pen(Timed(nested, self.pacing.costs), self.nested_rule.open(kit), pace)

    def _asked_inside(self, references: bool) -> Mapping[str, Any] | None:
        """Return the options of a request for a whole problem; None if the loop runs here.

        The loop runs here for a rule that only measures, for references, which the small model does not copy, and for a
        stopper, which is asked between steps.
        """
        measures = type(self.rule) is not type(self.config.accept)
        copies = references and self.drafts_here
        if self.inside is None or measures or copies or not self.stop.plain:
            return None
        return asked_of(self.config, self.rule, self.inside)

    # ---- the end of its thinking ----------------------------------------------------------------

    def stopping(
        self, problem_id: str, prompt: str, room: int, most: int | None = None
    ) -> Stopping:
        """Return what finds the end of a problem's thinking; the thinking takes at most ``most`` tokens."""
        kit = self.kit(problem_id, prompt, "speculative", "stop")
        name = registry.name_of(self.config.stop)
        most = self.room_to_think(room) if most is None else most
        return Stopping.of(self.stop, name, kit, self.step_boundary, most)

    def step_boundary(self) -> Boundary:
        """Return the boundary of steps: the split's units, or paragraphs if the split is by tokens."""
        if self.config.split == "token":
            return ParagraphBoundary(self.text.piece, LONGEST_STEP)
        return self.splitter.open(self.text.piece, self.config.longest_unit)

    def behind(self, context: Context, written: Sequence[int]) -> Context:
        """Return a context with the same prompt and engine session, but ``written`` as its output so far."""
        self.rewind(context)
        return behind(context, written)
