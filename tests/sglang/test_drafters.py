"""Drafters and rules in real engines on the CPU: SGLang itself drafts, verifies and commits trees.

Greedy output must equal transformers', token for token, whatever is drafted. A relaxed rule must write what the
package's own loop writes with the same drafter and rule.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from semspec.decoding.pace import Steady
from semspec.loop import Speculation, speculate
from semspec.sglang_plugin import drafting
from semspec.sglang_plugin.settings import VARIABLE
from semspec.solver import Solver
from semspec.types import Context
from tests.sglang.test_tiny_models_load import rendered
from tests.support import sglang_env
from tests.support.pair import TARGET, configuration, reference_outputs

LIMIT, NODES = 72, 8
ASKED: dict[str, dict[str, Any]] = {
    "verification": {"calibration": "embedded/arc-tiny", "allow_mismatch": True},
    "drafting": {"adapld": {"longest": 12, "branch": 4}},
}


@contextmanager
def server(algorithm: str, adaptive: bool = False, **arguments: Any) -> Iterator[Any]:
    # where another test has loaded the plugins already
    drafting.prepare(drafting.Options(**ASKED["drafting"], adaptive=adaptive))
    asked = {**ASKED, "drafting": {**ASKED["drafting"], "adaptive": adaptive}}
    with (
        mock.patch.dict(os.environ, {VARIABLE: json.dumps(asked)}),
        sglang_env.engine(
            TARGET, speculative_algorithm=algorithm, **{"max_running_requests": 4, **arguments}
        ) as engine,
    ):
        yield engine


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """A problem; a solved problem asked again; two short ones of other domains."""
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    pairs = rendered(tokenizer, 4)
    (first, solution), *others = pairs
    texts = [first, first + solution + "\n" + first, *(question for question, _ in others[1:])]
    return [tokenizer(text)["input_ids"] for text in texts]


@pytest.fixture(scope="module")
def greedy(prompts: list[list[int]]) -> list[list[int]]:
    return reference_outputs(prompts, LIMIT)


@pytest.fixture(scope="module")
def suffix() -> Iterator[Any]:
    with server("SEMSPEC_SUFFIX", speculative_num_draft_tokens=NODES) as engine:
        yield engine


def generate(engine: Any, prompts: Any, asked: Any = None, **more: Any) -> Any:
    def params(one: Any) -> dict[str, Any]:
        told = {"temperature": 0, "max_new_tokens": LIMIT}
        return told if one is None else told | {"custom_params": {"semspec": one}}

    given = [params(one) for one in asked] if isinstance(asked, list) else params(asked)
    return engine.generate(input_ids=prompts, sampling_params=given, **more)


def check_identical(answers: Any, greedy: list[list[int]]) -> None:
    assert [answer["output_ids"] for answer in answers] == greedy
    kept = [answer["meta_info"]["spec_num_correct_drafts"] for answer in answers]
    passes = [answer["meta_info"]["spec_verify_ct"] for answer in answers]
    assert all(count > 0 for count in kept), "no draft was accepted"
    for count, verified, output in zip(kept, passes, greedy, strict=True):
        assert len(output) - 1 <= count + verified  # every pass writes one token of its own


@pytest.mark.parametrize(
    ("algorithm", "arguments"),
    [
        pytest.param("SEMSPEC_PROMPT_LOOKUP", {}, marks=pytest.mark.deep),
        pytest.param(
            "SEMSPEC_ADAPLD", {"enable_return_hidden_states": True}, marks=pytest.mark.deep
        ),
    ],
)
def test_drafters_write_what_the_target_writes(
    algorithm: str, arguments: dict[str, Any], prompts: Any, greedy: Any
) -> None:
    # before the shared engine is there: shutting one down kills all that this process has started
    with server(algorithm, **arguments) as engine:
        check_identical(generate(engine, prompts), greedy)


@pytest.mark.deep
def test_drafts_that_do_not_pay_are_dropped(prompts: Any, greedy: Any) -> None:
    """What is written is the same; the target has read single tokens as well as drafts."""
    with server("SEMSPEC_SUFFIX", adaptive=True, speculative_num_draft_tokens=64) as engine:
        for _ in range(3):
            answers = generate(engine, prompts)
            assert [answer["output_ids"] for answer in answers] == greedy
        (state,) = engine.get_server_info()["internal_states"]
        assert state["semspec_passes"]["drafted"] > 0 and state["semspec_passes"]["plain"] > 0


def test_suffix_writes_what_the_target_writes(suffix: Any, prompts: Any, greedy: Any) -> None:
    check_identical(generate(suffix, prompts), greedy)
    alone = [generate(suffix, prompt) for prompt in prompts[:2]]  # over a cached prefix, now
    check_identical(alone, greedy[:2])


def test_a_repeated_text_is_copied(suffix: Any, prompts: Any, greedy: Any) -> None:
    """A request whose prompt holds what it is about to write."""
    answer = generate(suffix, [*prompts[0], *greedy[0], *prompts[0]])
    assert answer["meta_info"]["spec_accept_length"] > 1.5


def in_the_loop(prompts: Any, first: list[int], *told: str) -> list[list[int]]:
    """Return what the package's own loop writes after the prompt and the first token."""
    made = configuration(
        "split=token", "draft=suffix", "temperature=0", f"max_new_tokens={LIMIT}", *told
    )
    outputs = []
    with Solver(made) as solver:
        for number, (prompt, token) in enumerate(zip(prompts, first, strict=True)):
            kit = solver.kit(str(number), "", "speculative")
            context = Context(number, [*prompt, token])
            drafter, rule = made.draft.open(kit), solver.rule.open(kit)
            pace = Steady(NODES - 1, 1)
            plan = speculate(Speculation(context, kit, LIMIT - 1, drafter, rule, pace))
            (done,) = solver.driver.run([(context, plan)])
            outputs.append([token, *done.value.tokens])
    return outputs


RELAXED = [
    (
        {"accept": "topk_delta", "k": 8, "delta": 0.99},
        "accept=topk_delta accept.k=8 accept.delta=0.99",
    ),
    (
        {"accept": "arc", "theta": 0.2, "keep_excluded": True},
        "accept=arc accept.theta=0.2 accept.calibration=embedded/arc-tiny accept.allow_mismatch=true"
        " accept.keep_excluded=true",
    ),
]


@pytest.mark.parametrize(("asked", "told"), RELAXED, ids=["topk_delta", "arc"])
def test_a_looser_rule_writes_what_it_writes_in_the_loop(
    suffix: Any, prompts: Any, greedy: Any, asked: dict[str, Any], told: str
) -> None:
    """All requests of a batch by the rule, and then every other one, the rest being left alone."""
    expected = in_the_loop(prompts, [output[0] for output in greedy], *told.split())
    assert sum(a != b for a, b in zip(expected, greedy, strict=True)) > 1
    answers = generate(suffix, prompts, asked)
    assert [answer["output_ids"] for answer in answers] == expected
    mixed = generate(suffix, prompts, [asked, None, {"accept": "lossless"}, asked])
    assert [answer["output_ids"] for answer in mixed] == [expected[0], *greedy[1:3], expected[3]]


@pytest.mark.parametrize(
    "strict",
    [
        pytest.param({"accept": "topk_delta", "delta": 0.0}, marks=pytest.mark.deep),
        pytest.param({"accept": "topk_delta", "k": 1, "delta": 1.0}, marks=pytest.mark.deep),
        {"accept": "arc", "theta": 1.5},
        {"accept": "arc", "theta": 0.2},
        {"accept": "typical"},  # at temperature 0 one token has all the probability
    ],
    ids=lambda one: "-".join(map(str, one.values())),
)
def test_without_any_tolerance_it_is_greedy(
    suffix: Any, prompts: Any, greedy: Any, strict: dict[str, Any]
) -> None:
    check_identical(generate(suffix, prompts, strict), greedy)


def test_log_probabilities_stay_the_model_s(suffix: Any, prompts: Any) -> None:
    answer = generate(suffix, prompts[0], RELAXED[0][0], return_logprob=True)
    output = answer["output_ids"]
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    with torch.inference_mode():
        rows = model(torch.tensor([[*prompts[0], *output]])).logits[0].log_softmax(-1)
    at = len(prompts[0]) - 1
    own = [float(rows[at + i, token]) for i, token in enumerate(output)]
    told = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
    assert told == pytest.approx(own, abs=1e-4)
