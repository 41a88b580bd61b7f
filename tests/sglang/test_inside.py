"""Steps judged inside one SGLang server, in a real engine on the CPU: a small model drafts, the rule keeps or rejects.

After the first token, which is SGLang's, greedy texts must equal token for token what the package's own loop writes on
``engine=hf`` with the same rule, salvage and nested writing.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from semspec.decoding.pace import Steady
from semspec.decoding.writing import Pen
from semspec.loop import Speculation, speculate
from semspec.solver import Solver
from semspec.splitters.token import TokenBoundary
from semspec.types import Context, Outcome
from tests.sglang.test_tiny_models_load import rendered
from tests.support import sglang_env
from tests.support.pair import DRAFT, TARGET, configuration, reference_outputs

LIMIT, CAP = 96, 40
CHUNK = 48  # tokens of a prompt that are read at a time: less than a prompt has
ASKED: dict[str, dict[str, Any]] = {
    "drafting": {"lm": {"model": str(DRAFT), "adaptive": False}},  # passes are counted
    "timing": {},
    "verification": {"allow_mismatch": True},  # the probes were calibrated at temperature .6
    "probe": {},
}
RULES: dict[str, dict[str, Any]] = {
    "as by default": {"accept": "logprob"},
    "strict": {"accept": "logprob", "threshold": -0.05},
    "lenient": {"accept": "logprob", "threshold": -9.0},
    "sharpened": {"accept": "logprob", "threshold": -3.0, "score_temperature": 0.3},
    "probe": {"accept": "semantic_plus"},
    "picky probe": {"accept": "semantic_plus", "threshold": 0.9},
    "both probes": {"accept": "semantic"},  # which accepts by a coin
    "at a risk": {"accept": "semantic_risk", "risk": 0.2},
}
SEED = 7


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with sglang_env.engine_inside(
        TARGET,
        ASKED,
        CAP,
        max_running_requests=16,
        max_total_tokens=8192,
        chunked_prefill_size=CHUNK,
        constrained_json_disable_any_whitespace=True,
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    found = [tokenizer(question)["input_ids"] for question, _ in rendered(tokenizer, 4)]
    assert max(map(len, found)) > CHUNK
    return found


@pytest.fixture(scope="module")
def greedy(prompts: list[list[int]]) -> list[list[int]]:
    return reference_outputs(prompts, LIMIT)


@pytest.fixture(scope="module")
def expected(
    prompts: list[list[int]], greedy: list[list[int]]
) -> dict[str, list[tuple[list[int], Outcome]]]:
    """By rule, what the loop writes behind the first token, and its rounds."""
    return {
        name: in_the_loop(prompts, [output[0] for output in greedy], rule)
        for name, rule in RULES.items()
    }


def in_the_loop(
    prompts: Sequence[Sequence[int]],
    first: Sequence[int],
    rule: dict[str, Any],
    cap: int = CAP,
    limit: int = LIMIT,
) -> list[tuple[list[int], Outcome]]:
    told = [f"accept={rule['accept']}"]
    if rule["accept"] == "logprob" or "threshold" in rule:
        told.append(f"accept.threshold={rule.get('threshold', -4.0)}")
    if "score_temperature" in rule:
        told.append(f"accept.score_temperature={rule['score_temperature']}")
    if "risk" in rule:
        told += [f"accept.risk={rule['risk']}", "accept.allow_mismatch=true"]
    made = configuration(
        *("split=paragraph", "draft=tiny", f"step_cap={cap}", "salvage=true", "nested=lm"),
        *("temperature=0", f"max_new_tokens={limit}"),
        *told,
    )
    found = []
    with Solver(made) as solver:
        for number, (prompt, token) in enumerate(zip(prompts, first, strict=True)):
            # the coins of a rule whose loop begins behind one token
            kit = replace(solver.kit(str(number), "", "speculative"), rng=Random(f"{SEED} 1 rule"))
            inner = replace(
                kit,
                boundary=TokenBoundary,
                evidence=solver.nested_rule.evidence(),
                salvage=False,
            )
            pen = Pen(solver.nested.open(inner), solver.nested_rule.open(inner), Steady(5, 1))
            context = Context(number, prompt)
            context.extend([token])
            drafter, judge = solver.drafter.open(kit), solver.rule.open(kit)
            problem = Speculation(
                context, kit, limit, drafter, judge, Steady(1, cap), pen=pen
            )  # fmt: skip
            (done,) = solver.driver.run([(context, speculate(problem))])
            found.append((done.value.tokens, done.value))
    return found


def generate(engine: Any, prompts: Any, asked: Any = None, **more: Any) -> Any:
    def params(one: Any) -> dict[str, Any]:
        told = {"temperature": 0, "max_new_tokens": LIMIT, "sampling_seed": SEED, **more}
        return told if one is None else told | {"custom_params": {"semspec": one}}

    given = [params(one) for one in asked] if isinstance(asked, list) else params(asked)
    return engine.generate(input_ids=prompts, sampling_params=given)


def check_rounds(told: list[dict[str, Any]], outcome: Outcome) -> None:
    for one, done in zip(told, outcome.rounds, strict=True):
        written = (one["kept"], one["salvaged"], one["target"], one["nested_kept"])
        assert written == (*map(len, (done.kept, done.written, done.handed)), done.nested_kept)
        assert (one["steps"], one["steps_kept"]) == (len(done.ends), done.units_kept)
        assert one["scores"] == pytest.approx(done.scores, abs=1e-3)
        assert one["passes"] == done.passes["target"]


def outputs(answers: Any) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


@pytest.mark.parametrize("name", RULES)
def test_texts_are_those_of_the_loop(
    engine: Any, prompts: Any, greedy: Any, expected: Any, name: str
) -> None:
    answers = generate(engine, prompts, RULES[name])
    texts = [tokens for tokens, _ in expected[name]]
    assert outputs(answers) == texts
    for answer, (_, outcome) in zip(answers, expected[name], strict=True):
        # a pass for each round, and for each turn of the pen
        told = answer["meta_info"]
        passes = sum(done.passes["target"] for done in outcome.rounds)
        assert told["spec_verify_ct"] == passes
        check_rounds(told["semspec_rounds"], outcome)
    one_by_one = [generate(engine, prompt, RULES[name]) for prompt in prompts[:2]]
    assert outputs(one_by_one) == texts[:2]


def test_the_rules_write_different_texts(greedy: Any, expected: Any) -> None:
    texts = {name: [tokens for tokens, _ in found] for name, found in expected.items()}
    assert texts["strict"] != texts["lenient"] and texts["lenient"] != greedy
    kept = [len(done.kept) > 5 for _, one in expected["as by default"] for done in one.rounds]
    assert any(kept)


def test_lossless_requests_are_greedy(engine: Any, prompts: Any, greedy: Any) -> None:
    answers = generate(engine, prompts, {"accept": "lossless"})
    assert outputs(answers) == greedy == outputs(generate(engine, prompts))
    assert all(answer["meta_info"]["spec_num_correct_drafts"] > 20 for answer in answers)
    off = generate(engine, prompts[0], {"accept": "off"})
    assert off["output_ids"] == greedy[0] and off["meta_info"]["spec_num_correct_drafts"] == 0


def passes(engine: Any) -> dict[str, int]:
    """How many of the target's passes have read drafts, and how many none."""
    (state,) = engine.get_server_info()["internal_states"]
    return dict(state["semspec_passes"])


def test_a_server_says_how_long_its_models_take(engine: Any, prompts: Any) -> None:
    def told() -> Any:
        (state,) = engine.get_server_info()["internal_states"]
        return state["semspec_seconds"]

    before, began = told(), time.perf_counter()
    answer = generate(engine, prompts[0], {"accept": "logprob"})
    took, after = time.perf_counter() - began, told()
    spent = {
        name: {key: own[key] - before[name][key] for key in own} for name, own in after.items()
    }
    assert (
        spent["target"]["passes"] == 1 + answer["meta_info"]["spec_verify_ct"]
    )  # one over the prompt
    assert spent["draft"]["passes"] > 0
    assert all(own["seconds"] > 0 for own in spent.values())
    assert sum(own["seconds"] for own in spent.values()) < took


def constrained(prompt: Sequence[int], letters: str, least: int, most: int) -> list[int]:
    """What the target writes greedily where only so many of these letters may be written, by brute force."""
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    model: Any = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    ids, count = list(prompt), 0
    while len(ids) == len(prompt) or ids[-1] != tokenizer.eos_token_id:
        with torch.inference_mode():
            rows = model(torch.tensor([ids])).logits[0, -1]
        for token in rows.argsort(descending=True).tolist():
            text = texts[token] if token < len(texts) else ""
            if token == tokenizer.eos_token_id:
                text = ""
                if count >= least:
                    break
            elif text and count + len(text) <= most and set(text) <= set(letters):
                break
        ids.append(token)
        count += len(text)
    return ids[len(prompt) :]


LETTERS = "abcdefghijklmnopqrstuvwxyz "
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 99}, "ok": {"type": "boolean"}},
        "required": ["n", "ok"],
        "additionalProperties": False,
    }
)


def test_sixteen_requests_of_all_kinds_share_a_batch(
    engine: Any, prompts: Any, greedy: Any, expected: Any
) -> None:
    """Rules, thresholds, lengths, streams, grammars, and one that is given up: each writes what it writes alone."""
    firsts = [output[0] for output in greedy]
    short = {"accept": "logprob", "threshold": -1.0, "step_cap": 12}
    own = in_the_loop(prompts[2:3], firsts[2:3], short, cap=12, limit=50)[0][0]
    letters = constrained(prompts[1], LETTERS, 20, 40)
    given: list[tuple[int, dict[str, Any] | None, dict[str, Any], list[int] | None]] = [
        *[
            (i, RULES[name], {}, expected[name][i][0])
            for name in ("strict", "probe")
            for i in (0, 1)
        ],
        (2, RULES["lenient"], {}, expected["lenient"][2][0]),
        (3, RULES["picky probe"], {}, expected["picky probe"][3][0]),
        (0, RULES["as by default"], {"stream": True}, expected["as by default"][0][0]),
        (2, short, {"max_new_tokens": 50}, own),
        (1, {"accept": "lossless"}, {"stream": True}, greedy[1]),
        (2, {"accept": "off"}, {}, greedy[2]),
        (3, None, {"max_new_tokens": 31}, greedy[3][:31]),
        (0, {"accept": "topk_delta", "delta": 0.0}, {}, greedy[0]),
        (1, None, {"regex": "[a-z ]{20,40}"}, letters),
        (2, {"accept": "off"}, {"json_schema": SCHEMA}, None),
        (2, None, {"json_schema": SCHEMA, "stream": True}, None),
        (3, RULES["lenient"], {"stream": True, "given up": True}, None),
    ]
    before = passes(engine)

    async def one(
        number: int, rule: dict[str, Any] | None, more: dict[str, Any]
    ) -> list[dict[str, Any]]:
        stream, given_up = more.pop("stream", False), more.pop("given up", False)
        params = {"temperature": 0, "max_new_tokens": LIMIT, **more}
        if rule is not None:
            params["custom_params"] = {"semspec": rule}
        made = await engine.async_generate(
            input_ids=prompts[number], sampling_params=params, stream=stream
        )
        if not stream:
            return [made]
        parts = []
        async for part in made:
            parts.append(part)
            if given_up and len(parts) == 3:
                engine.tokenizer_manager.abort_request(rid=part["meta_info"]["id"])
        return parts

    async def together() -> list[list[dict[str, Any]]]:
        asked = [one(number, rule, dict(more)) for number, rule, more, _ in given]
        return await asyncio.gather(*asked)

    found = engine.loop.run_until_complete(together())
    for (_, rule, more, text), parts in zip(given, found, strict=True):
        assert text is None or parts[-1]["output_ids"] == text, (rule, more)
        judged = rule in RULES.values() or rule is short
        told = parts[-1]["meta_info"].get("semspec_rounds")
        assert bool(told) == judged and None not in (told or []), (rule, more)
    *_, regular, plain, drafted, stopped = found
    assert re.fullmatch("[a-z ]{20,40}", regular[-1]["text"])
    told = json.loads(drafted[-1]["text"])
    assert set(told) == {"n", "ok"} and plain[-1]["output_ids"] == drafted[-1]["output_ids"]
    assert stopped[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(stopped[-1]["output_ids"]) < LIMIT
    after = passes(engine)
    ran = after["drafted"] - before["drafted"]
    alone = sum(parts[-1]["meta_info"]["spec_verify_ct"] for parts in found)
    assert alone > 4 * ran, "they shared passes"


def test_where_nothing_is_drafted_the_target_reads_one_row(
    engine: Any, prompts: Any, greedy: Any
) -> None:
    before, off = passes(engine), {"accept": "off"}
    found = engine.generate(
        input_ids=prompts[:3],
        sampling_params=[
            {"temperature": 0, "max_new_tokens": 40, "custom_params": {"semspec": off}, **more}
            for more in ({}, {"max_new_tokens": 25}, {"regex": "[a-z ]{20,40}"})
        ],
        return_logprob=True,
    )
    texts = [greedy[0][:40], greedy[1][:25], constrained(prompts[2], LETTERS, 20, 40)]
    assert outputs(found) == texts
    after = passes(engine)
    assert after["drafted"] == before["drafted"]
    assert after["plain"] - before["plain"] == 39
    # a request with drafts joins: then all are read in one pass with it, and texts stay
    mixed = generate(engine, prompts[:2], [off, RULES["as by default"]])
    assert mixed[0]["output_ids"] == greedy[0]
    told = [value for value, _, _ in found[0]["meta_info"]["output_token_logprobs"]]
    params = {"temperature": 0, "max_new_tokens": 40}
    wide = engine.generate(input_ids=prompts[0], sampling_params=params, return_logprob=True)
    assert wide["meta_info"]["spec_num_correct_drafts"] > 0
    drafted = [value for value, _, _ in wide["meta_info"]["output_token_logprobs"]]
    assert wide["output_ids"] == texts[0] and told == pytest.approx(drafted, abs=1e-4)


def test_a_shorter_cap_is_the_loop_s(engine: Any, prompts: Any, greedy: Any) -> None:
    rule = {"accept": "logprob", "threshold": -1.0}
    texts = in_the_loop(prompts[:2], [output[0] for output in greedy[:2]], rule, cap=12)
    answers = generate(engine, prompts[:2], rule | {"step_cap": 12})
    assert outputs(answers) == [tokens for tokens, _ in texts]


def test_a_stream_brings_the_same_tokens(engine: Any, prompts: Any, expected: Any) -> None:
    params: dict[str, Any] = {"temperature": 0, "max_new_tokens": LIMIT}
    params["custom_params"] = {"semspec": RULES["as by default"]}
    parts = list(engine.generate(input_ids=prompts[0], sampling_params=params, stream=True))
    assert len(parts) > 1
    text, outcome = expected["as by default"][0]
    assert parts[-1]["output_ids"] == text
    check_rounds(parts[-1]["meta_info"]["semspec_rounds"], outcome)
    stopped = engine.generate(input_ids=prompts[1], sampling_params=params, stream=True)
    next(stopped)
    engine.tokenizer_manager.abort_request(abort_all=True)  # in the middle of a step
    assert next(reversed(list(stopped)))["meta_info"]["finish_reason"]["type"] == "abort"
    answers = generate(engine, prompts, RULES["as by default"])
    assert outputs(answers) == [tokens for tokens, _ in expected["as by default"]]


def test_log_probabilities_and_stops_beside_the_loop(
    engine: Any, prompts: Any, expected: Any
) -> None:
    params: dict[str, Any] = {
        "temperature": 0,
        "max_new_tokens": 30,
        "stop": ["\n\n"],
        "no_stop_trim": True,
    }
    params["custom_params"] = {"semspec": RULES["as by default"]}
    answer = engine.generate(input_ids=prompts[0], sampling_params=params, return_logprob=True)
    text = answer["output_ids"]
    assert text == expected["as by default"][0][0][: len(text)]
    assert len(answer["meta_info"]["output_token_logprobs"]) == len(text)


def test_above_temperature_0_the_loop_draws(engine: Any, prompts: Any) -> None:
    """SGLang verifies by argmax on a CPU; a loop draws by itself, as often as it is asked to alike."""
    asked = RULES["as by default"]
    more = {"temperature": 1.0}
    first = generate(engine, [prompts[0]] * 4, [asked] * 4, sampling_seed=None, **more)
    assert len({tuple(one) for one in outputs(first)}) > 1


def test_what_does_not_go_together_is_refused(engine: Any, prompts: Any) -> None:
    with pytest.raises(ValueError, match="grammar"):
        generate(engine, prompts[0], RULES["strict"], regex="a+")
    with pytest.raises(ValueError, match="above 0"):
        generate(engine, prompts[0], {"accept": "logprob", "threshold": 1})
    both = generate(engine, prompts[:2], [RULES["strict"], None])
    assert len(outputs(both)) == 2
