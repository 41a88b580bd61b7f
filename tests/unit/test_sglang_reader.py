"""The plugin reads the same from a request however its prompt is cut into prefill chunks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.probes.features import of_logprobs
from semspec.rules._engine_probe import for_engine
from semspec.sglang_plugin.compat_reading import Loaded, Piece
from semspec.sglang_plugin.probe import Options, Probes
from semspec.sglang_plugin.protocol import Ask, unpack
from semspec.types import Read, What
from tests.support.probes import FACTS, LAYERS, WIDTH, random_probe

PROMPT = 23
IDS = [100 + i for i in range(PROMPT)]
POOLS = (lambda x: x.mean(1), lambda x: x.amax(1), lambda x: x[:, -1])


def states(prompt: int = PROMPT, seed: int = 0) -> torch.Tensor:
    """[layers + 1, tokens, width]"""
    return torch.randn(LAYERS + 1, prompt, WIDTH, generator=torch.Generator().manual_seed(seed))


def worker(*probes: Any) -> Probes:
    made = Probes(Options())
    made.model = Loaded(None, LAYERS, WIDTH, torch.device("cpu"))  # type: ignore[arg-type]
    made.probes = {probe.digest: probe for probe in probes}
    return made


def run(
    at: Probes,
    ask: Ask,
    cuts: Sequence[int],
    logprobs: torch.Tensor | None = None,
    first: int = 0,
    before: int = 0,
) -> Any:
    """Feeds a prompt's pieces, each behind ``before`` rows of other requests; its last reply."""
    reply: Any = None
    for start, end in itertools.pairwise([first, *cuts, PROMPT]):
        piece = Piece(1, "r", ask.params(), IDS, start, end, before)
        rows = before + end - start
        one = at.begin(3, rows, [piece])
        assert one is not None
        assert logprobs is not None or not one.followed
        for layer in one.layers:
            x = torch.full((rows, WIDTH), torch.nan)
            x[before:] = states()[layer, start:end]
            one.states(layer, x)
        told = None
        if logprobs is not None:  # of position p: the model's, which reads row p - 1 of the prompt
            for row, token in one.followed:
                assert before <= row < rows and token == IDS[row - before + start + 1]
            told = logprobs[[row - before + start + 1 for row, _ in one.followed]]
        replies = one.replies(told, "")
        assert bool(replies) == (end == PROMPT)
        reply = replies.get(1)
    return reply.copy()


@settings(max_examples=40, deadline=None)  # a busy machine is no failure
@given(
    cuts=st.sets(st.integers(1, PROMPT - 1), max_size=6).map(sorted),
    ends=st.sets(st.integers(0, PROMPT), min_size=2, max_size=5).map(sorted),
    before=st.integers(0, 3),
)
def test_pieces_make_no_difference(cuts: list[int], ends: list[int], before: int) -> None:
    spans = tuple(itertools.pairwise(ends))
    ask = Ask(spans=spans, want="pooled", reduce=("mean", "max", "last"), layers=(0, 3, 1))
    at = worker()
    found = unpack(run(at, ask, cuts, before=before))
    for (a, b), one in zip(spans, found, strict=True):
        part = states()[[0, 3, 1], a:b]
        expected = torch.stack([part.mean(1), part.amax(1), part[:, -1]])
        assert torch.allclose(one, expected, atol=1e-6)
    assert not at.begun  # nothing is kept of a request that is over


@settings(max_examples=40, deadline=None)  # a busy machine is no failure
@given(cuts=st.sets(st.integers(1, PROMPT - 1), max_size=6).map(sorted))
def test_scores_in_two_halves_are_the_probes_own(cuts: list[int]) -> None:
    spans = ((4, 9), (9, 20))
    logprobs = -torch.rand(PROMPT + 1, generator=torch.Generator().manual_seed(1)) * 12
    for pooling, layers, reads_logprobs in [
        (("mean",), (), False),
        (("mean", "max", "last"), (1, 3), True),
    ]:
        probe = random_probe(pooling, layers, reads_logprobs, activation="gelu")
        probe.guard = -11.0
        rows = [
            torch.cat(
                [
                    reduce(states()[list(layers) or slice(None), a:b]).flatten()
                    for reduce in POOLS[: len(pooling)]
                ]
            )
            for a, b in spans
        ]
        if reads_logprobs:
            rows = [
                torch.cat([row, torch.tensor(of_logprobs(logprobs[a:b].tolist()))])
                for row, (a, b) in zip(rows, spans, strict=True)
            ]
        expected = probe.of_rows(torch.stack(rows))
        ask = Ask(spans=spans, probe=probe.digest)
        found = run(worker(probe), ask, cuts, logprobs)["scores"]
        assert torch.allclose(torch.tensor(found), expected, atol=1e-5)


def test_a_request_that_comes_again_starts_over() -> None:
    at, ask = worker(), Ask(spans=((3, 20),), want="pooled")
    piece = Piece(0, "r", ask.params(), IDS, 0, 10, 0)
    for _ in range(2):  # begun, and dropped before it was done
        one = at.begin(1, 10, [piece])
        assert one is not None
        for layer in one.layers:
            one.states(layer, torch.full((10, WIDTH), 9.0))
        one.replies(None, "")
    found = unpack(run(at, ask, [12]))
    assert torch.allclose(found[0, 0], states()[:, 3:20].mean(1), atol=1e-6)


@pytest.mark.parametrize(
    ("ask", "first", "trouble", "told"),
    [
        (Ask(spans=((3, 30),), want="pooled"), 0, "", "behind the prompt"),
        (Ask(spans=((3, 9),), want="pooled"), 5, "", "were not computed"),
        (
            Ask(spans=((3, 9),), want="pooled"),
            0,
            "layers [2] were not seen",
            "layers [2] were not seen",
        ),
        (Ask(spans=((3, 9),), probe="none"), 0, "", "probe none is not loaded there"),
    ],
)
def test_unreadable_requests_are_answered_with_the_reason(
    ask: Ask, first: int, trouble: str, told: str
) -> None:
    piece = Piece(0, "r", ask.params(), IDS, first, PROMPT, 0)
    one = worker().begin(1, PROMPT, [piece])
    assert one is not None
    assert told in one.replies(None, trouble)[0]["error"]


def test_digests_differ_between_probes_that_score_differently() -> None:
    one = random_probe()
    assert one.digest == random_probe().digest != random_probe(seed=1).digest
    other = random_probe()
    other.config["data"] = {"source": "elsewhere"}  # says nothing about scores
    assert other.digest == one.digest
    assert FACTS.layers == LAYERS


def test_rules_ask_an_engine_that_scores_for_scores() -> None:
    """Also where the probe reads log-probabilities: these are read where the states are."""
    probe, spans = random_probe(logprobs=True), [(0, 3), (3, 5)]
    assert for_engine(probe, {What.POOLED, What.LOGPROBS}) is probe
    inside = for_engine(probe, {What.POOLED, What.SCORE})
    (score,) = inside.reads(spans)
    assert score == Read(What.SCORE, spans=((0, 3), (3, 5)), probe=probe.digest)
    assert for_engine(inside, {What.POOLED}) is inside
    values = {score: torch.tensor([0.25, 0.5, 0.75])}
    assert inside.score(values, inside.reads(spans), spans).tolist() == [0.25, 0.5]
    with pytest.raises(KeyError):  # never without the value
        inside.score({}, inside.reads(spans), spans)
    stateless = random_probe(pooling=(), logprobs=True)
    assert (
        for_engine(stateless, {What.SCORE}) is stateless
    )  # nothing of it is worth a server's while
