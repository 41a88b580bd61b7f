"""`make tables`: every drafter with every rule that makes sense, on the embedded pair, into docs/results.md and the README.

    python scripts/tables.py [--problems 30] [--minutes 50] [--quick] [--workers 2] [--only "token level/lm" ...]
    python scripts/tables.py --check     whether docs/results.md and the README are as old as the code
    python scripts/tables.py --show      the tables again from what was measured, measuring nothing

A group is one drafter at one level with all rules that fit it. Its configurations and the target alone solve
each problem in turn (see survey.py), so that all of them meet the same machine; two groups at a time, each in a
process and with a thread of its own. Where the minutes do not suffice all groups have fewer problems, and the
same command adds the missing ones. Every line is kept: killed, it goes on; a cell that is there is not measured again as long as code, presets and weights
are what they were (their digest names the folder in runs/tables/).
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from survey import Column, Line, Survey, read, with_interval

from semspec import config, registry
from semspec.config import build, compose
from semspec.errors import UserError
from semspec.jobs.experiments import slug
from semspec.results.significance import ALPHA, holm
from semspec.storage import provenance
from semspec.storage.files import read_json, write_json

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE, README = ROOT / "docs/results.json", ROOT / "docs/results.md", ROOT / "README.md"
MARKERS = "<!-- results: written by make tables -->", "<!-- end of results -->"
SEED = 20261210  # of the problems
PROBLEMS, QUICK = 30, 2
WAVE = 10  # problems that all groups solve before any solves more: what is measured is even
MINUTES = 50  # after which no group is begun: with the last ones below an hour
PLAIN = ("draft=none", "accept=lossless")  # the rule is never asked

LEVELS = {
    "token level": ("tokens", 0.6, ("split=token",)),
    "token level, greedy": ("tokens", 0.0, ("split=token",)),
    "step level": ("ends", 0.6, ("split=paragraph",)),
}
LM = {  # the draft model in its two shapes; every other drafter is as it comes
    "tokens": {"lm, chain of 5": ("draft=tiny", "draft_length=5"),
               "lm, dynamic tree": ("draft=tiny", "tree=dynamic")},
    "ends": {"lm": ("draft=tiny",)},
}  # fmt: skip
ONLY_BY_THE_DRAFT_MODEL = {  # rules that say nothing about who drafts
    "random": "a control: it accepts by the toss of a coin",
    "judge": "the pair was never taught to judge",
    "triggers": "nobody hesitates in words in the embedded world",
    "oracle": "no rule, but the best that any could do: it knows which steps are true",
}
COMBINED = {  # what is worth a row although it is no rule of its own
    ("step level", "lm"): {
        "semantic, our features": ("accept=semantic", "probe=plus"),
        "semantic_plus, salvage, nested": ("accept=semantic_plus", "salvage=true", "nested=lm"),
        "logprob, salvage, nested": ("accept=logprob", "salvage=true", "nested=lm"),
    }
}
OPTIONS = {
    "random": ("accept.rate=0.96",),  # as much as semantic accepts
    "semantic_risk": (
        "accept.allow_mismatch=true",
    ),  # guaranteed for the small model's drafts alone
}

# what of the package can change no figure here
SHOWS_ONLY = """artifacts/__main__ branches command compare comparison experiments help launchers publish pull report reproduce
    result_schema significance svg sweep terminal transcript""".split()


def digest() -> str:
    """Of code (not its comments and layout), presets and weights: what the figures depend on."""
    whole = hashlib.sha256()
    for file in sorted((ROOT / "semspec").rglob("*.py")):
        name = file.relative_to(ROOT / "semspec").with_suffix("").as_posix()
        if name not in SHOWS_ONLY and name.partition("/")[0] not in SHOWS_ONLY:
            whole.update(f"{name}\0{ast.dump(ast.parse(file.read_bytes()))}\0".encode())
    weights = (ROOT / "hub_artifacts").rglob("*")
    presets = [f for f in (ROOT / "conf").rglob("*.yaml") if "experiment" not in f.parts]
    for file in sorted([*presets, *(f for f in weights if f.suffix in (".json", ".safetensors"))]):
        whole.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    for told in (LEVELS, LM, COMBINED, OPTIONS, SEED):
        whole.update(repr(told).encode())
    return whole.hexdigest()[:16]


@dataclass(frozen=True)
class Group:
    """A drafter at a level with the rules that fit it; greedily one rule, with the drafters that fit it."""

    level: str
    drafter: str
    rules: Mapping[str, tuple[str, ...]]  # by name, with all options

    def __str__(self) -> str:
        return f"{self.level}/{self.drafter}"

    @property
    def temperature(self) -> float:
        return LEVELS[self.level][1]

    @property
    def survey(self) -> Survey:
        common = LEVELS[self.level][2]
        main = {"plain": PLAIN, **self.rules}
        return Survey(main=main, few={}, columns=COLUMNS, seed=SEED, json=RESULTS, common=common)

    def file(self, folder: Path) -> Path:
        return folder / f"{slug(self.level)}.{slug(self.drafter)}.jsonl"


def groups(wanted: Callable[[str], bool] = lambda name: True) -> Iterator[Group]:
    """Everything that is registered and goes together."""
    for level, (cuts, temperature, common) in LEVELS.items():
        drafters: dict[str, tuple[str, ...]] = dict(LM[cuts])
        names = [n for n in registry.plugins("drafter") if n not in ("lm", "none")]
        drafters |= {name: (f"draft={name}",) for name in names}
        by_drafter: dict[str, dict[str, tuple[str, ...]]] = {}
        for drafter, options in drafters.items():
            for rule, plugin in registry.plugins("accept").items():
                if plugin.cls.cuts != cuts or plugin.cls.greedy_only != (temperature == 0):
                    continue
                if rule in ONLY_BY_THE_DRAFT_MODEL and "draft=tiny" not in options:
                    continue
                group, name = (drafter, rule) if temperature else (rule, drafter)
                if not wanted(f"{level}/{group}"):
                    continue
                given = (*options, f"accept={rule}", *OPTIONS.get(rule, ()))
                listed = [*common, *given, f"temperature={temperature}"]
                try:
                    build(compose(config.expand_shorthands(listed)))
                except UserError:  # these do not go together, and say so
                    continue
                by_drafter.setdefault(group, {})[name] = given
        for group, rules in by_drafter.items():
            for name, given in COMBINED.get((level, group), {}).items():
                rules[name] = (*drafters[group], *given)
            yield Group(level, group, rules)


def measure(group: Group, problems: int, folder: Path) -> None:
    """One group, in this process; what cannot be had here is kept beside the lines."""
    out = group.file(folder)
    counted: dict[str, int] = {}
    for line in read(out):
        counted[line["config"]] = counted.get(line["config"], 0) + 1
    left = read_json(out.with_suffix(".left.json")) or {}
    wanted = {"plain", *group.rules} - set(left)
    if all(counted.get(name, 0) >= problems for name in wanted):
        return
    left = group.survey.measure(group.temperature, problems, 0, out, [])
    write_json(out.with_suffix(".left.json"), left)
    if "plain" in left:
        raise UserError(f"{group}: the target alone cannot be measured: {left['plain']}")


def waves(problems: int) -> list[int]:
    """How many problems all groups have solved before any solves more."""
    return [*range(WAVE, problems, WAVE), problems]


def measure_all(
    todo: Sequence[Group], problems: int, workers: int, minutes: float
) -> tuple[set[str], int]:
    """All groups, a few processes at a time, so that a fault in one ends no other.

    Those that failed, and how often a group was not begun because time was over.
    """
    began = time.monotonic()
    failed: set[str] = set()
    late = 0

    def one(group: Group, target: int) -> None:
        nonlocal late
        spent = (time.monotonic() - began) / 60
        if spent >= minutes:
            late += 1
            return
        command = [sys.executable, __file__, "--group", str(group), "--problems", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        spent = (time.monotonic() - began) / 60
        if done.returncode:
            failed.add(str(group))
            print(f"{group}: failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return
        print(f"{spent:5.1f} min  {group}: {len(group.rules)} rules, {target} problems", flush=True)

    longest_first = sorted(todo, key=lambda g: -len(g.rules))
    for target in waves(problems):
        with ThreadPoolExecutor(workers) as pool:
            left = [group for group in longest_first if str(group) not in failed]
            list(pool.map(lambda group: one(group, target), left))  # noqa: B023
    return failed, late


def not_measured(whole: Sequence[Group], folder: Path) -> list[str]:
    """Groups of which no problem is there: a page without them would lose what stands in the old one."""
    return [str(group) for group in whole if not _has_plain(read(group.file(folder)))]


def _has_plain(lines: Sequence[Line]) -> bool:
    return any(line["config"] == "plain" for line in lines)


def collect(todo: Sequence[Group], folder: Path, of: str, workers: int) -> dict[str, Any]:
    """The figures of everything that was measured, for docs/results.json."""
    cells: list[Line] = []
    left: dict[str, str] = {}
    for group in todo:
        lines = read(group.file(folder))
        if not _has_plain(lines):
            continue
        shared = {"level": group.level, "drafter": group.drafter}
        cells += [{**shared, **row} for row in group.survey.summary(lines)]
        told = read_json(group.file(folder).with_suffix(".left.json")) or {}
        left |= {f"{group}/{rule}": why for rule, why in told.items()}
    rules = [cell for cell in cells if cell["config"] != "plain"]
    for cell, p in zip(rules, holm([cell["pass_at_1_p"] for cell in rules]), strict=True):
        cell["differs"] = p is not None and p < ALPHA
    return {"digest": of, "cells": cells, "left_out": left, "seed": SEED, "workers": workers,
            "provenance": provenance.collect()}  # fmt: skip


# ---- what is written -------------------------------------------------------------------------------


def _quality(row: Line) -> str:
    return with_interval("pass_at_1", ".2f")(row) + (" \\*" if row.get("differs") else "")


def _tau(row: Line) -> str:
    return "" if row["accept_length"] is None else f"{row['accept_length']:.2f}"


COLUMNS: tuple[Column, ...] = (
    ("pass@1 [95 %]", _quality),
    ("lost / won", lambda row: f"{row['lost']} / {row['won']}"),
    ("speed-up [95 %]", with_interval("speedup", ".2f")),
    ("median", lambda row: f"{row['speedup_median']:.2f}x"),
    ("accepted", lambda row: f"{100 * row['acceptance']:.0f} %"),
    ("tau", _tau),
    ("by target", lambda row: f"{100 * row['target_share']:.0f} %"),
)


def markdown(rows: Sequence[tuple[str, Line]], columns: Sequence[Column] = COLUMNS) -> list[str]:
    lines = ["| | " + " | ".join(heading for heading, _ in columns) + " |",
             "|---" * (len(columns) + 1) + "|"]  # fmt: skip
    return lines + [
        f"| {name} | " + " | ".join(t(row) for _, t in columns) + " |" for name, row in rows
    ]


def page(found: Mapping[str, Any]) -> str:
    """docs/results.md."""
    cells: list[Line] = found["cells"]
    counts = sorted({cell["problems"] for cell in cells})
    compared = sum(cell["config"] != "plain" for cell in cells)
    machine = found["provenance"]["machine"]
    text = f"""# Every drafter with every rule

Written by `make tables` from one run on the embedded pair; figures and intervals are in docs/results.json. \
{compared} combinations, {_span(counts)} problems each, {machine["cpu"]}, {machine["cores"]} cores, fp32, one thread a process{_side_by_side(found)}.

Each drafter's rules and the target alone solve the same problems in turn, first passes left out. Speed-up: the target's \
seconds over the rule's, 95 % by bootstrap over problems; median: of the problems' own ratios. Lost / won: problems that \
only the target alone, or only the rule, got right. A star: pass@1 differs (McNemar, p below {ALPHA:g} after \
Holm's correction for all {compared} comparisons); without one the data do not tell. tau: tokens gained a verification. \
The embedded world is easier to draft for than mathematics: compare what is above what, not by how much.
"""
    parts = [text]
    for level in LEVELS:
        of_level = [cell for cell in cells if cell["level"] == level]
        if not of_level:
            continue
        _, temperature, common = LEVELS[level]
        parts.append(
            f"## {level.capitalize()}\n\n`{' '.join(common)} temperature={temperature:g}`\n"
        )
        for drafter in dict.fromkeys(cell["drafter"] for cell in of_level):
            own = [(c["config"], c) for c in of_level if c["drafter"] == drafter]
            parts.append("\n".join([f"### {drafter}, {level}", "", *markdown(own), ""]))
    if found["left_out"]:
        listed = [f"- {name}: {why}" for name, why in found["left_out"].items()]
        parts.append("\n".join(["## Not measured", "", *listed, ""]))
    told = [f"- `{rule}`: {why}" for rule, why in ONLY_BY_THE_DRAFT_MODEL.items()]
    parts.append("\n".join(["## Only with the draft model", "", *told, ""]))
    return "\n".join(parts)


def _side_by_side(found: Mapping[str, Any]) -> str:
    """They share the memory and its bandwidth, with whatever else the machine did."""
    workers = found.get("workers", 1)
    return f", {workers} processes (drafters) side by side" if workers > 1 else ""


def _span(counts: Sequence[int]) -> str:
    return (
        "no"
        if not counts
        else str(counts[0])
        if len(counts) == 1
        else f"{counts[0]} to {counts[-1]}"
    )


def excerpt(found: Mapping[str, Any]) -> str:
    """The README's part: every drafter under the lossless rule, every step rule with the draft model."""
    cells: list[Line] = found["cells"]
    tokens = [(c["drafter"], c) for c in cells
              if c["level"] == "token level" and c["config"] == "lossless"]  # fmt: skip
    steps = [(c["config"], c) for c in cells
             if c["level"] == "step level" and c["drafter"] == "lm" and c["config"] != "plain"]  # fmt: skip
    columns = [c for c in COLUMNS if c[0] not in ("lost / won", "median")]
    counts = sorted({cell["problems"] for _, cell in tokens + steps})
    return "\n".join(
        [f"Token by token, `accept=lossless` ({_span(counts)} problems, embedded pair, one CPU thread):", "",
         *markdown(tokens, columns), "", "Step by step, `draft=tiny`:", "", *markdown(steps, columns), "",
         "All combinations: [docs/results.md](docs/results.md). A star: pass@1 differs from the target's alone."]
    )  # fmt: skip


def with_excerpt(readme: str, told: str) -> str:
    """The README with what stands between the markers replaced."""
    begin, end = MARKERS
    before, found, rest = readme.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise UserError(
            f"README.md has no {begin} ... {end}: put both lines where the table shall be"
        )
    return f"{before}{begin}\n{told}\n{end}{after}"


def write(found: Mapping[str, Any]) -> None:
    write_json(RESULTS, found)
    found = json.loads(RESULTS.read_text())  # as --check will read it
    PAGE.write_text(page(found), encoding="utf-8")
    README.write_text(
        with_excerpt(README.read_text(encoding="utf-8"), excerpt(found)), encoding="utf-8"
    )


def check(of: str) -> list[str]:
    """What is older than what it is made from; nothing where all is well."""
    found = read_json(RESULTS)
    if found is None:
        return ["docs/results.json is missing: make tables"]
    told = []
    if found["digest"] != of:
        told.append(
            "the code, presets or weights have changed since the figures were measured: make tables"
        )
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page(found):
        told.append("docs/results.md is not what docs/results.json says: make tables ARGS=--show")
    readme = README.read_text(encoding="utf-8")
    if with_excerpt(readme, excerpt(found)) != readme:
        told.append(
            "the README's table is not what docs/results.json says: make tables ARGS=--show"
        )
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", type=int, default=PROBLEMS, help="of each combination")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} problems: whether it works")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="no group is begun later")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only", nargs="*", default=[], help="parts of groups' names")
    parser.add_argument(
        "--check", action="store_true", help="measure nothing: what is out of date?"
    )
    parser.add_argument(
        "--show", action="store_true", help="measure nothing: write from docs/results.json"
    )
    parser.add_argument("--list", action="store_true", help="measure nothing: the groups")
    parser.add_argument("--group", help=argparse.SUPPRESS)  # this process is a worker
    a = parser.parse_args()
    config.register_configs()
    problems = QUICK if a.quick else a.problems
    of = digest()
    folder = ROOT / "runs/tables" / of
    if a.check:
        told = check(of)
        for line in told:
            print(line)
        return 1 if told else 0
    if a.show:
        found = read_json(RESULTS)
        if found is None:
            raise UserError("docs/results.json is missing: make tables")
        write(found)
        return 0
    if a.group:
        folder.mkdir(parents=True, exist_ok=True)
        (group,) = groups(lambda name: name == a.group)
        measure(group, problems, folder)
        return 0
    todo = list(groups(lambda name: not a.only or any(part in name for part in a.only)))
    cells = sum(len(group.rules) for group in todo)
    print(f"{len(todo)} groups, {cells} combinations, {problems} problems each; folder {folder}")
    if a.list:
        for group in todo:
            print(f"{group}: {', '.join(group.rules)}")
        return 0
    failed, late = measure_all(todo, problems, a.workers, a.minutes)
    whole = list(groups())  # what an earlier command has measured with the same code counts, too
    if lacking := not_measured(whole, folder):
        print(
            f"docs/results.md and the README stay as they are: {len(lacking)} of {len(whole)} groups have"
            f" not been measured with this code ({lacking[0]}, ...); make tables goes on with them",
            file=sys.stderr,
        )
    else:
        write(collect(whole, folder, of, a.workers))
    if late:
        print(
            f"{a.minutes:g} minutes were over before all had {problems} problems; the same command"
            " adds what is missing",
            file=sys.stderr,
        )
    if failed:
        print(
            f"not measured: {', '.join(sorted(failed))}; the same command tries them again",
            file=sys.stderr,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
