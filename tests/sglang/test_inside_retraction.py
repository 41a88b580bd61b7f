"""Requests that SGLang retracts from the batch for lack of memory, while their steps are judged inside, keep their texts.

The pool is too small for all requests at once. SGLang puts some back and prefills them again later, in a pass that writes a
token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.sglang.test_inside import in_the_loop
from tests.sglang.test_tiny_models_load import rendered
from tests.support import sglang_env
from tests.support.pair import DRAFT, TARGET, reference_outputs

pytestmark = pytest.mark.deep
LIMIT, CAP = 160, 24
ASKED: dict[str, Any] = {
    "drafting": {"lm": {"model": str(DRAFT)}},
    "verification": {"target_probe": "embedded/probe-tiny-target-plus"},
    "probe": {},
}
RULES: list[dict[str, Any]] = [
    {"accept": "logprob", "threshold": -2.0},
    {"accept": "semantic_plus"},
    {"accept": "logprob", "threshold": -9.0},
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with sglang_env.engine_inside(
        TARGET,
        ASKED,
        CAP,
        max_running_requests=8,
        max_total_tokens=1100,
        schedule_conservativeness=0.01,  # take in more than there will be room for
    ) as opened:
        yield opened


def test_texts_survive_retractions(engine: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    prompts = [tokenizer(question)["input_ids"] for question, _ in rendered(tokenizer, 2)]
    greedy = reference_outputs(prompts, LIMIT)
    firsts = [output[0] for output in greedy]
    given: list[tuple[list[int], dict[str, Any], int, list[int]]] = []
    for rule in RULES:
        found = in_the_loop(prompts, firsts, rule, CAP, LIMIT)
        given += [(prompt, rule, LIMIT, text) for prompt, (text, _) in zip(prompts, found, strict=True)]  # fmt: skip
    exact = {
        "accept": "logprob",
        "threshold": 0.0,
    }  # no step passes: every token is the target's own
    apart = {"whole_rounds": True, "prompt_end": prompts[0][-1], **exact}
    given.append((prompts[0][:-1], apart, LIMIT + 1, [prompts[0][-1], *greedy[0]]))
    given.append((prompts[1], {"accept": "off"}, LIMIT, greedy[1]))
    answers = engine.generate(
        input_ids=[prompt for prompt, *_ in given],
        sampling_params=[
            {"temperature": 0, "max_new_tokens": limit, "custom_params": {"semspec": rule}}
            for _, rule, limit, _ in given
        ],
    )
    retracted = [answer["meta_info"]["num_retractions"] for answer in answers]
    for (_, rule, _, text), answer in zip(given, answers, strict=True):
        assert answer["output_ids"] == text, (rule, retracted)
    assert sum(retracted[: 2 * len(RULES)]) > 0, "none whose steps are judged was retracted"
