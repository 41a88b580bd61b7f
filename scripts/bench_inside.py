"""Measure tokens per second of one SGLang server alone, with steps judged inside it, and of the loop over two servers.

    python scripts/bench_inside.py --plain URL --inside URL [--inside NAME=URL] [--draft URL] --requests 1 4 --turns 3 [OPTION=VALUE ...]

Arms take turns, so that other work on the machine affects all of them alike; a ratio is the median over turns. ``--plain`` runs the
target without speculation, ``--inside`` the same target with SEMSPEC_LM or another drafter, ``--draft`` the small model: with it, or with an option
like ``draft=suffix``, the loop over these servers is an arm as well. Servers started with the plugin's part ``timing`` report how
long their models took; the rest of an arm's time is spent outside the models.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
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


def in_models(urls: Sequence[str]) -> float:
    """Return the seconds that all models of these servers have spent in passes; NaN if a server does not report them."""
    total = 0.0
    for url in urls:
        with urllib.request.urlopen(f"{url}/server_info", timeout=60) as reply:
            for state in json.load(reply)["internal_states"]:
                told = state.get("semspec_seconds")
                if told is None:
                    return math.nan
                total += sum(model["seconds"] for model in told.values())
    return total


@dataclass(frozen=True)
class Turn:
    """What an arm did in one turn."""

    tokens: int
    seconds: float
    models: float  # seconds in passes; two servers may work at the same time

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def measured(arm: Callable[[], int], urls: Sequence[str]) -> Turn:
    before, started = in_models(urls), time.perf_counter()
    tokens = arm()
    seconds = time.perf_counter() - started
    return Turn(tokens, seconds, in_models(urls) - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", required=True)
    parser.add_argument("--inside", required=True, action="append", help="URL or NAME=URL")
    parser.add_argument("--draft")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--accept", default="logprob")
    parser.add_argument("--limit", type=int, default=256)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "options", nargs="*", help="further options of the loop, e.g. benchmark=gsm8k"
    )
    parser.add_argument("--out", help="a JSON file for every turn's figures")
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
                *told.options,
            ]
        )
    )
    # at temperature 0 a server calls greedy lossless
    rule = {"accept": "lossless" if told.accept == "greedy" else told.accept}
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

        judging = dict(one.split("=", 1) if "=" in one else ("inside", one) for one in told.inside)
        kept = []
        for count in told.requests:
            arms = {"SGLang alone": (served(told.plain, None, count), [told.plain])}
            for name, url in judging.items():
                arms[name] = (served(url, rule, count), [url])
            if told.draft or any(option.startswith("draft=") for option in told.options):
                arms["the loop over servers"] = (looped(count), sorted({told.plain, draft}))
            found: dict[str, list[Turn]] = {name: [] for name in arms}
            for turn in range(told.turns + 1):  # the first one warms up
                for name, (arm, urls) in arms.items():
                    done = measured(arm, urls)
                    if turn:
                        found[name].append(done)
            plain = found["SGLang alone"]
            for name, turns in found.items():
                ratios = [own.speed / base.speed for own, base in zip(turns, plain, strict=True)]
                speed = statistics.median(one.speed for one in turns)
                wall = 1000 * statistics.median(one.seconds / one.tokens for one in turns)
                models = 1000 * statistics.median(one.models / one.tokens for one in turns)
                print(
                    f"{count:3d} at a time  {name:22s} {speed:7.1f} tokens/s, {statistics.median(ratios):.2f}x SGLang alone"
                    f" ({min(ratios):.2f} to {max(ratios):.2f}); {wall:.2f} ms per token, {models:.2f} in models",
                    flush=True,
                )
                kept.append({"requests": count, "arm": name, "turns": [asdict(t) for t in turns]})
                if told.out:
                    Path(told.out).write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
