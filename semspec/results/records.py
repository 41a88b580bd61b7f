"""A run's folder: its files, and how a killed run resumes.

    config.json     the resolved configuration and its digest, written once: this marks a run's folder
    weights.json    the identity of everything that was loaded (see semspec.results.identity)
    measured.json   what the rule measured on the pair before the first problem, if it measures anything
    costs.json      measured costs of passes and worth of drafts, written at the end (see semspec.results.tables)
    starts.jsonl    one line per start: its provenance (see semspec.storage.provenance)
    rounds.jsonl    one line per round of the loop, for both modes
    problems.jsonl  one line per problem or further attempt; this line commits it
    status.json     running, finished, failed or killed; which job and host; progress
    result.json     the figures, written at the end

Rounds are written as they come. If a problem has rounds but no line in problems.jsonl, a kill left them: the next start
drops them and solves the problem again. A folder with files of these names but without such a config.json is not ours,
and nothing in it is touched.
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
    """Say what is wrong if the folder's status.json is not ours; None if it is ours or missing."""
    file = folder / "status.json"
    known = read_json(file)
    if isinstance(known, dict) and set(known) >= _STATUS and known["state"] in get_args(State):
        return None
    return f"{file} is not a run's; {WAY}" if file.exists() else None


def foreign(folder: Path) -> str | None:
    """Say why nothing may be written into a folder (it has files of our names that are not ours), else None."""
    file = folder / "config.json"
    if file.exists():
        known = read_json(file)
        if isinstance(known, dict) and "digest" in known and isinstance(known.get("config"), dict):
            return None
        return f"{file} cannot be read as a run's configuration; {WAY}"
    for name in _CONTENT:
        if (folder / name).exists():  # without config.json its origin is unknown
            return f"{folder} holds {name} but no config.json of a run; {WAY}"
    return foreign_status(folder)


def has_fewer(config: Mapping[str, Any], problems: int) -> bool:
    """Return True if a recorded configuration asks for fewer problems than ``problems``."""
    known = config.get("problems")
    return isinstance(known, int) and known < problems


class OtherWeightsError(UserError):
    """A run was begun with other weights than those found now."""


class RunFolder:
    """Reads a run's folder, also while the run is going on."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def config(self) -> dict[str, Any] | None:
        stored = read_json(self.path / "config.json")
        return stored["config"] if isinstance(stored, dict) and "config" in stored else None

    @property
    def result(self) -> dict[str, Any] | None:
        """The result.json of a finished run, unchecked; None if it holds no figures."""
        result = read_json(self.path / "result.json")
        counted = isinstance(result, dict) and isinstance(result.get("problems"), int)
        return result if counted else None

    def figures(self) -> dict[str, Any] | None:
        """Return the figures of a finished run; compute them again if the file is damaged or older than the schema."""
        result = self.result
        if result is None or sound(result):
            return result
        kinds = (("provenance", dict), ("concurrency", int))
        kept = {k: result[k] for k, kind in kinds if isinstance(result.get(k), kind)}
        return self.summary() | kept

    def summary(self, damaged: list[str] | None = None) -> dict[str, Any]:
        """Compute the figures of the problems so far; the reasons for skipped lines go to ``damaged``."""
        config = self.config
        seed = config.get("seed") if isinstance(config, dict) else None
        seed = seed if isinstance(seed, int) else 0
        return metrics.summarise(self.problem_lines(damaged), seed=seed)

    @property
    def status(self) -> dict[str, Any]:
        """status.json, but if no process holds the run it is killed, or finished if there is a result."""
        status = read_json(self.path / "status.json")
        if not isinstance(status, dict):
            return {}
        if status.get("state") == "running" and not is_locked(self.path):
            status["state"] = "killed" if self.result is None else "finished"
        return dict(status)

    def settle(self) -> None:
        """Mark the run as finished, in case a kill came between writing its result and its status."""
        stale = read_json(self.path / "status.json")
        if not isinstance(stale, dict) or stale.get("state") == "finished":
            return
        done = sum(1 for _ in self.problem_lines())
        finished = {"state": "finished", "error": None, "ended": now(), "done": done}
        # ignore a folder that is read-only or being finished by another process: its result is readable
        with contextlib.suppress(OSError, UserError), contextlib.ExitStack() as held:
            held.callback(FolderLock(self.path).release)
            write_json(self.path / "status.json", stale | finished)

    def starts(self) -> list[Line]:
        return list(self._lines("starts.jsonl"))

    def problem_lines(self, damaged: list[str] | None = None) -> Iterator[Line]:
        """Yield the sound lines one at a time, since texts may be long; reasons for skipped ones go to ``damaged``."""
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
    """A run's folder, locked by this process and repaired; a context manager.

    If ``result`` is set, the run was finished before: show it and leave. ``done`` holds the ids that are
    already solved.

    ``free`` names options (dotted) that may differ between starts, such as how much is printed. The rest
    of ``config`` must equal that of the first start. ``about`` is copied into status.json: a sweep
    records there which of its jobs this is. ``grow``: the number of ``problems`` may change, too; a
    finished run with fewer problems is opened again.
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
        self._problems_begun: set[str] = set()  # problems with at least one attempt in ``done``
        self.notes: list[str] = []  # for the user
        self._lock: FolderLock | None = None
        self._lost = self._discarded = False
        self._identified = False  # True once this start has compared or written weights.json
        self._next: Counter[tuple[str, Mode]] = Counter()  # rounds so far of open problems
        self._held = contextlib.ExitStack()
        free = (*free, "problems") if grow else free
        with os_errors_as_user_errors(self.path):
            if wrong := foreign(self.path):
                raise UserError(wrong)
            known = self.config if grow else None
            wider = known is not None and has_fewer(known, config["problems"])
            if self.result is not None and not wider:  # nothing to solve: no lock, no repair
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
        assert known is not None, file  # otherwise ``foreign`` has refused it
        if changed := difference(known, config, free):
            raise UserError(
                f"{self.path} contains a run with another configuration ({changed}); choose"
                " another hydra.run.dir, or delete the folder"
            )

    def _resize(self, config: Mapping[str, Any], free: Sequence[str]) -> None:
        """Change the number of problems; those that are solved stay."""
        (self.path / "result.json").unlink(missing_ok=True)
        config = {**config, "problems": max(config["problems"], len(self._problems_begun))}
        write_json(self.path / "config.json", {"digest": digest(config, free), "config": config})

    def _mend(self, plain: bool | None) -> None:
        """Remove what a kill left half-written; raise UserError for a damaged line or missing rounds."""
        for name in ("config.json", *_CONTENT):
            (self.path / f".{name}.tmp").unlink(missing_ok=True)
        problems = self.path / "problems.jsonl"
        files.cut_torn_line(problems)
        rounds: Counter[tuple[str, str]] = Counter()  # as counted by the lines of problems.jsonl
        for number, raw in enumerate(files.whole_lines(problems), start=1):
            line = files.parse(raw)
            wrong = damage(line, plain)
            if line is None or wrong or line["id"] in self.done:
                raise UserError(
                    f"{problems}, line {number} is damaged"
                    f" ({wrong or 'its id occurs twice'}); delete the line, or start over in"
                    " an empty folder"
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
                f"{self.path / 'rounds.jsonl'} lacks rounds of {', '.join(gone[:3])}{more};"
                f" restore the file, or delete their lines in {problems.name} to solve them"
                " again"
            )

    def identify(self, part: str, found: Mapping[str, str]) -> None:
        """Compare the weights that this start has loaded with those the run was begun with (``semspec.results.identity``).

        Raises OtherWeightsError if they differ and problems are solved already. ``part`` is ``files``, all of which must
        match, or ``servers``, of which only those with the same name are compared.
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
                    f"{self.path} was begun with another {name}{more}: it was {before}, and"
                    f" is now {here}; choose another hydra.run.dir, or restore what was"
                    " there"
                )
            found = {**was, **found}
        elif self.done and part == "files":
            self.notes.append(
                f"{self.path} does not record the weights it was begun with: the run"
                " continues with the current ones"
            )
        if found != was:
            with os_errors_as_user_errors(self.path):
                write_json(file, stored | {part: dict(found)})

    @property
    def measured(self) -> dict[str, Any] | None:
        """What the rule has measured, if problems are solved already: the others must use the same."""
        found = read_json(self.path / "measured.json") if self.done else None
        return found if isinstance(found, dict) else None

    def record_measured(self, found: Mapping[str, Any]) -> None:
        """Save what the rule has measured, if anything."""
        if found and found != self.measured:
            with os_errors_as_user_errors(self.path):
                write_json(self.path / "measured.json", dict(found))

    def record_costs(self, told: Mapping[str, Any]) -> None:
        """Save the measured costs, for a run that is to decide by the same ones (``costs=``)."""
        with self._writing():
            write_json(self.path / "costs.json", told)

    def todo(self, problems: Iterable[BenchmarkProblem]) -> Iterator[BenchmarkProblem]:
        """Yield the unsolved problems; raise UserError if two problems have the same id."""
        seen: set[str] = set()
        for problem in problems:
            if problem.id in seen:
                raise UserError(f"two problems have the id '{problem.id}': give each a unique id")
            seen.add(problem.id)
            if problem.id not in self.done:
                yield problem

    def append_rounds(self, problem_id: str, mode: Mode, rounds: Iterable[Round]) -> None:
        """Write rounds of a problem, all at once or one by one."""
        assert problem_id not in self.done, problem_id
        with self._writing():
            for r in rounds:
                place = {"id": problem_id, "mode": mode, "round": self._next[problem_id, mode]}
                own = {name: getattr(r, name) for name in _ROUND_FIELDS}
                self._rounds.append(place | own | ({"stop": r.stop} if r.stop else {}))
                self._next[problem_id, mode] += 1

    def commit(self, line: Mapping[str, Any]) -> None:
        """Write a problem's line (see ``problem_line``), which marks the problem as done."""
        problem_id = line["id"]
        assert problem_id not in self.done, problem_id
        with self._writing():
            self._rounds.sync()  # before the line that commits them
            self._problems.append(line)
            self._problems.sync()
            self.done.add(problem_id)
            for mode in get_args(Mode):
                del self._next[problem_id, mode]
            self._say("running")

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result and mark the run as finished."""
        with self._writing():
            write_json(self.path / "result.json", result)
            self._say("finished")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Check that the folder is still ours; write nothing more once another process has it."""
        assert self._lock is not None, self.path  # only a finished run has no lock
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
        # not durable: only people read it, so an fsync per problem would be wasted
        write_json(self.path / "status.json", said, durable=False)

    def discard(self) -> None:
        """Remove what opening the folder wrote, if no problem has been solved: a false start."""
        if self.done or self.result is not None or self._lost:
            return
        self._discarded = True
        mark = ("status.json", "config.json", ".lock")  # removed after the files that they mark
        for name in (*_CONTENT, *mark):
            (self.path / name).unlink(missing_ok=True)
        self.close()  # last: no other process may start here before the folder is empty
        with contextlib.suppress(OSError):  # the folder may hold other files
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
