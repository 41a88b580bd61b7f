"""`make tables`: measure every drafter with every rule that fits it, on the embedded pair, for docs/results.md and the overview.

    python scripts/tables.py [--problems 30] [--minutes 50] [--quick] [--workers 2] [--only "lm/" ...]
    python scripts/tables.py --check     report whether docs/results.md and the overview are older than the code
    python scripts/tables.py --show      write the tables again from results/results.json, measuring nothing

It measures the experiments ours/table-token, table-greedy and table-step. A block is a drafter (in the greedy table a rule)
whose arms are all rules that fit it (all drafters). Each block runs in its own process, two at a time, with
one thread each. All blocks get ten problems before any gets more, and none begins after 50 minutes; the same command
adds what is missing. A kill costs one problem. Nothing is measured twice while its inputs are unchanged: the
folder in runs/tables/ is named after their digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from script_kit import parser

from semspec import config
from semspec.cli.reproduce import build
from semspec.cli.reproduce_figures import record_arms
from semspec.errors import UserError
from semspec.jobs import experiments
from semspec.jobs.experiments import Job, load
from semspec.report.arms import between, markdown
from semspec.results.code_digest import code_digest
from semspec.results.paired import mark_differences
from semspec.results.significance import ALPHA
from semspec.storage import provenance
from semspec.storage.files import read_json, write_json

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results/results.json", ROOT / "docs/results.md"
OVERVIEW = ROOT / "docs/measurements/overview.md"
MARKERS = "<!-- results: written by make tables -->", "<!-- end of results -->"
LEVELS = {  # what the page calls the experiments
    "token level": "ours/table-token",
    "token level, greedy": "ours/table-greedy",
    "step level": "ours/table-step",
}
PROBLEMS, QUICK = 30, 2
WAVE = 10  # problems that all blocks get before any gets more, so that partial tables are even
MINUTES = 50.0  # no block begins after this; with the last ones it stays below an hour
ROOTS = "Solver Solve wilson quantile ratio_interval mcnemar paired_difference holm".split()
ONLY_BY_THE_DRAFT_MODEL = {  # rules that say nothing about the drafter
    "random": "a control that accepts at random",
    "judge": "the embedded pair was never trained to judge",
    "triggers": "texts of the embedded world have no words of hesitation",
    "oracle": "not a rule but the upper bound for all: it knows which steps are correct",
}
Cell = dict[str, Any]


@dataclass(frozen=True)
class Block:
    """A drafter at a level with the rules that fit it; in the greedy table a rule with the drafters that fit it."""

    level: str
    name: str
    jobs: tuple[Job, ...]

    def __str__(self) -> str:
        return f"{self.level}/{self.name}"

    def fitting(self) -> Iterator[Job]:
        """Yield the jobs whose parts fit together."""
        for job in self.jobs:
            with contextlib.suppress(UserError):
                build(job)
                yield job


def blocks(only: Sequence[str] = ()) -> list[Block]:
    """Return all registered combinations, by block; ``only``: parts of the names "level/block"."""
    found: dict[tuple[str, str], list[Job]] = {}
    for level, experiment in LEVELS.items():
        for job in experiments.jobs(load(experiment), "tiny"):
            if not only or any(part in f"{level}/{job.block}" for part in only):
                found.setdefault((level, job.block), []).append(job)
    return [Block(level, name, tuple(jobs)) for (level, name), jobs in found.items()]


def digest() -> str:
    """Return the digest of what the figures depend on: code, presets, artifacts, and the options of every job.

    Code counts by its content, not its location (see ``semspec.results.code_digest``).
    """
    whole = hashlib.sha256(code_digest(ROOT / "semspec", ROOTS).encode())
    for file in [
        file for part in ("conf", "hub_artifacts") for file in sorted((ROOT / part).rglob("*"))
    ]:
        name = file.relative_to(ROOT).as_posix()
        if file.suffix == ".yaml" and "experiment" not in file.parts:
            whole.update(f"{name}\0{json.dumps(OmegaConf.to_container(OmegaConf.load(file)))}\0".encode())  # fmt: skip
        elif file.suffix in (".json", ".safetensors"):
            whole.update(f"{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    for line in sorted(settings()):
        whole.update(f"{line}\0".encode())
    return whole.hexdigest()[:16]


def settings() -> Iterator[str]:
    """Yield the options of every job, except the number of problems."""
    for block in blocks():
        for job in block.jobs:
            yield " ".join(sorted(o for o in job.options if not o.startswith("problems=")))


def waves(problems: int) -> list[int]:
    """Return the numbers of problems that all blocks reach before any gets more."""
    return [*range(WAVE, problems, WAVE), problems]


def command(block: Block, problems: int, folder: Path) -> list[str]:
    """Return the command that measures a block up to this many problems."""
    return [
        *(sys.executable, "-m", "semspec.run", f"experiment={LEVELS[block.level]}"),
        *(f"only={block.name}/", f"problems={problems}", "quiet=true"),
        f"hydra.run.dir={folder / LEVELS[block.level]}",
    ]


def measure_all(
    todo: Sequence[Block], problems: int, workers: int, minutes: float, folder: Path
) -> tuple[set[str], int]:
    """Measure all blocks, a few processes at a time, so that a failure in one ends no other.

    Return those that failed, and how often a block did not begin because time was up.
    """
    began = time.monotonic()
    failed, late = set[str](), 0

    def spent() -> float:
        return (time.monotonic() - began) / 60

    def one(block: Block, target: int) -> None:
        nonlocal late
        if spent() >= minutes:
            late += 1
            return
        asked = command(block, target, folder)
        done = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=ROOT)
        took = f"{spent():5.1f} min"
        if done.returncode:
            failed.add(str(block))
            print(f"{block}: failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return
        print(f"{took}  {block}: {len(block.jobs)} arms, {target} problems", flush=True)

    longest_first = sorted(todo, key=lambda b: -len(b.jobs))
    for target in waves(problems):
        with ThreadPoolExecutor(workers) as pool:
            left = [block for block in longest_first if str(block) not in failed]
            list(pool.map(lambda block: one(block, target), left))  # noqa: B023
    return failed, late


def measured(block: Block, folder: Path) -> tuple[list[Cell], dict[str, str]]:
    """Return a block's rows (none if it has not been measured), and why others were left out."""
    experiment = load(LEVELS[block.level])
    held = record_arms(experiment, "tiny", block.jobs, folder / experiment.name)
    left_out = {f"{block.level}/{name}": why for name, why in held["left_out"].items()}
    return held.get(block.name, []), left_out


def collect(
    todo: Sequence[Block], folder: Path, of: str, workers: int
) -> tuple[dict[str, Any], list[str]]:
    """Return all measured figures, for results/results.json, and what is missing."""
    cells, left_out, lacking = list[Cell](), dict[str, str](), list[str]()
    for block in todo:
        rows, why = measured(block, folder)
        cells += [{"level": block.level, "drafter": block.name, **row} for row in rows]
        left_out |= why
        if not rows:
            lacking.append(str(block))
    mark_differences([cell for cell in cells if cell["config"] != "plain"])
    return {"digest": of, "cells": cells, "left_out": left_out, "workers": workers,
            "provenance": provenance.collect()}, lacking  # fmt: skip


def _workers_before(of: str) -> int:
    """Return how many processes measured side by side at most, if the stored figures are of this code."""
    before = read_json(RESULTS) if RESULTS.exists() else {}
    return int(before["workers"]) if before.get("digest") == of else 1


def page(found: Mapping[str, Any]) -> str:
    """Return docs/results.md."""
    cells: list[Cell] = found["cells"]
    counts = sorted({cell["problems"] for cell in cells})
    compared = sum(cell["config"] != "plain" for cell in cells)
    machine, workers = found["provenance"]["machine"], found.get("workers", 1)
    beside = f", up to {workers} processes (drafters) side by side" if workers > 1 else ""
    text = f"""# Every drafter with every rule

`make tables` writes this page from one run on the embedded pair; results/results.json has all figures and intervals. \
{compared} combinations, {_span(counts)} problems each, {machine["cpu"]}, {machine["cores"]} cores, fp32, one thread per process{beside}.

For each drafter, the target alone (`plain`) and all rules solve the same problems in turn, after an untimed warm-up.

- **pass@1**: the share of problems with a right answer. A star marks a difference from the target alone (McNemar, p below \
{ALPHA:g} after Holm's correction for all {compared} comparisons). Without a star, the data do not decide.
- **lost / won**: problems that only the target alone, and only the rule, answers right.
- **speed-up**: the target's seconds over the rule's, with a 95 % bootstrap interval over problems. **median**: the median \
of the problems' own ratios.
- **accepted**: the share of drafted tokens (at step level: steps) that the rule accepts. **tau**: tokens gained per \
verification. **written by target**: the share of the answers' tokens that the target writes itself.

The embedded world is easier to draft for than mathematics: trust the order of the rows, not the size of the differences.
"""
    parts = [text]
    for level, name in LEVELS.items():
        of_level = [cell for cell in cells if cell["level"] == level]
        if not of_level:
            continue
        experiment = load(name)
        common = [o for o in experiment.tiny.common if o.startswith(("split=", "temperature="))]
        parts.append(f"## {level.capitalize()}\n\n`{' '.join(common)}`\n")
        for drafter in dict.fromkeys(cell["drafter"] for cell in of_level):
            own = [(c["config"], c) for c in of_level if c["drafter"] == drafter]
            table = markdown(own, experiment.metrics)
            parts.append("\n".join([f"### {drafter}, {level}", "", *table, ""]))
    special = {f"`{rule}`": why for rule, why in ONLY_BY_THE_DRAFT_MODEL.items()}
    lists = {"Not measured": found["left_out"], "Measured only with the draft model": special}
    for title, reasons in lists.items():
        listed = [f"- {name}: {why}" for name, why in reasons.items()]
        parts += ["\n".join([f"## {title}", "", *listed, ""])] if listed else []
    return "\n".join(parts)


def _span(counts: Sequence[int]) -> str:
    if not counts:
        return "no"
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def excerpt(found: Mapping[str, Any]) -> str:
    """Return the overview's part: every drafter under the lossless rule, every step rule with the draft model."""
    cells: list[Cell] = found["cells"]
    tokens = [(c["drafter"], c) for c in cells
              if c["level"] == "token level" and c["config"] == "lossless"]  # fmt: skip
    steps = [(c["config"], c) for c in cells
             if c["level"] == "step level" and c["drafter"] == "lm" and c["config"] != "plain"]  # fmt: skip
    columns = ["starred", "speedup", "acceptance", "accept_length", "target_share"]
    counts = sorted({cell["problems"] for _, cell in tokens + steps})
    return "\n".join(
        [f"Token level, `accept=lossless` ({_span(counts)} problems, embedded pair, one CPU thread):", "",
         *markdown(tokens, columns), "", "Step level, `draft=tiny`:", "", *markdown(steps, columns), "",
         "All combinations: [results.md](../results.md). A star marks a pass@1 that differs from that of the target alone."]
    )  # fmt: skip


def with_excerpt(page: str, text: str) -> str:
    """Return the overview with the text between the markers replaced."""
    return between(page, MARKERS, text, OVERVIEW.name)


def write(found: Mapping[str, Any]) -> None:
    write_json(RESULTS, found)
    found = json.loads(RESULTS.read_text())  # as --check will read it
    PAGE.write_text(page(found), encoding="utf-8")
    overview = with_excerpt(OVERVIEW.read_text(encoding="utf-8"), excerpt(found))
    OVERVIEW.write_text(overview, encoding="utf-8")


def check(of: str) -> list[str]:
    """Return what is older than its source; nothing if all is up to date."""
    found = read_json(RESULTS)
    if found is None:
        return ["results/results.json is missing: make tables"]
    old = []
    if found["digest"] != of:
        changed = "the code, presets or weights have changed since the figures were measured"
        old.append(f"{changed}: make tables")
    redo = "does not match results/results.json: make tables ARGS=--show"
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page(found):
        old.append(f"docs/results.md {redo}")
    overview = OVERVIEW.read_text(encoding="utf-8")
    if with_excerpt(overview, excerpt(found)) != overview:
        old.append(f"the overview's table {redo}")
    return old


def main() -> int:
    a = parser(
        __doc__,
        problems=(PROBLEMS, "problems of each combination"),
        quick=(False, f"a trial with {QUICK} problems"),
        minutes=(MINUTES, "minutes after which no block begins"),
        workers=min(2, os.cpu_count() or 1),
        only=([], "parts of the names of blocks"),
        check=(False, "measure nothing; print what is out of date"),
        show=(False, "measure nothing; write the pages from results/results.json"),
        list=(False, "measure nothing; list the blocks"),
    ).parse_args()
    config.register_configs()
    problems = QUICK if a.quick else a.problems
    if a.show:
        found = read_json(RESULTS)
        if found is None:
            raise UserError("results/results.json is missing: make tables")
        write(found)
        return 0
    of = digest()
    folder = ROOT / "runs/tables" / of
    if a.check:
        old = check(of)
        print(*old, sep="\n", end="\n" if old else "")
        return 1 if old else 0
    if a.list:
        for block in blocks(a.only):
            if rows := [job.row for job in block.fitting()]:
                print(f"{block}: {', '.join(rows)}")
        return 0
    whole = [block for block in blocks() if any(block.fitting())]
    todo = [block for block in whole if not a.only or any(part in str(block) for part in a.only)]
    print(f"{len(todo)} blocks, {problems} problems each; folder {folder}")
    failed, late = measure_all(todo, problems, a.workers, a.minutes, folder)
    # earlier measurements with the same code count, too
    found, lacking = collect(whole, folder, of, max(a.workers, _workers_before(of)))
    warn = partial(print, file=sys.stderr)
    if lacking:
        warn(
            f"docs/results.md and the overview are not rewritten: {len(lacking)} of {len(whole)} blocks have"
            f" not been measured with this code ({lacking[0]}, ...); run make tables again to measure them"
        )
    else:
        write(found)
    if late:
        over = f"{a.minutes:g} minutes were over before all had {problems} problems"
        warn(f"{over}; the same command adds what is missing")
    if failed:
        warn(f"not measured: {', '.join(sorted(failed))}; the same command tries them again")
    return 1 if failed else 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
