"""``semspec.launch`` without SGLang: its plans, refusals, and watching of servers."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from semspec.cli import launch
from semspec.engines import servers
from semspec.errors import UserError
from semspec.protocols import ProbeSource
from semspec.rules.logprob import LogProb
from semspec.sglang_plugin.settings import VARIABLE
from tests.support.sglang_servers import free_port


def planned(*arguments: str) -> list[servers.Planned]:
    return launch.plan(*launch.read(["accept=logprob", *arguments]))


@pytest.mark.parametrize(
    ("given", "limited"),
    [
        ((), True),
        (("target_gpu=0", "draft_gpu=0"), True),
        (("target_gpu=0,1", "draft_gpu=1"), True),
        (("target_gpu=0,1",), True),  # the draft's server takes the first that it sees
        (("draft_gpu=1",), True),
        (("target_gpu=0,1", "draft_gpu=2"), False),
        (("draft=none",), False),
    ],
)
def test_servers_that_may_share_a_gpu_get_shares_of_its_memory(
    given: tuple[str, ...], limited: bool
) -> None:
    servers = planned(*given)
    assert ["--mem-fraction-static" in one.arguments for one in servers] == [limited] * len(servers)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (("target_port=30000", "draft_port=30000"), "are both 30000"),
        (("target_port=30001",), "are both 30001"),
        (("target_args=--x 'a",), "target_args=--x 'a: no closing quotation; quote it"),
    ],
)
def test_options_that_no_server_could_start_with_are_refused(
    given: tuple[str, ...], match: str
) -> None:
    with pytest.raises(UserError, match=match) as caught:
        planned(*given)
    assert "\n" not in str(caught.value)


def program(text: str, port: int) -> servers.Planned:
    """Some program in a server's place."""
    return servers.Planned(
        role="target",
        arguments=(sys.executable, "-c", text),
        variables={},
        url=f"http://127.0.0.1:{port}",
        host="127.0.0.1",
        port=port,
    )


def test_a_port_that_is_taken_is_noticed_before_a_model_is_loaded(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        one = program("", other.getsockname()[1])
        with (
            pytest.raises(UserError, match="is already in use: give another target_port="),
            servers.started([one], 5, tmp_path),
        ):
            pass


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def test_the_answer_of_a_foreign_server_does_not_count(tmp_path: Path) -> None:
    """It came between, and our server ended because the port was taken."""
    port = free_port()
    begun, over = tmp_path / "begun", tmp_path / "over"
    one = program(
        f"""
import pathlib, time
pathlib.Path({str(begun)!r}).touch()
time.sleep(0.5)
pathlib.Path({str(over)!r}).touch()
exit("Error: address in use")
""",
        port,
    )

    def between() -> None:
        while not begun.exists():
            time.sleep(0.01)
        with ThreadingHTTPServer(("127.0.0.1", port), Healthy) as other:
            while not over.exists():
                time.sleep(0.01)
            time.sleep(1)  # whoever asked meanwhile is answered now that ours has ended
            threading.Timer(3, other.shutdown).start()
            other.serve_forever()

    thread = threading.Thread(target=between)
    thread.start()
    with (
        pytest.raises(UserError, match=r"target's server ended with 1 \(Error: address in use\)"),
        servers.started([one], 30, tmp_path),
    ):
        pass
    thread.join()


def test_a_slow_server_keeps_running_and_one_that_ended_is_named(
    tmp_path: Path,
) -> None:
    """It answers once, then no more, and ends by itself a second later."""
    port = free_port()
    text = f"""
import http.server, time
class Once(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
one = http.server.HTTPServer(("127.0.0.1", {port}), Once)
one.handle_request()
time.sleep(1.5)
exit("Error: out of memory")
"""
    with servers.started([program(text, port)], 30, tmp_path) as running:
        began = time.monotonic()
        with pytest.raises(UserError, match=r"ended with 1 \(Error: out of memory\): see "):
            servers.watch(running)
        assert time.monotonic() - began > 1.0


def test_a_server_gets_the_probe_that_a_rule_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any rule may name one: the command knows no class of rules."""
    (target,) = launch.plan(*launch.read(["accept=semantic_plus", "draft=none"]))
    (probe,) = json.loads(target.variables[VARIABLE])["probe"]["artifacts"]
    assert (
        Path(probe).name == "probe-tiny-target-plus" or probe == "embedded/probe-tiny-target-plus"
    )
    source = ProbeSource("owner/probe", "c0ffee", allow_mismatch=True)
    monkeypatch.setattr(LogProb, "probe_sources", lambda rule, run: {"draft": source})
    target, draft = planned()
    assert VARIABLE not in target.variables
    told = json.loads(draft.variables[VARIABLE])
    assert told == {"probe": {"artifacts": ["owner/probe@c0ffee"], "allow_mismatch": True}}


def test_no_tokenizer_is_needed_for_a_rule_without_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: str) -> None:
        raise AssertionError(f"{folder} is not to be read")

    monkeypatch.setattr("semspec.models.text.Text", refused)
    assert [one.role for one in planned()] == ["target", "draft"]


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ((), False),
        (("host=localhost",), False),
        (("host=127.0.0.2",), False),
        (("host=0.0.0.0",), True),
        (("host=::",), True),
        (("host=gpu-7",), True),
        (("host=0.0.0.0", "target_args=--api-key abc"), True),  # the draft's has none
        (("host=0.0.0.0", "both_args=--api-key abc"), False),
        (("host=0.0.0.0", "both_args=--api-key=abc"), False),
    ],
)
def test_servers_that_others_can_use_without_a_key_are_warned_of(
    given: tuple[str, ...], warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    launch.run(["accept=logprob", *given])
    told = capsys.readouterr().err
    assert bool(told) == warned
    if warned:
        assert told.startswith("semspec: host=") and told.count("\n") == 1
        assert "--api-key KEY" in told and "host=127.0.0.1" in told
