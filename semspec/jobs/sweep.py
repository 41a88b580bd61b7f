"""``python -m semspec.run -m option=a,b ...``: run every combination in its own folder with a stable name.

    runs/sweep_split=paragraph,sentence/     from the options, or sweep=DIR
        sweep.json                           the jobs in order, and averages over seeds
        split=paragraph/                     a run's folder (see ``semspec.results.records``)
            status.json                      running, finished, failed or killed, and why
            error.txt                        the traceback, if the fault is ours

The same command finds the same folders: it skips finished jobs, resumes unfinished ones and starts failed ones again.
A job is named after the options that vary, not after its number.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from semspec.choices.choice import Choice
from semspec.choices.nested import choose_nested, with_nested
from semspec.choices.presets import read_generation_config, with_recommended
from semspec.choices.resumed import begun_with
from semspec.config import SHOWN_ONLY, free, parse, recorded
from semspec.errors import UserError, without_passwords
from semspec.jobs.experiments import slug
from semspec.jobs.job import ARM, Job, finish, foreign_files, left_out, resolve, state_of
from semspec.jobs.launchers import launch, options_of
from semspec.jobs.options import split_hydra, take
from semspec.report.terminal import (
    Screen,
    interval,
    number,
    open_console,
    seconds,
    share,
    table_of,
)
from semspec.results.records import RunFolder, now
from semspec.results.seeds import Average, averages
from semspec.storage.digest import difference
from semspec.storage.files import read_json, write_json
from semspec.storage.lock import is_locked
from semspec.storage.screen import complain, visible

LONGEST = 100  # characters of a name: file systems allow 255 bytes, but people read less


def name_of(overrides: Sequence[str]) -> str:
    """Name a folder after options; a name that is altered or shortened gets a digest, to be unique."""
    text = without_passwords(",".join(overrides))
    kept = slug(text, also="=,")
    if kept == text and len(kept) <= LONGEST:
        return kept
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{kept[: LONGEST - 9].rstrip('-.,=')}-{digest}"


def plan(overrides: Sequence[str]) -> list[Job]:
    """Return a job for each distinct combination, the last option varying fastest.

    Each job gets the options that are recommended for its own target.
    """
    choices: dict[str, list[str]] = {}
    for override in parse(overrides):
        key = override.get_key_element()
        if override.is_sweep_override():
            values = list(override.sweep_string_iterator())
        else:
            values = [override.get_value_element_as_str()]
        choices.pop(key, None)  # the last value wins, as everywhere
        choices[key] = list(dict.fromkeys(f"{key}={value}" for value in values))
    varying = {key for key, values in choices.items() if len(values) > 1}
    jobs, read = [], cache(read_generation_config)
    for options in itertools.product(*choices.values()):
        named = [o for o in options if o.partition("=")[0] in varying]
        whole, _ = with_recommended(options, read)
        jobs.append(Job(name_of(named) if named else _called(options), tuple(whole)))
    return jobs


def _called(options: Sequence[str]) -> str:
    named = [option for option in options if option.partition("=")[0] not in SHOWN_ONLY]
    return name_of(named or ["default"])


def with_nested_drafts(jobs: Sequence[Job], root: Path) -> tuple[list[Job], str]:
    """Give each job the nested drafts that it would choose as a single run; return the jobs and a line about that.

    The choice does not appear in a job's name. A folder begun without nested drafts goes on without them.
    """
    whole, chosen = list[Job](), list[Choice]()
    for job in jobs:
        begun = begun_with(job.overrides, RunFolder(root / job.name).config)
        choice = choose_nested(begun, brought=True)
        chosen += [choice] if choice else []
        whole.append(Job(job.name, tuple(with_nested(begun, choice))))
    if not chosen:
        return whole, ""
    count = "" if len(chosen) == len(jobs) else f" in {len(chosen)} of {len(jobs)} jobs"
    return whole, f"{chosen[0]}{count}"


def carry_out(
    jobs: Sequence[Job],
    root: Path,
    console: Screen,
    launcher: str = "basic",
    options: Mapping[str, Any] | None = None,
) -> None:
    """Run the unfinished jobs; raise UserError before any work if a folder holds something else."""
    runs = [run for job in jobs for run in job.runs]
    for run in runs:
        _check(run, root)
    file = root / "sweep.json"
    known = read_json(file)
    if file.exists() and not (isinstance(known, dict) and "jobs" in known):
        raise UserError(f"{file} is not a sweep's; choose another sweep=DIR")
    root.mkdir(parents=True, exist_ok=True)
    listed = [run.about for run in runs]
    write_json(file, {"jobs": listed, "launcher": launcher, "started": now()})
    count = itertools.count(1)

    def tell(job: Job) -> None:
        console.say(f"{next(count)}/{len(jobs)}  {job.name}: {headline(job, root)}")

    todo = []
    for job in jobs:
        if all(state_of(r, root)[0] == "finished" or is_locked(root / r.name) for r in job.runs):
            finish(job, root, console)
            tell(job)
            continue
        todo.append(job)
        for run in () if foreign_files(job, root) else job.runs:
            if state_of(run, root)[0] != "finished":  # its status is from an earlier start
                (root / run.name / "status.json").unlink(missing_ok=True)
    if todo:
        launch(launcher, options or {}, todo, root, console, tell)


def _check(job: Job, root: Path) -> None:
    """Raise UserError if a job's folder holds a run with another configuration."""
    known = RunFolder(root / job.name).config
    if known is None:
        return
    try:
        made, resolved = resolve(job)
    except UserError:
        return  # the job itself will fail with the reason
    may_change = (*free(made), *(("problems",) if job.command == ARM else ()))
    if changed := difference(known, recorded(made, resolved), may_change):
        raise UserError(
            f"{root / job.name} holds a run with another configuration ({changed}); choose another"
            " sweep=DIR, or delete the folder"
        )


def headline(job: Job, root: Path) -> str:
    """Return one line on a job's state or result."""
    state, error = state_of(job, root)
    if state != "finished":
        return f"{state}: {error}" if error else state
    if job.stage:
        return state
    if job.arms:
        lacking = sum(bool(left_out(arm, root)) for arm in job.arms)
        return f"{len(job.arms) - lacking} arms" + (f", {lacking} left out" if lacking else "")
    result = RunFolder(root / job.name).figures()
    assert result is not None, job
    faster = number(result["speedup"], 2, "x") if result["plain"] else "alone"
    return f"pass@1 {number(result['pass_at_1'], 3)}, {faster}"


COLUMNS = ("job", "state", "pass@1 [95 %]", "speed-up [95 %]", "tok/s", "s", "accepted [95 %]")
STYLES = {"failed": "red", "killed": "red", "running": "cyan", "waiting": "dim"}
AVERAGE = "average"  # shown instead of a job's state


def row_of(job: Job, root: Path) -> tuple[str, ...]:
    """Return a job's row under ``COLUMNS``."""
    state, _ = state_of(job, root)
    r = RunFolder(root / job.name).figures()
    if state != "finished" or r is None:
        return job.name, state, *("" for _ in COLUMNS[2:])
    return job.name, state, *_cells(r)


def _cells(r: Mapping[str, Any]) -> tuple[str, ...]:
    quality = f"{number(r['pass_at_1'], 3)} {interval(r['pass_at_1_interval'])}".strip()
    speed = f"{number(r['speedup'], 2, 'x')} {interval(r['speedup_interval'])}".strip()
    accepted = share(r["acceptance_rate"], r.get("acceptance_rate_interval"))
    return quality, speed, number(r["tokens_per_second"], 1), seconds(r["latency"]), accepted


def over_seeds(jobs: Sequence[Job], root: Path) -> list[Average]:
    """Average the finished jobs over their seeds, and add the figures to sweep.json."""
    done = [
        (job.name, RunFolder(root / job.name))
        for job in jobs
        if state_of(job, root)[0] == "finished"
    ]
    found = averages(done)
    file = root / "sweep.json"
    if found and isinstance(known := read_json(file), dict):
        write_json(file, known | {"averages": [one.to_json() for one in found]})
    return found


def show(
    jobs: Sequence[Job], root: Path, console: Screen, averaged: Sequence[Average] = ()
) -> None:
    """Print a table of all jobs and averages; if the output is not a terminal, tab-separated lines."""
    if console.quiet:
        return
    rows = [row_of(job, root) for job in jobs]
    rows += [(one.name, AVERAGE, *_cells(one.figures)) for one in averaged]
    if not console.is_terminal:
        for row in (COLUMNS, *rows):
            cells = (visible(cell, newline=" ") for cell in row)
            console.file.write("\t".join(cells) + "\n")  # rich would turn the tabs into spaces
        return
    table = table_of(*COLUMNS, words=2)
    for column in table.columns:
        column.overflow = "fold"
    for place, row in enumerate(rows, 1):
        last = place == len(jobs) < len(rows)  # averages follow
        table.add_row(*row, style=STYLES.get(row[1], ""), end_section=last)
    console.print(table)


def main(overrides: Sequence[str]) -> int:
    """Run a sweep from the command line, whose options are checked already; return the exit code."""
    given, rest = take(overrides, ("sweep", "hydra.sweep.dir"))
    for name, folder in given.items():
        if not folder.strip():
            raise UserError(f"{name}= is empty: name a folder")
    hydra_ones, plain = split_hydra(rest)
    launcher, options = options_of(hydra_ones)
    jobs = plan(plain)
    root = Path([f"runs/sweep_{_called(plain)}", *given.values()][-1])
    jobs, told = with_nested_drafts(jobs, root)
    console = open_console(quiet=_quiet(jobs))
    if told:
        console.say(told)
    try:
        carry_out(jobs, root, console, launcher, options)
    except KeyboardInterrupt:
        show(jobs, root, console)
        raise
    show(jobs, root, console, over_seeds(jobs, root))
    console.say(f"results: {root}", "dim")
    return ended(jobs, root)


def _quiet(jobs: Sequence[Job]) -> bool:
    """Return ``quiet=`` of the first job whose configuration is valid."""
    for job in jobs:
        with contextlib.suppress(UserError):
            return resolve(job)[0].quiet
    return False


def ended(jobs: Sequence[Job], root: Path) -> int:
    """Return the exit code of several jobs; list the unfinished ones on standard error."""
    states = {job.name: state_of(job, root)[0] for job in jobs}
    bad = [f"{name} ({state})" for name, state in states.items() if state != "finished"]
    if bad:
        listed = ", ".join(bad[:5])
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        complain(
            f"{len(bad)} of {len(jobs)} jobs are not finished: {listed}{more};"
            " the same command goes on with them"
        )
    return 1 if bad else 0
