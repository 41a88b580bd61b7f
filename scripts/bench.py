"""`make bench`: what decoding, scoring and the loop itself cost here, and what the pair allows.

    python scripts/bench.py [--problems 60] [--quick] [--out docs/bench.json]

One JSON and one table. Nothing else should run on the machine meanwhile; the load is recorded.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from bench_engine import bench_engine
from bench_startup import startup
from rich.console import Console
from rich.table import Table

from semspec.config import build, compose
from semspec.decoding.pace import Steady
from semspec.drafters.lm import LanguageModel
from semspec.driver import Driver
from semspec.engines.toy import Toy
from semspec.loop import Speculation, speculate
from semspec.protocols import Kit
from semspec.report.terminal import open_console
from semspec.rules.lossless import Lossless
from semspec.runner import execute
from semspec.solver import Solver
from semspec.splitters.token import TokenSplit
from semspec.storage import provenance
from semspec.storage.files import write_json
from semspec.storage.packaged import beside_package
from semspec.types import Context, Sampling

LEVELS = {
    "step level (logprob, paragraphs)": ("accept=logprob", "split=paragraph", "draft_length=1"),
    "token level (lossless, 5 tokens)": ("accept=lossless", "split=token", "draft_length=5"),
}


def outside_passes(problems: int) -> dict[str, Any]:
    """Time that is not a model pass: as a share, and for each round of the loop."""
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
    """Microseconds a round outside the engine, after contexts of growing length (toy engine)."""
    toy, rule, splitter = Toy(), Lossless(), TokenSplit()
    models = toy.models()
    figures = {}
    for length in (256, 1024, 2048, 4096, 8192, 32768):
        least = float("inf")
        for repeat in range(5):
            rng = random.Random(repeat)
            kit = Kit(
                prompt="",
                sampling=Sampling(1.0),
                boundary=lambda: splitter.open(str, 1),
                stop_ids=frozenset(),
                piece=str,
                decode=str,
                encode=lambda text: [],
                rng=rng,
                evidence=rule.evidence(),
            )
            context = Context(repeat, [rng.randrange(toy.vocabulary) for _ in range(length)])

            def plans(context: Context = context, kit: Kit = kit) -> Iterator[Any]:
                drafter, judging = LanguageModel().open(kit), rule.open(kit)
                problem = Speculation(context, kit, rounds_of, drafter, judging, Steady(5, 1))
                yield context, speculate(problem)

            (done,) = Driver(dict(models)).run(plans())  # type: ignore[arg-type]
            outside = done.seconds - done.model_seconds
            least = min(least, 1e6 * outside / len(done.value.rounds))
        figures[length] = least
    return figures


def what_the_pair_allows(problems: int) -> dict[str, Any]:
    """End to end with the oracle rule: what any judge of steps could reach at best."""
    figures = {}
    for temperature in (0.0, 0.6):
        config = build(
            compose(["accept=oracle", f"temperature={temperature}", f"problems={problems}"])
        )
        config.quiet = True
        with tempfile.TemporaryDirectory() as folder:
            silent = open_console(quiet=True)
            figures[f"T={temperature:g}"] = execute(
                config, {"bench": temperature}, Path(folder), silent
            )
    return figures


def show(result: dict[str, Any], console: Console) -> None:
    table = Table(title="engine=hf, one thread, fp32, milliseconds", title_justify="left")
    for heading in ("", "draft", "target", "ratio"):
        table.add_column(heading, justify="right" if heading else "left")
    draft, target = result["draft"], result["target"]

    def row(name: str, a: float | None, b: float | None) -> None:
        if a and b:
            table.add_row(name, f"{a:.2f}", f"{b:.2f}", f"{b / a:.1f}")

    row("a token, greedy", draft["token_greedy"], target["token_greedy"])
    row("a token, sampled", draft["token_sampled"], target["token_sampled"])
    row("the same by model.generate", draft["token_transformers"], target["token_transformers"])
    for count in target["score"]:
        row(f"scoring {count} tokens", draft["score"][count], target["score"][count])
    for length in target["token_at"]:
        row(f"a token at context {length}", draft["token_at"][length], target["token_at"][length])
    row("weights, MB", draft["weights_mb"], target["weights_mb"])
    row("cache at the longest context, MB", draft["cache_mb"], target["cache_mb"])
    console.print(table)
    table = Table("", "CPU", "wall", title="seconds to start", title_justify="left")
    for name, f in result["startup"].items():
        table.add_row(name, f"{f['cpu_seconds']:.2f}", f"{f['seconds']:.2f}")
    console.print(table)
    table = Table(title="outside model passes", title_justify="left")
    for heading in ("", "share", "microseconds a round"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, f in result["outside_passes"].items():
        table.add_row(name, f"{100 * f['share']:.1f} %", f"{f['microseconds_per_round']:.0f}")
    for length, microseconds in result["outside_passes_by_context"].items():
        table.add_row(f"toy engine, context {length}", "", f"{microseconds:.0f}")
    console.print(table)
    table = Table(title="what the pair allows: accept=oracle, end to end", title_justify="left")
    for heading in ("", "speed-up [95 %]", "pass@1", "plain pass@1", "steps accepted"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, f in result["oracle"].items():
        low, high = f["speedup_interval"]
        table.add_row(
            name,
            f"{f['speedup']:.2f}x [{low:.2f}, {high:.2f}]",
            f"{f['pass_at_1']:.3f}",
            f"{f['plain']['pass_at_1']:.3f}",
            f"{100 * f['acceptance_rate']:.0f} %",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--quick", action="store_true", help="shorter contexts, no transformers")
    parser.add_argument("--out", type=Path, default=Path("runs/bench.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    models = beside_package("hub_artifacts")
    contexts = (256, 1024) if arguments.quick else (256, 1024, 2048, 4096, 8192)
    result: dict[str, Any] = {"provenance": provenance.collect(), "startup": startup()}
    for role in ("draft", "target"):
        console.print(f"[dim]the {role} alone ...[/]")
        result[role] = bench_engine(
            models / f"tiny-{role}", contexts=contexts, reference=not arguments.quick
        )
    console.print("[dim]the loop ...[/]")
    result["outside_passes"] = outside_passes(min(arguments.problems, 20))
    result["outside_passes_by_context"] = outside_passes_by_context()
    console.print("[dim]the pair with an oracle ...[/]")
    result["oracle"] = what_the_pair_allows(arguments.problems)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out, json.loads(json.dumps(result)))
    show(result, console)
    console.print(f"[dim]written to {arguments.out}[/]")


if __name__ == "__main__":
    sys.exit(main())
