"""Send a problem's requests to its home server, which caches its prefix, or to another if that is lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from semspec.engines._sglang import requests
from semspec.engines._sglang.checks import Checks
from semspec.engines._sglang.replicas import Replicas
from semspec.engines._sglang.requests import Payload
from semspec.engines._sglang.server import LostError, Reply, Server
from semspec.errors import UserError
from semspec.types import Answer, Context

T = TypeVar("T")


class Sender:
    """Sends requests, and cancels those whose answer is no longer wanted."""

    def __init__(self, replicas: Replicas, checks: Checks) -> None:
        self.replicas, self._checks = replicas, checks
        self._endings: set[asyncio.Task[None]] = set()  # of requests and streams, in the background

    async def ask(
        self, context: Context, payload: Payload, answer: Answer, times: int = 1
    ) -> tuple[Reply, Server]:
        """Send a request and account for it; if its server is lost, send it to another.

        ``times``: multiplies the time limit.
        """
        began = time.perf_counter()

        async def whole(place: Server, rid: str) -> tuple[Reply, Server]:
            nonlocal began
            began = time.perf_counter()
            return await place.generate({**payload, "rid": rid}, times), place

        reply, place = await self.at_home(context, whole)
        self.replicas.answered(place)
        requests.account(reply["meta_info"], answer, time.perf_counter() - began)
        return reply, place

    async def at_home(self, context: Context, ask: Callable[[Server, str], Awaitable[T]]) -> T:
        """Call ``ask`` with the problem's home server and a new request id; if the server is lost, with another."""
        while True:
            place = self.replicas.of(context)
            rid = uuid.uuid4().hex
            try:
                if self.replicas.was_lost(place):
                    await self._checks.again(place)
                return await ask(place, rid)
            except LostError as error:
                self.replicas.lost(place, str(error))
            except (asyncio.CancelledError, UserError):
                self.abort(place, rid)
                raise

    def abort(self, place: Server, rid: str, events: AsyncGenerator[Reply] | None = None) -> None:
        """Cancel a request at its server and close its stream, if any. Return at once."""

        async def end() -> None:
            if events is not None:
                await events.aclose()
            await place.abort(rid)

        self._in_background(end())

    def finish(self, events: AsyncGenerator[Reply]) -> None:
        """Read a stream whose text is complete to its end, so that its connection can be reused."""

        async def end() -> None:
            with contextlib.suppress(OSError, EOFError, UserError):  # the answer is complete anyway
                async for _ in events:
                    pass

        self._in_background(end())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def all_ended(self) -> None:
        """Wait until all background work of ``abort`` and ``finish`` is done."""
        await asyncio.gather(*self._endings, return_exceptions=True)
