"""Defaults for rules, and the setup checks that follow from what a rule declares."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal, Self

from semspec import registry
from semspec.deferred import Tensor
from semspec.errors import UserError
from semspec.models.location import ModelConfig
from semspec.protocols import Bench, InServer, Plugin, ProbeSource, Run, Setup, Verified
from semspec.types import Gate, Read, Role, What, names_of


class RuleBase(Plugin):
    """Defaults of ``protocols.Rule``; a rule overrides what is different."""

    needs: ClassVar[frozenset[What]] = frozenset()
    cuts: ClassVar[Literal["tokens", "ends"]] = "ends"
    splits: ClassVar[frozenset[str] | None] = None
    trees: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    salvages: ClassVar[bool] = True
    reserve: ClassVar[int] = 0
    lossless: ClassVar[bool] = False
    greedy_only: ClassVar[bool] = False
    may_change: ClassVar[tuple[str, ...]] = ()
    in_server: ClassVar[InServer | None] = None

    def models(self) -> Mapping[Role, ModelConfig]:
        return {}

    @property
    def idle(self) -> bool:
        return self.lossless

    def asked_inside(self) -> Mapping[str, Any]:
        asked = self.in_server.asked if self.in_server is not None else {}
        return {name: value for name in asked if (value := getattr(self, name)) is not None}

    def keeps(self, seen: Verified) -> Tensor:
        raise AssertionError(f"{registry.name_of(self)} declares nothing that it keeps")

    @classmethod
    def default_for(cls, target: str, split: str, given: Collection[str]) -> tuple[int, str] | None:
        return None

    def asked_risk(self) -> Mapping[str, float]:
        return {}

    def probe_sources(self, run: Run) -> Mapping[Role, ProbeSource]:
        return {}

    def evidence(self) -> tuple[Read, ...]:
        return ()

    def gate(self) -> Gate | None:
        return None

    def measure(self, bench: Bench) -> Self:
        return self

    def measured(self) -> Mapping[str, Any]:
        return {}

    def origin(self) -> str:
        return ""

    def check_setup(self, setup: Setup) -> None:
        me, drafter = setup.rule_choice, setup.drafter
        if self.greedy_only and not setup.sampling.greedy and not drafter.plain:
            raise UserError(
                f"{me} always writes the most likely token, which changes the target's"
                " output at this temperature: set temperature=0, or use"
                f" {setup.accept_option}=lossless"
            )
        if setup.nested and self.cuts != "tokens":
            raise UserError(
                f"{me} judges whole steps, and nested drafts are single tokens: use"
                " nested_accept=lossless"
            )
        if not setup.nested and self.splits is not None and setup.split not in self.splits:
            raise UserError(
                f"{me} does not support split={setup.split}: use"
                f" split={' or split='.join(sorted(self.splits))}, or another rule"
            )
        if setup.salvage:
            self._check_salvage(setup)
        if self.compares and not drafter.rows and not drafter.plain:
            raise UserError(
                f"{me} compares the drafter's probabilities with the target's, and"
                f" {setup.drafter_choice} has no probabilities: use {setup.draft_option}=lm,"
                f" or {setup.accept_option}=typical"
            )
        setup.check_models(me, self.models(), "rule")
        # without drafts the rule is never asked
        if (missing := self.needs - setup.engine.offers) and not drafter.plain:
            verified, otherwise = setup.engine.verifies(setup)
            if not verified:
                self._refuse_reads(setup, missing, otherwise)
        if setup.salvage and What.PROBS not in setup.engine.offers:
            raise UserError(
                f"salvage=true needs {What.PROBS.value}, which {setup.engine_choice} cannot"
                " return: leave salvage out, or use engine=hf"
            )

    def _check_salvage(self, setup: Setup) -> None:
        if self.cuts == "tokens":
            raise UserError(
                "salvage=true needs a rule that judges whole steps, and"
                f" {setup.rule_choice} judges single tokens: leave salvage out, or choose"
                " another rule"
            )
        if not self.salvages:
            raise UserError(
                f"salvage=true: {setup.rule_choice} rejects steps without the target's pass"
                " over them, so nothing can be salvaged: leave salvage out, or choose"
                " another rule"
            )

    def _refuse_reads(self, setup: Setup, missing: Collection[What], otherwise: str = "") -> None:
        reads = f"needs {names_of(missing)}, which {setup.engine_choice} cannot return"
        others = [
            name
            for name, known in registry.plugins("accept").items()
            if known.cls.needs <= setup.engine.offers
            and (setup.engine.roles is None or set(known.cls().models()) <= setup.engine.roles)
            and (known.cls.splits is None or setup.split in known.cls.splits)
            and (setup.sampling.greedy or not known.cls.greedy_only)
            and (not setup.nested or known.cls.cuts == "tokens")
        ]
        if not setup.nested:
            raise UserError(
                f"{setup.rule_choice} {reads}: use engine=hf,"
                f" {otherwise and otherwise + ', '}or a rule that works without"
                f" ({', '.join(others)})"
            )
        if not setup.drafter.plain:
            way_out = "".join(f", nested_accept={name}" for name in others)
            raise UserError(
                f"{setup.rule_choice} judges {setup.drafter_choice} and {reads}: leave"
                f" nested out{way_out}, or use engine=hf"
            )
