"""Tokens a second of one SGLang server by itself, with steps judged inside it, and of the loop over two servers.

    python scripts/bench_inside.py --plain URL --inside URL [--draft URL] --requests 1 4 --turns 3

Arms take turns, so that what else the machine does meets all of them; a ratio is the median over turns. ``--plain`` runs the
target without speculation, ``--inside`` the same target with SEMSPEC_LM, ``--draft`` the small model: with it the loop over
``--plain`` and ``--draft`` is an arm as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from semspec.config import build, compose
from semspec.protocols import BenchmarkProblem
from semspec.solver import Solver


def ask(url: str, ids: list[int], limit: int, asked: dict[str, Any] | None) -> int:
    params: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": limit}
    if asked is not None:
        params["custom_params"] = {"semspec": asked}
    body = json.dumps({"input_ids": ids, "sampling_params": params}).encode()
    request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return len(json.load(reply)["output_ids"])


def measured(arm: Callable[[], int]) -> float:
    started = time.perf_counter()
    tokens = arm()
    return tokens / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", required=True)
    parser.add_argument("--inside", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--accept", default="logprob")
    parser.add_argument("--limit", type=int, default=256)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--turns", type=int, default=5)
    told = parser.parse_args()
    draft = told.draft or told.plain  # without it, only prompts are made
    over = ["engine=sglang", f"engine.target_url={told.plain}", f"engine.draft_url={draft}"]
    if not told.draft:
        over.append("engine.check=false")
    config = build(
        compose(
            [
                f"model={told.model}",
                *over,
                f"accept={told.accept}",
                "temperature=0",
                f"max_new_tokens={told.limit}",
                f"concurrency={max(told.requests)}",
                f"problems={max(told.requests)}",
            ]
        )
    )
    rule = {"accept": told.accept}
    with Solver(config) as solver, ThreadPoolExecutor(max(told.requests)) as pool:
        problems: list[BenchmarkProblem] = []
        for problem in config.benchmark.problems():
            problems.append(problem)
            if len(problems) == max(told.requests):
                break
        prompts = [solver.text.prompt(one.question, one.system)[1] for one in problems]

        def served(url: str, asked: dict[str, Any] | None, count: int) -> Callable[[], int]:
            def arm() -> int:
                work = [pool.submit(ask, url, ids, told.limit, asked) for ids in prompts[:count]]
                return sum(one.result() for one in work)

            return arm

        def looped(count: int) -> Callable[[], int]:
            return lambda: sum(
                len(done.outcome.tokens) for done in solver.solve(problems[:count], "speculative")
            )

        for count in told.requests:
            arms = {
                "SGLang alone": served(told.plain, None, count),
                "inside": served(told.inside, rule, count),
            }
            if told.draft:
                arms["the loop over servers"] = looped(count)
            found: dict[str, list[float]] = {name: [] for name in arms}
            for turn in range(told.turns + 1):  # the first one warms up
                for name, arm in arms.items():
                    speed = measured(arm)
                    if turn:
                        found[name].append(speed)
            plain = found["SGLang alone"]
            for name, speeds in found.items():
                ratio = statistics.median(a / b for a, b in zip(speeds, plain, strict=True))
                spoken = f"{statistics.median(speeds):7.1f} tokens/s, {ratio:.2f}x"
                print(f"{count:3d} at a time  {name:22s} {spoken} SGLang alone", flush=True)


if __name__ == "__main__":
    main()
