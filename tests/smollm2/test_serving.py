"""SGLang serves the model on the CPU, started by ``semspec.launch``, and writes what engine=hf writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from semspec.engines.pool import Engines
from semspec.engines.servers import answers
from tests.support import sglang_env
from tests.support.processes import finished, hear_interrupts
from tests.support.sglang_servers import free_port
from tests.support.smollm2 import LIMIT, OPTIONS, TOKENS, corrections, solve

PYTHON = Path.cwd() / ".venv-sglang" / "bin" / "python"
COUNT = 2


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


def test_the_server_writes_what_the_hf_engine_writes(
    server: str, engines: Engines, tmp_path: Path
) -> None:
    arguments = (*OPTIONS, "temperature=0", f"problems={COUNT}", f"max_new_tokens={LIMIT}", "quiet=true",
                 "draft=suffix", "split=token", "accept=greedy", "engine=sglang", server)  # fmt: skip
    finished([sys.executable, "-m", "semspec.run", *arguments, f"hydra.run.dir={tmp_path / 'run'}"])
    lines = (tmp_path / "run" / "problems.jsonl").read_text(encoding="utf-8").splitlines()
    told = [json.loads(line) for line in lines]
    expected = {d.problem.id: d.text for d in solve(engines, corrections(COUNT), "plain", *TOKENS)}
    assert {one["id"]: one["text"] for one in told} == expected
    assert {one["id"]: one["plain"]["text"] for one in told} == expected
    assert sum(one["kept_tokens"] for one in told) > 0.4 * sum(one["tokens"] for one in told)
    shown = json.loads((tmp_path / "run" / "config.json").read_text())
    assert shown["model"]["path"] == "packaged/smollm2-135m-instruct"
