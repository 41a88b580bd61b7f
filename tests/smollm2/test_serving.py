"""SGLang, started by ``semspec.launch``, serves the model on the CPU and writes what engine=hf writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from semspec.engines.pool import Engines
from semspec.engines.servers import answers
from semspec.models.memory import VISIBLE
from tests.support import sglang_env
from tests.support.processes import finished, hear_interrupts, marked
from tests.support.sglang_servers import free_port
from tests.support.smollm2 import LIMIT, OPTIONS, TOKENS, corrections, solve

PYTHON = Path.cwd() / ".venv-sglang" / "bin" / "python"
COUNT = 2
GREEDY = (*OPTIONS, "temperature=0", f"problems={COUNT}", f"max_new_tokens={LIMIT}", "quiet=true",
          "draft=suffix", "split=token", "accept=greedy")  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The option that names the server, as ``semspec.launch start=true`` prints it."""
    work = tmp_path_factory.mktemp("launch")
    more = sglang_env.server_arguments(max_total_tokens=8192)
    command = [sys.executable, "-m", "semspec.launch", "model=smollm2-135m", "draft=none"]
    command += [
        "accept=greedy",
        "split=token",
        "temperature=0",
        "start=true",
        f"target_port={free_port()}",
    ]
    command += [f"python={PYTHON}", f"both_args={more}"]
    environment = sglang_env.environment()
    environment["PYTHONPATH"] += f"{os.pathsep}{Path.cwd()}"
    with subprocess.Popen(
        command,
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    ) as process:
        assert process.stdout is not None
        late = threading.Timer(300, process.terminate)
        late.start()
        line = process.stdout.readline().strip()
        late.cancel()
        assert line.startswith("engine.target_url=http://127.0.0.1:"), line
        try:
            yield line
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    assert process.returncode == 0
    assert not answers(line.partition("=")[2])


def check_written(run: Path, engines: Engines) -> None:
    """Compare what a run of GREEDY has written, in both modes, with what the hf engine writes."""
    lines = (run / "problems.jsonl").read_text(encoding="utf-8").splitlines()
    told = [json.loads(line) for line in lines]
    expected = {d.problem.id: d.text for d in solve(engines, corrections(COUNT), "plain", *TOKENS)}
    assert {one["id"]: one["text"] for one in told} == expected
    assert {one["id"]: one["plain"]["text"] for one in told} == expected
    assert sum(one["kept_tokens"] for one in told) > 0.4 * sum(one["tokens"] for one in told)
    shown = json.loads((run / "config.json").read_text())["config"]
    assert shown["model"]["path"] == "packaged/smollm2-135m-instruct"


def test_the_server_writes_what_the_hf_engine_writes(
    server: str, engines: Engines, tmp_path: Path
) -> None:
    run = [sys.executable, "-m", "semspec.run", *GREEDY, "engine=sglang", server]
    finished([*run, f"hydra.run.dir={tmp_path / 'run'}"])
    check_written(tmp_path / "run", engines)


def test_engine_auto_starts_a_server_of_it_and_ends_it(engines: Engines, tmp_path: Path) -> None:
    """No engine is named: options of SGLang's servers choose it. It runs in SGLang's environment, as its servers do."""
    given = {**sglang_env.ENGINE_ARGUMENTS, "max_total_tokens": 8192}
    words = ",".join(f"{name}: {json.dumps(value)}" for name, value in given.items())
    mark = f"SEMSPEC_TEST={uuid.uuid4()}"
    name, _, value = mark.partition("=")
    path = [sglang_env.environment()["PYTHONPATH"], str(Path.cwd()), sysconfig.get_path("purelib")]
    more = {"PYTHONPATH": os.pathsep.join(path), VISIBLE: "", name: value}
    run = [str(PYTHON), "-m", "semspec.run", *GREEDY, f"engine.server_args={{{words}}}"]
    # not quiet: the line that says which engine is taken
    run.remove("quiet=true")
    done = finished([*run, f"hydra.run.dir={tmp_path / 'run'}"], more=more, seconds=300)
    assert "engine: sglang (engine.server_args= is given)" in done.stdout
    assert "the target's server is ready after" in done.stdout
    check_written(tmp_path / "run", engines)
    assert marked(mark) == []
