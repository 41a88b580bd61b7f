"""A run's folder: the files in it, and how a run that was killed resumes.

    config.json     the resolved configuration and its digest, written once
    starts.jsonl    one line a start: where it came from (see semspec.storage.provenance)
    rounds.jsonl    one line a round of the loop, of both modes
    problems.jsonl  one line a problem; this line is the problem's commit mark
    status.json     running, finished, failed or killed, of which job and where; how far
    result.json     the figures, at the end

Rounds are written as they come. Those of a problem without its line in problems.jsonl are what a
kill left; the next start drops them and solves the problem again.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar

from semspec.errors import UserError, told
from semspec.results.figures import Solve, problem_line
from semspec.storage.digest import difference, digest
from semspec.storage.files import (
    LineFile,
    cut_torn_line,
    keep_lines,
    parse,
    read_json,
    told_in_one_line,
    whole_lines,
    write_json,
)
from semspec.storage.lock import FolderLock, is_locked
from semspec.types import Round

__all__ = ["Line", "Mode", "OpenRun", "RunFolder", "Solve", "problem_line"]

Mode = Literal["plain", "speculative"]
State = Literal["running", "finished", "failed", "killed"]
Line = dict[str, Any]

_ROUND_FIELDS = tuple(f.name for f in fields(Round))


class HasId(Protocol):
    @property
    def id(self) -> str: ...


P = TypeVar("P", bound=HasId)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def status(
    about: Mapping[str, Any], state: State, started: str, error: str | None = None
) -> dict[str, Any]:
    """Return the status.json of a run that this process holds."""
    return {
        **about,
        "state": state,
        "error": error,
        "pid": os.getpid(),
        "host": platform.node(),
        "started": started,
        "updated": now(),
        "ended": None if state == "running" else now(),
    }


class RunFolder:
    """Read a run's folder, also while the run goes on."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @staticmethod
    def open(
        path: str | os.PathLike[str],
        config: Mapping[str, Any],
        *,
        total: int | None = None,
        free: Sequence[str] = (),
        provenance: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
        grow: bool = False,
    ) -> OpenRun:
        """Lock the folder, mend it, and find what is done; see ``OpenRun``.

        ``free`` names options (dotted) that may differ from start to start, such as how much is
        printed. The rest of ``config`` must be what the folder was begun with. ``about`` is repeated
        in status.json: a sweep says there which of its jobs this is. ``grow``: ``problems`` may be another
        number, too; a finished run that has fewer is open again.
        """
        return OpenRun(
            path, config, total=total, free=free, provenance=provenance, about=about, grow=grow
        )

    @property
    def config(self) -> dict[str, Any] | None:
        stored = read_json(self.path / "config.json")
        return stored["config"] if isinstance(stored, dict) and "config" in stored else None

    @property
    def result(self) -> dict[str, Any] | None:
        """The figures of a finished run."""
        result = read_json(self.path / "result.json")
        return result if isinstance(result, dict) else None

    @property
    def status(self) -> dict[str, Any]:
        """status.json as it is, except that a run that was killed does not count as running."""
        status = read_json(self.path / "status.json")
        if not isinstance(status, dict):
            return {}
        if status.get("state") == "running" and not is_locked(self.path):
            status["state"] = "killed"
        return dict(status)

    def starts(self) -> list[Line]:
        return list(self._lines("starts.jsonl"))

    def problem_lines(self) -> Iterator[Line]:
        return self._lines("problems.jsonl")

    def round_lines(self, problem_id: str, mode: Mode = "speculative") -> Iterator[Line]:
        """Yield one problem's rounds, in order."""
        for line in self._lines("rounds.jsonl"):
            if line.get("id") == problem_id and line.get("mode") == mode:
                yield line

    def _lines(self, name: str) -> Iterator[Line]:
        for line in whole_lines(self.path / name):
            value = parse(line)
            if value is not None:
                yield value


class OpenRun(RunFolder):
    """A run's folder, held by this process; a context manager.

    ``result`` is there already where the run was finished before: show it and leave. ``done`` holds
    the ids that need not be solved again.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Any],
        *,
        total: int | None = None,
        free: Sequence[str] = (),
        provenance: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
        grow: bool = False,
    ) -> None:
        super().__init__(path)
        self.about = dict(about or {})
        self.done: set[str] = set()
        self.total = total
        self._next: dict[tuple[str, Mode], int] = {}  # open problems: the number of the next round
        self._begun = now()
        self._discarded = False
        self._held = contextlib.ExitStack()
        free = (*free, "problems") if grow else free
        with told_in_one_line(self.path):
            known = self.config if grow else None
            wider = known is not None and known["problems"] < config["problems"]
            if self.result is not None and not wider:  # nothing will be written: no lock, no repair
                self._check(config, free)
                self.done = {line["id"] for line in self.problem_lines()}
                return
            self.path.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as held:
                held.callback(FolderLock(self.path).release)
                self._check(config, free)
                self._mend()
                if known is not None and known["problems"] != config["problems"]:
                    self._resize(config, free)
                self._rounds = held.enter_context(LineFile(self.path / "rounds.jsonl"))
                self._problems = held.enter_context(LineFile(self.path / "problems.jsonl"))
                if provenance is not None:
                    cut_torn_line(self.path / "starts.jsonl")
                    with LineFile(self.path / "starts.jsonl") as starts:
                        starts.append(provenance)
                self._say("running")
                self._held = held.pop_all()

    def _check(self, config: Mapping[str, Any], free: Sequence[str]) -> None:
        file = self.path / "config.json"
        if not file.exists():
            for name in ("problems.jsonl", "result.json"):
                if (self.path / name).exists():  # nothing tells what made it
                    raise UserError(
                        f"{self.path} holds {name} but no config.json; "
                        "choose another hydra.run.dir, or delete the folder"
                    )
            write_json(file, {"digest": digest(config, free), "config": config})
            return
        if self.config is None:
            raise UserError(
                f"{file} cannot be read; choose another hydra.run.dir, or delete the folder"
            )
        changed = difference(self.config, config, free)
        if changed:
            raise UserError(
                f"{self.path} holds a run with another configuration ({changed}); "
                "choose another hydra.run.dir, or delete the folder"
            )

    def _resize(self, config: Mapping[str, Any], free: Sequence[str]) -> None:
        """Take over another number of problems, of which those that are solved stay."""
        (self.path / "result.json").unlink(missing_ok=True)
        config = {**config, "problems": max(config["problems"], len(self.done))}
        write_json(self.path / "config.json", {"digest": digest(config, free), "config": config})

    def _mend(self) -> None:
        """Cut off what a kill left half-written, and forget problems without their line.

        Raises UserError for a line that cannot be read.
        """
        problems = self.path / "problems.jsonl"
        cut_torn_line(problems)
        for number, raw in enumerate(whole_lines(problems), start=1):
            line = parse(raw)
            if line is None or not isinstance(line.get("id"), str) or line["id"] in self.done:
                raise UserError(
                    f"{problems}, line {number} is damaged; "
                    "delete the line, or the folder, and start again"
                )
            self.done.add(line["id"])
        keep_lines(self.path / "rounds.jsonl", self.done)

    def todo(self, problems: Iterable[P]) -> Iterator[P]:
        """Yield the problems that are still to be solved; raise UserError where two have one id."""
        seen: set[str] = set()
        for problem in problems:
            if problem.id in seen:
                raise UserError(f"two problems have the id '{problem.id}': give each its own")
            seen.add(problem.id)
            if problem.id not in self.done:
                yield problem

    def append_rounds(self, problem_id: str, mode: Mode, rounds: Iterable[Round]) -> None:
        """Write rounds as they come: all of a problem at once, or one by one."""
        assert problem_id not in self.done, problem_id
        for r in rounds:
            number = self._next.get((problem_id, mode), 0)
            values = {name: getattr(r, name) for name in _ROUND_FIELDS}
            with told_in_one_line(self.path):
                self._rounds.append({"id": problem_id, "mode": mode, "round": number, **values})
            self._next[problem_id, mode] = number + 1

    def commit(self, line: Mapping[str, Any]) -> None:
        """Write a problem's line (see ``problem_line``): from now on it is done."""
        problem_id = line["id"]
        assert problem_id not in self.done, problem_id
        with told_in_one_line(self.path):
            self._rounds.sync()  # before the line that vouches for them
            self._problems.append(line)
            self._problems.sync()
            self.done.add(problem_id)
            self._next.pop((problem_id, "plain"), None)
            self._next.pop((problem_id, "speculative"), None)
            self._say("running")

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result; the run is over."""
        with told_in_one_line(self.path):
            write_json(self.path / "result.json", result)
            self._say("finished")

    def _say(self, state: State, error: str | None = None) -> None:
        said = status(self.about, state, self._begun, error)
        # Not durable: it is for onlookers, and an fsync a problem would be paid for nothing.
        write_json(
            self.path / "status.json",
            said | {"done": len(self.done), "total": self.total},
            durable=False,
        )

    def discard(self) -> None:
        """Remove what opening has written, where no problem was solved here: a false start."""
        if self.done or self.result is not None:
            return
        self._discarded = True
        ours = ("config.json", "problems.jsonl", "rounds.jsonl", "starts.jsonl", "status.json")
        for name in (*ours, ".lock"):
            (self.path / name).unlink(missing_ok=True)
        self._held.close()  # last: nobody else may begin here before it is empty
        with contextlib.suppress(OSError):  # somebody else's files may be there
            self.path.rmdir()

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> OpenRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.result is None and not self._discarded:
            killed = kind is None or issubclass(kind, KeyboardInterrupt | SystemExit)
            with contextlib.suppress(OSError):  # a full disk was reported already
                self._say("killed" if killed else "failed", None if killed else told(error))
        self.close()
