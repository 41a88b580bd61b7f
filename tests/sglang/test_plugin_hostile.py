"""Hostile requests against a running server while an honest client is served.

The server runs all three parts of the plugin. Every hostile request is refused with one line, or served
with an error in its reply, and soon; the honest client's replies stay the same to the last byte.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from semspec.artifacts.probe import Probe
from semspec.errors import UserError
from semspec.sglang_plugin import protocol, settings
from tests.support import sglang_env
from tests.support.sglang_servers import free_port

pytestmark = pytest.mark.deep
ROOT = Path(__file__).parents[2]
PROBE = "embedded/probe-tiny-target-paper"
PARTS = {
    "probe": {"artifacts": [PROBE]},
    "verification": {"calibration": "embedded/arc-tiny"},
    "drafting": {},
}
IDS = list(range(5, 45))
START, SOON = 300.0, 20.0  # seconds, on a machine that does other things


def body(asked: str, **more: Any) -> bytes:
    """A request with these ``custom_params``, which are JSON that Python would not always write."""
    told = {"input_ids": IDS, "sampling_params": {"temperature": 0, "max_new_tokens": 4, **more}}
    text = json.dumps(told).replace('"temperature"', f'"custom_params": {asked}, "temperature"')
    return text.encode()


def completion(asked: str) -> bytes:
    told = {"model": "any", "prompt": "1 + 1", "temperature": 0, "max_tokens": 4}
    return json.dumps(told).replace('"model"', f'"custom_params": {asked}, "model"').encode()


def label(text: str) -> bytes:
    told = {"input_ids": IDS, "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    return json.dumps({**told, "custom_labels": {"semspec": text}}).encode()


DIGITS = "9" * 400
REFUSED = {
    "infinite position": '{"spans": [[0, 1e999]]}',
    "the question as text": '"{\\"spans\\": [[0, 1e999]]}"',
    "many layers": '{"spans": [[0, 9]], "layers": [' + "1, " * 59_999 + "1]}",
    "many reductions": '{"spans": [[0, 9]], "reduce": [' + '"max", ' * 59_999 + '"max"]}',
    "many spans": '{"spans": [' + ", ".join(f"[{i}, {i + 1}]" for i in range(9999)) + "]}",
    "nested brackets": "[" * 100_000 + "]" * 100_000,
    "fewer nested brackets": '{"spans": ' + "[" * 3000 + "]" * 3000 + "}",
    "nested brackets that any parser reads": '{"spans": ' + "[" * 150 + "]" * 150 + "}",
    "a number of 400 digits": f'{{"accept": "typical", "epsilon": {DIGITS}}}',
    "a position of 400 digits": f'{{"spans": [[0, {DIGITS}]]}}',
    "a position beyond 64 bits": '{"spans": [[0, 36893488147419103232]]}',
    "an infinite threshold": '{"accept": "arc", "theta": -Infinity}',
    "a threshold that is no number": '{"accept": "arc", "theta": NaN}',
    "a lone surrogate as a rule": '{"accept": "\\ud800"}',
    "a lone surrogate as a probe": '{"spans": [[0, 9]], "probe": "\\ud800"}',
    "a lone surrogate as an option": '{"\\ud800": 1}',
    "a temperature that was not calibrated": '{"accept": "arc"}',
    "a list": "[1, 2]",
    "an option out of its range": '{"accept": "topk_delta", "k": -1}',
    "no JSON": "{",
}
ANSWERED = {
    "spans behind the prompt": '{"spans": [[0, 2147483647]]}',
    "layers of another model": '{"spans": [[0, 9]], "want": "pooled", "layers": [400]}',
    "a probe that is not there": '{"spans": [[0, 9]], "probe": "c0ffee"}',
}


@dataclass
class Server:
    url: str
    process: subprocess.Popen[bytes]

    def post(self, data: bytes, path: str = "/generate") -> tuple[int, Any]:
        """Status and JSON of a reply."""
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            return error.code, json.loads(text) if text.startswith("{") else text


@contextmanager
def serving(log: Path) -> Iterator[Server]:
    port = free_port()
    command = [
        *(sys.executable, "-m", "sglang.launch_server", "--host=127.0.0.1", f"--port={port}"),
        f"--model-path={ROOT / 'hub_artifacts' / 'tiny-target'}",
        *sglang_env.server_arguments(max_running_requests=4).split(),
        *("--speculative-algorithm=SEMSPEC_SUFFIX", "--speculative-num-draft-tokens=8"),
    ]
    environment = sglang_env.environment() | {settings.VARIABLE: json.dumps(PARTS)}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output
        ) as process,
    ):
        try:
            yield ready(Server(f"http://127.0.0.1:{port}", process), log)
        finally:
            process.terminate()


def ready(server: Server, log: Path) -> Server:
    until = time.monotonic() + START
    while time.monotonic() < until:
        assert server.process.poll() is None, log.read_text()[-4000:]
        try:
            if server.post(body("null"))[0] == 200:
                return server
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-4000:])


@dataclass
class Honest:
    """A client that asks the same again and again, beside everything else."""

    server: Server
    replies: list[Any] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> Any:
        asked = {"spans": [[10, 20], [20, 40]], "probe": Probe.load(PROBE).digest}
        params = {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}
        params["custom_params"] = {"semspec": asked | {"accept": "topk_delta", "delta": 0.3}}
        told = {"input_ids": IDS, "sampling_params": params}
        status, reply = self.server.post(json.dumps(told).encode())
        assert status == 200, reply
        (one,) = [x for x in reply["meta_info"]["semspec"] if x is not None]
        return reply["output_ids"], one

    def run(self) -> None:
        while not self.over.is_set():
            self.replies.append(self.ask())


def refused(server: Server, asked: str) -> None:
    """By each way into the server: with a 400, soon, and with one line where the plugin refuses."""
    for path, data in (
        ("/generate", body(f'{{"semspec": {asked}}}')),
        ("/generate", label(f'{{"semspec": {asked}}}')),
        ("/v1/completions", completion(f'{{"semspec": {asked}}}')),
    ):
        began = time.monotonic()
        status, reply = server.post(data, path)
        assert status == 400, (path, status, reply)
        assert time.monotonic() - began < SOON
        message = reply["error"]["message"] if "error" in reply else reply["message"]
        by_the_plugin = "JSON decode error" not in message  # SGLang's own, with a traceback
        assert len(message) < (600 if by_the_plugin else 4000)
        assert not by_the_plugin or "\n" not in message


def test_hostile_requests_end_and_change_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "server.log") as server:
        honest = Honest(server)
        tokens, scores = honest.ask()
        assert len(tokens) == 32 and len(scores["scores"]) == 2
        client = threading.Thread(target=honest.run)
        client.start()
        try:
            while len(honest.replies) < 4:  # refusing takes less than serving
                assert client.is_alive() and server.process.poll() is None
                for asked in REFUSED.values():
                    refused(server, asked)
            for asked in ANSWERED.values():
                status, reply = server.post(body(f'{{"semspec": {asked}}}'))
                assert status == 200
                with pytest.raises(UserError) as error:
                    protocol.reply(reply["meta_info"])
                assert "\n" not in str(error.value)
        finally:
            honest.over.set()
            client.join()
        assert server.process.poll() is None, (tmp_path / "server.log").read_text()[-4000:]
        for found, own in [*honest.replies, honest.ask()]:
            assert found == tokens
            assert own["scores"] == pytest.approx(scores["scores"], abs=1e-4)
