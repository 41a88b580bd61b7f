"""``python -m semspec.run engine=sglang`` without addresses starts its own servers, and leaves none behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from semspec.models.memory import VISIBLE
from tests.support import sglang_env
from tests.support.processes import finished, hear_interrupts, left, marked
from tests.support.sglang_servers import main_process_of

# drafts of fixed lengths: with adaptive=true a slow machine may not draft at all, and the texts of step rules go by what is drafted
COMMON = (
    *("temperature=0", "plain=false", "concurrency=2", "max_new_tokens=50"),
    *("transcript=false", "adaptive=false"),
)
WAIT = 1500.0  # a machine may be busy

pytestmark = pytest.mark.deep


def command(folder: Path, *overrides: str) -> list[str]:
    run = [sys.executable, "-m", "semspec.run", *COMMON, *overrides]
    return [*run, f"hydra.run.dir={folder}"]


def variables() -> dict[str, str]:
    """The CPU's stand-ins for SGLang, see sglang_env, and no GPU."""
    return {"PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{Path.cwd()}", VISIBLE: ""}


def outcomes(folder: Path) -> list[tuple[str, str, int, int]]:
    lines = (folder / "problems.jsonl").read_text(encoding="utf-8").splitlines()
    told = map(json.loads, lines)
    return sorted((one["id"], one["text"], one["rounds"], one["kept_units"]) for one in told)


class Run:
    """A run under way, and all processes that come from it."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.folder, self.mark = folder, f"SEMSPEC_TEST={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            command(folder, *overrides),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | variables() | {name: value},
            preexec_fn=hear_interrupts,
        )

    def until(self, file: str, lines: int) -> None:
        """Wait until a file of the run's folder has so many lines."""
        path, until = self.folder / file, time.monotonic() + WAIT
        while not (path.exists() and path.read_bytes().count(b"\n") >= lines):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < until
            time.sleep(0.05)

    def ended_by(self, number: signal.Signals, servers: int = 2) -> tuple[int, str]:
        """End it; returns its code and what it told, once nothing of it runs any more."""
        running = marked(self.mark)
        assert self.process.pid in running
        # the run, and for each server its keeper and SGLang's main process
        assert len(running) >= 1 + 2 * servers, running
        self.process.send_signal(number)
        assert left(running, 30) == []
        assert marked(self.mark) == []
        _, told = self.process.communicate(timeout=30)
        return self.process.returncode, told


def test_a_killed_run_leaves_no_server_and_goes_on_with_others(tmp_path: Path) -> None:
    """A probe is inside the target's server; the output is that of engine=hf, token for token."""
    rule, folder = ("accept=semantic_plus", "problems=8"), tmp_path / "own"
    run = Run(folder, "engine=sglang", *rule)
    run.until("problems.jsonl", 1)
    code, _ = run.ended_by(signal.SIGKILL)
    assert code == -signal.SIGKILL
    before = outcomes(folder)
    assert 1 <= len(before) < 8, "the run was over before it was killed"
    done = finished(command(folder, "engine=sglang", *rule), more=variables(), seconds=WAIT)
    assert "Traceback" not in done.stderr
    for role in ("target", "draft"):
        assert f"the {role}'s server is ready after" in done.stdout
        assert (folder / "servers" / f"{role}.log").stat().st_size
    assert set(before) < set(outcomes(folder))
    finished(command(tmp_path / "hf", "engine=hf", *rule), more=variables(), seconds=WAIT)
    assert outcomes(folder) == outcomes(tmp_path / "hf")
    assert sum(kept for *_, kept in outcomes(folder)) > 0
    result = json.loads((folder / "result.json").read_text())
    assert result["prefix_reuse"]["target"] > 0.3


def test_a_run_goes_on_once_the_only_servers_of_its_models_are_back(tmp_path: Path) -> None:
    """Both are killed; it waits for longer than its patience, and its texts are those of engine=hf."""
    folder, rule = tmp_path / "own", ("accept=logprob", "problems=8")
    run = Run(folder, "engine=sglang", "engine.patience=2", *rule)
    run.until("problems.jsonl", 1)
    for role in ("target", "draft"):
        os.kill(main_process_of(run.process.pid, role), signal.SIGKILL)
    assert len(outcomes(folder)) < 8, "the run was over before its servers were killed"
    shown, told = run.process.communicate(timeout=WAIT)
    assert run.process.returncode == 0, told
    for role in ("target", "draft"):
        states = re.findall(rf"the {role}'s server at .*? is (lost|started again|back):", shown)
        assert states == ["lost", "started again", "back"], shown
    assert marked(run.mark) == []
    finished(command(tmp_path / "hf", "engine=hf", *rule), more=variables(), seconds=WAIT)
    assert outcomes(folder) == outcomes(tmp_path / "hf")
    assert sum(kept for *_, kept in outcomes(folder)) > 0


def test_an_interrupted_start_leaves_no_server(tmp_path: Path) -> None:
    run = Run(tmp_path, "engine=sglang", "draft=none", "accept=logprob")
    until = time.monotonic() + WAIT
    log = tmp_path / "servers" / "target.log"
    while not (log.exists() and log.stat().st_size):  # it is loading
        assert run.process.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    assert "Uvicorn running" not in log.read_text(encoding="utf-8"), (
        "it was up before it was interrupted"
    )
    code, told = run.ended_by(signal.SIGINT, servers=1)
    assert code == 130 and told.count("\n") == 1 and "interrupted" in told


def test_a_server_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = finished(
        command(folder, "engine=sglang", "accept=logprob", "engine.server_args={no_such: 1}"),
        code=2,
        more=variables(),
        seconds=WAIT,
    )
    assert done.stderr.count("\n") == 1
    assert "the target's server ended with 2 (" in done.stderr and "target.log" in done.stderr
    assert not (folder / "config.json").exists(), "a false start is no run"


def test_each_server_has_its_probe_and_takes_arguments(tmp_path: Path) -> None:
    """``semantic`` has a probe in each server, whose processes are started as on a GPU."""
    given = ",".join(f"{k}: {json.dumps(v)}" for k, v in sglang_env.ENGINE_ARGUMENTS.items())
    rule = ("accept=semantic", "problems=2")
    own = ("engine=sglang", f"engine.server_args={{{given}}}")
    spawned = variables() | sglang_env.SPAWNED
    finished(command(tmp_path / "own", *own, *rule), more=spawned, seconds=WAIT)
    finished(command(tmp_path / "hf", "engine=hf", *rule), more=variables(), seconds=WAIT)
    assert outcomes(tmp_path / "own") == outcomes(tmp_path / "hf")


def test_lossless_tokens_are_verified_inside_a_server_that_the_run_starts(tmp_path: Path) -> None:
    """One server drafts and verifies: a problem is a request, and greedy texts are those of engine=hf."""
    asked = ("draft=tiny", "accept=lossless", "split=token", "draft_length=5", "problems=4")
    own = finished(
        command(tmp_path / "own", "engine=sglang", *asked), more=variables(), seconds=WAIT
    )
    assert "Traceback" not in own.stderr and "inside: the server drafts tokens with " in own.stdout
    assert [file.name for file in (tmp_path / "own" / "servers").iterdir()] == ["target.log"]
    finished(command(tmp_path / "hf", "engine=hf", *asked), more=variables(), seconds=WAIT)
    texts = [[text for _, text, *_ in outcomes(tmp_path / name)] for name in ("own", "hf")]
    assert texts[0] == texts[1] and len(texts[0]) == 4
    result = json.loads((tmp_path / "own" / "result.json").read_text())
    assert 4 * 50 / 6 <= result["target_passes"] < 0.6 * 4 * 50  # five drafted tokens and one more
