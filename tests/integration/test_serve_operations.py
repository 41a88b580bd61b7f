"""A live server over the toy models: queue, health checks, log, and cancelling work that nobody waits for any more."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from semspec.serve.lookout import EVERY
from tests.support.serving import PATIENCE, Live, events_of, serving

COMPLETIONS = "/v1/completions"
COMMAND = ("-m", "tests.support.toy_server")
KEY = "a-key-of-this-test-0123456789"
WITH_KEY = {"authorization": f"Bearer {KEY}"}
PROMPT = {"prompt": [0, 1], "ignore_eos": True}


def sent(live: Live, body: object, length: int | None = None, headers: str = "") -> socket.socket:
    """Send a request and return its connection, from which nothing has been read."""
    data = json.dumps(body).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}"
    connection = socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE)
    size = len(data) if length is None else length
    connection.sendall(f"{head}content-length: {size}\r\n\r\n".encode() + data)
    return connection


def line_of(live: Live, request: str) -> dict[str, Any]:
    """Return the one line that the log has of a request."""

    def mine() -> list[dict[str, Any]]:
        return [line for line in live.lines() if line.get("request") == request]

    live.wait(mine, "its line")
    (line,) = mine()
    return line


# ---- the queue ------------------------------------------------------------------------------------


def test_a_burst_of_streams_does_not_pass_the_bound_of_the_queue() -> None:
    """All are sent before the server reads any: it looks at the queue before an earlier one has joined it."""
    with serving(
        "concurrency=1", "queue=2", "slice=1", command=COMMAND, TOY_SECONDS="0.05"
    ) as live:
        body = {**PROMPT, "max_tokens": 100, "stream": True, "semspec": {"off": True}}
        live.process.send_signal(signal.SIGSTOP)
        connections = [sent(live, body) for _ in range(12)]
        live.process.send_signal(signal.SIGCONT)
        with contextlib.ExitStack() as stack:
            files = [
                stack.enter_context(stack.enter_context(one).makefile("rb")) for one in connections
            ]
            statuses = [int(file.readline().split()[1]) for file in files]
        assert sorted(statuses) == [200] * 3 + [429] * 9
        live.wait(lambda: live.metric("semspec:running") == 0, "their clients have gone")
        body |= {"max_tokens": 2}
        for _ in range(3):  # every place is free again
            with ThreadPoolExecutor(3) as pool:
                told = pool.map(lambda _: live.ask(COMPLETIONS, body)[0], range(3))
                assert list(told) == [200] * 3


# ---- work that nobody wants -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["", "free"], ids=["in turns", "one by one"])
def test_the_engines_stop_working_for_a_client_that_has_gone(tmp_path: Path, kind: str) -> None:
    count = tmp_path / "count"
    toy = {"TOY": kind, "TOY_COUNT": str(count), "TOY_SECONDS": "0.01"}
    with serving("slice=1", "max_new_tokens=100000", command=COMMAND, **toy) as live:
        for stream in (True, False):
            before = count.stat().st_size if count.exists() else 0
            with sent(live, {**PROMPT, "max_tokens": 100_000, "stream": stream}):
                live.wait(lambda n=before: count.exists() and count.stat().st_size > n + 20, "work")
            live.wait(lambda: live.metric("semspec:running") == 0, "it is given up")
            time.sleep(0.1)  # for what was asked last
            done = count.stat().st_size
            time.sleep(0.5)
            assert count.stat().st_size == done, "the engines went on"
            assert live.ask(COMPLETIONS, {**PROMPT, "max_tokens": 3})[0] == 200


# ---- servers that are gone ------------------------------------------------------------------------


def test_without_a_target_requests_are_told_so_until_there_is_one_again(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    toy = {"TOY": "gone", "TOY_LOST": str(gone), "TOY_SECONDS": "0.01"}
    with serving("slice=1", "concurrency=2", command=COMMAND, **toy) as live:
        # with a text that ends it an answer in one piece is written slice by slice, too
        body = {**PROMPT, "max_tokens": 1000, "stop": "never", "semspec": {"off": True}}
        assert json.loads(live.ask("/server_info")[2])["seed_repeats"] is False
        with ThreadPoolExecutor(2) as pool:
            asked = [
                pool.submit(live.ask, COMPLETIONS, {**body, "stream": s}) for s in (False, True)
            ]
            live.wait(lambda: live.metric("semspec:running") == 2, "both run")
            time.sleep(0.5)
            gone.touch()
            whole, stream = (one.result(PATIENCE) for one in asked)
        status, headers, told = whole
        assert status == 503 and headers["retry-after"]
        assert json.loads(told)["error"]["code"] == "model_unavailable"
        status, _, raw = stream
        *before, last = raw.decode().strip().split("\n\n")
        assert status == 200 and len(before) > 1
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "model_unavailable"
        assert live.ask(COMPLETIONS, body)[0] == 503  # and those that come meanwhile
        assert live.metric("semspec:requests_total", outcome="503") == 3
        why = [line["error"] for line in live.lines() if line.get("status") == 503]
        assert why == ["the model's server does not answer"] * 3
        time.sleep(EVERY)  # a look of before holds no longer
        for path, status in (("/ready", 503), ("/health", 200)):  # it may come back
            found, _, told = live.ask(path)
            assert (found, json.loads(told)) == (status, {"status": "no target"})
        gone.unlink()
        live.wait(lambda: live.ask("/ready")[0] == 200, "it is ready again")
        body["max_tokens"] = 5
        status, _, told = live.ask(COMPLETIONS, body)
        assert status == 200 and json.loads(told)["usage"]["completion_tokens"] == 5
        assert events_of(live.ask(COMPLETIONS, {**body, "stream": True})[2])


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_a_target_that_cannot_be_used_is_not_taken_for_a_target_that_is_away(
    tmp_path: Path, stream: bool
) -> None:
    """The client is not told to ask again, the log says what is wrong, and the server stays ready."""
    strange = tmp_path / "strange"
    strange.touch()
    with serving(command=COMMAND, TOY="strange", TOY_LOST=str(strange)) as live:
        body = {**PROMPT, "max_tokens": 5, "semspec": {"off": True}, "stream": stream}
        status, headers, told = live.ask(COMPLETIONS, body)
        assert status == 502 and "retry-after" not in headers  # a stream has not begun either
        error = json.loads(told)["error"]
        assert (error["code"], error["type"]) == ("model_failed", "server_error")
        live.wait(lambda: [one for one in live.lines() if one.get("status") == 502], "its line")
        (line,) = [one for one in live.lines() if one.get("status") == 502]
        assert line["error"] == "the model's server has sent something else"
        assert live.ask("/ready")[0] == 200
        strange.unlink()
        assert live.ask(COMPLETIONS, {**body, "stream": False})[0] == 200


def test_more_choices_than_there_will_ever_be_room_for_are_no_case_for_later() -> None:
    with serving("concurrency=1", "queue=2", command=COMMAND) as live:
        for fields, named in (({"n": 4}, "n"), ({"prompt": [[0, 1]] * 4}, "prompt")):
            status, error = live.error(COMPLETIONS, {**PROMPT, "max_tokens": 2, **fields})
            assert (status, error["param"]) == (400, named) and "3 at most" in error["message"]
        assert live.ask(COMPLETIONS, {**PROMPT, "max_tokens": 2, "n": 3})[0] == 200


def test_a_header_of_ours_that_comes_twice_is_refused() -> None:
    """A proxy that adds its own to the client's would otherwise be overruled, or the other way round."""
    with serving(command=COMMAND) as live:
        for twice in ("x-semspec: off\r\nX-Semspec: tenant=a\r\n", "authorization: a\r\n" * 2):
            with sent(live, {**PROMPT, "max_tokens": 2}, headers=twice) as connection:
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400")
        named = {"x-semspec": "rule=greedy; rule=typical"}
        status, _, told = live.ask(COMPLETIONS, {**PROMPT, "max_tokens": 2}, named)
        assert status == 400 and json.loads(told)["error"]["param"] == "semspec.rule"


def test_who_comes_while_long_answers_are_written_is_answered_before_they_end() -> None:
    with serving("slice=1", "concurrency=4", command=COMMAND, TOY_SECONDS="0.02") as live:
        long = {**PROMPT, "max_tokens": 400, "stream": True}
        with sent(live, long) as one, sent(live, long) as other:
            live.wait(lambda: live.metric("semspec:running") == 2, "both are being written")
            assert live.ask(COMPLETIONS, {**PROMPT, "max_tokens": 3})[0] == 200
            assert live.metric("semspec:running") == 2
            for connection in (one, other):  # they have begun, and neither is at its end
                assert b"[DONE]" not in connection.recv(1 << 20)


# ---- probes ---------------------------------------------------------------------------------------


def status_of(port: int, path: str) -> int | None:
    """Return the status of an answer; None where nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.request("GET", path)
        return connection.getresponse().status
    return None


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def beginning(port: int, load: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a server whose models load once that file is there; its log is beside that file."""
    toy = {"TOY_LOAD": str(load), "TOY_SECONDS": "0.02"}
    with load.with_name("log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *COMMAND, f"port={port}", "slice=1"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **toy},
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_server_is_not_ready_while_it_starts_and_while_it_ends(port: int, tmp_path: Path) -> None:
    load = tmp_path / "load"
    with beginning(port, load) as process:
        deadline = time.monotonic() + PATIENCE
        while status_of(port, "/health") is None:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        live = Live(process, f"http://127.0.0.1:{port}", load.with_name("log"))
        # before the models are there
        assert re.match(r"loading \S+ with drafts by \S+; ", live.lines()[0]["message"])
        for path in ("/health", "/ready"):
            status, _, told = live.ask(path)
            assert (status, json.loads(told)) == (503, {"status": "starting"})
        status, headers, told = live.ask(COMPLETIONS, PROMPT)
        assert status == 503 and headers["retry-after"]
        assert json.loads(told)["error"]["code"] == "starting"
        load.touch()
        assert process.stdout is not None
        ready = rf"serving \S+ on {live.url} \(ready in \d+\.\d s\)\n"
        assert re.fullmatch(ready, process.stdout.readline())
        assert [status_of(port, path) for path in ("/health", "/ready")] == [200, 200]
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(live.ask, COMPLETIONS, {**PROMPT, "max_tokens": 100})
            live.wait(lambda: live.metric("semspec:running") == 1, "it runs")
            process.send_signal(signal.SIGTERM)
            live.wait(lambda: status_of(port, "/ready") == 503, "it is not ready")
            status, _, told = live.ask("/health")
            assert (status, json.loads(told)) == (503, {"status": "draining"})
            assert asked.result(PATIENCE)[0] == 200
        assert process.wait(PATIENCE) == 0


# ---- the log --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keyed() -> Iterator[Live]:
    with serving("log_prompts=true", command=COMMAND, SEMSPEC_API_KEYS=KEY) as running:
        yield running


def test_a_request_without_its_key_has_its_line(keyed: Live) -> None:
    for number, headers in enumerate(({}, {"authorization": "Bearer wrong-key-wrong-key"})):
        name = {"x-request-id": f"keyless-{number}"}
        assert keyed.ask(COMPLETIONS, PROMPT, {**headers, **name})[0] == 401
        line = line_of(keyed, name["x-request-id"])
        assert line["event"] == "refusal" and line["path"] == COMPLETIONS
        assert (line["status"], line["code"]) == (401, "invalid_api_key")
    assert "wrong-key" not in keyed.log.read_text()


def test_a_client_that_goes_while_it_sends_its_body_has_its_line(keyed: Live) -> None:
    headers = f"authorization: Bearer {KEY}\r\nx-request-id: gone-1\r\n"
    with sent(keyed, PROMPT, length=1000, headers=headers):
        time.sleep(0.2)
    line = line_of(keyed, "gone-1")
    assert (line["outcome"], line["status"], line["path"]) == ("cancelled", 499, COMPLETIONS)
    counters = keyed.ask("/metrics", headers=WITH_KEY)[2].decode()
    assert re.search(r'semspec:requests_total\{.*outcome="cancelled".*\} 1', counters)


def test_prompts_are_in_the_log_where_that_was_asked_for(keyed: Live) -> None:
    name = {"x-request-id": "prompts-1"}
    body = {**PROMPT, "prompt": [[0, 1], [1, 0]], "max_tokens": 2}
    assert keyed.ask(COMPLETIONS, body, WITH_KEY | name)[0] == 200
    first, second = line_of(keyed, "prompts-1")["prompts"]
    assert first == "<|endoftext|><|im_start|>" and second == "<|im_start|><|endoftext|>"


def test_a_request_by_a_foreign_name_has_its_line_and_prompts_have_none() -> None:
    with serving(command=COMMAND) as live:
        headers = {"host": "evil.example", "x-request-id": "foreign-1"}
        assert live.ask(COMPLETIONS, PROMPT, headers)[0] == 403
        line = line_of(live, "foreign-1")
        assert (line["event"], line["status"], line["code"]) == ("refusal", 403, "host")
        body = {**PROMPT, "max_tokens": 2}
        assert live.ask(COMPLETIONS, body, {"x-request-id": "plain-1"})[0] == 200
        assert "prompts" not in line_of(live, "plain-1")
