"""The driver: which engine is queried when, and how times are measured."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from semspec.decoding.costs import Costs
from semspec.decoding.pace import Steady
from semspec.decoding.plans import together
from semspec.drafters._base import DraftSessionBase
from semspec.driver import SPARED, Driver, Timed, lockstep, running
from semspec.driver import timed as timed_by
from semspec.driver.inbox import Given
from semspec.engines.toy import Toy, ToyEngine
from semspec.errors import UserError
from semspec.loop import Speculation, speculate
from semspec.protocols import Kit, Plan
from semspec.rules.lossless import Lossless
from semspec.types import EMBEDDINGS, Answer, Context, Draft, Generate, Query, Role, Room, Sampling
from tests.support.law import PROMPT, toy_kit


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


def test_plans_of_different_length_write_the_same_side_by_side() -> None:
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


class Remote(ToyEngine):
    """A toy engine that is asked as servers are: each answer comes when it comes."""

    def __init__(self, engine: ToyEngine, slow: int | None = None) -> None:
        super().__init__(engine.logits)
        self.pool, self.slow, self.free = ThreadPoolExecutor(8), slow, threading.Event()
        self.forgotten: list[int] = []

    def submit(self, query: Query) -> Future[Answer]:
        return self.pool.submit(self._later, query)

    def _later(self, query: Query) -> Answer:
        if query.context.key == self.slow:
            assert self.free.wait(timeout=20)
        return self._answer(query)

    def forget(self, context: Context) -> None:
        self.forgotten.append(context.key)


class Onward(Remote):
    """One that is told where nobody wants more than was asked for."""

    def __init__(self, engine: ToyEngine) -> None:
        super().__init__(engine)
        self.halted: list[int] = []

    def halt(self, context: Context) -> None:
        self.halted.append(context.key)


def test_who_asks_another_model_wants_no_more_of_what_is_written_onward() -> None:
    models = Toy().models()
    target, draft = Onward(models["target"]), Remote(models["draft"])
    seen: list[int] = []

    def plan(context: Context) -> Plan[None]:
        for model in ("target", "target", "draft", "target"):
            yield from write(model, context, random.Random(0), 1)  # type: ignore[arg-type]
            seen.append(len(target.halted))

    list(
        Driver({"target": target, "draft": draft}).run(
            [(context, plan(context)) for context in [Context(7, [0, 1])]]
        )
    )
    assert seen == [0, 0, 1, 1] and target.halted == [7]


def plans(count: int) -> list[tuple[Context, Plan[list[int]]]]:
    made = []
    for key in range(count):
        context = Context(key, [0, key % 3])
        made.append((context, write("target", context, random.Random(key), 1 + key % 4)))
    return made


def test_plans_run_freely_over_servers_and_write_the_same() -> None:
    target = Toy().models()["target"]
    expected = {d.context.key: d.value for d in Driver({"target": target}).run(plans(9), 3)}
    engine = Remote(target, slow=0)
    driver = Driver({"target": engine})
    assert driver.free
    assert not Driver({"target": target}).free
    began = time.perf_counter()
    done = []
    for one in driver.run(plans(9), 3):
        done.append(one)
        if len(done) == 8:  # the slow one has held up nobody
            assert 0 not in {d.context.key for d in done}
            engine.free.set()
    took = time.perf_counter() - began
    assert {d.context.key: d.value for d in done} == expected
    assert sorted(engine.forgotten) == list(range(9))
    shares = [d.share for d in done if d.share is not None]
    assert len(shares) == 9
    assert 0.5 * took < sum(shares) <= took  # the driver was hardly ever without a plan


def test_a_query_that_began_under_one_load_and_ended_under_another_is_no_price_of_either() -> None:
    target, costs = Toy().models()["target"], Costs()
    engine = Remote(target, slow=0)
    ended = []
    for one in Driver({"target": engine}, costs).run(plans(4), 4):
        ended.append(one.context.key)
        if len(ended) == 3:  # the slow one has waited beside three others, and is alone now
            engine.free.set()
    assert ended[-1] == 0
    assert costs.curve("target", "write", 4) is not None
    assert costs.curve("target", "write", 1) is None


class Breaking(Remote):
    def _later(self, query: Query) -> Answer:
        if query.context.key == 2:
            raise UserError("gone")
        return super()._later(query)


def test_an_error_of_a_server_ends_the_run_and_forgets_every_context() -> None:
    engine = Breaking(Toy().models()["target"])
    with pytest.raises(UserError, match="gone"):
        list(Driver({"target": engine}).run(plans(6), 3))
    assert set(engine.forgotten) >= {2}


class Clock:
    """A clock that only moves when somebody works."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Working(ToyEngine):
    """A toy engine whose batches take ten seconds."""

    def __init__(self, engine: ToyEngine, clock: Clock) -> None:
        super().__init__(engine.logits)
        self.clock = clock

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        self.clock.now += 10
        answers = super().answer(queries)
        for answer in answers:
            answer.seconds = 10
        return answers


class Asking(DraftSessionBase):
    """Works for one, two and four seconds around one question and two at a time."""

    def __init__(self, kit: Kit, clock: Clock) -> None:
        self.kit, self.clock = kit, clock

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        query = Query(
            "draft",
            context,
            self.kit.sampling,
            self.kit.rng,
            generate=Generate(1),
            purpose="draft",
        )
        self.clock.now += 1
        answer: Answer = yield query
        self.clock.now += 2
        yield query, query
        self.clock.now += 4
        return Draft(answer.tokens, [1])


@pytest.mark.parametrize("timed", [True, False])
def test_a_drafters_own_work_is_timed_by_the_driver_and_waiting_is_not_its_own(
    timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    for module in (lockstep, running, timed_by):
        monkeypatch.setattr(module, "time", clock)
    engines = {role: Working(engine, clock) for role, engine in Toy().models().items()}
    context, rule = Context(1, PROMPT), Lossless()
    kit = toy_kit(rule, engines["target"], Sampling(0.0), 1)
    session = Asking(kit, clock)
    problem = Speculation(
        context, kit, 6, Timed(session) if timed else session, rule.open(kit), Steady(1, 1)
    )
    (done,) = Driver(engines).run([(context, speculate(problem))])  # type: ignore[arg-type]
    own = 7 if timed else 0
    for one in done.value.rounds:
        # three answers of ten seconds each, two of them in one batch
        assert one.draft_seconds == one.seconds["draft"] == 30 + own
        assert one.seconds["verify"] == 10
    rounds = len(done.value.rounds)
    assert (done.seconds, done.model_seconds) == (37 * rounds, 30 * rounds)


def test_drafts_come_first_where_others_wait_for_the_target() -> None:
    """Both then wait for the target together: who drafts does not wait for two answers of those who write."""
    asked: list[tuple[str, list[int]]] = []

    class Noting(ToyEngine):
        def __init__(self, engine: ToyEngine, role: str) -> None:
            super().__init__(engine.logits)
            self.role = role

        def answer(self, queries: Sequence[Query]) -> list[Answer]:
            asked.append((self.role, [query.context.key for query in queries]))
            return super().answer(queries)

    def drafted(context: Context) -> Plan[list[int]]:
        first = yield from write("draft", context, random.Random(0), 2)
        return (yield from write("target", context, random.Random(1), 1)) + first

    engines = {role: Noting(engine, role) for role, engine in Toy().models().items()}
    contexts = [Context(key, [0, 1]) for key in range(2)]
    given = [(contexts[0], drafted(contexts[0])), (contexts[1], write("target", contexts[1], random.Random(2), 1))]  # fmt: skip
    list(Driver(engines, Costs()).run(given, 2))  # type: ignore[arg-type]
    assert asked == [("draft", [0]), ("draft", [0]), ("target", [0, 1])]


def test_who_reads_embeddings_for_a_draft_does_not_wait_for_those_who_write() -> None:
    """Reading the target's embeddings takes no pass, but its answer comes with that of the whole batch."""
    asked: list[list[tuple[int, bool]]] = []

    class Noting(ToyEngine):
        def answer(self, queries: Sequence[Query]) -> list[Answer]:
            asked.append([(query.context.key, query.passes) for query in queries])
            if all(query.passes for query in queries):
                return super().answer(queries)
            return [Answer() for _ in queries]

    def drafted(context: Context) -> Plan[list[int]]:
        for _ in range(2):
            yield Query("target", context, Sampling(1.0), random.Random(0), reads=(EMBEDDINGS,))
        return (yield from write("target", context, random.Random(1), 1))

    engines = {"target": Noting(Toy().models()["target"].logits)}
    contexts = [Context(key, [0, 1]) for key in range(2)]
    given = [(contexts[0], drafted(contexts[0])), (contexts[1], write("target", contexts[1], random.Random(2), 1))]  # fmt: skip
    list(Driver(engines, Costs()).run(given, 2))  # type: ignore[arg-type]
    assert asked == [[(0, False)], [(0, False)], [(0, True), (1, True)]]


def test_who_waits_for_the_target_is_not_kept_waiting_by_drafts() -> None:
    """Some rules ask the small model again and again, as long as it is sure."""
    ended: list[int] = []

    def drafts_on(context: Context) -> Plan[int]:
        for _ in range(100):
            yield from write("draft", context, random.Random(0), 1)
        return 0

    def writes(context: Context) -> Plan[int]:
        yield from write("target", context, random.Random(1), 1)
        return 1

    contexts = [Context(key, [0, 1]) for key in range(2)]
    given = [(contexts[0], drafts_on(contexts[0])), (contexts[1], writes(contexts[1]))]
    for turns, done in enumerate(Driver(Toy().models()).turns(given, 2)):
        if done is not None:
            ended.append(done.value)
            if done.value == 1:
                assert turns <= SPARED + 2
    assert ended == [1, 0]


def test_turns_that_nobody_waited_for_do_not_count_against_drafts() -> None:
    """While a plan runs alone it keeps nobody waiting, however many drafts came first before."""

    def asks(role: Role, key: int) -> running.Running[list[int]]:
        context = Context(key, [0, 1])
        plan = write(role, context, random.Random(0), 1)
        return running.Running(context, plan, next(plan))

    drafting, writing = asks("draft", 0), asks("target", 1)
    way = lockstep.Lockstep[list[int]]({}, None, Given([]), 2, lambda _: None, threads=ThreadPoolExecutor)  # fmt: skip
    way.running = [drafting, writing]
    for _ in range(SPARED):
        assert way._next() == [drafting]
    way.running = [drafting]
    assert way._next() == [drafting]
    way.running = [drafting, writing]
    assert way._next() == [drafting]
