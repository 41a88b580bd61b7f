"""A model with the interface of NVIDIA's ``specdec_bench`` (Model-Optimizer, examples/specdec_bench).

    from semspec.harness.specdec_bench import SemspecModel
    engines_available["SEMSPEC"] = SemspecModel      # in specdec_bench's run.py

Each round of the loop is one chunk, so its acceptance lengths are ours.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from semspec.choices.presets import with_recommended
from semspec.choices.settle import expand_shorthands
from semspec.cli.arguments import check_arguments
from semspec.config import build, compose
from semspec.errors import UserError
from semspec.protocols import BenchmarkProblem
from semspec.solver import Solver

DRAFTS: Mapping[str, str] = {"NONE": "none", "NGRAM": "prompt_lookup", "DRAFT_TARGET": "lm"}
SAMPLING = ("temperature", "top_p", "top_k", "min_p")


class SemspecModel:
    """A loaded pair that answers requests one after another."""

    def __init__(
        self,
        model_dir: str,
        max_concurrent_requests: int = 1,
        sampling_kwargs: Mapping[str, Any] | None = None,
        speculative_algorithm: str = "DRAFT_TARGET",
        draft_model_dir: str | None = None,
        speculative_num_steps: int = 3,
        overrides: Sequence[str] = (),
        **others: Any,
    ) -> None:
        """``overrides``: options of ``semspec.run``. ``others``: ignored options of other engines, such as parallelism."""
        if speculative_algorithm not in DRAFTS:
            known = ", ".join(DRAFTS)
            raise UserError(
                f"speculative_algorithm={speculative_algorithm}: give one of {known}, and"
                " everything else with overrides="
            )
        sampling = {"temperature": 0, **(sampling_kwargs or {})}
        if unknown := set(sampling) - set(SAMPLING):
            raise UserError(
                f"sampling_kwargs {', '.join(sorted(unknown))}: give {', '.join(SAMPLING)}"
            )
        draft = DRAFTS[speculative_algorithm]
        given = [f"model.path={model_dir}", "split=token", f"draft_length={speculative_num_steps}"]
        if draft == "lm":
            if not draft_model_dir:
                raise UserError("speculative_algorithm=DRAFT_TARGET needs draft_model_dir")
            given.append(f"draft.model.path={draft_model_dir}")
        else:
            given.append(f"draft={draft}")
        given += [f"{name}={value}" for name, value in sampling.items()]
        given += ["accept=lossless", "adaptive=false", *overrides]
        arguments = expand_shorthands(with_recommended(given)[0])
        check_arguments(arguments, sweep=False)
        self._solver = Solver(build(compose(arguments)))
        self._solver.measure(())
        self._turn, self._numbers = threading.Lock(), itertools.count()

    async def run(
        self,
        prompt_ids: Sequence[int],
        max_length: int,
        end_id: int,
        request_id: int | None = None,
        turn_id: int | None = None,
    ) -> dict[str, Any]:
        """Answer one request: return tokens, the start time followed by each chunk's time, and chunk lengths.

        The text ends where the model ends it, even with ``end_id=-1``.
        """
        return await asyncio.to_thread(self._run, list(prompt_ids), max_length, request_id, turn_id)

    def _run(
        self, prompt_ids: list[int], max_length: int, request_id: int | None, turn_id: int | None
    ) -> dict[str, Any]:
        number = next(self._numbers) if request_id is None else request_id
        name = f"request-{number}-{turn_id or 0}"
        problem = BenchmarkProblem(name, "", prompt_ids=tuple(prompt_ids))
        with self._turn:
            times, chunks = [time.perf_counter()], list[list[int]]()
            for done in self._solver.stream(problem, max_length):
                if done.tokens:
                    chunks.append(done.tokens)
                    times.append(time.perf_counter())
        tokens = [token for chunk in chunks for token in chunk]
        return {
            "output_ids": [tokens],
            "token_times": times,
            "chunk_lengths": [[len(chunk) for chunk in chunks]],
        }

    def stop(self) -> None:
        self._solver.close()
