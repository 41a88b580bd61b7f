"""The engine's benchmark runs, also at contexts beyond the model's own limit."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.tiny_models import folder

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from bench_engine import bench_engine
from bench_passes import DRAFTED, ROUNDS, bench_passes, outside_target


def test_bench_engine_measures_every_asked_case() -> None:
    found = bench_engine(
        folder("qwen3"), tokens=4, repeats=1, contexts=(32, 700), batches=(2,), reference=True
    )
    assert set(found["score"]) == {20, 40, 80}
    assert set(found["token_at"]) == {32, 700}
    assert all(found[name] > 0 for name in ("load", "token_greedy", "token_transformers"))


def test_bench_passes_prices_every_draft_in_plain_tokens() -> None:
    found = bench_passes(folder("qwen3"), rounds=2)
    assert set(found["chain"]) == set(found["tree"]) == set(DRAFTED)
    costs = [*found["written"].values(), *found["read"].values(), *found["chain"].values()]
    assert found["plain_token_ms"] > 0 and min(costs) > 0


def test_rounds_outside_the_target_are_a_share_of_the_whole() -> None:
    options = (*ROUNDS["EAGLE-3, pruned by ARC"], "max_new_tokens=24")
    found = outside_target(options, problems=1)
    assert 0 < found["share"] < 1
    assert found["rounds"] > 0
    # the head's time is counted, and so is the target's
    assert 0 < found["outside_models_ms"] < 0.9 * found["milliseconds_a_round"] < found["whole_ms"]
