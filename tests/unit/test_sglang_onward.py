"""engine=sglang without a server: texts that a server goes on writing between two answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from semspec.engines._sglang.engine import SglangEngine
from semspec.types import LOGPROBS, Answer, Boundary, Context, Generate, Query, Sampling
from tests.support.talking import Writer, engine_at, speaking


class Fives:
    """Ends a unit after each token that five divides."""

    def feed(self, token: int) -> int | None:
        return 0 if token % 5 == 0 else None


def counting(ids: Sequence[int], rng: random.Random) -> int:
    """The number that follows, up to 90."""
    return ids[-1] % 90 + 1


def served(writer: Writer, use: Callable[[SglangEngine], None]) -> None:
    def used(url: str) -> None:
        with engine_at(url) as engine:
            use(engine)

    asyncio.run(speaking(writer.talk, lambda url: asyncio.to_thread(used, url)))


def ask(
    engine: SglangEngine, context: Context, onward: int, limit: int = 0, boundary: bool = True
) -> Answer:
    ends: Boundary | None = Fives() if boundary else None
    generate = Generate(limit or onward or 40, ends, onward=onward)
    query = Query("target", context, Sampling(0.5), random.Random(0), generate=generate)
    (answer,) = engine.answer([query])
    context.extend(answer.tokens)
    return answer


def test_answers_that_follow_one_another_are_one_stream() -> None:
    writer = Writer(counting, pause=0.004)

    def use(engine: SglangEngine) -> None:
        context, began = Context(1, [1]), time.perf_counter()
        answers = [ask(engine, context, 40 - len(context.output)) for _ in range(4)]
        took = time.perf_counter() - began
        assert [answer.tokens for answer in answers] == [
            [2, 3, 4, 5],
            *([n + i for i in range(1, 6)] for n in (5, 10, 15)),
        ]
        assert all(answer.finish == "units" and answer.onward for answer in answers)
        # the prompt is read once, and no second counts twice
        assert [answer.fed - len(answer.tokens) for answer in answers] == [1, 0, 0, 0]
        assert all(answer.seconds > 0 for answer in answers)
        assert 0.02 < sum(answer.seconds for answer in answers) < took

    served(writer, use)
    (request,) = writer.asked
    assert request["sampling_params"]["max_new_tokens"] == 40
    assert "stop" not in request["sampling_params"]


def test_rows_of_tokens_are_one_stream_too() -> None:
    writer = Writer(counting)

    def use(engine: SglangEngine) -> None:
        context = Context(1, [1])
        for _ in range(3):
            answer = ask(engine, context, 40 - len(context.output), limit=7, boundary=False)
            assert answer.finish == "limit" and len(answer.tokens) == 7
        assert context.output == list(range(2, 23))

    served(writer, use)
    assert len(writer.asked) == 1


def test_who_asks_for_no_more_than_an_answer_ends_the_stream() -> None:
    writer = Writer(counting, pause=0.004)

    def use(engine: SglangEngine) -> None:
        context = Context(1, [1])
        ask(engine, context, 900)
        engine.halt(context)
        engine.halt(context)
        until = time.monotonic() + 5
        while not writer.aborted and time.monotonic() < until:
            time.sleep(0.01)
        drawn = writer.drawn
        time.sleep(0.1)
        assert writer.drawn <= drawn + 1 < 100  # the token that was being drawn when the abort came
        assert ask(engine, context, 900).tokens == [6, 7, 8, 9, 10]
        assert ask(engine, context, 0).tokens == [11, 12, 13, 14, 15]  # with a request of its own

    served(writer, use)
    assert len(writer.asked) == 3 and writer.aborted == [one["rid"] for one in writer.asked[:2]]


def test_a_text_that_went_another_way_is_not_continued() -> None:
    writer = Writer(counting, pause=0.004)

    def use(engine: SglangEngine) -> None:
        context = Context(1, [1])
        ask(engine, context, 900)
        context.tokens[-1] = 77
        assert ask(engine, context, 900).tokens == [78, 79, 80]
        other = replace(
            Query("target", context, Sampling(0.5), random.Random(0)), sampling=Sampling(0.7)
        )
        other.generate = Generate(900, Fives(), onward=900)
        (answer,) = engine.answer([other])  # behind the same text, drawn in another way
        assert answer.tokens == [81, 82, 83, 84, 85]

    served(writer, use)
    assert len(writer.asked) == 3


def test_a_pass_over_a_draft_ends_the_stream() -> None:
    writer = Writer(counting, pause=0.004)

    def use(engine: SglangEngine) -> None:
        context = Context(1, [1])
        ask(engine, context, 900)
        judging = Query("target", context, Sampling(0.5), random.Random(0), [7], reads=(LOGPROBS,))
        assert engine.answer([judging])[0][LOGPROBS].tolist() == [-1.0]
        assert ask(engine, context, 0).tokens == [6, 7, 8, 9, 10]

    served(writer, use)
    assert writer.asked[0]["rid"] in writer.aborted


def test_behind_a_stream_that_breaks_off_the_text_goes_on() -> None:
    writer = Writer(counting, breaks=1)

    def use(engine: SglangEngine) -> None:
        context = Context(1, [1])
        for _ in range(3):
            ask(engine, context, 40 - len(context.output))
        assert context.output == list(range(2, 16))

    served(writer, use)
    assert [len(one["input_ids"]) for one in writer.asked] == [1, 4]


def test_the_end_of_the_text_and_that_of_the_room_end_the_stream() -> None:
    def ends(ids: Sequence[int], rng: random.Random) -> int:
        return ids[-1] + 1 if ids[-1] < 13 else 0

    writer = Writer(ends)

    def use(engine: SglangEngine) -> None:
        context = Context(1, [1])
        answers = [ask(engine, context, 40 - len(context.output)) for _ in range(3)]
        assert answers[-1].tokens == [11, 12, 13, 0] and answers[-1].finish == "eos"
        short = Context(2, [1])
        assert ask(engine, short, 6).tokens == [2, 3, 4, 5]
        assert ask(engine, short, 2).tokens == [6, 7]  # all of it was written by then

    served(writer, use)
    assert len(writer.asked) == 2 and not writer.aborted
