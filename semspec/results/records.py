"""A run's folder: the files in it, and how a run that was killed resumes.

    config.json     the resolved configuration and its digest, written once: the mark of a run's folder
    weights.json    the identity of everything that was loaded (see semspec.results.identity)
    measured.json   what the rule has measured on the pair before the first problem, if it does
    costs.json      what passes have cost and drafts were worth, at the end (see semspec.results.tables)
    starts.jsonl    one line a start: where it came from (see semspec.storage.provenance)
    rounds.jsonl    one line a round of the loop, of both modes
    problems.jsonl  one line a problem, or a further attempt at it; this line is its commit mark
    status.json     running, finished, failed or killed, of which job and where; how far
    result.json     the figures, at the end

Rounds are written as they come. Those of a problem without its line in problems.jsonl are what a
kill left; the next start drops them and solves the problem again. A folder that holds files of these
names and no such configuration is somebody else's: nothing in it is touched.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args

from semspec.errors import UserError, describe_error
from semspec.protocols import BenchmarkProblem
from semspec.results import metrics
from semspec.results.attempts import problem_of
from semspec.results.figures import Solve, damage, problem_line
from semspec.results.schema import sound
from semspec.storage import files
from semspec.storage.digest import difference, digest
from semspec.storage.files import os_errors_as_user_errors, read_json, write_json
from semspec.storage.lock import FolderLock, FolderLostError, is_locked
from semspec.types import Round

__all__ = ["Line", "Mode", "OpenRun", "RunFolder", "Solve", "problem_line"]

Mode = Literal["plain", "speculative"]
State = Literal["running", "finished", "failed", "killed"]
Line = dict[str, Any]

WAY = "choose another hydra.run.dir"
_CONTENT = (
    *(
        "weights.json",
        "measured.json",
        "costs.json",
        "starts.jsonl",
        "rounds.jsonl",
        "problems.jsonl",
    ),
    "result.json",
)
_STATUS = frozenset({"state", "error", "pid", "host", "started"})  # in every status.json of ours
_ROUND_FIELDS = tuple(f.name for f in fields(Round) if f.name != "stop")


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def status(about: Mapping[str, Any], state: State, started: str, error: str | None = None) -> Line:
    """Return the status.json of a run that this process holds."""
    held = {"state": state, "error": error, "pid": os.getpid(), "host": platform.node()}
    ended = None if state == "running" else now()
    return {**about, **held, "started": started, "updated": now(), "ended": ended}


def foreign_status(folder: Path) -> str | None:
    """Say what is wrong with a status.json that no job of ours has written; None where nothing is."""
    file = folder / "status.json"
    known = read_json(file)
    if isinstance(known, dict) and set(known) >= _STATUS and known["state"] in get_args(State):
        return None
    return f"{file} is not a run's; {WAY}" if file.exists() else None


def foreign(folder: Path) -> str | None:
    """Say why nothing may be written in a folder: it holds files of our names that are not ours."""
    file = folder / "config.json"
    if file.exists():
        known = read_json(file)
        if isinstance(known, dict) and "digest" in known and isinstance(known.get("config"), dict):
            return None
        return f"{file} cannot be read as a run's configuration; {WAY}"
    for name in _CONTENT:
        if (folder / name).exists():  # nothing tells what made it
            return f"{folder} holds {name} but no config.json of a run; {WAY}"
    return foreign_status(folder)


def has_fewer(config: Mapping[str, Any], problems: int) -> bool:
    """Return True where a recorded configuration asks for fewer problems than these."""
    known = config.get("problems")
    return isinstance(known, int) and known < problems


class OtherWeightsError(UserError):
    """A run was begun with other weights than those that are found now."""


class RunFolder:
    """Read a run's folder, also while the run goes on."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def config(self) -> dict[str, Any] | None:
        stored = read_json(self.path / "config.json")
        return stored["config"] if isinstance(stored, dict) and "config" in stored else None

    @property
    def result(self) -> dict[str, Any] | None:
        """result.json of a finished run as it is; None where it holds no figures."""
        result = read_json(self.path / "result.json")
        counted = isinstance(result, dict) and isinstance(result.get("problems"), int)
        return result if counted else None

    def figures(self) -> dict[str, Any] | None:
        """The figures of a finished run; those of a damaged or older file are computed again."""
        result = self.result
        if result is None or sound(result):
            return result
        kinds = (("provenance", dict), ("concurrency", int))
        kept = {k: result[k] for k, kind in kinds if isinstance(result.get(k), kind)}
        return self.summary() | kept

    def summary(self, damaged: list[str] | None = None) -> dict[str, Any]:
        """Compute the figures of the problems so far; why a line is left out goes to ``damaged``."""
        config = self.config
        seed = config.get("seed") if isinstance(config, dict) else None
        seed = seed if isinstance(seed, int) else 0
        return metrics.summarise(self.problem_lines(damaged), seed=seed)

    @property
    def status(self) -> dict[str, Any]:
        """status.json, but a killed run is not running: it is finished if its result was written."""
        status = read_json(self.path / "status.json")
        if not isinstance(status, dict):
            return {}
        if status.get("state") == "running" and not is_locked(self.path):
            status["state"] = "killed" if self.result is None else "finished"
        return dict(status)

    def settle(self) -> None:
        """Say that the run is finished, where a kill came between its result and its status."""
        stale = read_json(self.path / "status.json")
        if not isinstance(stale, dict) or stale.get("state") == "finished":
            return
        done = sum(1 for _ in self.problem_lines())
        finished = {"state": "finished", "error": None, "ended": now(), "done": done}
        # a folder that cannot be written, or that another process is about to finish, shows its result, too
        with contextlib.suppress(OSError, UserError), contextlib.ExitStack() as held:
            held.callback(FolderLock(self.path).release)
            write_json(self.path / "status.json", stale | finished)

    def starts(self) -> list[Line]:
        return list(self._lines("starts.jsonl"))

    def problem_lines(self, damaged: list[str] | None = None) -> Iterator[Line]:
        """Yield the lines that figures can be computed from, one at a time: texts may be long."""
        for line in self._lines("problems.jsonl"):
            if (wrong := damage(line)) is None:
                yield line
            elif damaged is not None:
                damaged.append(wrong)

    def round_lines(self, problem_id: str, mode: Mode = "speculative") -> Iterator[Line]:
        """Yield one problem's rounds, in order."""
        for line in self._lines("rounds.jsonl"):
            if line.get("id") == problem_id and line.get("mode") == mode:
                yield line

    def _lines(self, name: str) -> Iterator[Line]:
        read = (files.parse(line) for line in files.whole_lines(self.path / name))
        return (line for line in read if line is not None)


class OpenRun(RunFolder):
    """A run's folder, locked by this process and mended; a context manager.

    ``result`` is there already where the run was finished before: show it and leave. ``done`` holds
    the ids that need not be solved again.

    ``free`` names options (dotted) that may differ from start to start, such as how much is
    printed. The rest of ``config`` must be what the folder was begun with. ``about`` is repeated
    in status.json: a sweep says there which of its jobs this is. ``grow``: ``problems`` may be another
    number, too; a finished run that has fewer is open again.
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
        self.about, self.total, self._begun = dict(about or {}), total, now()
        self.done: set[str] = set()
        self._problems_begun: set[str] = set()  # of those that are done
        self.notes: list[str] = []  # for the user
        self._lock: FolderLock | None = None
        self._lost = self._discarded = False
        self._identified = False  # True once weights.json is of this start
        self._next: Counter[tuple[str, Mode]] = Counter()  # of open problems: rounds so far
        self._held = contextlib.ExitStack()
        free = (*free, "problems") if grow else free
        with os_errors_as_user_errors(self.path):
            if wrong := foreign(self.path):
                raise UserError(wrong)
            known = self.config if grow else None
            wider = known is not None and has_fewer(known, config["problems"])
            if self.result is not None and not wider:  # nothing will be solved: no lock, no repair
                self._check(config, free)
                self.done = {line["id"] for line in self.problem_lines()}
                self.settle()
                return
            self.path.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as held:
                self._lock = FolderLock(self.path)
                held.callback(self._lock.release)
                self._check(config, free)
                self._mend(config.get("plain"))
                if known is not None and known.get("problems") != config["problems"]:
                    self._resize(config, free)
                self._rounds = held.enter_context(files.LineFile(self.path / "rounds.jsonl"))
                self._problems = held.enter_context(files.LineFile(self.path / "problems.jsonl"))
                if provenance is not None:
                    files.cut_torn_line(self.path / "starts.jsonl")
                    with files.LineFile(self.path / "starts.jsonl") as starts:
                        starts.append(provenance)
                self._say("running")
                self._held = held.pop_all()

    def _check(self, config: Mapping[str, Any], free: Sequence[str]) -> None:
        file = self.path / "config.json"
        if not file.exists():
            write_json(file, {"digest": digest(config, free), "config": config})
            return
        known = self.config
        assert known is not None, file  # or it is foreign
        if changed := difference(known, config, free):
            raise UserError(
                f"{self.path} holds a run with another configuration ({changed}); "
                "choose another hydra.run.dir, or delete the folder"
            )

    def _resize(self, config: Mapping[str, Any], free: Sequence[str]) -> None:
        """Take over another number of problems, of which those that are solved stay."""
        (self.path / "result.json").unlink(missing_ok=True)
        config = {**config, "problems": max(config["problems"], len(self._problems_begun))}
        write_json(self.path / "config.json", {"digest": digest(config, free), "config": config})

    def _mend(self, plain: bool | None) -> None:
        """Cut off what a kill left half-written; UserError for a damaged line, or rounds that are gone."""
        for name in ("config.json", *_CONTENT):
            (self.path / f".{name}.tmp").unlink(missing_ok=True)
        problems = self.path / "problems.jsonl"
        files.cut_torn_line(problems)
        rounds: Counter[tuple[str, str]] = Counter()  # what the lines of problems.jsonl count
        for number, raw in enumerate(files.whole_lines(problems), start=1):
            line = files.parse(raw)
            wrong = damage(line, plain)
            if line is None or wrong or line["id"] in self.done:
                raise UserError(
                    f"{problems}, line {number} is damaged ({wrong or 'its id is there twice'}); "
                    "delete the line, or the folder, and start again"
                )
            self.done.add(line["id"])
            self._problems_begun.add(problem_of(line))
            solves = {"speculative": line, "plain": line["plain"] or {}}
            rounds.update({(line["id"], m): int(s.get("rounds", 0)) for m, s in solves.items()})
        files.keep_lines(self.path / "rounds.jsonl", self.done)
        for line in self._lines("rounds.jsonl"):
            rounds[line["id"], str(line.get("mode"))] -= 1
        gone = list(dict.fromkeys(name for (name, _), count in rounds.items() if count > 0))
        if gone:
            more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
            raise UserError(
                f"{self.path / 'rounds.jsonl'} lacks rounds of {', '.join(gone[:3])}{more}; put the"
                f" file back, or delete their lines in {problems.name} to have them solved again"
            )

    def identify(self, part: str, found: Mapping[str, str]) -> None:
        """Compare what this start has loaded with what the run was begun with; see ``semspec.results.identity``.

        Raises OtherWeightsError where it is another and problems are solved already. ``part`` is ``files``, of
        which all are compared, or ``servers``, which may be others from start to start.
        """
        file = self.path / "weights.json"
        stored = read_json(file) if self.done or self._identified else None
        stored = stored if isinstance(stored, dict) else {}
        was, self._identified = stored.get(part), True
        if isinstance(was, dict):
            names = {*was, *found} if part == "files" else {*was} & {*found}
            unlike = sorted(name for name in names if was.get(name) != found.get(name))
            if unlike:
                name, more = unlike[0], f" (and {len(unlike) - 1} more)" if len(unlike) > 1 else ""
                before, here = (known.get(name, "not used")[:32] for known in (was, found))
                raise OtherWeightsError(
                    f"{self.path} was begun with another {name}{more}: it was {before}, and is {here}"
                    " now; choose another hydra.run.dir, or put back what was there"
                )
            found = {**was, **found}
        elif self.done and part == "files":
            self.notes.append(
                f"{self.path} does not say which weights it was begun with: it goes on with those of now"
            )
        if found != was:
            with os_errors_as_user_errors(self.path):
                write_json(file, stored | {part: dict(found)})

    @property
    def measured(self) -> dict[str, Any] | None:
        """What the rule has measured, where problems are solved already: the others go by the same."""
        found = read_json(self.path / "measured.json") if self.done else None
        return found if isinstance(found, dict) else None

    def record_measured(self, found: Mapping[str, Any]) -> None:
        """Keep what the rule has measured; nothing is written where that is nothing."""
        if found and found != self.measured:
            with os_errors_as_user_errors(self.path):
                write_json(self.path / "measured.json", dict(found))

    def record_costs(self, told: Mapping[str, Any]) -> None:
        """Keep what was measured of costs, for a run that is to decide by the same (``costs=``)."""
        with self._writing():
            write_json(self.path / "costs.json", told)

    def todo(self, problems: Iterable[BenchmarkProblem]) -> Iterator[BenchmarkProblem]:
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
        with self._writing():
            for r in rounds:
                place = {"id": problem_id, "mode": mode, "round": self._next[problem_id, mode]}
                own = {name: getattr(r, name) for name in _ROUND_FIELDS}
                self._rounds.append(place | own | ({"stop": r.stop} if r.stop else {}))
                self._next[problem_id, mode] += 1

    def commit(self, line: Mapping[str, Any]) -> None:
        """Write a problem's line (see ``problem_line``): from now on it is done."""
        problem_id = line["id"]
        assert problem_id not in self.done, problem_id
        with self._writing():
            self._rounds.sync()  # before the line that vouches for them
            self._problems.append(line)
            self._problems.sync()
            self.done.add(problem_id)
            for mode in get_args(Mode):
                del self._next[problem_id, mode]
            self._say("running")

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result; the run is over."""
        with self._writing():
            write_json(self.path / "result.json", result)
            self._say("finished")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Check that the folder is still ours; nothing more is written once another process has it."""
        assert self._lock is not None, self.path  # it was not finished before
        try:
            with os_errors_as_user_errors(self.path):
                self._lock.check()
                yield
        except FolderLostError:
            self._lost = True
            raise

    def _say(self, state: State, error: str | None = None) -> None:
        said = status(self.about, state, self._begun, error)
        said |= {"done": len(self.done), "total": self.total}
        # Not durable: it is for onlookers, and an fsync a problem would be paid for nothing.
        write_json(self.path / "status.json", said, durable=False)

    def discard(self) -> None:
        """Remove what opening has written, where no problem was solved here: a false start."""
        if self.done or self.result is not None or self._lost:
            return
        self._discarded = True
        mark = ("status.json", "config.json", ".lock")  # behind what it marks
        for name in (*_CONTENT, *mark):
            (self.path / name).unlink(missing_ok=True)
        self.close()  # last: nobody else may begin here before it is empty
        with contextlib.suppress(OSError):  # somebody else's files may be there
            self.path.rmdir()

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> OpenRun:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.result is None and not self._discarded and not self._lost:
            killed = error is None or isinstance(error, KeyboardInterrupt | SystemExit)
            with contextlib.suppress(OSError):  # a full disk was reported already
                why = None if killed else describe_error(error)
                self._say("killed" if killed else "failed", why)
        self.close()
