"""``python -m semspec.run -m option=a,b ...``: every combination a run of its own, in a folder with a stable name.

    runs/sweep_split=paragraph,sentence/     from the options, or sweep=DIR
        sweep.json                           the jobs, in their order
        split=paragraph/                     a run's folder (see ``semspec.results.records``)
            status.json                      running, finished, failed or killed, and why
            error.txt                        the traceback, where the fault is ours

The same command finds the same folders: it leaves finished jobs alone, goes on with half-done ones and
begins failed ones again. What a job is named after is the options that vary, never their number.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.box import SIMPLE_HEAD
from rich.table import Table

from semspec import runner
from semspec.config import (
    SHOWN_ONLY,
    RunConfig,
    build,
    compose,
    free,
    one_line,
    parse,
    read_generation_config,
    recorded,
    with_recommended,
)
from semspec.deferred import hydra
from semspec.errors import UserError, describe_error, without_passwords
from semspec.jobs.experiments import slug
from semspec.jobs.options import take
from semspec.report.terminal import Screen, interval, number, open_console, seconds
from semspec.results.records import (
    RunFolder,
    State,
    foreign,
    foreign_status,
    has_fewer,
    now,
    status,
)
from semspec.storage.digest import difference
from semspec.storage.files import dumps, read_json, write_json
from semspec.storage.lock import FolderInUseError, is_locked
from semspec.storage.screen import complain, visible

LONGEST = 100  # characters of a name: file systems allow 255 bytes, readers less
ERROR = "error.txt"
ARM = "arm"  # the command of a run that is an arm of a job
CHANGED = ("state", "error", "updated", "ended")  # in status.json, when a process is gone


@dataclass(frozen=True)
class Job:
    """One run of several."""

    name: str  # its folder, within that of all jobs
    overrides: tuple[str, ...]
    command: str = ""  # the module that does it: ``run_shard`` or ``do_arms``; else it is a run
    stage: str = ""  # the last one that the shard does
    arms: tuple[Job, ...] = ()  # runs that take turns in one process, each in a folder of its own

    @property
    def about(self) -> dict[str, Any]:
        """The job's entry in status.json, without passwords."""
        return {"job": self.name, "overrides": without_passwords(list(self.overrides))}

    @property
    def runs(self) -> tuple[Job, ...]:
        """The jobs that have a folder: its arms, or itself."""
        return self.arms or (self,)

    def to_json(self) -> str:
        return dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        told = json.loads(text)
        arms = tuple(cls.from_json(dumps(arm)) for arm in told.pop("arms"))
        return cls(**{**told, "overrides": tuple(told["overrides"])}, arms=arms)


def name_of(overrides: Sequence[str]) -> str:
    """Name a folder after options; a name that is changed or cut gets a digest, to be unique."""
    text = without_passwords(",".join(overrides))
    kept = slug(text, also="=,")
    if kept == text and len(kept) <= LONGEST:
        return kept
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{kept[: LONGEST - 9].rstrip('-.,=')}-{digest}"


def plan(overrides: Sequence[str]) -> list[Job]:
    """Return a job for every combination, the last option varying fastest, without repetitions.

    Each has what is recommended for its own target.
    """
    choices: dict[str, list[str]] = {}
    for override in parse(overrides):
        key = override.get_key_element()
        values = (
            list(override.sweep_string_iterator())
            if override.is_sweep_override()
            else [override.get_value_element_as_str()]
        )
        choices.pop(key, None)  # the last one wins, as everywhere
        choices[key] = list(dict.fromkeys(f"{key}={value}" for value in values))
    varying = {key for key, values in choices.items() if len(values) > 1}
    jobs, read = [], cache(read_generation_config)
    for options in itertools.product(*choices.values()):
        named = [o for o in options if o.partition("=")[0] in varying]
        whole, _ = with_recommended(options, read)
        jobs.append(Job(name_of(named) if named else _called(options), tuple(whole)))
    return jobs


def _called(options: Sequence[str]) -> str:
    return name_of([o for o in options if _named(o)] or ["default"])


def _named(override: str) -> bool:
    return override.partition("=")[0] not in SHOWN_ONLY


def resolve(job: Job) -> tuple[RunConfig, dict[str, Any]]:
    """Return a job's configuration, typed and as it is recorded; raises UserError for a wrong one."""
    try:
        composed = compose(job.overrides)
        plain = OmegaConf.to_container(composed, resolve=True)
    except (hydra.errors.HydraException, OmegaConfBaseException) as error:
        raise UserError(one_line(error)) from error
    assert isinstance(plain, dict), job
    return build(composed), {str(k): v for k, v in plain.items()}


def _foreign(job: Job, root: Path) -> str | None:
    """Say why nothing may be written in a job's folders: somebody else's files are there."""
    wrong = ((foreign_status if job.stage else foreign)(root / run.name) for run in job.runs)
    return next(filter(None, wrong), None)


def work(
    job: Job, root: Path, console: Screen, leaving: Callable[[], bool] = lambda: False
) -> None:
    """Run one job; any failure is recorded in its folder and does not end the sweep.

    ``leaving`` is true if this process has to exit and the job will resume in another one.
    """
    folder, started, failed = root / job.name, now(), ""
    if _foreign(job, root):
        return  # ``state_of`` says so: nothing is written there
    try:
        _do(job, root, console)
    except FolderInUseError:
        return  # somebody else is at it
    except UserError as error:
        failed = describe_error(error)
    except KeyboardInterrupt:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and leaving():
            raise
        failed = describe_error(error)
        folder.mkdir(parents=True, exist_ok=True)
        trace = without_passwords(traceback.format_exc())
        (folder / ERROR).write_text(trace, encoding="utf-8")
    if not failed:
        (folder / ERROR).unlink(missing_ok=True)
        return
    for run in job.runs:
        if not is_locked(root / run.name) and (job.stage or state_of(run, root)[0] != "finished"):
            say(run, root, "failed", failed, started)


def _do(job: Job, root: Path, console: Screen) -> None:
    if job.arms:
        importlib.import_module(job.command).do_arms(job, root, console)
        return
    if job.command:
        importlib.import_module(job.command).run_shard(job, console)
        return
    made, resolved = resolve(job)
    runner.execute(made, resolved, root / job.name, console, job.about)


def say(
    job: Job, root: Path, state: State, error: str, started: str | None = None, **more: Any
) -> None:
    """Write the status of a job that cannot do so itself."""
    folder = root / job.name
    entry = status(job.about | more, state, started or now(), error)
    if started is None:  # the process is gone: the rest of its own entry stands
        entry |= {k: v for k, v in RunFolder(folder).status.items() if k not in CHANGED}
    with contextlib.suppress(OSError):  # a full disk: the table says it all the same
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "status.json", entry)


def state_of(job: Job, root: Path) -> tuple[str, str]:
    """Return a job's state, and its error if there is one."""
    if wrong := _foreign(job, root):
        return "failed", wrong
    if job.arms:
        states = [(*state_of(arm, root), arm) for arm in job.arms]
        open_ones = [s for s in states if s[0] != "finished" and not left_out(s[2], root)]
        if open_ones or all(s[0] != "finished" for s in states):
            return (open_ones or states)[0][:2]
        return "finished", ""
    folder = RunFolder(root / job.name)
    if job.stage:
        held = read_json(folder.path / "result.json")
        finished = job.stage in (held["done"] if isinstance(held, dict) and "done" in held else ())
    else:
        known = folder.config
        finished = folder.result is not None and known is not None and _enough(job, known)
    if finished:
        return "finished", ""
    found = folder.status
    state = found.get("state", "waiting")
    if state == "finished":  # with an earlier stage or fewer problems; or its result is gone
        state = "waiting" if job.stage or folder.result is not None else "killed"
    return state, found.get("error") or ""


def _enough(job: Job, known: Mapping[str, Any]) -> bool:
    """Return True where a run has as many problems as an arm is asked for; other runs cannot grow."""
    asked = [o.partition("=")[2] for o in job.overrides if o.startswith("problems=")]
    return job.command != ARM or not asked or not has_fewer(known, int(asked[-1]))


def left_out(job: Job, root: Path) -> str:
    """Return why an arm could not be had when it was last tried; empty where it could."""
    found = RunFolder(root / job.name).status
    return str(found["error"]) if found.get("left_out") else ""


def carry_out(
    jobs: Sequence[Job],
    root: Path,
    console: Screen,
    launcher: str = "basic",
    options: Mapping[str, Any] | None = None,
) -> None:
    """Run the jobs that are not finished; print a line as each ends.

    Raises UserError, before any work, if a folder holds something else; a job's failure does not raise.
    """
    from semspec.jobs.launchers import launch

    for run in runs_of(jobs):
        _check(run, root)
    known = read_json(root / "sweep.json")
    if (root / "sweep.json").exists() and not (isinstance(known, dict) and "jobs" in known):
        raise UserError(f"{root / 'sweep.json'} is not a sweep's; choose another sweep=DIR")
    root.mkdir(parents=True, exist_ok=True)
    listed = [run.about for run in runs_of(jobs)]
    write_json(root / "sweep.json", {"jobs": listed, "launcher": launcher, "started": now()})
    count = itertools.count(1)

    def tell(job: Job) -> None:
        console.say(f"{next(count)}/{len(jobs)}  {job.name}: {headline(job, root)}")

    todo = []
    for job in jobs:
        if all(state_of(r, root)[0] == "finished" or is_locked(root / r.name) for r in job.runs):
            tell(job)
            continue
        todo.append(job)
        if _foreign(job, root):
            continue
        for run in job.runs:
            if state_of(run, root)[0] != "finished":  # its status is of an earlier start
                (root / run.name / "status.json").unlink(missing_ok=True)
    if todo:
        launch(launcher, dict(options or {}), todo, root, console, tell)


def _check(job: Job, root: Path) -> None:
    """Raise UserError if a job's folder holds a run with another configuration."""
    known = RunFolder(root / job.name).config
    if known is None:
        return
    try:
        made, resolved = resolve(job)
    except UserError:
        return  # it will fail, and say why
    may_change = (*free(made), *(("problems",) if job.command == ARM else ()))
    changed = difference(known, recorded(made, resolved), may_change)
    if changed:
        raise UserError(
            f"{root / job.name} holds a run with another configuration ({changed}); choose another"
            " sweep=DIR, or delete the folder"
        )


def headline(job: Job, root: Path) -> str:
    """Return one line about a job."""
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


COLUMNS = ("job", "state", "pass@1 [95 %]", "speed-up [95 %]", "tok/s", "s")


def rows(jobs: Sequence[Job], root: Path) -> list[tuple[str, ...]]:
    """Return a row for each job, under ``COLUMNS``."""
    listed: list[tuple[str, ...]] = []
    for job in jobs:
        state, _ = state_of(job, root)
        r = RunFolder(root / job.name).figures()
        if state != "finished" or r is None:
            listed.append((job.name, state, "", "", "", ""))
            continue
        quality = f"{number(r['pass_at_1'], 3)} {interval(r['pass_at_1_interval'])}".strip()
        speed = f"{number(r['speedup'], 2, 'x')} {interval(r['speedup_interval'])}".strip()
        rate, latency = number(r["tokens_per_second"], 1), seconds(r["latency"])
        listed.append((job.name, state, quality, speed, rate, latency))
    return listed


def show(jobs: Sequence[Job], root: Path, console: Screen) -> None:
    """Print a table of all jobs; if the output is no terminal, lines with tabs for other tools."""
    listed = rows(jobs, root)
    if console.quiet:
        return
    if not console.is_terminal:
        for row in (COLUMNS, *listed):
            cells = (visible(cell, newline=" ") for cell in row)
            console.file.write("\t".join(cells) + "\n")  # rich would make spaces of the tabs
        return
    table = Table(box=SIMPLE_HEAD)
    for number_of, heading in enumerate(COLUMNS):
        table.add_column(heading, justify="right" if number_of > 1 else "left", overflow="fold")
    styles = {"finished": "", "failed": "red", "killed": "red", "running": "cyan", "waiting": "dim"}
    for row in listed:
        table.add_row(*row, style=styles.get(row[1], ""))
    console.print(table)


def main(overrides: Sequence[str]) -> int:
    """Run a sweep, whose options have been checked, from the command line; return the exit code."""
    from semspec.jobs.launchers import options_of

    given, rest = take(overrides, ("sweep", "hydra.sweep.dir"))
    hydra_ones = [o for o in rest if o.startswith(("hydra.", "hydra/"))]
    plain = [o for o in rest if o not in hydra_ones]
    for name, folder in given.items():
        if not folder.strip():
            raise UserError(f"{name}= is empty: name a folder")
    launcher, options = options_of(hydra_ones)
    jobs = plan(plain)
    folders = list(given.values()) or [f"runs/sweep_{_called(plain)}"]
    root = Path(folders[-1])
    console = open_console(quiet=_quiet(jobs))
    try:
        carry_out(jobs, root, console, launcher, options)
    except KeyboardInterrupt:
        show(jobs, root, console)
        raise
    show(jobs, root, console)
    console.say(f"results: {root}", "dim")
    return ended(jobs, root)


def _quiet(jobs: Sequence[Job]) -> bool:
    """Return ``quiet=`` of the first job that can be composed."""
    for job in jobs:
        with contextlib.suppress(UserError):
            return resolve(job)[0].quiet
    return False


def runs_of(jobs: Sequence[Job]) -> list[Job]:
    """Return every run of some jobs, arms included."""
    return [run for job in jobs for run in job.runs]


def ended(jobs: Sequence[Job], root: Path) -> int:
    """Return the exit code of several jobs; name those that are not finished on standard error."""
    states = {job.name: state_of(job, root)[0] for job in jobs}
    bad = [name for name, state in states.items() if state != "finished"]
    if bad:
        listed = ", ".join(f"{name} ({states[name]})" for name in bad[:5])
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        complain(
            f"{len(bad)} of {len(jobs)} jobs are not finished: {listed}{more};"
            " the same command goes on with them"
        )
    return 1 if bad else 0
