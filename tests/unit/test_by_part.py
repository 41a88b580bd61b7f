"""Acceptance in the thinking and in the answer, and the model class that specdec_bench runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semspec.errors import UserError
from semspec.harness.specdec_bench import SemspecModel
from semspec.report.terminal import result_rows
from semspec.results.by_part import by_part, part_length
from semspec.runner import execute
from semspec.storage.files import read_json
from semspec.types import Round
from tests.support.benchmark_rows import write_rows
from tests.support.pair import DRAFT, TARGET, configuration, reference_outputs

PIECES = {0: "a", 1: "</th", 2: "ink>"}


def test_rounds_are_told_apart_where_the_thinking_closes() -> None:
    rounds = [
        Round(drafted=[0, 0], kept=[0, 0], written=[0]),
        Round(drafted=[0], written=[1]),
        Round(handed=[0]),
        Round(drafted=[1, 2], kept=[1, 2]),  # closes it, in two tokens
        Round(drafted=[0, 0], kept=[0], written=[0]),
    ]
    counts = by_part(rounds, PIECES.__getitem__)
    assert counts == {"thinking_gained": 6, "thinking_drafts": 3, "answer_gained": 2, "answer_drafts": 1}  # fmt: skip
    assert part_length(counts, "thinking") == 2.0
    assert by_part(rounds[:3], PIECES.__getitem__) == {}


def test_a_run_of_speed_bench_shows_both(tmp_path: Path) -> None:
    question = "Modulo 100, let t=25, u is 3 * t, x is u + t, r is x - t. Find r."
    made = [{"category": "math", "turns": [question], "question_id": 7}]
    file = write_rows(tmp_path / "test.jsonl", made)
    asked = ["benchmark=speed_bench", f"benchmark.data={file}", "split=token", "accept=lossless"]
    config = configuration(*asked, "draft_length=4", "max_new_tokens=400", "problems=1", "plain=false", "transcript=false", "quiet=true")  # fmt: skip
    execute(config, {}, tmp_path / "run")
    result = read_json(tmp_path / "run" / "result.json")
    details = result["details"]
    assert details["thinking_drafts"] > details["answer_drafts"] > 0
    rows = {name.strip(): cells for name, *cells in result_rows(result)}
    assert rows["in thinking / answer"][-1].count("/") == 1


def test_specdec_bench_gets_tokens_times_and_chunks() -> None:
    from semspec.models.text import Text

    (prompt,) = (Text(str(TARGET)).prompt("Modulo 100, let x=76, k is x - 2. Find k.")[1],)
    model = SemspecModel(
        str(TARGET), draft_model_dir=str(DRAFT), max_concurrent_requests=2, tensor_parallel_size=4
    )
    out = asyncio.run(model.run(prompt, 40, -1, request_id=3, turn_id=0))
    model.stop()
    (tokens,), (chunks,) = out["output_ids"], out["chunk_lengths"]
    assert [tokens] == reference_outputs([prompt], 40)
    assert sum(chunks) == len(tokens) == 40
    assert len(out["token_times"]) == len(chunks) + 1
    assert out["token_times"] == sorted(out["token_times"])
    assert max(chunks) > 1, "something was drafted and kept"


def test_what_specdec_bench_may_ask_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="overrides="):
        SemspecModel(str(TARGET), speculative_algorithm="EAGLE3")
    with pytest.raises(UserError, match="needs draft_model_dir"):
        SemspecModel(str(TARGET))
    with pytest.raises(UserError, match="beam_width"):
        SemspecModel(str(TARGET), sampling_kwargs={"beam_width": 2})
