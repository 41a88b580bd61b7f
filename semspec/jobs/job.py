"""A job: one of several runs, arms that take turns, or a shard of a command's work.

This module resolves its configuration, does its work in this process, and reads its state from its folder.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from semspec import runner
from semspec.config import RunConfig, build, compose, one_line
from semspec.deferred import hydra
from semspec.errors import UserError, describe_error, without_passwords
from semspec.report.terminal import Screen
from semspec.results import records
from semspec.results.records import RunFolder, State, now
from semspec.storage.files import dumps, read_json, write_json
from semspec.storage.lock import FolderInUseError, is_locked

ERROR = "error.txt"
ARM = "arm"  # the command of a run that is an arm of a job
CHANGED = ("state", "error", "updated", "ended")  # of status.json, to rewrite if a process is gone


@dataclass(frozen=True)
class Job:
    """One run, several arms, or one shard."""

    name: str  # its folder, within that of all jobs
    overrides: tuple[str, ...]
    command: str = ""  # module with ``run_shard`` or ``do_arms``; "": an ordinary run
    stage: str = ""  # the last stage that the shard does
    arms: tuple[Job, ...] = ()  # runs that take turns in one process, each in its own folder

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
        values = json.loads(text)
        arms = tuple(cls.from_json(dumps(arm)) for arm in values.pop("arms"))
        return cls(**values | {"overrides": tuple(values["overrides"]), "arms": arms})


def resolve(job: Job) -> tuple[RunConfig, dict[str, Any]]:
    """Return a job's configuration, typed and as it is recorded; raise UserError if it is wrong."""
    try:
        composed = compose(job.overrides)
        plain = OmegaConf.to_container(composed, resolve=True)
    except (hydra.errors.HydraException, OmegaConfBaseException) as error:
        raise UserError(one_line(error)) from error
    assert isinstance(plain, dict), job
    return build(composed), {str(k): v for k, v in plain.items()}


def foreign_files(job: Job, root: Path) -> str | None:
    """Say why nothing may be written into a job's folders (files that are not ours), else None."""
    wrong = records.foreign_status if job.stage else records.foreign
    return next(filter(None, (wrong(root / run.name) for run in job.runs)), None)


def work(
    job: Job, root: Path, console: Screen, leaving: Callable[[], bool] = lambda: False
) -> None:
    """Run one job and record a failure in its folder; ``leaving`` tells if it will resume in another process."""
    report, started, failed = root / job.name / ERROR, now(), ""
    if foreign_files(job, root):
        return  # write nothing there; ``state_of`` reports it
    try:
        _do(job, root, console)
    except FolderInUseError:
        return  # another process is running it
    except UserError as error:
        failed = describe_error(error)
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and leaving():
            raise
        failed = describe_error(error)
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(without_passwords(traceback.format_exc()), encoding="utf-8")
    if not failed:
        report.unlink(missing_ok=True)
        return
    for run in job.runs:
        if not is_locked(root / run.name) and (job.stage or state_of(run, root)[0] != "finished"):
            say(run, root, "failed", failed, started)


def _do(job: Job, root: Path, console: Screen) -> None:
    if job.arms:
        importlib.import_module(job.command).do_arms(job, root, console)
    elif job.command:
        importlib.import_module(job.command).run_shard(job, console)
    else:
        runner.execute(*resolve(job), root / job.name, console, job.about)


def say(
    job: Job, root: Path, state: State, error: str, started: str | None = None, **more: Any
) -> None:
    """Write the status.json of a job that cannot do so itself."""
    folder = root / job.name
    entry = records.status(job.about | more, state, started or now(), error)
    if started is None:  # the process is gone: keep the rest of its own entry
        entry |= {k: v for k, v in RunFolder(folder).status.items() if k not in CHANGED}
    with contextlib.suppress(OSError):  # a full disk: the final table shows the state anyway
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "status.json", entry)


def state_of(job: Job, root: Path) -> tuple[str, str]:
    """Return a job's state, and its error if there is one."""
    if wrong := foreign_files(job, root):
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
    if state == "finished":  # an earlier stage or fewer problems; or the result is gone
        state = "waiting" if job.stage or folder.result is not None else "killed"
    return state, found.get("error") or ""


def finish(job: Job, root: Path, console: Screen) -> None:
    """Complete finished runs that were killed just before the end: write their status and report page."""
    for run in () if job.stage else job.runs:
        folder = RunFolder(root / run.name)
        if folder.result is not None and not is_locked(folder.path):
            folder.settle()
            runner.write_page(folder, console)


def _enough(job: Job, known: Mapping[str, Any]) -> bool:
    """Return True if a run has as many problems as its job asks for; only arms can grow."""
    asked = [o.partition("=")[2] for o in job.overrides if o.startswith("problems=")]
    return job.command != ARM or not asked or not records.has_fewer(known, int(asked[-1]))


def left_out(job: Job, root: Path) -> str:
    """Return why an arm was left out at its last start; "" if it was not."""
    found = RunFolder(root / job.name).status
    return str(found["error"]) if found.get("left_out") else ""
