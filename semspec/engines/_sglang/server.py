"""One SGLang server, over HTTP: patient with lost connections, and clear when patience ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import Mapping
from typing import Any, Protocol

from semspec.engines._sglang.http import Http, SilentError, UnreachedError
from semspec.engines.sglang import KEY
from semspec.errors import UserError
from semspec.sglang_plugin import protocol

# Seconds in which a connection may fail and be had again, as if nothing had been; whoever is away for longer is
# looked at again before it is asked.
BLIP = 1.0
FIRST_PAUSE = 0.1  # seconds between attempts, doubled each time
BUSY = frozenset({429, 502, 503, 504})  # of a router or a server that is starting

Reply = Mapping[str, Any]


class LostError(Exception):
    """A server that could not be reached for as long as patience lasts."""


class Place(Protocol):
    """Where a model runs."""

    name: str  # for messages

    async def generate(self, payload: Mapping[str, Any]) -> Reply:
        """SGLang's ``/generate``; LostError where nobody answers any more."""
        ...

    async def abort(self, rid: str) -> None:
        """Gives up a request; never fails."""
        ...

    async def info(self) -> Mapping[str, Any]:
        """What it says about itself and its model."""
        ...

    async def close(self) -> None: ...


class Server:
    """A server that somebody has started."""

    def __init__(self, url: str, timeout: float, patience: float) -> None:
        self.http = Http(url, os.environ.get(KEY))
        self.name = self.http.url
        self.timeout, self.patience = timeout, patience
        self.routed = False  # behind sglang-router, which hands on what it knows and no more

    async def generate(self, payload: Mapping[str, Any]) -> Reply:
        if self.routed:
            payload = protocol.as_label(payload)
        return await self._patiently("POST", "/generate", payload)

    async def _patiently(self, method: str, path: str, payload: Any = None) -> Reply:
        """Tries again, less and less often, while a connection cannot be had or breaks off.

        A request changes nothing on a server, and what was lost was never looked at: asking again is
        safe, and leaves the law of what is sampled as it is.
        """
        lost: float | None = None
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                return await self._once(method, path, payload)
            except SilentError as error:
                raise UserError(
                    f"{self.name} has not answered within {self.timeout:g} s: look at the server, or"
                    " give it longer with engine.timeout"
                ) from error
            except (OSError, EOFError) as error:
                now = time.monotonic()
                # where nobody was reached, all the time since was spent on trying
                lost = lost or (began if isinstance(error, UnreachedError) else now)
                if now - lost + pause > self.patience:
                    raise LostError(str(error) or type(error).__name__) from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause *= 2

    async def _once(self, method: str, path: str, payload: Any) -> Reply:
        status, body = await self.http.request(method, path, payload, self.timeout)
        if status in BUSY:
            raise ConnectionError(f"status {status}")
        if status in (401, 403):
            raise UserError(f"{self.name} wants a key: put it into the variable {KEY}")
        if status == 404:
            raise UserError(f"{self.name} has no {path}: is that an SGLang server?")
        told = _parsed(body)
        if status != 200 or not isinstance(told, dict):
            raise UserError(f"{self.name} refused a request ({status}): {_message(told, body)}")
        finish = (told.get("meta_info") or {}).get("finish_reason") or {}
        if finish.get("type") == "abort":
            raise ConnectionError(f"request given up: {finish.get('message', 'no reason told')}")
        return told

    async def abort(self, rid: str) -> None:
        with contextlib.suppress(OSError, EOFError, TimeoutError):  # gone: nothing is left to stop
            async with asyncio.timeout(2):
                await self.http.request("POST", "/abort_request", {"rid": rid})

    async def info(self) -> Mapping[str, Any]:
        told: dict[str, Any] = {}
        for path in ("/server_info", "/model_info"):
            try:
                told |= await self._patiently("GET", path)
            except UserError:  # of older servers, and of routers
                with contextlib.suppress(UserError):
                    told |= await self._patiently("GET", f"/get_{path[1:]}")
        self.routed = bool(told.get("router_manager"))
        return told

    async def close(self) -> None:
        self.http.close()


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _message(told: Any, body: bytes) -> str:
    error = told.get("error") if isinstance(told, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    text = str(error or body[:300].decode(errors="replace")).strip()
    return (text.splitlines() or ["nothing told"])[0][:300]
