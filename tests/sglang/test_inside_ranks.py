"""Steps judged inside a server with two ranks: the first has the small model and runs the loops, the other follows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from transformers import AutoTokenizer

from tests.sglang.test_inside import check_rounds, in_the_loop
from tests.sglang.test_tiny_models_load import rendered
from tests.support import sglang_env
from tests.support.pair import DRAFT, TARGET, reference_outputs

pytestmark = pytest.mark.deep
LIMIT, CAP = 64, 24
ASKED: dict[str, Any] = {
    "drafting": {"lm": {"model": str(DRAFT), "adaptive": False}},
    "verification": {},
    "probe": {},
}
RULES: list[dict[str, Any]] = [{"accept": "logprob", "threshold": t} for t in (-1.0, -9.0)]


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    own = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    with (
        mock.patch.dict(os.environ, own),
        sglang_env.engine_inside(
            TARGET,
            ASKED,
            CAP,
            tp_size=2,
            max_running_requests=8,
            max_total_tokens=1100,
            schedule_conservativeness=0.01,  # take in more than there will be room for
        ) as opened,
    ):
        yield opened


def test_texts_and_rounds_are_those_of_the_loop(engine: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    prompts = [tokenizer(question)["input_ids"] for question, _ in rendered(tokenizer, 3)]
    greedy = reference_outputs(prompts, LIMIT)
    given: list[tuple[list[int], dict[str, Any], dict[str, Any], Any]] = []
    for rule in RULES:
        found = in_the_loop(prompts, [output[0] for output in greedy], rule, CAP, LIMIT)
        given += [(prompt, rule, {}, own) for prompt, own in zip(prompts, found, strict=True)]
    assert given[0][3][0] != given[3][3][0]
    lossless, off = {"accept": "lossless"}, {"accept": "off"}
    given += [(prompts[1], lossless, {}, (greedy[1], None)), (prompts[2], off, {}, (greedy[2], None))]  # fmt: skip
    given.append((prompts[0], lossless, {"regex": "[a-z ]{20,40}"}, None))
    answers = engine.generate(
        input_ids=[prompt for prompt, *_ in given],
        sampling_params=[
            {"temperature": 0, "max_new_tokens": LIMIT, "custom_params": {"semspec": rule}, **more}
            for _, rule, more, _ in given
        ],
    )
    for (_, rule, _, expected), answer in zip(given, answers, strict=True):
        if expected is None:
            assert set(answer["text"]) <= set("abcdefghijklmnopqrstuvwxyz ")
            continue
        text, outcome = expected
        assert answer["output_ids"] == text, rule
        if outcome is not None and not answer["meta_info"]["num_retractions"]:
            check_rounds(answer["meta_info"]["semspec_rounds"], outcome)
    alone = engine.generate(
        input_ids=prompts[2],
        sampling_params={
            "temperature": 0,
            "max_new_tokens": LIMIT,
            "custom_params": {"semspec": off},
        },
    )
    assert alone["output_ids"] == greedy[2]


def test_a_rule_with_a_probe_is_not_among_the_server_s(engine: Any) -> None:
    (state,) = engine.get_server_info()["internal_states"]
    assert state["semspec"]["rules"] == ["logprob"]
