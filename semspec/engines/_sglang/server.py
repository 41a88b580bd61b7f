"""One SGLang server over HTTP, with retries while patience lasts and a clear error after that."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Literal, TypeVar

from semspec.engines._sglang.http import Http, SilentError, UnreachedError
from semspec.engines.sglang import KEY
from semspec.errors import RefusedError, UserError
from semspec.sglang_plugin import protocol

# Seconds for which a connection may fail and be re-established unnoticed; a server that is away for
# longer is checked again before it gets a query.
BLIP = 1.0
WORKERS = 3.0  # seconds to ask a router's workers, which may be unreachable from here
LOOK = 2.0  # seconds for a server to show that it answers
RECENT = 10.0  # a server that answered a request within so many seconds counts as there
FIRST_PAUSE = 0.1  # seconds between attempts, doubled each time
BUSY = frozenset({429, 502, 503, 504})  # status of a router, or of a server that is starting

Reply = Mapping[str, Any]
Look = Literal["there", "away", "refused"]
T = TypeVar("T")
EVENT = b"data: "
LAST = b"[DONE]"


class LostError(Exception):
    """A server was unreachable for longer than patience lasts."""


class Server:
    """A server that is already running."""

    def __init__(self, url: str, timeout: float, patience: float, name: str = "") -> None:
        self.http = Http(url, os.environ.get(KEY))
        self.name = name or self.http.url
        self.timeout, self.patience = timeout, patience
        self._heard = -math.inf  # when it last answered a request
        self.routed = False  # behind sglang-router, which forwards only fields that it knows

    async def generate(self, payload: Mapping[str, Any], times: int = 1) -> Reply:
        """Send a request to ``/generate``, which may take ``times`` the time limit.

        Raise LostError if the server no longer answers.
        """
        if self.routed:
            payload = protocol.as_label(payload)
        return await self._patiently("POST", "/generate", payload, self.timeout * times)

    async def stream(
        self, payload: Mapping[str, Any], times: int = 1
    ) -> tuple[Reply, AsyncGenerator[Reply]]:
        """Send a streaming request to ``/generate``; return its first event and an iterator of the following ones.

        Raise LostError if the server no longer answers; the iterator raises OSError or EOFError if the stream breaks off.
        """
        if self.routed:
            payload = protocol.as_label(payload)
        limit = self.timeout * times

        async def begin() -> tuple[Reply, AsyncGenerator[Reply]]:
            events = self._events({**payload, "stream": True}, limit)
            async for first in events:
                return first, events
            raise EOFError("closed without an answer")

        return await self._until_lost(begin, limit)

    async def _events(self, payload: Mapping[str, Any], limit: float) -> AsyncGenerator[Reply]:
        path, status, refused = "/generate", 200, b""
        try:
            async with contextlib.aclosing(self.http.lines(path, payload, limit)) as lines:
                async for status, line in lines:
                    if status != 200:
                        refused += line
                    elif line.startswith(EVENT) and not line.startswith(EVENT + LAST):
                        yield self._reply(status, line.removeprefix(EVENT), path)
        except SilentError as error:
            raise self._silent(limit) from error
        if status != 200:
            self._reply(status, refused, path)

    async def _patiently(
        self, method: str, path: str, payload: Any = None, timeout: float | None = None
    ) -> Reply:
        limit = timeout or self.timeout
        return await self._until_lost(lambda: self._once(method, path, payload, limit), limit)

    def _silent(self, limit: float) -> UserError:
        return UserError(
            f"{self.name} has not answered within {limit:g} s: check the server, or raise"
            " engine.timeout"
        )

    async def _until_lost(self, ask: Callable[[], Awaitable[T]], limit: float) -> T:
        """Await ``ask``; retry with growing pauses while the connection fails or breaks off.

        Nothing has seen a lost answer, so asking again does not change the distribution of the samples.
        """
        lost: float | None = None
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                return await ask()
            except SilentError as error:
                raise self._silent(limit) from error
            except (OSError, EOFError) as error:
                now = time.monotonic()
                # if the host was not reached, the time spent connecting counts, too
                lost = lost or (began if isinstance(error, UnreachedError) else now)
                if now - lost + pause > self.patience:
                    raise LostError(str(error) or type(error).__name__) from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause *= 2

    async def _once(self, method: str, path: str, payload: Any, timeout: float) -> Reply:
        status, body = await self.http.request(method, path, payload, timeout)
        return self._reply(status, body, path)

    def _reply(self, status: int, body: bytes, path: str) -> Reply:
        """Return the reply of a server; raise ConnectionError if it is busy or aborted, UserError if it refused."""
        if status in BUSY:
            raise ConnectionError(f"status {status}")
        if status in (401, 403):
            raise UserError(f"{self.name} requires a key: set the environment variable {KEY}")
        if status == 404:
            raise UserError(f"{self.name} has no {path}: is that an SGLang server?")
        reply: Any = None
        with contextlib.suppress(ValueError):
            reply = json.loads(body)
        if status != 200 or not isinstance(reply, dict) or reply.get("error"):
            kind = RefusedError if status == 400 else UserError
            raise kind(f"{self.name} refused a request ({status}): {_message(reply, body)}")
        finish = (reply.get("meta_info") or {}).get("finish_reason") or {}
        if finish.get("type") == "abort":
            raise ConnectionError(f"request aborted: {finish.get('message', 'no reason given')}")
        self._heard = time.monotonic()
        return reply

    async def abort(self, rid: str) -> None:
        """Cancel a request; never raises."""
        with contextlib.suppress(OSError, EOFError, TimeoutError):  # gone: nothing left to stop
            async with asyncio.timeout(2):
                await self.http.request("POST", "/abort_request", {"rid": rid})

    async def info(self) -> Mapping[str, Any]:
        """Return the server's description of itself and its model."""
        info: dict[str, Any] = {}
        for path in ("/server_info", "/model_info"):
            try:
                info |= await self._patiently("GET", path)
            except UserError:  # an older server or a router, with the older path
                with contextlib.suppress(UserError):
                    info |= await self._patiently("GET", f"/get_{path[1:]}")
        self.routed = bool(info.get("router_manager"))
        if self.routed:  # a router does not forward what its workers report
            info["internal_states"] = await self._states_of_workers()
        return info

    async def _states_of_workers(self) -> list[Any]:
        """Return what a router's workers report about their schedulers; [] unless all of them answer.

        The router names their addresses, so the key is not sent to them.
        """
        found: list[Any] = []
        with contextlib.suppress(UserError, LostError, OSError, EOFError, SilentError, ValueError):
            listed = await self._once("GET", "/workers", None, WORKERS)
            places = [str(one["url"]) for one in listed.get("workers", ())]
            told = await asyncio.gather(*(_server_info(url) for url in places))
            found = [state for info in told for state in info.get("internal_states") or [None]]
        return found

    async def look(self) -> Look:
        """Return whether the server answers at all; "refused": nothing listens at its port.

        A server under load may take longer than ``LOOK``, so one that answered a request recently counts as there.
        """
        try:
            async with asyncio.timeout(LOOK):
                status, _ = await self.http.request("GET", "/model_info")
        except ConnectionRefusedError:
            return "refused"
        except TimeoutError:
            return "there" if time.monotonic() - self._heard < RECENT else "away"
        except (OSError, EOFError):
            return "away"
        return "away" if status in BUSY else "there"

    async def close(self) -> None:
        self.http.close()


async def _server_info(url: str) -> Mapping[str, Any]:
    async with asyncio.timeout(WORKERS):
        http = Http(url)
        try:
            status, body = await http.request("GET", "/server_info", timeout=WORKERS)
        finally:
            http.close()
    info = json.loads(body)
    if status != 200 or not isinstance(info, dict):
        raise ValueError(f"status {status}")
    return info


def _message(reply: Any, body: bytes) -> str:
    error = reply.get("error") if isinstance(reply, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    text = str(error or body[:300].decode(errors="replace")).strip()
    return (text.splitlines() or ["no message"])[0][:300]
