"""All engines on all problems in turn; every answer is kept at once, so that a kill costs one.

A first round warms the engines up and shows whether they write the same; it is not timed. Then every round asks
each engine, with each kind of speculation, for each problem, in an order that is drawn anew for each problem.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rivals.base import Problem, Workload
from rivals.catalogue import REFERENCE

Line = dict[str, Any]
PLAIN = ""  # the kind that speculates nothing
SCRIPTS = Path(__file__).resolve().parents[1]


class Worker:
    """An engine in a process of its own; ``failed`` says why it is gone."""

    def __init__(
        self, name: str, workload: Path, folder: Path, core: int | None, log: Path
    ) -> None:
        self.name, self.failed = name, ""
        pinned = "" if core is None else str(core)
        with log.open("a", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rivals.worker", name, str(workload), str(folder), pinned],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_environment(),
            )
        hello = self._read()
        self.failed = hello.get("error", "")
        self.kinds: list[str] = [PLAIN, *hello.get("kinds", [])]
        self.versions: Mapping[str, str] = hello.get("versions", {})

    def write(self, kind: str, problem: Problem, limit: int) -> Line:
        """Return what it wrote and what that took, or an error."""
        return self._ask({"do": "write", "kind": kind, "ids": problem.ids, "limit": limit})

    def score(self, ids: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """Return log-probabilities of tokens; of the reference alone."""
        found: list[float] = self._ask({"do": "score", "ids": list(ids), "tokens": list(tokens)})["scores"]  # fmt: skip
        return found

    def _ask(self, asked: Mapping[str, Any]) -> Line:
        if self.failed:
            return {"error": self.failed}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what follows says how it ended
        return self._read()

    def _read(self) -> Line:
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if text:
            answer: Line = json.loads(text)
            return answer
        self.failed = f"its process ended with {self._process.wait()}"
        return {"error": self.failed}

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(30)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def _environment() -> dict[str, str]:
    own = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HUB_OFFLINE"), "1")
    paths = [str(SCRIPTS), str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | own | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def read_lines(file: Path) -> Iterator[Line]:
    """Yield the lines that are whole: a kill may have cut the last one."""
    if not file.exists():
        return
    for text in file.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(text)
        except json.JSONDecodeError:
            return


def measure(
    workload: Workload,
    names: Sequence[str],
    repeats: int,
    folder: Path,
    models: Path,
    core: int | None = None,
) -> Path:
    """Ask all engines for all problems, ``repeats`` times and once before; return the file of answers."""
    folder.mkdir(parents=True, exist_ok=True)
    file, asked = folder / f"{workload.name}.jsonl", folder / f"{workload.name}.workload.json"
    asked.write_text(json.dumps(workload.record()), encoding="utf-8")
    known = list(read_lines(file))
    file.write_text("".join(json.dumps(line) + "\n" for line in known), encoding="utf-8")
    done = {_key(line) for line in known}
    workers = {}
    try:
        for name in names:
            print(f"  {workload.name}: loading {name} ...", flush=True)
            workers[name] = Worker(
                name, asked, models, core, folder / f"{workload.name}-{name}.log"
            )
        with file.open("a", encoding="utf-8") as kept:

            def keep(line: Line) -> None:
                kept.write(json.dumps(line) + "\n")
                kept.flush()

            for name, worker in workers.items():
                keep({"rival": name, "versions": dict(worker.versions), "kinds": worker.kinds,
                      **({"error": worker.failed} if worker.failed else {})})  # fmt: skip
            for repeat in range(repeats + 1):
                for problem in workload.problems:
                    for name, kind in _order(workers, repeat, problem):
                        where = {
                            "rival": name,
                            "kind": kind,
                            "problem": problem.id,
                            "repeat": repeat,
                        }
                        if _key(where) not in done:
                            keep(where | workers[name].write(kind, problem, workload.limit))
                print(f"  {workload.name}: round {repeat} of {repeats} is over", flush=True)
            _compare(workload, list(read_lines(file)), workers, keep)
    finally:
        for worker in workers.values():
            worker.close()
    return file


def _key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(line.get(name) for name in ("rival", "kind", "problem", "repeat"))


def _order(
    workers: Mapping[str, Worker], repeat: int, problem: Problem
) -> Iterator[tuple[str, str]]:
    every = [(name, kind) for name, worker in workers.items() for kind in worker.kinds]
    random.Random(f"{repeat} {problem.id}").shuffle(every)
    yield from every


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return where two texts part; None where they are the same."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return None if len(one) == len(other) else min(len(one), len(other))


def _compare(
    workload: Workload, lines: Sequence[Line], workers: Mapping[str, Worker], keep: Any
) -> None:
    """Keep, for every text that is not the reference's, where they part and how likely each was."""
    end = workload.stop_ids[0]
    wrote = {_key(line): [*line["ids"], *([end] if line["ended"] else [])]
             for line in lines if line.get("repeat") == 0 and "ids" in line}  # fmt: skip
    compared = {_key(line) for line in lines if "parts" in line}
    for problem in workload.problems:
        reference = wrote.get((REFERENCE, PLAIN, problem.id, 0))
        for name, worker in workers.items():
            for kind in worker.kinds:
                own = wrote.get((name, kind, problem.id, 0))
                where = {"rival": name, "kind": kind, "problem": problem.id, "repeat": "parity"}
                if own is None or reference is None or _key(where) in compared:
                    continue
                at = first_difference(reference, own)
                line: Line = {**where, "parts": at}
                if at is not None and at < min(len(reference), len(own)):
                    pair = (reference[at], own[at])
                    scores = workers[REFERENCE].score([*problem.ids, *reference[:at]], pair)
                    line |= {"tokens": pair, "log_probabilities": scores}
                keep(line)
