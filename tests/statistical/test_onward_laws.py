"""A server that writes onward, with part of it dropped: the text has the law of one requested token by token."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from scipy.stats import chisquare

from semspec.engines._sglang.engine import SglangEngine
from semspec.engines.toy import Toy
from semspec.splitters.token import TokenBoundary
from semspec.types import Context, Generate, Query, Sampling
from tests.support.deep import samples
from tests.support.talking import Writer, engine_at, speaking

pytestmark = pytest.mark.deep(quick=True)
SAMPLES = samples(quick=1_500, deep=6_000)
SURE = 1e-4
PROMPT = (2, 1)
TOY, SAMPLING = Toy(vocabulary=3, seed=1).models()["target"], Sampling(1.0)
TABLE = TOY._rows(SAMPLING)
SHIFT = 1  # 0 would end the text


def draw(ids: Sequence[int], rng: random.Random) -> int:
    weights = TABLE[ids[-2] - SHIFT, ids[-1] - SHIFT].tolist()
    return rng.choices(range(SHIFT, SHIFT + len(weights)), weights)[0]


def texts(engine: SglangEngine, count: int, faulty: bool) -> Counter[tuple[int, ...]]:
    """Draw texts of three tokens, each asked for by itself; between two of them the stream may be ended.

    ``faulty``: it is ended because of what it has written ahead.
    """
    found, coin = Counter[tuple[int, ...]](), random.Random(1)
    for number in range(count):
        context = Context(number, [token + SHIFT for token in PROMPT])
        for _ in range(3):
            generate = Generate(5, TokenBoundary(), onward=5)
            query = Query("target", context, SAMPLING, random.Random(0), generate=generate)
            (answer,) = engine.answer([query])
            context.extend(answer.tokens)
            kept = engine._streams._onward.get(context.key)
            if (faulty and kept is not None and kept.ready and kept.ready[0] == SHIFT) or (
                context.output[-1] == SHIFT and coin.random() < 0.7
            ):
                engine.halt(context)
        engine.forget(context)
        found[tuple(token - SHIFT for token in context.output)] += 1
    return found


def p_value(faulty: bool) -> float:
    writer = Writer(draw)

    def drawn(url: str) -> Counter[tuple[int, ...]]:
        with engine_at(url) as engine:
            engine._streams._size.interval = lambda: 3  # type: ignore[method-assign]
            return texts(engine, SAMPLES, faulty)

    found = asyncio.run(speaking(writer.talk, lambda url: asyncio.to_thread(drawn, url)))
    law = TOY.law(PROMPT, 3, SAMPLING)
    assert sum(found[text] for text in law) == SAMPLES
    assert len(writer.asked) < 2 * SAMPLES  # most of the texts are one stream
    whole = sum(law.values())  # 1, but for its last digits
    expected = [SAMPLES * p / whole for p in law.values()]
    return float(chisquare([found[text] for text in law], expected).pvalue)


def test_a_text_that_is_written_onward_has_the_targets_law() -> None:
    assert p_value(faulty=False) > SURE


def test_who_drops_a_text_for_what_follows_is_found_out() -> None:
    assert p_value(faulty=True) < 1e-9
