"""``python -m semspec.serve engine=sglang`` without addresses: it starts its own servers, and leaves none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil  # comes with SGLang
import pytest

from semspec.models.memory import VISIBLE
from tests.support.processes import left, marked
from tests.support.serving import COMMAND, serving

OPTIONS = ("accept=logprob", "temperature=0", "concurrency=2", "max_new_tokens=60", "adaptive=false")  # fmt: skip
WAIT = 600.0  # a machine may be busy
# the server, and for each of SGLang's its keeper, SGLang's main process, a scheduler and a detokenizer, which starts last
WHOLE, LOADING = 9, 7

pytestmark = pytest.mark.deep


@pytest.fixture
def mark() -> Iterator[str]:
    """A variable that all processes of a test carry; none of them outlives it."""
    name = f"SEMSPEC_TEST={uuid.uuid4()}"
    yield name
    for pid in marked(name):
        os.kill(pid, signal.SIGKILL)


def variables(mark: str) -> dict[str, str]:
    """The mark, the CPU's stand-ins for SGLang, see sglang_env, and no GPU."""
    path = f"{os.environ['PYTHONPATH']}{os.pathsep}{Path.cwd()}"
    return dict([mark.split("=")]) | {"PYTHONPATH": path, VISIBLE: ""}


def family(pid: int, mark: str) -> list[int]:
    """A process and all that come from it; SGLang's own cover their environment when they name themselves."""
    found = {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    return sorted(found | set(marked(mark)))


def test_it_answers_with_servers_of_its_own_and_ends_them(mark: str) -> None:
    """The text is that of engine=hf, and drafts are in it."""
    with serving("engine=sglang", *OPTIONS, **variables(mark)) as live:
        running = family(live.process.pid, mark)
        assert len(running) >= WHOLE
        message = live.chat(max_tokens=60)["choices"][0]["message"]
        assert live.metric("semspec:generation_tokens_total", author="draft") > 0
        live.process.send_signal(signal.SIGTERM)
        assert live.process.wait(WAIT) == 0
        assert live.lines()[-1]["event"] == "end"
        assert left(running, 30) == [] and marked(mark) == []
    with serving("engine=hf", *OPTIONS) as live:
        assert live.chat(max_tokens=60)["choices"][0]["message"] == message


@pytest.mark.parametrize(("signals", "code"), [(1, 0), (2, 1)])
def test_an_end_while_models_load_leaves_no_server(mark: str, signals: int, code: int) -> None:
    """The second signal does not wait for those that load."""
    process = subprocess.Popen(
        [sys.executable, *COMMAND, "port=0", "engine=sglang", *OPTIONS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | variables(mark),
    )
    until = time.monotonic() + WAIT
    while len(running := family(process.pid, mark)) < LOADING:  # the schedulers are loading
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    if signals > 1:
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
    told, log = process.communicate(timeout=120)
    assert process.returncode == code, log
    assert told == "" and "Traceback" not in log
    assert left(running, 30) == [] and marked(mark) == []
