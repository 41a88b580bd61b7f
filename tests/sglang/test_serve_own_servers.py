"""``python -m semspec.serve engine=sglang`` without addresses starts its own servers, and leaves none behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil  # comes with SGLang
import pytest

from semspec.models.memory import VISIBLE
from tests.support.processes import left, marked
from tests.support.serving import COMMAND, Live, events_of, serving
from tests.support.sglang_servers import main_process_of

OPTIONS = ("accept=logprob", "temperature=0", "concurrency=2", "max_new_tokens=60", "adaptive=false")  # fmt: skip
CHAT = "/v1/chat/completions"
WAIT = 600.0  # a machine may be busy
# the server, and for each of SGLang's its keeper, SGLang's main process, a scheduler and a detokenizer, which starts last
WHOLE, LOADING = 13, 7
QUESTIONS = [f"Modulo 100, let x={x}, k is x - 2. Find k." for x in (76, 41, 8, 9)]

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


def answers(live: Live) -> list[Any]:
    """What is said to all questions, which are asked at once."""

    def said(question: str) -> Any:
        turns = [{"role": "user", "content": question}]
        return live.chat(messages=turns, max_tokens=60)["choices"][0]["message"]

    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        return list(pool.map(said, QUESTIONS))


def main_process(live: Live, name: str) -> psutil.Process:
    """SGLang's main process of one of its servers, as it runs now."""
    return psutil.Process(main_process_of(live.process.pid, name))


def states(live: Live, role: str) -> list[str]:
    """What the log says of a role's servers."""
    told = [line for line in live.lines() if line["event"] == "replica"]
    return [line["state"] for line in told if line["role"] == role]


def prompts(live: Live, name: str) -> int:
    """How many prompts one of its servers has read since it was started last, by that one's log."""
    told = [line["message"] for line in live.lines() if line["event"] == "load"]
    assert any(f"the {name}'s server is ready after" in line for line in told)
    (log,) = (found[1] for line in told if (found := re.search(rf"the {name}'s server at \S+; its log: (.+)", line)))  # fmt: skip
    return Path(log).read_text(errors="replace").count("Prefill batch")


def test_it_answers_with_servers_of_its_own_and_ends_them(mark: str) -> None:
    """The texts are those of engine=hf, drafts are in them, and they are the same when one of two replicas has died."""
    options = "engine=sglang", "engine.replicas=2", "engine.restart=false", *OPTIONS
    with serving(*options, **variables(mark)) as live:
        running = family(live.process.pid, mark)
        assert len(running) >= WHOLE
        told = answers(live)
        assert live.metric("semspec:generation_tokens_total", author="draft") > 0
        assert prompts(live, "target") and prompts(live, "target-replica-2")
        first, last = main_process(live, "target"), main_process(live, "target-replica-2")
        keepers = [one.ppid() for one in (first, last)]
        first.kill()
        assert answers(live) == told
        assert left(keepers[:1], 60) == []
        assert answers(live) == told
        assert [live.ask(path)[0] for path in ("/ready", "/health")] == [200, 200]
        last.kill()
        assert left(keepers, 60) == []
        for path in ("/ready", "/health"):  # nobody starts them again: a supervisor has to
            live.wait(lambda path=path: live.ask(path)[0] == 503, f"{path} tells that no target is left")  # fmt: skip
            assert json.loads(live.ask(path)[2]) == {"status": "the target's servers have ended"}
        live.process.send_signal(signal.SIGTERM)
        assert live.process.wait(WAIT) == 0
        assert live.lines()[-1]["event"] == "end"
        assert left(running, 30) == [] and marked(mark) == []
    with serving("engine=hf", *OPTIONS) as live:
        assert answers(live) == told


def test_a_replica_and_the_drafts_server_that_are_killed_come_back(mark: str) -> None:
    """Requests go on meanwhile, without drafts; then the replica has prompts again, and answers have drafts."""
    with serving("engine=sglang", "engine.replicas=2", *OPTIONS, **variables(mark)) as live:
        told = answers(live)
        for name in ("target-replica-2", "draft"):
            main_process(live, name).kill()
        live.wait(
            lambda: live.metric("semspec:servers_away") == 2, "nobody asks, and it is noticed"
        )
        drafted = live.metric("semspec:generation_tokens_total", author="draft")
        assert all(one["reasoning_content"] for one in answers(live))
        assert live.metric("semspec:generation_tokens_total", author="draft") == drafted > 0
        assert [live.ask(path)[0] for path in ("/ready", "/health")] == [200, 200]
        live.wait(lambda: not live.metric("semspec:servers_away"), "they are not back", WAIT)
        for role in ("target", "draft"):
            assert states(live, role) == ["lost", "restart", "back"]
        assert answers(live) == told
        assert live.metric("semspec:generation_tokens_total", author="draft") > drafted
        assert prompts(live, "target-replica-2")
        for name in ("target", "target-replica-2"):
            main_process(live, name).kill()
        live.wait(lambda: live.ask("/ready")[0] == 503, "a request could not be answered")
        assert live.ask("/health")[0] == 200
        live.wait(lambda: states(live, "target").count("restart") == 3, "no restart is planned")
        running = family(live.process.pid, mark)
        live.process.send_signal(signal.SIGTERM)  # while they are about to be started, or load
        assert live.process.wait(WAIT) == 0
        assert live.lines()[-1]["event"] == "end" and states(live, "target").count("restart") == 3
        assert left(running, 30) == [] and marked(mark) == []


def test_one_server_that_drafts_tokens_inside_answers_whole_and_in_streams(mark: str) -> None:
    """The texts are those of engine=hf; whoever goes frees the place, and the figures have the drafts."""
    tokens = ("accept=lossless", "split=token", "draft_length=4", *OPTIONS[1:])
    with serving("engine=hf", *tokens) as live:
        told = answers(live)
    with serving("engine=sglang", *tokens, **variables(mark)) as live:
        running = family(live.process.pid, mark)
        assert len(running) < WHOLE  # one server for both models
        assert answers(live) == told
        by_draft = live.metric("semspec:generation_tokens_total", author="draft")
        assert by_draft > live.metric("semspec:generation_tokens_total", author="target")
        drafted = live.metric("vllm:spec_decode_num_draft_tokens_total")
        assert drafted > live.metric("vllm:spec_decode_num_accepted_tokens_total") >= by_draft
        asked = {"messages": [{"role": "user", "content": QUESTIONS[0]}], "stream": True}
        deltas = [
            choice["delta"]
            for event in events_of(live.ask(CHAT, {**asked, "max_tokens": 60})[2])
            for choice in event["choices"]
        ]
        for part in ("reasoning_content", "content"):
            said = "".join(delta.get(part) or "" for delta in deltas)
            assert said == (told[0][part] or "")
        assert len(deltas) > 3
        body = json.dumps({**asked, "ignore_eos": True, "max_tokens": 1500})
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", live.port)) as connection:
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
            live.wait(lambda: live.metric("semspec:running") == 1, "it runs")
        live.wait(lambda: live.metric("semspec:running") == 0, "it is given up")
        assert answers(live) == told
        live.process.send_signal(signal.SIGTERM)
        assert live.process.wait(WAIT) == 0
        assert left(running, 30) == [] and marked(mark) == []


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
