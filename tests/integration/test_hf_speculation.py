"""The whole loop on engine=hf: greedy lossless speculation writes what the target would write."""

from __future__ import annotations

import random
from typing import Any

import pytest

from semspec.decoding.pace import Steady
from semspec.driver import Driver
from semspec.loop import Speculation, decode_plainly, speculate
from semspec.protocols import Kit, Plan
from semspec.registry import plugin
from semspec.splitters.token import TokenSplit
from semspec.types import Context, Outcome, Sampling
from tests.support.tiny_models import VOCABULARY, load, tokens

PROBLEMS = [tokens(10 + 7 * k, seed=k) for k in range(3)]


def piece(token: int) -> str:
    return f"t{token} "


def kit(rule: Any) -> Kit:
    return Kit(
        prompt="",
        sampling=Sampling(temperature=0.0),
        boundary=lambda: TokenSplit().open(piece, 8),
        stop_ids=frozenset({VOCABULARY - 1}),
        piece=piece,
        decode=lambda ids: "".join(map(piece, ids)),
        encode=lambda text: [],
        rng=random.Random(0),
        evidence=rule.evidence() if rule else (),
    )


def run(engines: Any, concurrency: int, rule: Any = None, drafter: Any = None) -> list[list[int]]:
    def plan(context: Context) -> Plan[Outcome]:
        own = kit(rule)
        if rule is None:
            return decode_plainly(context, own, 40)
        drafting, judging = drafter.open(own), rule.open(own)
        return speculate(Speculation(context, own, 40, drafting, judging, Steady(4, 8)))

    contexts = [Context(i, prompt) for i, prompt in enumerate(PROBLEMS)]
    done = Driver(engines).run(iter([(c, plan(c)) for c in contexts]), concurrency)
    return [d.value.tokens for d in sorted(done, key=lambda d: d.context.key)]


@pytest.mark.parametrize("draft", ["llama", "qwen3"])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_greedy_speculation_is_greedy_decoding(draft: str, concurrency: int) -> None:
    rule, drafter = plugin("accept", "lossless").cls(), plugin("drafter", "lm").cls()
    target = load("llama")
    plain = run({"target": target}, 1)
    assert all(len(output) == 40 or output[-1] == VOCABULARY - 1 for output in plain)
    engines = {"target": target, "draft": load(draft)}
    assert run(engines, concurrency, rule, drafter) == plain
