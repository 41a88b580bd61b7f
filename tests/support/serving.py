"""A live server in its own process on 127.0.0.1, with helpers to query it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QUESTION = "Modulo 100, let x=76, k is x - 2. Find k."
PATIENCE = 240.0  # seconds to wait for an answer: test machines are busy
COMMAND = ("-m", "semspec.serve")


@dataclass
class Live:
    """A running server."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def ask(
        self,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
        method: str | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers (in lower case) and body of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        data = (
            None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        told = {"content-type": "application/json"} if data is not None else {}
        with contextlib.closing(connection):
            connection.request(method or ("POST" if data is not None else "GET"), path, data, told | (headers or {}))  # fmt: skip
            got = connection.getresponse()
            return got.status, {k.lower(): v for k, v in got.getheaders()}, got.read()

    def chat(self, **fields: Any) -> dict[str, Any]:
        """Return the answer to a chat with one question."""
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 160, **fields}
        status, _, told = self.ask("/v1/chat/completions", body)
        found: dict[str, Any] = json.loads(told)
        assert status == 200, found
        return found

    def error(self, path: str, body: object) -> tuple[int, dict[str, Any]]:
        """Return status and error of a refused request."""
        status, _, told = self.ask(path, body)
        return status, json.loads(told)["error"]

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a counter or gauge, summed over labels that are not given."""
        _, _, text = self.ask("/metrics")
        total = 0.0
        for line in text.decode().splitlines():
            found = re.fullmatch(r"([\w:]+)\{(.*)\} (\S+)", line)
            if (
                found
                and found[1] == name
                and all(f'{k}="{v}"' in found[2] for k, v in labels.items())
            ):
                total += float(found[3])
        return total

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the log, all of which are JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def wait(self, until: Any, what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, f"{what}; the log:\n{self.log.read_text()[-2000:]}"
            time.sleep(0.05)


def events_of(raw: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream; assert that it ended properly."""
    events = [line.removeprefix("data: ") for line in raw.decode().split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


@contextlib.contextmanager
def serving(
    *options: str, command: tuple[str, ...] = COMMAND, **environment: str
) -> Iterator[Live]:
    """Run a server on a free port."""
    with tempfile.TemporaryDirectory(prefix="semspec-serving-") as folder:
        log = Path(folder) / "log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, *command, "port=0", *options],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **environment},
            )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, f"no server: {line!r}, {log.read_text()[-2000:]}"
            yield Live(process, found[0], log)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(60)
            if process.stdout is not None:
                process.stdout.close()
