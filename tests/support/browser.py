"""A real browser for tests: headless Chromium, driven by the DevTools protocol over two pipes.

with Browser() as browser:
    page = browser.open(file, width=360, dark=True)
    assert page.evaluate("document.title") == ...
    assert page.errors == [] and page.requests == [page.url]

It opens no port and needs no driver: ``--remote-debugging-pipe`` reads commands from file descriptor 3 and answers on
descriptor 4, each a JSON object terminated by a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
)
PATIENCE = 60.0  # seconds to wait for an answer: test machines are busy
KEYS = {"Tab": 9, "Enter": 13, " ": 32}


def executable() -> str:
    """Return Chromium's path; fail the test without it, since a report that nobody looked at is not tested."""
    named = os.environ.get("CHROMIUM")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    assert found, "these tests need Chromium: make env-browser, or CHROMIUM=/path/to/it"
    return found


class Browser:
    """One Chromium process with an empty profile."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="semspec-browser-")
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        line = f'exec "$@" 3<&{commands} 4>&{answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", line, "bash", executable(), *FLAGS, f"--user-data-dir={self._profile.name}"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._last = 0
        self._pages: dict[str, Page] = {}

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Send a command and return its answer; pass events that arrive meanwhile to the pages."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            told = self._next(until, method)
            if told.get("id") == self._last:
                assert "error" not in told, (method, told["error"])
                return told["result"]

    def wait(self, until: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not until():
            self._next(deadline, what)

    def _next(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            ready = select.select([self._read], [], [], max(0.0, left))[0]
            assert ready, f"the browser did not answer in time: {what}"
            data = os.read(self._read, 1 << 20)
            assert data, f"the browser has gone away: {what}"
            self._buffer += data
        raw, _, self._buffer = self._buffer.partition(b"\0")
        told: dict[str, Any] = json.loads(raw)
        page = self._pages.get(told.get("sessionId", ""))
        if page is not None and "method" in told:
            page.heard(told["method"], told["params"])
        return told

    def open(self, file: Path, **how: Any) -> Page:
        """Open a file in a new tab and wait until it is loaded; options as of ``open_url``."""
        return self.open_url(file.resolve().as_uri(), **how)

    def open_url(
        self,
        url: str,
        *,
        width: int = 1100,
        height: int = 900,
        dark: bool = False,
        script: bool = True,
        media: str = "screen",
    ) -> Page:
        """Open a page in a new tab and wait until it is loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, url)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        page.call("Emulation.setScriptExecutionDisabled", value=not script)
        page.call("Page.navigate", url=page.url)
        self.wait(lambda: page.loaded, f"loading {url}")
        return page

    def close(self) -> None:
        os.close(self._write)  # the browser exits when its pipe is closed
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        for _ in range(50):  # the browser's children may still write into its profile
            shutil.rmtree(self._profile.name, ignore_errors=True)
            if not Path(self._profile.name).exists():
                break
            time.sleep(0.1)
        self._profile.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Page:
    """A tab: its content, its requests and its errors."""

    def __init__(self, browser: Browser, session: str, url: str) -> None:
        self.browser, self.session, self.url = browser, session, url
        self.loaded = False
        self.requests: list[str] = []
        self.blocked: list[str] = []  # why requests failed or were blocked
        self.errors: list[str] = []

    def call(self, method: str, **params: Any) -> Any:
        return self.browser.call(method, self.session, **params)

    def heard(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Network.loadingFailed":
            self.blocked.append(params.get("blockedReason", params["errorText"]))
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(json.dumps(params["args"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Page.loadEventFired":
            self.loaded = True

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page, even if the page's own scripts are disabled."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, expression: str, value: Any) -> None:
        """Wait until an expression has this value."""
        deadline = time.monotonic() + PATIENCE
        while (found := self.evaluate(expression)) != value:
            assert time.monotonic() < deadline, f"{expression} is {found!r}, not {value!r}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press a key, as on a keyboard."""
        code = KEYS[key]
        text = {"Enter": "\r", " ": " "}.get(key, "")
        common = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def picture(self, path: Path, whole: bool = True) -> None:
        """Save a screenshot."""
        told = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(told["data"]))
