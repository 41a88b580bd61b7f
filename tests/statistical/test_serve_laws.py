"""Lossless rules over the API keep the law, with many concurrent requests."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import chisquare

from semspec.decoding.economy import Economy
from semspec.engines.toy import Toy
from semspec.models.text import Text
from semspec.results import tables
from semspec.types import Sampling
from tests.support.costs import crowded
from tests.support.deep import samples
from tests.support.pair import TARGET
from tests.support.serving import Live, events_of, serving

pytestmark = pytest.mark.deep(quick=True)
PROMPT, LENGTH, CHOICES = (0, 1), 3, 8
SAMPLES = samples(quick=800, deep=3_200)


COMMAND = ("-m", "tests.support.toy_server")
OPTIONS = ("concurrency=16", "queue=1000", "draft_length=2", "slice=1")


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(*OPTIONS, command=COMMAND) as running:
        yield running


def whole(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the choices of a stream as a whole answer has them."""
    found: dict[int, dict[str, Any]] = defaultdict(lambda: {"text": ""})
    for choice in (choice for event in events for choice in event["choices"]):
        found[choice["index"]]["text"] += choice["text"]
        found[choice["index"]]["finish_reason"] = choice["finish_reason"]
    return [found[index] for index in sorted(found)]


def p_value(live: Live, clients: int = 8, seeded: bool = True, **fields: Any) -> float:
    """Return the chi-square p-value of what so many clients are told against the target's exact law.

    ``seeded``: requests name a seed, and so have drafts of fixed lengths.
    """
    target, text = Toy().models()["target"], Text(str(TARGET))
    (stop,) = (token for token in range(target.vocabulary) if token in text.stop_ids)
    target.stop_ids = frozenset(
        {stop}
    )  # of the tokenizer; the response has it as its reason to end
    tokens = {text.decode([token]): token for token in range(target.vocabulary)}

    def ask(seed: int) -> list[tuple[int, ...]]:
        body = {"prompt": list(PROMPT), "max_tokens": LENGTH, "n": CHOICES, **fields}
        body |= {"seed": seed} if seeded else {}
        status, _, told = live.ask("/v1/completions", body)
        assert status == 200, told
        outputs = []
        for choice in (
            whole(events_of(told)) if fields.get("stream") else json.loads(told)["choices"]
        ):
            rest, output = choice["text"], list[int]()
            while rest:
                piece = next(piece for piece in tokens if rest.startswith(piece))
                output.append(tokens[piece])
                rest = rest[len(piece) :]
            output += [stop] if choice["finish_reason"] == "stop" else []
            assert len(output) == LENGTH or output[-1] == stop
            outputs.append(tuple(output))
        return outputs

    with ThreadPoolExecutor(clients) as pool:
        counts = Counter(o for told in pool.map(ask, range(SAMPLES // CHOICES)) for o in told)
    law = {o: p for o, p in target.law(PROMPT, LENGTH, Sampling(1.0)).items() if p > 0}
    assert set(counts) <= set(law)
    common = [o for o, p in law.items() if p * SAMPLES >= 5]
    rare = [o for o in law if o not in set(common)]
    observed = [*(counts[o] for o in common), sum(counts[o] for o in rare)]
    expected = [*(law[o] * SAMPLES for o in common), sum(law[o] for o in rare) * SAMPLES]
    if not rare:
        observed, expected = observed[:-1], expected[:-1]
    scale = sum(observed) / sum(expected)  # rows of float32 do not sum to 1 exactly
    return float(chisquare(observed, [e * scale for e in expected]).pvalue)


@pytest.mark.parametrize(
    "fields",
    [{}, {"stream": True}, {"semspec": {"draft_length": 3}}, {"semspec": {"off": True}}],
)
def test_lossless_answers_have_the_targets_law(live: Live, fields: dict[str, Any]) -> None:
    assert p_value(live, **fields) > 1e-4
    if not fields:
        assert live.metric("vllm:spec_decode_num_accepted_tokens_total") > 0


def test_copies_of_a_prediction_keep_the_law_under_a_lossless_rule_alone() -> None:
    """Nothing else is drafted; the prediction is the likeliest answer, or one that breaks off from it."""
    with serving(*OPTIONS, "draft=none", command=COMMAND) as live:
        accepted = 0.0
        for tokens in ((0, 4, 3), (3, 1, 1)):
            content = Text(str(TARGET)).decode(tokens)
            prediction = {"type": "content", "content": content}
            assert p_value(live, prediction=prediction) > 1e-4
            before, accepted = accepted, live.metric("vllm:spec_decode_num_accepted_tokens_total")
            assert accepted > before + SAMPLES / 8
        assert p_value(live, prediction=prediction, semspec={"rule": "typical"}) < 1e-8
    # a server with a relaxed rule judges predictions losslessly unless the request names a rule
    with serving(*OPTIONS, "draft=none", "accept=typical", command=COMMAND) as live:
        assert p_value(live, prediction=prediction) > 1e-4
        assert p_value(live, prediction=prediction, semspec={"rule": "typical"}) < 1e-8


def test_a_rule_that_is_not_lossless_is_found_out(live: Live) -> None:
    assert p_value(live, semspec={"rule": "typical"}) < 1e-8


@pytest.mark.deep
def test_models_that_are_asked_one_by_one_keep_the_law_and_do_without_a_draft_that_is_gone(
    tmp_path: Path,
) -> None:
    lost = tmp_path / "lost"
    with serving(*OPTIONS, command=COMMAND, TOY="lost", TOY_LOST=str(lost)) as live:
        accepted = "vllm:spec_decode_num_accepted_tokens_total"
        assert p_value(live) > 1e-4
        before = live.metric(accepted)
        assert before > 0
        lost.touch()
        assert p_value(live) > 1e-4  # not one request fails
        assert live.metric("semspec:choices_without_drafts_total") >= 1
        assert live.metric(accepted) < 1.1 * before  # and hardly any asked for a draft
        assert "no drafts" in live.log.read_text()


@pytest.mark.deep
def test_drafts_that_follow_the_load_keep_the_law(tmp_path: Path) -> None:
    """Drafts gain with up to eight choices under way and lose with sixteen: both come while these answers are written."""
    costs = crowded(gaining=(1, 2, 4, 8), losing=(16,))
    known = {"draft": Economy(costs, allowance=0.0)}
    (tmp_path / tables.FILE).write_text(json.dumps(tables.told(costs, known)))
    with serving(*OPTIONS, "adaptive=true", f"costs={tmp_path}", command=COMMAND) as live:
        assert p_value(live, clients=2, seeded=False) > 1e-4  # eight choices each
        drafts = live.metric("vllm:spec_decode_num_drafts_total")
        accepted = live.metric("vllm:spec_decode_num_accepted_tokens_total")
        tokens = live.metric("semspec:generation_tokens_total")
    # some rounds had a draft, and some had none
    assert 0.01 * tokens < drafts and accepted > 0
    assert drafts < 0.9 * (tokens - accepted)


@pytest.mark.deep
def test_drafts_that_all_make_or_none_by_the_clock_keep_the_law() -> None:
    with serving(*OPTIONS, "adaptive=true", command=COMMAND) as live:
        assert p_value(live, seeded=False) > 1e-4
        drafts = live.metric("vllm:spec_decode_num_drafts_total")
        tokens = live.metric("semspec:generation_tokens_total")
    assert 0 < drafts < tokens
