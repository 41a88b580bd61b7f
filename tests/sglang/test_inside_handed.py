"""Rules for whole steps with prompt lookup as the drafter, in a real engine on the CPU.

Drafts depend only on the request's text, so greedy texts must equal token for token what the package's loop writes with the
same drafts. ``test_ngram.py`` covers SGLang's own drafter, which also knows the texts of other requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoTokenizer

from semspec.decoding.pace import Steady
from semspec.decoding.writing import Pen
from semspec.drafters._proposal import cut_into_units
from semspec.drafters.prompt_lookup import PromptLookup, PromptLookupSession
from semspec.loop import Speculation, speculate
from semspec.protocols import Kit, Plan
from semspec.solver import Solver
from semspec.splitters.token import TokenBoundary
from semspec.types import Context, Draft, Outcome, Room
from tests.sglang.test_tiny_models_load import rendered
from tests.support import sglang_env
from tests.support.pair import TARGET, configuration, reference_outputs

pytestmark = pytest.mark.deep

LIMIT, NODES = 96, 11
PARTS: dict[str, dict[str, Any]] = {"drafting": {"adaptive": False}, "verification": {}}
THRESHOLDS = (-0.05, -9.0, -30.0)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    return [tokenizer(question)["input_ids"] for question, _ in rendered(tokenizer, 6)]


@pytest.fixture(scope="module")
def greedy(prompts: list[list[int]]) -> list[list[int]]:
    return reference_outputs(prompts, LIMIT)


@pytest.fixture(scope="module")
def copying() -> Iterator[Any]:
    with sglang_env.engine_with(
        TARGET, PARTS, "SEMSPEC_PROMPT_LOOKUP", NODES, max_running_requests=8
    ) as opened:
        yield opened


class Copied(PromptLookupSession):
    """What the server's drafter proposes, token by token, cut into steps by the loop's boundary."""

    def __init__(self, kit: Kit) -> None:
        super().__init__(PromptLookup(), replace(kit, boundary=TokenBoundary))
        self.steps = kit

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        proposed = yield from super().draft(context, Room(NODES - 1, NODES - 1, 1))
        return Draft(*cut_into_units(self.steps, room, proposed.tokens))


def in_the_loop(
    prompts: Sequence[Sequence[int]], first: Sequence[int], threshold: float
) -> list[Outcome]:
    made = configuration(
        *("split=paragraph", "draft=prompt_lookup", "step_cap=4096", "salvage=true"),
        *("temperature=0", f"max_new_tokens={LIMIT}", "adaptive=false", "max_repeats=0"),
        *("accept=logprob", f"accept.threshold={threshold}"),
    )
    found = []
    with Solver(made) as solver:
        for number, (prompt, token) in enumerate(zip(prompts, first, strict=True)):
            kit = solver.kit(str(number), "", "speculative")
            lossless = solver.nested_rule
            inner = replace(
                kit, boundary=TokenBoundary, evidence=lossless.evidence(), salvage=False
            )
            pen = Pen(Copied(inner), lossless.open(inner), Steady(NODES - 1, 1))
            context = Context(number, prompt)
            context.extend([token])
            pace = Steady(NODES - 1, 4096)
            problem = Speculation(
                context, kit, LIMIT, Copied(kit), solver.rule.open(kit), pace, pen=pen
            )
            (done,) = solver.driver.run([(context, speculate(problem))])
            found.append(done.value)
    return found


def generate(engine: Any, prompts: Any, asked: Any = None, **more: Any) -> Any:
    params: dict[str, Any] = {"temperature": 0, "max_new_tokens": LIMIT, **more}
    if asked is not None:
        params["custom_params"] = {"semspec": asked}
    return engine.generate(input_ids=prompts, sampling_params=params)


def outputs(answers: Any) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


def test_texts_are_those_of_the_loop(copying: Any, prompts: Any, greedy: Any) -> None:
    texts = {}
    for threshold in THRESHOLDS:
        answers = generate(copying, prompts, {"accept": "logprob", "threshold": threshold})
        expected = in_the_loop(prompts, [output[0] for output in greedy], threshold)
        texts[threshold] = outputs(answers)
        assert texts[threshold] == [outcome.tokens for outcome in expected]
        for answer, outcome in zip(answers, expected, strict=True):
            told = [
                (one["drafted"], one["kept"], one["salvaged"], one["target"], one["passes"])
                for one in answer["meta_info"]["semspec_rounds"]
            ]
            assert told == [
                (*map(len, (r.drafted, r.kept, r.written, r.handed)), r.passes["target"])
                for r in outcome.rounds
            ]
            passes = sum(done.passes["target"] for done in outcome.rounds)
            assert answer["meta_info"]["spec_verify_ct"] == passes
    assert texts[-30.0] != greedy and texts[-0.05] != texts[-30.0]
    alone = generate(copying, prompts[1], {"accept": "logprob", "threshold": -30.0})
    assert alone["output_ids"] == texts[-30.0][1]


def test_requests_without_such_a_rule_are_verified_as_ever(
    copying: Any, prompts: Any, greedy: Any
) -> None:
    rules: list[Any] = [{"accept": "logprob"}, None, {"accept": "lossless"}]
    params = [
        {
            "temperature": 0,
            "max_new_tokens": LIMIT,
            **({"custom_params": {"semspec": rule}} if rule else {}),
        }
        for rule in rules
    ]
    found = outputs(copying.generate(input_ids=prompts[:3], sampling_params=params))
    assert found[1:] == greedy[1:3]
    with pytest.raises(ValueError, match="SEMSPEC_LM"):
        generate(copying, prompts[0], {"accept": "semantic_plus"})
