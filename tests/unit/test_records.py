"""A run's folder: after any kill, a new start loses nothing and does nothing twice."""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from semspec.errors import UserError
from semspec.protocols import Grade
from semspec.results.records import OpenRun, RunFolder, Solve, problem_line
from semspec.storage import files
from semspec.storage.digest import difference, digest
from semspec.storage.lock import FolderLock, FolderLostError
from semspec.types import Outcome, Round

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {"seed": 1, "model": {"name": "tiny", "layers": [1, 2]}, "quiet": False}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where that can be: thousands of files are written anew here."""
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Item:
    id: str


def a_round(number: int) -> Round:
    return Round(
        drafted=[1, 2, 3, number],
        ends=[2, 4],
        kept=[1, 2],
        written=[],
        handed=[7, 8, 9],
        scores=[0.9, 0.1],
        note="says 'é\u2028' otherwise",
        seconds={"draft": 0.1, "verify": 0.2, "write": 0.3},
        passes={"draft": 4, "target": 2},
        units_kept=1,
    )


def an_outcome(rounds: int = 2) -> Outcome:
    made = [a_round(n) for n in range(rounds)]
    return Outcome(tokens=[1, 2, 7, 8, 9] * rounds, finish="eos", rounds=made, seconds=0.8 * rounds)


def solve_all(folder: OpenRun, problems: int, rounds: int = 2, pause: float = 0.0) -> None:
    """Do what a run does: both modes of every problem, a line each, the result."""
    for item in folder.todo([Item(f"p{n}") for n in range(problems)]):
        solves = {}
        for mode in ("plain", "speculative"):
            outcome = an_outcome(rounds)
            for r in outcome.rounds:
                folder.append_rounds(item.id, mode, [r])
                time.sleep(pause)
            grade = Grade(correct=True, answer="4", details={"steps": 2})
            solves[mode] = Solve.from_outcome(outcome, f"text of {item.id} \ud800", grade)
        folder.commit(problem_line(item.id, solves["speculative"], solves["plain"], gold="4"))
    folder.finish({"problems": len(list(folder.problem_lines()))})


def content(path: Path) -> dict[str, bytes]:
    names = ("config.json", "rounds.jsonl", "problems.jsonl", "result.json")
    return {name: (path / name).read_bytes() for name in names}


def unbroken(path: Path, problems: int, rounds: int = 2) -> dict[str, bytes]:
    with OpenRun(path, CONFIG, total=problems) as folder:
        solve_all(folder, problems, rounds)
    return content(path)


def in_a_fork(job: Callable[[], None]) -> int:
    """Runs ``job`` in a child; how it ended (as ``os.waitstatus_to_exitcode``)."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            job()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_run_leaves_its_config_lines_and_result(tmp_path: Path) -> None:
    unbroken(tmp_path, 3)
    folder = RunFolder(tmp_path)
    assert folder.config == CONFIG
    assert folder.result == {"problems": 3}
    lines = list(folder.problem_lines())
    assert [line["id"] for line in lines] == ["p0", "p1", "p2"]
    first = lines[0]
    assert (first["answer"], first["gold"], first["correct"]) == ("4", "4", True)
    assert first["text"] == first["plain"]["text"] == "text of p0 \ud800"
    assert first["details"] == {"steps": 2}
    rounds = list(folder.round_lines("p1", "plain"))
    assert [r["round"] for r in rounds] == [0, 1]
    assert rounds[1]["handed"] == [7, 8, 9] and rounds[1]["note"] == "says 'é\u2028' otherwise"
    assert folder.status["state"] == "finished" and folder.status["done"] == 3


def test_a_solves_figures_are_counted_from_its_rounds() -> None:
    outcome = an_outcome(2)
    outcome.rounds.append(Round(handed=[5], seconds={"write": 1.0}, passes={"target": 1}))
    outcome.tokens.append(5)
    solve = Solve.from_outcome(outcome, "text")
    assert (solve.tokens, solve.rounds, solve.drafts) == (11, 3, 2)
    assert (solve.drafted_units, solve.kept_units) == (4, 2)
    assert (solve.drafted_tokens, solve.kept_tokens) == (8, 4)
    assert (solve.written_tokens, solve.handed_tokens, solve.gained_tokens) == (0, 7, 4)
    assert (solve.draft_passes, solve.target_passes) == (8, 5)
    assert solve.write_seconds == pytest.approx(1.6)
    assert solve.correct is None


@pytest.mark.deep
def test_a_run_killed_at_every_write_resumes_with_the_same_files(tmp_path: Path) -> None:
    """Every system call that changes the folder: killed before it, and in the midst of a write."""
    expected = unbroken(tmp_path / "whole", 3)
    calls = ("write", "fsync", "replace", "ftruncate")

    def run_until(path: Path, fatal: int, halfway: bool) -> Callable[[], None]:
        def job() -> None:
            counter = itertools.count()

            def deadly(real: Callable[..., Any], name: str) -> Callable[..., Any]:
                def call(*args: Any) -> Any:
                    if next(counter) == fatal:
                        if halfway and name == "write":
                            real(args[0], bytes(args[1])[: len(args[1]) // 2])
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*args)

                return call

            for name in calls:
                setattr(os, name, deadly(getattr(os, name), name))
            with OpenRun(path, CONFIG, total=3) as folder:
                if folder.result is None:
                    solve_all(folder, 3)

        return job

    for halfway in (False, True):
        for fatal in itertools.count():
            path = tmp_path / f"{fatal}-{halfway}"
            ended = in_a_fork(run_until(path, fatal, halfway))
            if ended == 0:
                break  # more calls than the run makes
            assert ended == -signal.SIGKILL
            # The next start is killed as well, while it mends; the third is left alone.
            in_a_fork(run_until(path, 4, halfway))
            assert in_a_fork(run_until(path, -1, False)) == 0
            assert content(path) == expected, f"killed at call {fatal}, halfway: {halfway}"
        assert fatal > 30


CHILD = """
import sys
sys.path.insert(0, {tests!r})
from test_records import CONFIG, solve_all
from semspec.results.records import OpenRun
with OpenRun(sys.argv[1], CONFIG, total=60) as folder:
    print("open", flush=True)
    if folder.result is None:
        solve_all(folder, 60, rounds=4, pause=0.0005)
"""


@pytest.mark.deep
def test_a_run_killed_at_random_times_resumes_with_the_same_files(tmp_path: Path) -> None:
    rng = random.Random(5)
    path = tmp_path / "killed"
    expected = unbroken(tmp_path / "whole", 60, rounds=4)
    code = CHILD.format(tests=str(Path(__file__).parent))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    kills = 0
    while True:
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, env=environment
        )
        assert child.stdout is not None and child.stdout.readline() == b"open\n"
        limit = rng.uniform(0.0, 0.06) if kills < 12 else None
        try:
            code_of_end = child.wait(limit)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            kills += 1
            assert RunFolder(path).status["state"] in ("killed", "finished")
            continue
        finally:
            child.stdout.close()
        assert code_of_end == 0
        break
    assert kills >= 4
    assert content(path) == expected


def test_a_last_line_torn_at_any_byte_is_cut(tmp_path: Path) -> None:
    expected = unbroken(tmp_path, 2)
    (tmp_path / "result.json").unlink()
    for name in ("problems.jsonl", "rounds.jsonl"):
        whole = expected[name]
        last = whole.rstrip(b"\n").rfind(b"\n") + 1
        other = "rounds.jsonl" if name == "problems.jsonl" else "problems.jsonl"
        for size in range(last, len(whole)):
            (tmp_path / name).write_bytes(whole[:size])
            kept = expected[other]
            if name == "rounds.jsonl":  # rounds are torn only before their problem's line exists
                kept = kept[: kept.rstrip(b"\n").rfind(b"\n") + 1]
            (tmp_path / other).write_bytes(kept)
            with OpenRun(tmp_path, CONFIG) as folder:
                assert folder.done == {"p0"}
                lines = (tmp_path / "rounds.jsonl").read_bytes().splitlines()
                assert {json.loads(line)["id"] for line in lines} == {"p0"}
                if size % 100 == 0:
                    solve_all(folder, 2)
                    assert content(tmp_path) == expected
                    (tmp_path / "result.json").unlink()


def test_unfinished_rounds_between_finished_ones_are_dropped(tmp_path: Path) -> None:
    """With problems solved side by side the rounds to drop are not all at the end."""
    with OpenRun(tmp_path, CONFIG) as folder:
        solve = Solve.from_outcome(an_outcome(), "text")
        folder.append_rounds("a", "speculative", [a_round(0)])
        folder.append_rounds("b", "speculative", [a_round(0)])
        folder.append_rounds("a", "speculative", [a_round(1)])
        folder.commit(problem_line("a", solve, None))
    with OpenRun(tmp_path, CONFIG) as folder:
        assert folder.done == {"a"}
        assert [r["round"] for r in folder.round_lines("a")] == [0, 1]
        assert not list(folder.round_lines("b"))
        folder.append_rounds("b", "speculative", [a_round(0)])
        assert [r["round"] for r in folder.round_lines("b")] == [0]


def test_a_last_line_of_zeros_is_cut_and_a_damaged_one_before_it_is_reported(
    tmp_path: Path,
) -> None:
    expected = unbroken(tmp_path, 2)
    (tmp_path / "result.json").unlink()
    problems = tmp_path / "problems.jsonl"
    problems.write_bytes(expected["problems.jsonl"] + b"\0\0\0\n")
    with OpenRun(tmp_path, CONFIG) as folder:
        assert folder.done == {"p0", "p1"}
    first, second = expected["problems.jsonl"].splitlines(keepends=True)
    for damaged in (b"{\n" + second, first + first):
        problems.write_bytes(damaged)
        with pytest.raises(UserError, match=r"line [12] is damaged"):
            OpenRun(tmp_path, CONFIG)
        assert problems.read_bytes() == damaged


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    with OpenRun(tmp_path, CONFIG):
        pass
    with pytest.raises(UserError) as told:
        OpenRun(tmp_path, {**CONFIG, "seed": 2, "extra": None})
    line = str(told.value)
    assert "extra was not set, is null; seed was 1, is 2" in line
    assert "hydra.run.dir" in line and "delete" in line and "\n" not in line
    reordered = dict(reversed(CONFIG.items()))
    with OpenRun(tmp_path, {**reordered, "model": {"layers": (1, 2), "name": "tiny"}}):
        pass
    with OpenRun(tmp_path, {**CONFIG, "quiet": True}, free=["quiet"]):
        pass


def test_another_plugin_is_told_by_its_name_and_not_by_its_options() -> None:
    was: dict[str, Any] = {"accept": {"probe": "x"}, "seed": 0, "plugins": {"accept": "semantic"}}
    now = {"accept": {"threshold": -3}, "seed": 1, "plugins": {"accept": "logprob"}}
    assert difference(was, now) == 'accept was "semantic", is "logprob"; seed was 0, is 1'
    same = {**was, "accept": {"probe": "y"}}
    assert difference(was, same) == 'accept.probe was "x", is "y"'


def test_an_option_that_came_later_is_what_it_was_before() -> None:
    """A folder without min_p was begun with none: it goes on, in either direction."""
    was: dict[str, Any] = {"top_p": 0.9, "draft": {"length": 2}}
    assert difference(was, {**was, "min_p": 0.0}) is None
    assert difference({**was, "min_p": 0.0}, was) is None
    assert difference(was, {**was, "min_p": 0.1}) == "min_p was 0.0, is 0.1"
    assert difference(was, {**was, "max_p": 0.0}) == "max_p was not set, is 0.0"
    was = {"draft": {"model": {"path": "x"}}}
    assert difference(was, {"draft": {"model": {"path": "x", "thinking": None}}}) is None
    told = difference(was, {"draft": {"model": {"path": "x", "thinking": False}}})
    assert told == "draft.model.thinking was null, is false"


def test_a_difference_of_configurations_is_short() -> None:
    was: dict[str, Any] = {"a": 1, "b": {"c": [1] * 99, "d": {}}, "e": 1, "f": 1, "g": True}
    told = difference(was, {"a": 2, "b": {"c": [], "d": 3}, "e": 2, "f": 2, "g": 1})
    assert told is not None and told.endswith("and 3 more") and len(told) < 200
    assert "b.d was {}, is 3" in told
    assert difference(was, was) is None
    assert difference(was, {**was, "b": 1}, free=["b"]) is None
    assert digest(was) == digest(dict(reversed(was.items()))) != digest({**was, "a": 2})


def test_a_finished_run_is_shown_and_left_alone(tmp_path: Path) -> None:
    before = unbroken(tmp_path, 2)
    with OpenRun(tmp_path, CONFIG) as folder:
        assert folder.result == {"problems": 2}
        assert not list(folder.todo([Item("p0"), Item("p1")]))
    assert content(tmp_path) == before and folder.status["state"] == "finished"
    with pytest.raises(UserError, match="another configuration"):
        OpenRun(tmp_path, {**CONFIG, "seed": 2})


def test_two_processes_cannot_share_a_folder(tmp_path: Path) -> None:
    def intrude() -> None:
        with pytest.raises(UserError, match=f"in use by process {os.getppid()}"):
            OpenRun(tmp_path, CONFIG)

    with OpenRun(tmp_path, CONFIG) as folder:
        assert folder.status["state"] == "running"
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
            OpenRun(tmp_path, CONFIG)

        def intrude_as_another() -> None:
            from semspec.storage import lock

            lock._OURS.clear()  # a fork remembers what it does not hold
            intrude()

        assert in_a_fork(intrude_as_another) == 0
        solve_all(folder, 1)  # still ours after all the looking


def test_the_lock_of_a_dead_process_is_no_lock(tmp_path: Path) -> None:
    def die() -> None:
        folder = OpenRun(tmp_path, CONFIG)
        folder.append_rounds("p0", "plain", [a_round(0)])
        if os.fork() == 0:  # a worker that outlives the run does not keep the folder
            time.sleep(1)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_fork(die) == -signal.SIGKILL
    assert RunFolder(tmp_path).status["state"] == "killed"
    with OpenRun(tmp_path, CONFIG) as folder:
        assert not list(folder.round_lines("p0", "plain"))


def test_a_failure_is_recorded_in_the_status(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), OpenRun(tmp_path, CONFIG, total=9):
        _ = 1 / 0
    status = RunFolder(tmp_path).status
    assert status["state"] == "failed" and "ZeroDivisionError" in status["error"]
    with pytest.raises(KeyboardInterrupt), OpenRun(tmp_path, CONFIG, total=9):
        raise KeyboardInterrupt
    assert RunFolder(tmp_path).status["state"] == "killed"


@pytest.mark.parametrize("share", [n / 16 for n in range(16)])
def test_a_full_disk_ends_a_run_that_resumes_later(tmp_path: Path, share: float) -> None:
    expected = unbroken(tmp_path / "whole", 3)
    limit = int(share * max(map(len, expected.values())))
    path = tmp_path / "full"
    path.mkdir()

    def run_out() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        with pytest.raises(UserError) as told, OpenRun(path, CONFIG, total=3) as folder:
            solve_all(folder, 3)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        line = str(told.value)
        assert line.startswith(f"no space left in {path}: ") and "\n" not in line
        assert line.endswith("free space and repeat the same command to resume")
        for name in ("rounds.jsonl", "problems.jsonl"):  # nothing half-written, even now
            data = (path / name).read_bytes() if (path / name).exists() else b""
            assert not data or data.endswith(b"\n")

    assert in_a_fork(run_out) == 0
    with OpenRun(path, CONFIG, total=3) as folder:
        solve_all(folder, 3)
    assert content(path) == expected


def test_a_full_device_is_one_line() -> None:
    with (
        pytest.raises(UserError, match="no space left in /dev"),
        files.os_errors_as_user_errors(Path("/dev")),
        files.LineFile(Path("/dev/full")) as full,
    ):
        full.append({"a": 1})


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    if os.geteuid() != 0:  # root may write anywhere
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
        with pytest.raises(UserError, match=r"cannot write in .*hydra\.run\.dir"):
            OpenRun(closed, CONFIG)
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=r"hydra\.run\.dir"):
            OpenRun(path, CONFIG)


def test_a_read_only_file_system_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError, match=r"cannot write in .*Read-only file system"):
        OpenRun(tmp_path, CONFIG)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    for name in ("result.json", "problems.jsonl"):
        (tmp_path / name).write_text("{}\n")
        with pytest.raises(UserError, match=f"holds {name} but no config"):
            OpenRun(tmp_path, CONFIG)
        (tmp_path / name).unlink()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        OpenRun(tmp_path, CONFIG)


def test_ids_are_unique(tmp_path: Path) -> None:
    with (
        OpenRun(tmp_path, CONFIG) as folder,
        pytest.raises(UserError, match="two problems have the id 'a'"),
    ):
        list(folder.todo([Item("a"), Item("a")]))


def test_starts_are_kept(tmp_path: Path) -> None:
    for n in range(2):
        with OpenRun(tmp_path, CONFIG, provenance={"n": n}):
            pass
    assert RunFolder(tmp_path).starts() == [{"n": 0}, {"n": 1}]


def test_nan_and_infinity_become_null(tmp_path: Path) -> None:
    import numpy

    odd = {"a": [float("nan"), -float("inf"), 1.5], "b": numpy.float32(0.5), "c": {"d", "c"}}
    assert json.loads(files.dumps(odd)) == {"a": [None, None, 1.5], "b": 0.5, "c": ["c", "d"]}
    with pytest.raises(TypeError, match="not JSON: object"):
        files.dumps(object())


def test_a_replacement_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        files.write_json(path, object())
    with pytest.raises(ZeroDivisionError), files.replacing(path) as fd:
        os.write(fd, b"half"[: 1 // 0])
    assert files.read_json(path) == {"a": 1} and list(tmp_path.iterdir()) == [path]


def everything(folder: Path) -> dict[str, bytes]:
    return {
        f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("status.json", '{"state": "running", "service": "mail"}'),
        ("status.json", "all is well"),
        ("config.json", '{"model_type": "llama"}'),
        ("config.json", '{"digest": 1, "config": 2}'),
        ("rounds.jsonl", '{"id": 1}\nof boxing'),
        ("starts.jsonl", "1\n2"),
        ("problems.jsonl", '{"id": "a"}\n'),
        ("weights.json", "[80, 79]"),
        ("result.json", '{"problems": 4}'),
        (".lock", "of a door"),
    ],
)
def test_somebody_elses_folder_is_refused_and_left_as_it_was(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "notes.txt").write_text("mine")
    before = everything(tmp_path)
    with pytest.raises(UserError) as told:
        OpenRun(tmp_path, CONFIG)
    assert "choose another hydra.run.dir" in str(told.value) and "\n" not in str(told.value)
    assert everything(tmp_path) == before


def test_other_files_beside_a_run_outlive_a_false_start(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with OpenRun(tmp_path, CONFIG) as folder:
        folder.identify("files", {"a": "sha256 1"})
        folder.discard()
    assert everything(tmp_path) == {"notes.txt": b"mine"}


def begun(path: Path, problems: int = 1) -> None:
    """A run that was killed after so many problems of three."""
    unbroken(path, 3)
    (path / "result.json").unlink()
    for name in ("problems.jsonl", "rounds.jsonl"):
        lines = (path / name).read_bytes().splitlines(keepends=True)
        kept = {f"p{n}" for n in range(problems)}
        (path / name).write_bytes(b"".join(x for x in lines if json.loads(x)["id"] in kept))


def test_changed_weights_are_refused_by_name(tmp_path: Path) -> None:
    whole = {"models/a": "sha256 1", "owner/b": "commit 1"}
    with OpenRun(tmp_path, CONFIG, total=3) as folder:
        folder.identify("files", {"models/a": "sha256 0"})  # no problem is solved with these
    with OpenRun(tmp_path, CONFIG, total=3) as folder:
        folder.identify("files", whole)
        folder.identify("servers", {"the target": "a"})
        solve_all(folder, 3)
    (tmp_path / "result.json").unlink()
    for part, found, told in (
        ("files", whole | {"models/a": "sha256 2"}, "another models/a: it was sha256 1, and is now sha256 2"),
        ("files", {"owner/b": "commit 1", "c": "x"}, r"another c \(and 1 more\): it was not used"),
        ("servers", {"the target": "b"}, "another the target: it was a, and is now b"),
    ):  # fmt: skip
        before = (tmp_path / "weights.json").read_bytes()
        with (
            pytest.raises(UserError, match=f"{told}.*another hydra.run.dir"),
            OpenRun(tmp_path, CONFIG) as folder,
        ):
            folder.identify(part, found)
        assert (tmp_path / "weights.json").read_bytes() == before
    with OpenRun(tmp_path, CONFIG) as folder:
        folder.identify("files", whole)
        folder.identify("servers", {"the draft": "d"})  # servers may come and go
        assert not folder.notes
    assert files.read_json(tmp_path / "weights.json") == {
        "files": whole, "servers": {"the target": "a", "the draft": "d"}
    }  # fmt: skip


def test_a_folder_without_identities_resumes_with_one_note(tmp_path: Path) -> None:
    begun(tmp_path)
    for notes in (1, 0):
        with OpenRun(tmp_path, CONFIG) as folder:
            folder.identify("files", {"a": "sha256 1"})
            assert folder.done == {"p0"} and len(folder.notes) == notes


def test_a_kill_between_result_and_status_leaves_a_finished_run(tmp_path: Path) -> None:
    unbroken(tmp_path, 2)
    status = files.read_json(tmp_path / "status.json")
    left = {**status, "state": "running", "ended": None, "done": 1}  # type: ignore[dict-item]
    files.write_json(tmp_path / "status.json", left)
    (tmp_path / ".status.json.tmp").write_text("{")
    assert RunFolder(tmp_path).status["state"] == "finished"
    with OpenRun(tmp_path, CONFIG):
        pass
    told = files.read_json(tmp_path / "status.json") or {}
    assert (told["state"], told["done"], told["error"]) == ("finished", 2, None) and told["ended"]
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda line: line.pop("plain"), "it has no plain"),
        (lambda line: line.update(plain=[1]), "plain is an array"),
        (lambda line: line["plain"].pop("wall"), "plain has no wall"),
        (lambda line: line.update(tokens="9"), "tokens is '9'"),
        (lambda line: line.update(correct="yes"), "correct is 'yes'"),
        (lambda line: line.update(details=None), "details is None"),
        (lambda line: line.update(reuse={"a": "b"}), "reuse.a is 'b'"),
        (lambda line: line.update(id=7), "id is 7"),
        (lambda line: line.update(plain=None), "plain is missing"),
    ],
)
def test_a_damaged_line_is_named_and_left_out_of_the_figures(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], told: str
) -> None:
    config = {**CONFIG, "plain": True}
    with OpenRun(tmp_path, config, total=2) as folder:
        solve_all(folder, 2)
    problems = tmp_path / "problems.jsonl"
    lines = [json.loads(line) for line in problems.read_text().splitlines()]
    change(lines[1])
    problems.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = RunFolder(tmp_path).figures()  # its result.json lacks figures: they are computed
    assert shown is not None and shown["problems"] == 2 - (told != "plain is missing")
    (tmp_path / "result.json").unlink()
    before = problems.read_bytes()
    with pytest.raises(UserError) as error:
        OpenRun(tmp_path, config)
    assert f"line 2 is damaged ({told}" in str(error.value) and "\n" not in str(error.value)
    assert problems.read_bytes() == before


@pytest.mark.parametrize("empty", ["{}", "[]", "{", '{"problems": "2"}'])
def test_a_result_without_figures_is_no_result(tmp_path: Path, empty: str) -> None:
    expected = unbroken(tmp_path, 2)
    (tmp_path / "result.json").write_text(empty)
    assert RunFolder(tmp_path).figures() is None
    with OpenRun(tmp_path, CONFIG, total=2) as folder:
        assert folder.done == {"p0", "p1"}
        solve_all(folder, 2)
    assert content(tmp_path) == expected


@pytest.mark.parametrize("mode", ["plain", "speculative"])
def test_lost_rounds_of_solved_problems_are_noticed(tmp_path: Path, mode: str) -> None:
    begun(tmp_path, 2)
    path = tmp_path / "rounds.jsonl"
    rounds = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [r for r in rounds if (r["id"], r["mode"], r["round"]) != ("p1", mode, 0)]
    assert len(kept) == len(rounds) - 1
    path.write_text("".join(json.dumps(r) + "\n" for r in kept))
    with pytest.raises(UserError, match=r"rounds\.jsonl lacks rounds of p1; .*to solve them again"):
        OpenRun(tmp_path, CONFIG)
    problems = tmp_path / "problems.jsonl"
    problems.write_bytes(problems.read_bytes().splitlines(keepends=True)[0])
    with OpenRun(tmp_path, CONFIG) as folder:
        assert folder.done == {"p0"}


def as_another_process(job: Callable[[], None]) -> None:
    def forgetful() -> None:
        from semspec.storage import lock

        lock._OURS.clear()  # a fork remembers what it does not hold
        job()

    assert in_a_fork(forgetful) == 0


def test_without_its_lock_a_run_is_not_written_twice(tmp_path: Path) -> None:
    def other() -> None:
        with OpenRun(tmp_path, CONFIG, total=3) as folder:
            solve_all(folder, 2)

    with OpenRun(tmp_path, CONFIG, total=3) as folder:
        folder.append_rounds("p0", "plain", [a_round(0)])
        (tmp_path / ".lock").unlink()
        as_another_process(other)
        before = everything(tmp_path)
        with pytest.raises(FolderLostError, match="another process while this one was writing"):
            folder.append_rounds("p0", "plain", [a_round(1)])
    assert everything(tmp_path) == before  # the other's status, too
    assert [line["id"] for line in RunFolder(tmp_path).problem_lines()] == ["p0", "p1"]


def test_a_lock_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    def intrude() -> None:
        with pytest.raises(UserError, match=f"in use by process {os.getppid()}"):
            OpenRun(tmp_path, CONFIG)

    with OpenRun(tmp_path, CONFIG, total=1) as folder:
        (tmp_path / ".lock").unlink()
        folder.append_rounds("p9", "plain", [a_round(0)])
        as_another_process(intrude)
        solve_all(folder, 1)


def test_without_working_locks_the_second_writer_stops(tmp_path: Path) -> None:
    """As on a network file system: two hold the folder, and each sees what the other appends."""
    path = tmp_path / "lines"
    with files.LineFile(path) as one, files.LineFile(path) as two:
        one.append(1)
        with pytest.raises(FolderLostError):
            two.append(2)
        one.append(3)
        with files.replacing(path) as fd:
            os.write(fd, b"1\n3\n")
        with pytest.raises(FolderLostError):
            one.append(4)
    assert path.read_bytes() == b"1\n3\n"


def test_a_lock_held_by_another_file_is_lost(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.check()
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").write_text("1\n")
    with pytest.raises(FolderLostError):
        lock.check()
    lock.release()
