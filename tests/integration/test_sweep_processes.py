"""Sweeps as a user runs them: processes that fail, are killed or interrupted, and the second start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from semspec.jobs.sweep import name_of
from tests.support.processes import finished, hear_interrupts

JOBS = (
    "-m",
    "split=paragraph,sentence",
    "accept=logprob,oracle",
    "max_new_tokens=80",
    "adaptive=false",
)
NAMES = [f"split={s},accept={a}" for s in ("paragraph", "sentence") for a in ("logprob", "oracle")]
IMPOSSIBLE = "split=sentence,accept=oracle"  # which the check of single options cannot see


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "semspec.run", *arguments]


def status(root: Path, job: str) -> dict[str, Any]:
    file = root / job / "status.json"
    told: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return told


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    )


def wait_for_work(root: Path, job: str, process: subprocess.Popen[str]) -> int:
    """Waits until a problem of the job is done; the id of the process that does it."""
    until = time.monotonic() + 200
    while time.monotonic() < until and process.poll() is None:
        lines = root / job / "problems.jsonl"
        if lines.exists() and lines.stat().st_size:
            return int(status(root, job)["pid"])
        time.sleep(0.02)
    raise AssertionError(process.communicate())


def table(shown: str) -> dict[str, str]:
    """The state of every job, from the lines at the end."""
    lines = [line.split("\t") for line in shown.splitlines() if "\t" in line]
    return {line[0]: line[1] for line in lines[1:]}


pytestmark = pytest.mark.deep  # tests/unit/test_sweep.py has what happens inside one process

LAUNCHERS = ["submitit_local", "ray"]
if "SLURM_CONF" in os.environ:  # a cluster takes root to set up: only where there is one
    LAUNCHERS.append("submitit_slurm")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_and_a_failed_job_end_alone_and_the_same_command_finishes(
    tmp_path: Path, launcher: str
) -> None:
    arguments = (*JOBS, "problems=2", f"hydra/launcher={launcher}", f"sweep={tmp_path}")
    two_at_a_time = "hydra.sweeper.max_batch_size=2"
    killed = NAMES[1]
    process = start(*arguments, two_at_a_time)
    pid = wait_for_work(tmp_path, killed, process)
    os.kill(pid, signal.SIGKILL)
    shown, error = process.communicate(timeout=400)
    assert process.returncode == 1, shown + error
    states = {NAMES[0]: "finished", killed: "killed", NAMES[2]: "finished", IMPOSSIBLE: "failed"}
    assert table(shown) == states
    told = error.strip().splitlines()[-1]
    assert told.startswith("semspec: 2 of 4 jobs are not finished: ") and killed in told
    assert "split=paragraph" in status(tmp_path, IMPOSSIBLE)["error"]
    assert status(tmp_path, killed)["pid"] == pid
    done = {job: (tmp_path / job / "result.json").read_bytes() for job in (NAMES[0], NAMES[2])}
    solved = (tmp_path / killed / "problems.jsonl").read_text().splitlines()[0]

    again = finished(command(*arguments), code=1)  # in the end one job is impossible
    assert table(again.stdout) == states | {killed: "finished"}
    for job, result in done.items():
        assert (tmp_path / job / "result.json").read_bytes() == result
    lines = (tmp_path / killed / "problems.jsonl").read_text().splitlines()
    assert lines[0] == solved and len(lines) == 2  # it went on, it was not begun again


def test_a_preempted_job_resumes_in_the_same_sweep(tmp_path: Path) -> None:
    # what Slurm sends before a job's time is over, or its node is given to another
    options = ("problems=3", "max_new_tokens=80", f"sweep={tmp_path}")
    process = start("-m", *options, "hydra/launcher=submitit_local")
    pid = wait_for_work(tmp_path, name_of(options[:2]), process)
    os.kill(pid, signal.SIGUSR2)
    shown, error = process.communicate(timeout=400)
    assert process.returncode == 0, shown + error
    assert set(table(shown).values()) == {"finished"}
    lines = (tmp_path / name_of(options[:2]) / "problems.jsonl").read_text().splitlines()
    assert len({json.loads(line)["id"] for line in lines}) == len(lines) == 3
    assert status(tmp_path, name_of(options[:2]))["pid"] != pid


def test_a_killed_or_interrupted_sweep_resumes(tmp_path: Path) -> None:
    # its folder follows from its options, not from the clock
    arguments = ("-m", "draft_length=1,2", "problems=2", "max_new_tokens=80")
    root = tmp_path / "runs" / "sweep_draft_length=1,2,problems=2,max_new_tokens=80"

    def begin() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            preexec_fn=hear_interrupts,
            env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        )

    process = begin()
    wait_for_work(root, "draft_length=1", process)
    process.kill()
    process.communicate()
    assert status(root, "draft_length=1")["state"] == "running"  # it had no time to say

    process = begin()
    wait_for_work(root, "draft_length=2", process)
    process.send_signal(signal.SIGINT)
    shown, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in error
    assert error.strip() == "semspec: interrupted; rerun with the same folder to resume"
    assert table(shown) == {"draft_length=1": "finished", "draft_length=2": "killed"}
    assert status(root, "draft_length=2")["state"] == "killed"

    again = finished(command(*arguments), cwd=tmp_path)
    assert set(table(again.stdout).values()) == {"finished"}
    assert len(list(root.glob("*/result.json"))) == 2
