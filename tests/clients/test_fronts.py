"""Proxies between clients and servers, tested with real servers: docs/deploy/nginx.conf and sglang-router."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.nginx import nginx_command
from tests.support.serving import QUESTION, Live, serving
from tests.support.sglang_servers import free_port

ROOT = Path(__file__).resolve().parents[2]
ROUTER = ROOT / ".venv-sglang" / "bin" / "python"
CHAT, TURN = "/v1/chat/completions", [{"role": "user", "content": QUESTION}]
LONG = {"messages": TURN, "stream": True, "ignore_eos": True, "max_tokens": 400}


@pytest.fixture(scope="module")
def lives() -> Iterator[tuple[Live, Live]]:
    with serving("max_new_tokens=160") as one, serving("max_new_tokens=160") as other:
        yield one, other


def up(process: subprocess.Popen[bytes], path: str, port: int, log: Path) -> None:
    """Wait until something answers there."""
    deadline = time.monotonic() + 120
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5),
        ):
            return
        time.sleep(0.2)


@pytest.fixture(scope="module")
def nginx(lives: tuple[Live, Live], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """nginx with the example's configuration."""
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    command = nginx_command(
        folder,
        {
            "server 127.0.0.1:8000;": f"server 127.0.0.1:{lives[0].port};",
            "# server 127.0.0.1:8001;": f"server 127.0.0.1:{lives[1].port};",
            "listen 127.0.0.1:8080;": f"listen 127.0.0.1:{port};",
        },
    )
    process = subprocess.Popen(command)
    try:
        up(process, "/health", port, folder / "log")
        yield replace(lives[0], url=f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def routed(lives: tuple[Live, Live], folder: Path, *options: str) -> Iterator[Live]:
    """sglang-router in front of servers."""
    port, watched, log = free_port(), free_port(), folder / "log"
    command = [str(ROUTER), "-m", "sglang_router.launch_router", *options]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(watched)]
    command += ["--worker-urls", *(live.url for live in lives)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        up(process, "/readiness", port, log)
        yield replace(lives[0], url=f"http://127.0.0.1:{port}", log=log)
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def router(lives: tuple[Live, Live], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """sglang-router, which sends conversations where their prefix is cached."""
    with routed(lives, tmp_path_factory.mktemp("router"), "--policy", "cache_aware") as front:
        yield front


def under_way(lives: tuple[Live, Live]) -> float:
    return sum(live.metric("semspec:running") for live in lives)


@contextlib.contextmanager
def begun(front: Live) -> Iterator[http.client.HTTPResponse]:
    """A stream of which some text is there."""
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=120)
    with contextlib.closing(connection):
        head = {"content-type": "application/json"}
        connection.request("POST", CHAT, json.dumps(LONG), head)
        got = connection.getresponse()
        assert got.status == 200, got.read()
        assert got.headers["content-type"].startswith("text/event-stream")
        texts = 0
        while texts < 3:
            line = got.readline()
            assert line, "the stream has ended"
            if line.startswith(b"data: {"):
                (choice,) = json.loads(line[6:])["choices"]
                texts += bool(choice["delta"].get("reasoning_content"))
        with got:
            yield got


def goes_through(front: Live, lives: tuple[Live, Live]) -> None:
    """A stream's first text is there while its server still writes; who goes frees its place."""
    with begun(front):
        assert under_way(lives) == 1  # it is being written
    lives[0].wait(lambda: under_way(lives) == 0, "it is given up")


def one_killed(front: Live, lives: tuple[Live, Live], beside: Live | None = None) -> Live:
    """Kill the server that writes a stream while the other one writes, too; return that one.

    The first stream breaks off, the second runs to its end. ``beside``: who is asked for the second; None: the other server.
    """
    with begun(front) as lost:
        gone, left = sorted(lives, key=lambda live: live.metric("semspec:running"), reverse=True)
        with begun(beside or left) as kept:
            assert [live.metric("semspec:running") for live in (gone, left)] == [1, 1]
            gone.process.kill()
            gone.process.wait(30)
            with pytest.raises(http.client.IncompleteRead) as broken:  # not as if it were whole
                lost.read()
            assert b"[DONE]" not in broken.value.partial
            assert kept.read().endswith(b"data: [DONE]\n\n")
    return left


def same(front: Live, lives: tuple[Live, Live], **fields: Any) -> dict[str, Any]:
    """Return an answer that is the one a server gives directly."""
    told, own = front.chat(seed=3, **fields), lives[0].chat(seed=3, **fields)
    assert alike(told["choices"], own["choices"]), (told["choices"], own["choices"])
    return told


def alike(one: Any, other: Any) -> bool:
    """Tell whether two parsed answers are the same but for rounding: a prompt that is cached is read in passes of other sizes."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def test_through_nginx_answers_streams_and_errors_are_ours(
    nginx: Live, lives: tuple[Live, Live]
) -> None:
    told = same(nginx, lives, semspec={"rule": "logprob", "threshold": -8, "steps": True})
    assert told["metrics"]["speculative_decoding"]["num_spec_steps"] > 0
    goes_through(nginx, lives)
    for size, status in (((1 << 20) + 1, 413), ((1 << 21) + 1, 413)):
        got, headers, body = nginx.ask(CHAT, b" " * size)
        assert got == status and headers["content-type"] == "application/json"
        assert json.loads(body)["error"]["code"] == "body_too_large"
    assert nginx.error(CHAT, {"messages": []})[0] == 400


def test_through_nginx_a_conversation_stays_where_its_prefix_is(nginx: Live) -> None:
    first = nginx.chat(seed=0)["choices"][0]["message"]
    turns = [*TURN, {"role": "assistant", "content": first["content"]}]
    turns.append({"role": "user", "content": "Thank you. And if x=7?"})
    usage = nginx.chat(messages=turns, seed=0)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0


def test_through_sglang_router_answers_and_streams_are_ours(
    router: Live, lives: tuple[Live, Live]
) -> None:
    same(router, lives)
    same(router, lives, temperature=0, logprobs=True, top_logprobs=2, stop=["zzz"])
    goes_through(router, lives)
    most = {"max_completion_tokens": 10**9}  # max_tokens comes under this name
    status, error = router.error(CHAT, {"messages": TURN, **most})
    assert status == 400 and error["param"] == "max_completion_tokens"


def test_through_sglang_router_a_killed_server_costs_nothing_but_its_own_answers(
    tmp_path: Path,
) -> None:
    """Its stream breaks off; the other server's stream and all later requests are answered."""
    quick = ("--policy", "round_robin", "--health-check-interval-secs", "1")
    with (
        serving("max_new_tokens=160") as one,
        serving("max_new_tokens=160") as other,
        routed((one, other), tmp_path, *quick) as front,
    ):
        left = one_killed(front, (one, other), front)  # the second stream is the other one's turn
        own = left.chat(seed=3)["choices"]
        for _ in range(4):  # both turns of each server
            assert alike(front.chat(seed=3)["choices"], own)
        left.process.kill()
        left.process.wait(30)
        assert front.ask(CHAT, {"messages": TURN})[0] >= 500  # an error of the router's own


def test_through_nginx_a_server_that_has_gone_costs_nothing_but_its_own_answers(
    nginx: Live, lives: tuple[Live, Live]
) -> None:
    """Last of all: it ends one of the two in the middle of an answer, while the other one writes, too; and then the other."""
    left = one_killed(nginx, lives)
    told = nginx.chat(seed=3)
    assert told["choices"] == left.chat(seed=3)["choices"]
    left.process.kill()
    left.process.wait(30)
    status, headers, body = nginx.ask(CHAT, {"messages": TURN})
    assert status == 502 and headers["retry-after"] == "1"
    assert json.loads(body)["error"]["code"] == "no_server"
