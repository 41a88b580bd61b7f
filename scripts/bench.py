"""`make bench`: measure the cost of decoding, scoring and the loop on this machine, and the pair's upper bound.

    python scripts/bench.py [--problems 60] [--quick] [--out results/bench.json]

One JSON and one table; servers under load are measured by `make serving`. Nothing else should run on the machine meanwhile; the load is recorded.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from bench_engine import CONTEXTS, bench_engine
from bench_kit import token_kit
from bench_passes import ROUNDS, bench_passes, outside_target, show_passes
from bench_startup import show_startup, startup
from rich.console import Console
from script_kit import parser, table

from semspec.config import build, compose
from semspec.decoding.pace import Steady
from semspec.drafters.lm import LanguageModel
from semspec.driver import Driver
from semspec.engines.toy import Toy
from semspec.loop import Speculation, speculate
from semspec.report.terminal import open_console
from semspec.rules.lossless import Lossless
from semspec.runner import execute
from semspec.solver import Solver
from semspec.storage import provenance
from semspec.storage.files import write_json
from semspec.storage.packaged import beside_package
from semspec.types import Context, Sampling

LEVELS = {
    "step level (logprob, paragraphs)": ("accept=logprob", "split=paragraph", "draft_length=1"),
    "token level (lossless, 5 tokens)": ("accept=lossless", "split=token", "draft_length=5"),
}


def outside_passes(problems: int) -> dict[str, Any]:
    """Return the time outside model passes: as a share, and per round of the loop."""
    figures = {}
    for name, overrides in LEVELS.items():
        config = build(compose([*overrides, f"problems={problems}"]))
        todo = list(islice(config.benchmark.problems(), problems))
        with Solver(config) as solver:
            list(solver.solve(todo[:2], "speculative"))  # warm-up
            done = list(solver.solve(todo, "speculative"))
        seconds = sum(s.outcome.seconds for s in done)
        outside = sum(s.outcome.seconds * s.overhead for s in done)
        rounds = sum(len(s.outcome.rounds) for s in done)
        figures[name] = {
            "share": outside / seconds,
            "microseconds_per_round": 1e6 * outside / rounds,
            "rounds": rounds,
        }
    return figures


def outside_passes_by_context(rounds_of: int = 200) -> dict[int, float]:
    """Return microseconds per round outside the engine, after contexts of growing length (toy engine)."""
    toy, rule = Toy(), Lossless()
    models = toy.models()
    figures = {}
    for length in (256, 1024, 2048, 4096, 8192, 32768):
        least = float("inf")
        for repeat in range(5):
            rng = random.Random(repeat)
            kit = replace(token_kit(Sampling(1.0), rng), evidence=rule.evidence())
            context = Context(repeat, [rng.randrange(toy.vocabulary) for _ in range(length)])

            def plans(context: Context = context, kit: Any = kit) -> Iterator[Any]:
                drafter, judging = LanguageModel().open(kit), rule.open(kit)
                problem = Speculation(context, kit, rounds_of, drafter, judging, Steady(5, 1))
                yield context, speculate(problem)

            (done,) = Driver(dict(models)).run(plans())  # type: ignore[arg-type]
            outside = done.seconds - done.model_seconds
            least = min(least, 1e6 * outside / len(done.value.rounds))
        figures[length] = least
    return figures


def what_the_pair_allows(problems: int) -> dict[str, Any]:
    """Measure end to end with the oracle rule: the upper bound for any step rule."""
    figures = {}
    for temperature in (0.0, 0.6):
        options = ["accept=oracle", "quiet=true", f"temperature={temperature}"]
        config = build(compose([*options, f"problems={problems}"]))
        with tempfile.TemporaryDirectory() as folder:
            made = execute(config, {"bench": temperature}, Path(folder), open_console(quiet=True))
        figures[f"T={temperature:g}"] = made
    return figures


def show(result: dict[str, Any], console: Console) -> None:
    times = table("engine=hf, one thread, fp32, milliseconds", "", "draft", "target", "ratio")
    draft, target = (_named(result[role]) for role in ("draft", "target"))
    for name, b in target.items():
        if (a := draft[name]) and b:
            times.add_row(name, f"{a:.2f}", f"{b:.2f}", f"{b / a:.1f}")
    console.print(times)
    console.print(show_startup(result["startup"]))
    outside = table("outside model passes", "", "share", "microseconds per round")
    for name, f in result["outside_passes"].items():
        outside.add_row(name, f"{100 * f['share']:.1f} %", f"{f['microseconds_per_round']:.0f}")
    for length, microseconds in result["outside_passes_by_context"].items():
        outside.add_row(f"toy engine, context {length}", "", f"{microseconds:.0f}")
    console.print(outside)
    show_passes(result, console)
    headings = ("", "speed-up [95 %]", "pass@1", "plain pass@1", "steps accepted")
    oracle = table("what the pair allows: accept=oracle, end to end", *headings)
    for name, f in result["oracle"].items():
        low, high = f["speedup_interval"]
        speedup, accepted = f"{f['speedup']:.2f}x [{low:.2f}, {high:.2f}]", f["acceptance_rate"]
        quality = (f"{pass_at_1:.3f}" for pass_at_1 in (f["pass_at_1"], f["plain"]["pass_at_1"]))
        oracle.add_row(name, speedup, *quality, f"{100 * accepted:.0f} %")
    console.print(oracle)


def _named(f: dict[str, Any]) -> dict[str, float | None]:
    """Return a model's figures by what the table calls them."""
    return {
        "a token, greedy": f["token_greedy"],
        "a token, sampled": f["token_sampled"],
        "a token by model.generate": f["token_transformers"],
        **{f"scoring {count} tokens": took for count, took in f["score"].items()},
        **{f"a token at context {length}": took for length, took in f["token_at"].items()},
        "weights, MB": f["weights_mb"],
        "cache at the longest context, MB": f["cache_mb"],
    }


def main() -> None:
    quick = (False, "shorter contexts, no transformers")
    arguments = parser(__doc__, problems=60, quick=quick, out=Path("runs/bench.json")).parse_args()
    torch.set_num_threads(1)
    console = Console()
    models = beside_package("hub_artifacts")
    contexts = (256, 1024) if arguments.quick else CONTEXTS
    result: dict[str, Any] = {"provenance": provenance.collect(), "startup": startup()}
    for role in ("draft", "target"):
        console.print(f"[dim]the {role} alone ...[/]")
        result[role] = bench_engine(
            models / f"tiny-{role}", contexts=contexts, reference=not arguments.quick
        )
    console.print("[dim]the loop ...[/]")
    result["outside_passes"] = outside_passes(min(arguments.problems, 20))
    result["outside_passes_by_context"] = outside_passes_by_context()
    console.print("[dim]passes over a few tokens ...[/]")
    result["passes"] = bench_passes(models / "tiny-target", 50 if arguments.quick else 200)
    result["outside_target"] = {
        name: outside_target(options, min(arguments.problems, 5))
        for name, options in ROUNDS.items()
    }
    console.print("[dim]the pair with an oracle ...[/]")
    result["oracle"] = what_the_pair_allows(arguments.problems)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out, json.loads(json.dumps(result)))
    show(result, console)
    console.print(f"[dim]written to {arguments.out}[/]")


if __name__ == "__main__":
    sys.exit(main())
