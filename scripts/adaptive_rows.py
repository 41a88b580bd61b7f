"""A row of `make never-slower`: one drafter on one kind of text, in turn with the target alone, and its figures."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache, partial
from itertools import islice
from multiprocessing import get_context
from statistics import median
from typing import Any, TypeAlias

from figures_page import Kept
from pass_times import Run, slower, timed, usual_prices, usual_seconds

from semspec.choices.settle import expand_shorthands
from semspec.config import build, compose
from semspec.engines.pool import Engines
from semspec.loading.settled import settle
from semspec.protocols import BenchmarkProblem
from semspec.results.metrics import Interval, rate_ratio, resampled
from semspec.solver import Solver

STEPS = ", whole steps"  # a drafter's rows with whole steps, judged losslessly: exact, too
BY_TOKENS = ("accept=lossless", "split=token")
BY_STEPS = ("accept=token", "split=paragraph")
DRAFTERS = {
    "lm": ("draft=lm",),
    "lm, dynamic tree": ("draft=lm", "tree=dynamic"),
    "lm, sampled tree": ("draft=lm", "tree=sampled"),
    "eagle3": ("draft=eagle3",),
    "eagle3, chain": ("draft=eagle3", "tree=chain"),
    "medusa": ("draft=medusa",),
    **{
        name: (f"draft={name}",)
        for name in (
            "prompt_lookup suffix pld_plus adapld token_recycling logitspec rest dresd hybrid reference"
        ).split()
    },
    "hybrid, suffix+lm": ("draft=hybrid", "sources=suffix+lm"),
    "hybrid, suffix+eagle3": ("draft=hybrid", "sources=suffix+eagle3"),
    "hybrid, suffix+token_recycling": ("draft=hybrid", "sources=suffix+token_recycling", "match=5"),
    **{
        f"{name}{STEPS}": (f"draft={name}",)
        for name in "lm suffix pld_plus adapld token_recycling rest".split()
    },
}
# what a drafter is measured against besides the target alone and other drafters
FIXED = {"eagle3, chain of 6": ("draft=eagle3", "tree=chain", "draft_length=6", "adaptive=false")}
# these need no draft model, head or corpus of the target; on repetitive texts the target is the one that writes them
COPYING = "prompt_lookup suffix pld_plus adapld token_recycling logitspec hybrid reference".split()
COPYING += ["hybrid, suffix+token_recycling"]
TEXTS = {
    "synthetic": "Chains of thought, with little repetition",
    "editing": "A list copied with one value changed",
    "grounded": "Facts quoted from a paragraph",
    "periodic": "One phrase repeated many times",
}
OWN = "synthetic"  # what the embedded pair was trained for; its drafts are almost always wrong on the others
PERIODS = ("a b ", "one two three ", "x=1; ", "Monday ", "to be or not ", "7 + 7 = 14, ")
WANTED = 0.97  # the aim: at least this share of the target's own speed
# times as many turns for the embedded copier: its answers take a tenth of the target's time
SMALL = 4
PROMPTS = 3  # times that a prompt is read by itself
Groups = Sequence[Mapping[str, float]]


def problems_of(text: str, count: int) -> Iterator[BenchmarkProblem]:
    """Yield problems of a benchmark, or questions that repeat one phrase."""
    if text == "periodic":
        for number in range(count):
            phrase = PERIODS[number % len(PERIODS)]
            given = (phrase * (24 + number // len(PERIODS))).strip()
            yield BenchmarkProblem(f"periodic-{number}", f"Go on: {given}", references=(given,))
        return
    made = build(compose([f"benchmark={text}"])).benchmark
    yield from islice(made.problems(), count)


def measured_or_kept(key: str, kept: Kept, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the saved row, or measure it; print which row it is."""
    row = kept.part(key, measure)
    usual = speed(row, "usual")[0]
    print(f"{key}: {speed(row)[0]:.2f}x, at usual prices {usual:.2f}x", flush=True)
    return row  # type: ignore[no-any-return]


Row: TypeAlias = tuple[str, str, float, Mapping[str, Any], str | None]
"""What ``measured`` needs besides engines: a drafter, a text, a temperature, what is measured, and what it is measured against."""


def all_rows(rows: Mapping[str, Row], kept: Kept, engines: Engines, workers: int) -> dict[str, Any]:
    """Measure rows that were not saved, ``workers`` at a time in processes of their own; return all of them."""
    measuring = {key: partial(measured, *row, engines) for key, row in rows.items()}
    if workers == 1:
        return {key: measured_or_kept(key, kept, measure) for key, measure in measuring.items()}
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        missing = [key for key in rows if not kept.has(key)]
        there = {pool.submit(_measured_there, *rows[key]): key for key in missing}
        try:
            for done in as_completed(there):
                measured_or_kept(there[done], kept, done.result)
        except BaseException:  # interrupted: end with the rows under way
            pool.shutdown(cancel_futures=True)
            raise
    return {key: kept.part(key, measure) for key, measure in measuring.items()}


@cache
def _engines_here() -> Engines:
    """Return the engines of a worker, loaded once; they end with it."""
    return Engines()


def _measured_there(*row: Any) -> dict[str, Any]:
    return measured(*row, _engines_here())


def copied(name: str, text: str) -> bool:
    """Return whether the embedded copier writes the texts of a row."""
    return text != OWN and name.removesuffix(STEPS) in COPYING


def measured(
    name: str,
    text: str,
    temperature: float,
    given: Mapping[str, Any],
    over: str | None,
    engines: Engines,
) -> dict[str, Any]:
    """Solve problems both ways in turn; return seconds, tokens and equal texts of each group.

    Seconds are by the wall clock, by the CPU's, and by the wall clock with each pass at its usual price (``pass_times``).
    ``over``: a drafter that takes the place of the target alone. ``slower``: how many times as long the target's passes took beside drafts.
    """
    copier = ["model=tiny-copier"] * copied(name, text)
    rule = BY_STEPS if name.endswith(STEPS) else BY_TOKENS
    shared = [*copier, *rule, f"temperature={temperature}", "quiet=true"]
    shared += [f"max_new_tokens={given['tokens']}", f"concurrency={given['concurrency']}"]
    options = [*DRAFTERS[name], *shared]
    off = _solver([*options, "adaptive=false"], engines)
    turns = [_solver(options, engines) for _ in range(given["turns"] * (SMALL if copier else 1))]
    others = [(off, "plain") for _ in turns]
    if over is not None:
        against = [*(DRAFTERS | FIXED)[over], *shared]
        others = [(_solver(against, engines), "speculative") for _ in turns]
    settle()
    size, todo = given["concurrency"], list(problems_of(text, given["problems"]))
    for mode in ("plain", "speculative"):
        _timed(off, todo[:size], mode)
    groups: list[dict[str, float]] = []
    counts: Counter[str] = Counter()
    runs: dict[str, list[list[Run]]] = {"prompt": [], "plain": [], "speculative": []}
    for start in range(0, len(todo), size):
        these = todo[start : start + size]
        for of_mode in runs.values():
            of_mode.append([])
        read = [_timed(off, these, "plain", 1, runs["prompt"][-1]) for _ in range(PROMPTS)]
        prompt = {"wall": median(one[0] for one in read), "cpu": median(one[1] for one in read)}
        group: dict[str, float] = defaultdict(float)
        for turn, solver in enumerate(turns):
            for clock, seconds in prompt.items():
                group[f"prompt {clock}"] += seconds
            texts: dict[str, dict[str, list[int]]] = {}
            for mode in ("plain", "speculative")[:: -1 if (start // size + turn) % 2 else 1]:
                by = others[turn] if mode == "plain" else (solver, mode)
                wall, cpu, done = _timed(by[0], these, by[1], runs=runs[mode][-1])
                group[f"{mode} wall"] += wall - prompt["wall"]
                group[f"{mode} cpu"] += cpu - prompt["cpu"]
                group[f"{mode} tokens"] += sum(len(one.outcome.tokens) for one in done)
                texts[mode] = {one.problem.id: list(one.outcome.tokens) for one in done}
                if mode == "plain":
                    continue
                for one in (one for solved in done for one in solved.outcome.rounds):
                    counts += Counter(
                        rounds=1,
                        drafts=bool(one.drafted),
                        drafted=len(one.drafted),
                        kept=len(one.kept),
                    )
            group["answers"] += len(these)
            for answer, tokens in texts["plain"].items():
                group["equal"] += texts["speculative"][answer] == tokens
        groups.append(group)
    every = {mode: [run for group in of_mode for run in group] for mode, of_mode in runs.items()}
    prices = usual_prices([run for of_mode in every.values() for run in of_mode])
    for at, group in enumerate(groups):
        prompts = len(turns) * median(usual_seconds(run, prices) for run in runs["prompt"][at])
        group["prompt usual"] = prompts
        for mode in ("plain", "speculative"):
            seconds = sum(usual_seconds(run, prices) for run in runs[mode][at])
            group[f"{mode} usual"] = seconds - prompts
    told = slower(every["speculative"], every["plain"])
    return {"groups": groups, "slower": told, **counts}


def _solver(options: list[str], engines: Engines) -> Solver:
    solver = Solver(build(compose(expand_shorthands(options))), shared=engines)
    solver.fetch()
    solver.load()
    return solver


def _timed(
    solver: Solver,
    problems: Sequence[BenchmarkProblem],
    mode: str,
    budget: int | None = None,
    runs: list[Run] | None = None,
) -> tuple[float, float, list[Any]]:
    """Solve problems; return wall seconds, CPU seconds and the solutions; append the passes to ``runs``."""
    run = Run()
    with timed(run):
        cpu = time.process_time()
        done = list(solver.solve(problems, mode, budget))  # type: ignore[arg-type]
        cpu = time.process_time() - cpu
    if runs is not None:
        runs.append(run)
    return run.seconds, cpu, done


def speed(row: Mapping[str, Any], clock: str = "wall") -> tuple[float, Interval | None]:
    """Return the speed-up over the target alone from question to answer, with its interval over problems."""
    return resampled(row["groups"], partial(from_question_to_answer, clock=clock))


def from_question_to_answer(groups: Groups, clock: str) -> float:
    """Return the target's seconds over those with drafts, scaled to texts as long as the target's."""

    def total(what: str) -> float:
        return math.fsum(group[what] for group in groups)

    prompts, longer = total(f"prompt {clock}"), total("plain tokens") / total("speculative tokens")
    return (prompts + total(f"plain {clock}")) / (prompts + longer * total(f"speculative {clock}"))


def answer_alone(row: Mapping[str, Any], clock: str = "wall") -> tuple[float, Interval | None]:
    """Return the speed-up by seconds per token of the answers alone, without the prompt's pass."""
    ways = ("speculative", "plain")
    return rate_ratio(
        [
            tuple(g[f"{way} {what}"] for way in ways for what in ("tokens", clock))
            for g in row["groups"]
        ]
    )  # type: ignore[misc]


def spoken(row: Mapping[str, Any], clock: str = "wall") -> str:
    """Return a row's speed-up with its interval, and that of the answers alone, as text."""
    value, bounds = speed(row, clock)
    ends = f" [{bounds[0]:.2f}, {bounds[1]:.2f}]" if bounds else ""
    return f"{value:.2f}x{ends} ({answer_alone(row, clock)[0]:.2f}x)"


def drafts_told(row: Mapping[str, Any]) -> str:
    """Return how many rounds had a draft, and how many tokens of it were drafted and kept."""
    count = max(row.get("drafts", 0), 1)
    share = row.get("drafts", 0) / max(row.get("rounds", 0), 1)
    return f"{100 * share:.0f} %; {row.get('drafted', 0) / count:.1f}, {row.get('kept', 0) / count:.1f}"


def summary(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table's summary: the median, the lowest, how many rows miss the aim, and the greedy texts."""
    equal, answers = equal_texts([row for key, row in rows.items() if key.endswith("/0")])
    slower = [row["slower"] for row in rows.values() if row["slower"]]
    return (
        f" With each pass at its usual price, {_spread(rows, 'usual')}. By the wall clock, {_spread(rows, 'wall')}."
        f" Beside drafts, the target's passes took {median(slower):.2f}x as long as the same passes without, in the median over the rows."
        f" At T = 0, {equal:,} of {answers:,} answers are the target's own text."
    )


def _spread(rows: Mapping[str, Mapping[str, Any]], clock: str) -> str:
    """Return the median and the lowest speed-up of all rows, and how many miss the aim, as text."""
    speeds = {key: from_question_to_answer(row["groups"], clock) for key, row in rows.items()}
    least = min(speeds, key=speeds.__getitem__)
    low = sum(value < WANTED for value in speeds.values())
    return (
        f"the median is {median(speeds.values()):.2f}x and the lowest {speeds[least]:.2f}x ({least}),"
        f" and {low} of {len(rows)} rows are below {WANTED:.2f}x"
    )


def side_by_side(of: Mapping[str, Any]) -> str:
    """Return how many rows were measured at the same time, as the end of a phrase; nothing if it was one."""
    workers = of.get("workers", 1)
    return f" for each of {workers} rows that were measured at the same time" if workers > 1 else ""


def equal_texts(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return how many texts are the target's own, token by token, and how many there are."""
    groups = [group for row in rows for group in row["groups"]]
    equal, answers = (sum(int(g.get(what, 0)) for g in groups) for what in ("equal", "answers"))
    return equal, answers
