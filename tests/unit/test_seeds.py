"""Averages over seeds: how runs are grouped, and figures and intervals against a slow reference."""

from __future__ import annotations

import io
import json
import math
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy
import pytest

from semspec.jobs import sweep
from semspec.jobs.sweep import carry_out, over_seeds, plan
from semspec.report.runs import read_sweep
from semspec.report.sweep import sweep_page
from semspec.report.terminal import Screen
from semspec.results.metrics import Z95, share_interval, wilson
from semspec.results.records import RunFolder
from semspec.results.seeds import Average, averages, figures_of
from tests.support.runs import CONFIG, make_run

PROBLEMS = 12
BENCHMARK: dict[str, Any] = CONFIG["benchmark"]


def a_seed(
    root: Path, seed: int, name: str = "", problems: int = PROBLEMS, **given: Any
) -> RunFolder:
    """A run whose answers and seconds are drawn from its seed; easy problems are easy in every seed."""
    rng = random.Random(seed)
    own = [(rng.random() < 0.8, rng.random() < i / problems) for i in range(problems)]
    took = [(rng.uniform(1, 4), rng.uniform(0.5, 2)) for _ in range(problems)]
    config = {"seed": seed} | given.pop("config", {})
    folder = make_run(
        root / (name or f"accept=logprob,seed={seed}"),
        problems,
        correct=own.__getitem__,
        seconds=took.__getitem__,
        repeat=seed + 1,  # longer answers
        config=config,
        **given,
    )
    return RunFolder(folder)


def found_in(root: Path) -> list[Average]:
    return averages((run.name, RunFolder(run.folder)) for run in read_sweep(root) if run.finished)


def lines_of(folders: list[RunFolder]) -> Iterator[dict[str, Any]]:
    for folder in folders:
        for line in (folder.path / "problems.jsonl").read_text().splitlines():
            yield json.loads(line)


def slow_bootstrap(rows: list[tuple[float, float]]) -> list[float]:
    """2.5 % and 97.5 % of the ratio of sums over problems that are drawn again, with the seed that runs have."""
    rng, drawn = random.Random(0), []
    for _ in range(2000):
        chosen = rng.choices(range(len(rows)), k=len(rows))
        drawn.append(sum(rows[i][0] for i in chosen) / sum(rows[i][1] for i in chosen))
    return [float(q) for q in numpy.quantile(drawn, [0.025, 0.975])]


def test_problems_are_averaged_over_seeds_before_anything_else(tmp_path: Path) -> None:
    folders = [a_seed(tmp_path, seed) for seed in (0, 1, 2)]
    folders.append(a_seed(tmp_path, 3, problems=5))  # not every seed has every problem
    figures = figures_of(folders)
    right, walls, kept = (defaultdict[str, list[Any]](list) for _ in range(3))
    for line in lines_of(folders):
        right[line["id"]].append(line["correct"])
        walls[line["id"]].append((line["plain"]["wall"], line["wall"]))
        kept[line["id"]].append((line["kept_units"], line["drafted_units"]))
    assert (figures["problems"], figures["answers"]) == (PROBLEMS, 3 * PROBLEMS + 5)
    assert figures["pass_at_1"] == pytest.approx(mean(mean(r) for r in right.values()))
    assert figures["pass_at_1_interval"] == share_interval(
        [[float(r) for r in each] for each in right.values()]
    )
    for name, pairs in (("speedup", walls), ("acceptance_rate", kept)):
        rows = [(mean(a for a, _ in p), mean(b for _, b in p)) for p in pairs.values()]
        whole = sum(a for a, _ in rows) / sum(b for _, b in rows)
        assert figures[name] == pytest.approx(whole), name
        assert figures[f"{name}_interval"] == pytest.approx(slow_bootstrap(rows)), name


def test_the_interval_of_a_share_is_of_as_many_answers_as_the_seeds_are_worth(
    tmp_path: Path,
) -> None:
    """The worth by the definition: answers over 1 + (k - 1) times how alike two seeds are at a problem."""
    folders = [a_seed(tmp_path, seed) for seed in (0, 1, 2)]
    figures = figures_of(folders)
    right = numpy.array([[line["correct"] for line in lines_of([f])] for f in folders], float)
    off, seeds = right - right.mean(), len(folders)
    together = mean(
        float((off[i] * off[j]).mean()) for i in range(seeds) for j in range(seeds) if i != j
    )
    alike = together / float((off**2).mean())
    plain_worth = right.size / (1 + (seeds - 1) * alike)
    width = figures["pass_at_1_interval"][1] - figures["pass_at_1_interval"][0]
    for trials, wider in ((PROBLEMS, -1), (plain_worth, 1)):  # Student's t widens the latter
        low, high = wilson(float(right.mean()) * trials, trials, Z95) or (0, 0)
        assert math.copysign(1, width - (high - low)) == wider, trials


def test_seeds_that_all_agree_tell_no_more_than_one(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        make_run(
            tmp_path / f"seed={seed}", 8, correct=lambda i: (True, i < 5), config={"seed": seed}
        )
    (found,) = found_in(tmp_path)
    one = RunFolder(tmp_path / "seed=0").figures()
    assert one is not None and found.name == "mean of 3 seeds"
    for name in (
        "pass_at_1",
        "pass_at_1_interval",
        "speedup",
        "speedup_interval",
        "acceptance_rate",
    ):
        assert found.figures[name] == pytest.approx(one[name]), name


def test_only_finished_runs_that_differ_in_their_seeds_are_averaged(tmp_path: Path) -> None:
    for seed in (0, 1):
        a_seed(tmp_path, seed)
        a_seed(tmp_path, seed, f"accept=lossless,seed={seed}", config={"temperature": 1.0})
    a_seed(tmp_path, 2, finished=False)
    a_seed(tmp_path, 1, "copy,accept=logprob,seed=1")  # the same once more
    a_seed(tmp_path, 3, "accept=off,seed=3", config={"temperature": 0.7})  # has no other seed
    a_seed(tmp_path, 4, problems=7)  # others were asked
    assert [(one.name, one.jobs) for one in found_in(tmp_path)] == [
        ("accept=logprob: mean of 2 seeds", ("accept=logprob,seed=0", "accept=logprob,seed=1")),
        ("accept=lossless: mean of 2 seeds", ("accept=lossless,seed=0", "accept=lossless,seed=1")),
    ]


def test_another_seed_of_the_benchmark_adds_its_problems(tmp_path: Path) -> None:
    for drawn in (1, 2):
        for seed in (0, 1):
            config = {"benchmark": BENCHMARK | {"seed": drawn}}
            name = f"benchmark.seed={drawn},seed={seed}"
            a_seed(tmp_path, seed, name, config=config, question=f"Which of {drawn}?")
    (found,) = found_in(tmp_path)
    assert len(found.jobs) == 4
    # ids are the same in both, and questions are not
    assert (found.figures["problems"], found.figures["answers"]) == (2 * PROBLEMS, 4 * PROBLEMS)


def test_a_seed_that_only_shuffles_options_makes_no_new_problems(tmp_path: Path) -> None:
    for drawn in (1, 2):
        for seed in (0, 1):
            plugins = CONFIG["plugins"] | {"benchmark": "gpqa"}
            config = {"benchmark": {"seed": drawn}, "plugins": plugins}
            a_seed(tmp_path, seed, f"benchmark.seed={drawn},seed={seed}", config=config)
    assert [(one.options, len(one.jobs)) for one in found_in(tmp_path)] == [
        ("benchmark.seed=1", 2),
        ("benchmark.seed=2", 2),
    ]


def test_a_sweep_shows_and_keeps_its_averages(tmp_path: Path) -> None:
    jobs = plan(["problems=2", "max_new_tokens=8", "quiet=true", "seed=0,1", "draft_length=1,2"])
    carry_out(jobs, tmp_path, Screen(file=io.StringIO(), width=200))
    found = over_seeds(jobs, tmp_path)
    assert [one.options for one in found] == ["draft_length=1", "draft_length=2"]
    kept = json.loads((tmp_path / "sweep.json").read_text())
    assert len(kept["jobs"]) == 4
    assert [one["name"] for one in kept["averages"]] == [one.name for one in found]
    for one in kept["averages"]:
        assert (one["figures"]["problems"], one["figures"]["answers"]) == (2, 4)
        assert len(one["figures"]["acceptance_rate_interval"] or ()) in (0, 2)
    console = Screen(file=io.StringIO(), width=200)
    sweep.show(jobs, tmp_path, console, found)
    assert isinstance(console.file, io.StringIO)
    rows = [line.split("\t") for line in console.file.getvalue().splitlines()]
    assert [row[:2] for row in rows[5:]] == [[one.name, "average"] for one in found]
    assert {len(row) for row in rows} == {len(sweep.COLUMNS)}
    page = sweep_page(tmp_path, read_sweep(tmp_path))
    assert 'id="seeds"' in page and 'href="#seeds"' in page
    assert "draft_length=1: mean of 2 seeds" in page and "2 (4 answers)" in page


def test_a_page_without_several_seeds_has_no_averages(tmp_path: Path) -> None:
    a_seed(tmp_path, 0)
    make_run(tmp_path / "other", 3)
    assert 'id="seeds"' not in sweep_page(tmp_path, read_sweep(tmp_path))
