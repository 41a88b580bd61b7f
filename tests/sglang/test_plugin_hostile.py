"""Hostile requests against a running server, beside an honest client.

The server runs all three parts of the plugin. Every hostile request is soon refused with one line, or served with an
error in its reply; the honest client's replies stay the same to the last byte. ``make test-attack`` sends 20,000
damaged requests of the plugin's client.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from semspec.artifacts.probe import Probe
from semspec.errors import UserError
from semspec.sglang_plugin import protocol, settings
from tests.support import hostile_requests, sglang_env
from tests.support.hostile_requests import (
    ESCAPES,
    NUMBERS,
    Attack,
    Forge,
    Target,
    at,
    memory,
    spelt,
)
from tests.support.mutants import HOSTILE, MUTANTS
from tests.support.sglang_servers import free_port

pytestmark = pytest.mark.deep
ROOT = Path(__file__).parents[2]
PROBE = "embedded/probe-tiny-target-paper"
PARTS = {
    "probe": {"artifacts": [PROBE]},
    "verification": {"calibration": "embedded/arc-tiny"},
    "drafting": {"adaptive": False},  # what looser rules keep depends on it
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
    "more layers than there are": '{"spans": [[0, 9]], "want": "pooled", "layers": ['
    + ", ".join(map(str, range(512)))
    + "]}",
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


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "server.log"


@pytest.fixture(scope="module")
def server(log: Path) -> Iterator[Server]:
    with serving(log) as started:
        yield started


def test_hostile_requests_end_and_change_nothing(server: Server, log: Path) -> None:
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
            assert "\n" not in str(error.value) and len(str(error.value)) < 600
    finally:
        honest.over.set()
        client.join()
    assert server.process.poll() is None, log.read_text()[-4000:]
    for found, own in [*honest.replies, honest.ask()]:
        assert found == tokens
        assert own["scores"] == pytest.approx(scores["scores"], abs=1e-4)


# ---- damaged at random ------------------------------------------------------------------------------

REQUESTS = MUTANTS or 300
RATE = 50.0  # a second
# times the seconds beside harmless requests, at the median and at the 90th percentile; of few answers both say little
LATE = 3.0 if MUTANTS else 5.0
GROWN = 1.1  # times the memory of all its processes after half of the requests
GENERATE, CHAT, COMPLETION = "/generate", "/v1/chat/completions", "/v1/completions"
SPANS: dict[str, Any] = {"spans": [[10, 20], [20, 38]]}
ASKED: tuple[dict[str, Any], ...] = (
    {"accept": "topk_delta", "k": 3, "delta": 0.3},
    {"accept": "typical", "epsilon": 0.1, "delta": 0.2},
    {"accept": "off"},
    {"accept": "lossless"},
    {**SPANS, "want": "pooled", "reduce": ["mean", "last"], "layers": [0, 2], "precision": "float16"},
    {**SPANS, "want": "pooled", "layers": [1], "accept": "lossless"},
)  # fmt: skip
WRONG: dict[str, tuple[Any, ...]] = {
    "spans": ([], [[0, 0]], [[5, 2]], [[0, 9]] * 99, [[0, "@"]], [["@", 9]], [[0.5, 9]], [[0, 9, 9]], [[True, 9]], "x", {}, [[[0, 9]]], [[0, 2**31]], [[39, 40]], [[0, 1024]]),
    "want": ("everything", [], "@", "score", None), "probe": ("c0ffee", "x" * 65, "\ud800", *ESCAPES, {}, "", "a\nb"),
    "reduce": ([], ["median"], ["mean"] * 9, "mean", [["mean"]], ["max", "max"]), "layers": ([-1], [513], ["@"], [1, 1], [400], list(range(512)), "all", [[1]]),
    "precision": ("int8", ["float32"], "@"), "accept": ("", "os", "__init__", "arc", "oracle", "semantic", "logprob", "judge", "x" * 65, "\ud800", *ESCAPES, {}, ["greedy"], "@"),
    **dict.fromkeys(("epsilon", "delta", "theta", "threshold", "k", "risk", "draft_length", "step_cap", "nested_length", "max_repeats"), (-1, 0, 1e9, 1e10, 4097, 2**63, "0.3", True, [], {}, None, "@")),
    "prompt_end": (-1, 2**31, "@", "x", 704), "whole_rounds": (1, "true", "@"), "no_such": (1,), "\x1b[2J": (1,), "": (1,), "x" * 9_000: (1,),
}  # fmt: skip
HIDDEN = "what is damaged"  # stands in for it


def requests(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a request to the plugin, in one of the ways into a server; few tokens are written."""
    asked = {"semspec": rng.choice(ASKED)}
    few = rng.randrange(1, 3)
    if rng.random() < 0.3:
        told: dict[str, Any] = {"model": "any", "temperature": 0, "max_tokens": few, "custom_params": asked}  # fmt: skip
        if rng.random() < 0.5:
            return CHAT, {**told, "messages": [{"role": "user", "content": "1 + 1, and nothing else"}]}  # fmt: skip
        return COMPLETION, {**told, "prompt": "1 + 1 and all that follows from it" * 3}
    told = {"input_ids": IDS, "sampling_params": {"temperature": 0, "max_new_tokens": few}}
    if rng.random() < 0.4:
        return GENERATE, {**told, "custom_labels": {"semspec": json.dumps(asked)}}
    told["sampling_params"]["custom_params"] = asked
    return GENERATE, told


def part(told: dict[str, Any]) -> tuple[bytes, Callable[[bytes], bytes]]:
    """Return what a request asks of the plugin, and what puts something else there."""
    if "custom_labels" in told:
        text = told["custom_labels"]["semspec"]
        rest = json.dumps({**told, "custom_labels": {"semspec": HIDDEN}})
        before, after = (one.encode() for one in rest.split(json.dumps(HIDDEN)))
        own = json.dumps(json.loads(text)["semspec"]).encode()
        return own, lambda new: before + json.dumps('{"semspec": ' + new.decode(errors="replace") + "}").encode() + after  # fmt: skip
    params = told.get("sampling_params", told)
    own = json.dumps(params["custom_params"]["semspec"]).encode()
    hidden = {**params, "custom_params": {"semspec": HIDDEN}}
    rest = json.dumps({**told, "sampling_params": hidden} if params is not told else hidden)
    before, after = (one.encode() for one in rest.split(json.dumps(HIDDEN)))
    return own, lambda new: before + new + after


def aimed(rng: random.Random) -> tuple[str, bytes]:
    path, told = requests(rng)
    own, put = part(told)
    asked = json.loads(own)
    for _ in range(rng.choice([1, 1, 2, 3])):
        name = rng.choice(list(WRONG))
        asked[name] = rng.choice(WRONG[name])
    value = rng.choice([*HOSTILE, *ESCAPES]) if rng.random() < 0.05 else asked
    return path, put(spelt(value, rng.choice(NUMBERS)))


def answered(told: Any) -> str:
    """Return what is wrong with the plugin's part of an answer: an error there is one line, too."""
    for one in told if isinstance(told, list) else [told]:
        for own in one.get("meta_info", {}).get("semspec") or []:
            error = (own or {}).get("error")
            if error is not None and (not isinstance(error, str) or not error.isprintable() or len(error) > 600):  # fmt: skip
                return f"an error that is no line: {error!r:.300}"
    return ""


# SGLang's own readers of JSON and of fields answer with what they have read
THEIRS = ("JSON decode error", "validation error")
PLUGIN = Target(requests, aimed, ("/v1/models",), part=part, whole=False, theirs=THEIRS, answered=answered)  # fmt: skip


def test_damaged_requests_end_while_others_are_served_as_ever(server: Server, log: Path) -> None:
    client = Honest(server)
    _, scores = client.ask()

    def ask() -> bytes:
        tokens, own = client.ask()
        assert own["scores"] == pytest.approx(scores["scores"], abs=1e-4)
        return json.dumps(tokens).encode()

    one, sizes = hostile_requests.Honest(ask), [memory(server.process.pid)]
    port = int(server.url.rpartition(":")[2])
    attack = Attack(port, Forge(PLUGIN, 1), RATE, max(100, REQUESTS // 20))

    def look(sent: int) -> None:
        assert server.process.poll() is None, log.read_text()[-4000:]
        sizes.append(memory(server.process.pid))
        print(f"{sent} requests, {sizes[-1]:.0f} MiB, {len(attack.seen.faults)} faults", flush=True)

    attack.run(REQUESTS, one, look)
    print(json.dumps({**attack.figures(), "MiB": [round(size) for size in sizes]}, indent=1))
    assert not attack.seen.faults, "\n".join(attack.seen.faults[:40])
    assert not one.changed, (one.first, one.changed[:2])
    assert not re.search(r"Traceback|Exception in ASGI", log.read_text()), log.read_text()[-4000:]
    assert at(0.5, attack.hostile) < LATE * at(0.5, attack.harmless)
    assert at(0.9, attack.hostile) < LATE * at(0.9, attack.harmless)
    half = len(sizes) // 2
    assert max(sizes[half:]) < GROWN * max(sizes[: half + 1]), sizes
