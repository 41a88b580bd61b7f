"""The engine's benchmark runs, and reaches contexts beyond the model's own limit."""

from __future__ import annotations

from scripts.bench_engine import bench_engine
from tests.support.tiny_models import folder


def test_bench_engine_measures_every_asked_case() -> None:
    found = bench_engine(
        folder("qwen3"), tokens=4, repeats=1, contexts=(32, 700), batches=(2,), reference=True
    )
    assert set(found["score"]) == {20, 40, 80}
    assert set(found["token_at"]) == {32, 700}
    assert all(found[name] > 0 for name in ("load", "token_greedy", "token_transformers"))
