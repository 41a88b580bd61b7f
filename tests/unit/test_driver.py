"""Questions that may be asked at the same time."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

from semspec.driver import Driver
from semspec.engines.toy import Toy, ToyEngine
from semspec.loop import together
from semspec.protocols import Plan
from semspec.types import Answer, Context, Generate, Query, Role, Sampling


class Meeting(ToyEngine):
    """A toy engine whose answers wait for the other model to be asked as well."""

    def __init__(self, engine: ToyEngine, barrier: threading.Barrier) -> None:
        super().__init__(engine.logits)
        self.barrier = barrier

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        self.barrier.wait(timeout=20)  # raises unless both models are at work
        return super().answer(queries)


def write(model: Role, context: Context, rng: random.Random, times: int) -> Plan[list[int]]:
    tokens: list[int] = []
    for _ in range(times):
        answer: Answer = yield Query(
            model, context, Sampling(1.0), rng, tokens=tokens, generate=Generate(2)
        )
        tokens += answer.tokens
    return tokens


def test_two_models_run_side_by_side() -> None:
    barrier = threading.Barrier(2)
    engines = {role: Meeting(engine, barrier) for role, engine in Toy().models().items()}
    context = Context(1, [0, 1])
    plan = together(
        write("target", context, random.Random(1), 3), write("draft", context, random.Random(2), 3)
    )
    ((done),) = Driver(engines).run([(context, plan)])  # type: ignore[arg-type]
    assert [len(tokens) for tokens in done.value] == [6, 6]


def test_plans_of_different_length_and_their_own_numbers() -> None:
    """Side by side or one after the other, each writes the same."""
    for first, second in ((3, 1), (1, 4), (2, 0), (0, 0)):
        context = Context(1, [0, 1])
        plans = [
            write("target", context, random.Random(1), first),
            write("draft", context, random.Random(2), second),
        ]
        driver = Driver(dict(Toy().models()))  # type: ignore[arg-type]
        ((both),) = driver.run([(context, together(*plans))])
        alone = []
        for role, seed, times in (("target", 1, first), ("draft", 2, second)):
            plan = write(role, context, random.Random(seed), times)  # type: ignore[arg-type]
            ((done),) = driver.run([(context, plan)])
            alone.append(done.value)
        assert list(both.value) == alone
