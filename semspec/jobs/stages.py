"""Staged jobs: a command's model work in stages, by one process or in shards, resumed after a kill.

``part=2/4`` runs one shard in its own process; ``-m part=1/4,2/4,...`` lets a launcher run several. A stage
ends in a barrier: no shard starts the next stage before all have done this one.

    FOLDER/config.json, .lock    the options, which must be the same at a later start
    FOLDER/part-2-of-4/          the same for a shard, and
        status.json              as for a sweep's job: running, finished, failed or killed
        result.json              the stages that the shard has done, and their figures

Shards share out the groups in which one process would work. A group's content does not depend on the process that makes
it, and its file goes where a single process would write it, so all shards together leave the same files as one process.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from semspec.config import parse
from semspec.deferred import hydra
from semspec.errors import UserError, describe_error
from semspec.jobs.job import Job
from semspec.jobs.launchers import options_of
from semspec.jobs.options import split_hydra, take
from semspec.jobs.sweep import carry_out, ended
from semspec.report.progress import Steps
from semspec.report.terminal import Screen, open_console
from semspec.results.records import foreign_status, now, status
from semspec.storage.digest import difference, flat
from semspec.storage.files import os_errors_as_user_errors, read_json, write_json
from semspec.storage.lock import FolderLock
from semspec.storage.screen import echo

MULTIRUN = {"-m", "--multirun"}
_WRITTEN = re.compile(r"(\d{1,6}|all)/(\d{1,6})")
_NAMED = re.compile(r"part-(\d+)-of-(\d+)")


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Create the folder and lock it; raise FolderInUseError if another process holds it."""
    with os_errors_as_user_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
        try:
            yield
        finally:
            lock.release()


def stored_options(folder: Path, needed: Sequence[str]) -> dict[str, Any] | None:
    """Return an earlier start's options, or None; raise UserError if ``needed`` ones are missing (another command's file)."""
    file = folder / "config.json"
    stored = read_json(file)
    if file.exists() and not (isinstance(stored, dict) and set(needed) <= set(stored)):
        raise UserError(f"{file} was not written by this command: give another folder=")
    return stored


def keep_options(
    folder: Path,
    options: Mapping[str, Any],
    stored: Mapping[str, Any] | None,
    defaults: Mapping[str, Any],
    may_change: Sequence[str],
) -> None:
    """Write the options to config.json, or compare them with those of an earlier start.

    ``defaults`` are values for options newer than the folder. Raises UserError if an option differs and is not in
    ``may_change``.
    """
    if stored is None:
        write_json(folder / "config.json", options)
        return
    kept, given = flat(stored, may_change), flat(options, may_change)
    kept = {key: defaults[key] for key in given if key in defaults} | kept
    if unlike := difference(kept, given):
        raise UserError(f"{folder} was begun with other options ({unlike}): give another folder=")


@dataclass(frozen=True, order=True, slots=True)
class Shard:
    """One share of a command's work, as given by ``part=``."""

    number: int  # from 1
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def name(self) -> str:
        return f"part-{self.number}-of-{self.of}"

    def has(self, group: int) -> bool:
        """Return True if a group is in this shard: every ``of``-th one is."""
        return group % self.of == self.number - 1

    def all(self) -> list[Shard]:
        """Return all shards of this division."""
        return [Shard(number, self.of) for number in range(1, self.of + 1)]

    def folder(self, root: Path) -> Path:
        return root / self.name

    def done(self, root: Path) -> dict[str, dict[str, Any]]:
        """Return the figures of the stages that this shard has done."""
        known = read_json(self.folder(root) / "result.json")
        return dict(known["done"]) if isinstance(known, dict) and "done" in known else {}

    def finish(self, root: Path, stage: str, figures: Mapping[str, Any]) -> None:
        """Record that this shard has done a stage."""
        done = self.done(root) | {stage: dict(figures)}
        write_json(self.folder(root) / "result.json", {"done": done})

    @contextmanager
    def hold(self, root: Path, about: Mapping[str, Any]) -> Iterator[Path]:
        """Create and lock the shard's folder, and record in status.json how the block ends.

        Raises UserError if the folder is not ours.
        """
        folder, since = self.folder(root), now()
        if wrong := foreign_status(folder):
            raise UserError(wrong.replace("hydra.run.dir", "folder="))
        with hold(folder):
            try:
                write_json(folder / "status.json", status(about, "running", since))
                yield folder
                write_json(folder / "status.json", status(about, "finished", since))
            except Exception as error:
                failed = status(about, "failed", since, describe_error(error))
                write_json(folder / "status.json", failed)
                raise


def split(arguments: Sequence[str]) -> tuple[list[Shard], bool, list[str]]:
    """Return the shards given by ``part=``, whether ``-m`` is given (required for several), and the other arguments."""
    multirun = bool(MULTIRUN & set(arguments))
    given, rest = take([a for a in arguments if a not in MULTIRUN], ("part",))
    shards = _read(given["part"]) if given else []
    if multirun and not shards:
        raise UserError(
            "-m is here for part=1/4,2/4,... alone, which share the work of one folder; what differs in"
            " other options is a command of its own for each (docs/scale-out.md)"
        )
    if len(shards) > 1 and not multirun:
        raise UserError(f"part={given['part']} is several: add -m, or give one of them")
    return shards, multirun, rest


def _read(text: str) -> list[Shard]:
    """Read ``2/4``, ``1/4,3/4`` or ``all/4``."""
    shards: list[Shard] = []
    for one in text.split(","):
        match = _WRITTEN.fullmatch(one.strip())
        number, of = (match[1], int(match[2])) if match else ("", 0)
        if number == "all" and of:
            shards += Shard(1, of).all()
        elif number.isdigit() and 1 <= int(number) <= of:
            shards.append(Shard(int(number), of))
        else:
            raise UserError(f"part={text}: give 1/4 to 4/4 of four, for one; with -m also all/4")
    if len({shard.of for shard in shards}) > 1:
        raise UserError(f"part={text}: give parts of one number, such as part=1/4,2/4")
    return sorted(set(shards))


def started(root: Path) -> list[Shard]:
    """Return the shards that have a folder; raise UserError if these are of two divisions."""
    if not root.is_dir():
        return []
    named = [_NAMED.fullmatch(f.name) for f in root.iterdir() if (f / "config.json").exists()]
    found = sorted(Shard(int(name[1]), int(name[2])) for name in named if name)
    if len({shard.of for shard in found}) > 1:
        raise UserError(f"{root} has parts of {found[0].of} and of others: delete those folders")
    return found


def check_division(shard: Shard, root: Path) -> None:
    """Raise UserError if the folder is divided differently, or was begun without shards."""
    known = started(root)
    if known and (of := known[0].of) != shard.of:
        way = f"in parts of {of}: go on with part=1/{of} and so on, or give"
        raise UserError(f"{root} was begun {way} another folder=")
    if not known and (root / "config.json").exists():
        way = "without part=: go on without it, or give"
        raise UserError(f"{root} was begun {way} another folder=")


def lacking(shards: Sequence[Shard], root: Path, stage: str) -> list[Shard]:
    """Return the shards of the whole division, not only of ``shards``, that have not done a stage."""
    return [shard for shard in shards[0].all() if stage not in shard.done(root)]


def check_barrier(shards: Sequence[Shard], root: Path, stage: str) -> None:
    """Raise UserError, naming the missing shards, unless all of the division have done a stage."""
    if absent := lacking(shards, root, stage):
        named = ",".join(map(str, absent[:8])) + (",..." if len(absent) > 8 else "")
        raise UserError(
            f"{root} lacks the {stage} of {len(absent)} of {shards[0].of} parts: first give this command"
            f" with -m part={named}, or once with each (docs/scale-out.md)"
        )


class StagedWork(Protocol):
    """The part of a command's work that can be divided into shards."""

    folder: Path
    quiet: bool
    product: str  # says what the same command without part= makes from the shards' work

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages, each ending in a barrier; raises UserError if there is nothing to divide."""

    def keep_options(self, folder: Path) -> None:
        """Write or compare the options, as this module's ``keep_options`` does."""

    def run(self, shard: Shard, stage: str, steps: Steps) -> Mapping[str, Any]:
        """Do a shard's share of a stage; return its figures."""

    def close(self) -> None:
        """Free the models."""


WorkOf = Callable[[Sequence[str]], StagedWork]  # from a command's arguments


def compare_shards(work: StagedWork) -> list[Shard]:
    """Return the shards that have a folder; raise UserError if one was begun with other options."""
    found = started(work.folder)
    for shard in found:
        work.keep_options(shard.folder(work.folder))
    return found


def run_shard(
    work: StagedWork, shard: Shard, until: str, about: Mapping[str, Any], steps: Steps
) -> None:
    """Run one shard's share of the stages up to ``until``; return early at a barrier that others have not reached."""
    root, stages = work.folder, work.stages[: work.stages.index(until) + 1]
    check_division(shard, root)
    compare_shards(work)
    with shard.hold(root, about) as folder:
        work.keep_options(folder)
        try:
            for before, stage in zip(("", *stages), stages, strict=False):
                if stage in shard.done(root):
                    steps.say(f"part {shard} has its {stage}")
                elif before and lacking([shard], root, before):
                    why = f"its {stage} need the {before} of all parts"
                    steps.say(f"part {shard}: {why}: start it again when they are there")
                    return
                else:
                    shard.finish(root, stage, work.run(shard, stage, steps))
        finally:
            work.close()


def run_job(work_of: WorkOf, job: Job, console: Screen) -> None:
    """Run one shard as a launcher's job."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    (shard,), _, rest = split(job.overrides)
    work = work_of(rest)
    until = job.stage or work.stages[-1]
    run_shard(work, shard, until, job.about, Steps(console, work.quiet))


def run_in_shards(command: str, work_of: WorkOf, arguments: Sequence[str]) -> bool:
    """Run the shards given by ``part=``, if any; return False without ``part=``.

    A launcher calls ``run_shard`` of the module ``command``.
    """
    shards, multirun, rest = split(arguments)
    if multirun:
        sys.exit(_launch(command, work_of, shards, rest))
    for shard in shards:
        run_job(work_of, Job(shard.name, (*rest, f"part={shard}")), open_console())
    return bool(shards)


def _launch(
    command: str, work_of: WorkOf, shards: Sequence[Shard], arguments: Sequence[str]
) -> int:
    """Let a launcher run these shards, stage by stage; return the exit code."""
    own, hydra_options = split_launcher(arguments)
    work = work_of(own)
    launcher, options = options_of(hydra_options)
    root, stages, console = work.folder, work.stages, open_console(quiet=work.quiet)
    check_division(shards[0], root)
    for stage, after in zip(stages, (*stages[1:], ""), strict=True):
        jobs = [Job(s.name, (*own, f"part={s}"), command, stage) for s in shards]
        console.say(f"{stage}:")
        carry_out(jobs, root, console, launcher, options)
        if code := ended(jobs, root):
            return code
        if after and (absent := lacking(shards, root, stage)):
            raise UserError(
                f"{after} need the {stage} of all parts: part={','.join(map(str, absent))} of"
                f" {root} lack them; start those, then this again"
            )
    echo(f"{root}: the same command without -m and part= {work.product}", newline=" ")
    return 0


def split_launcher(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate a command's own options, one value each, from the launcher's."""
    hydra_options, own = split_hydra(arguments)
    for argument in own:
        several = False
        with suppress(hydra.errors.HydraException):  # the command's parser will report it
            several = parse([argument])[0].is_sweep_override()
        if several:
            raise UserError(
                f"'{argument}' gives several values: here -m is for part= alone; start the command once for"
                " each, in a folder of its own (docs/scale-out.md)"
            )
    return own, hydra_options
