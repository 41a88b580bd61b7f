"""Stoppers on the toy engine, with the pieces of ``law`` and thinking that the prompt has opened."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from semspec.decoding.pace import Steady
from semspec.decoding.stopping import Stopping, Thought, behind, closed, room_to_think
from semspec.driver import Driver
from semspec.engines.toy import ToyEngine
from semspec.loop import Speculation, decode_plainly, speculate
from semspec.protocols import Drafter, Kit, Plan, Rule, Stopper
from semspec.splitters.paragraph import ParagraphBoundary
from semspec.types import Context, Outcome
from tests.support.law import PROMPT, own_rng, piece

BUDGET = 60


def stopping(stop: Stopper, kit: Kit, budget: int = BUDGET) -> Stopping:
    """Return the ``Stopping`` that the solver makes for a problem whose prompt has opened the thinking."""
    closing = stop.closing
    return Stopping(
        session=stop.open(own_rng(kit, "stop")),
        name="tried",
        thought=Thought(piece, opened=True),
        boundary=ParagraphBoundary(piece, 8),
        closing=closing,
        encode=kit.encode,
        stop_ids=kit.stop_ids,
        most=room_to_think(closing, kit.encode, budget),
    )


def solved(
    models: Mapping[str, ToyEngine],
    kit: Kit,
    pair: tuple[Drafter, Rule] | None,
    stop: Stopper | None,
    budget: int = BUDGET,
) -> tuple[Outcome, Stopping | None]:
    """Solve a problem with a pair, or by the target alone; without ``stop`` it is never stopped."""
    context = Context(1, PROMPT)
    kit = replace(kit, rng=random.Random(repr(kit.rng.getstate())))
    watching = stopping(stop, kit, budget) if stop is not None else None

    def plan(text: Context, own: Kit, **more: Any) -> Plan[Outcome]:
        if pair is None:
            step = replace(own, boundary=lambda: ParagraphBoundary(piece, 8))
            return decode_plainly(text, step, budget, **more)
        drafter, rule = pair
        sessions = drafter.open(own_rng(own, "draft")), rule.open(own)
        return speculate(Speculation(text, own, budget, *sessions, Steady(3, 4), **more))

    def answering(written: list[int], before: Any) -> Plan[Outcome]:
        return plan(behind(context, written), own_rng(kit, "answer"))

    whole = plan(context, kit) if watching is None else plan(context, kit, stopping=watching)
    if watching is not None:
        whole = closed(whole, watching, budget, answering)
    (done,) = Driver(models).run([(context, whole)])
    return done.value, watching
