"""One request from its start to its answer, sent whole or as a stream; cancellation, timeout, and its line in the log."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from semspec.errors import UnusableError, UserError
from semspec.serve.errors import RETRY, ApiError
from semspec.serve.log import log, reason_of
from semspec.serve.metrics import Metrics
from semspec.serve.replies import Json, Reply, event
from semspec.serve.requests import Request
from semspec.serve.scheduling import Mailbox, Scheduler
from semspec.serve.settings import Settings
from semspec.storage.screen import LOG

TURNS = 5  # of the event loop: enough for it to notice a closed connection


class Work:
    """One request while its choices are written; it is cancelled if its client disconnects or time runs out."""

    def __init__(
        self,
        scheduler: Scheduler,
        metrics: Metrics,
        settings: Settings,
        http: HttpRequest,
        request: Request,
        reply: Reply,
        began: float,
    ) -> None:
        self.scheduler, self.metrics, self.settings = scheduler, metrics, settings
        self.http, self.request, self.reply, self.began = http, request, reply, began
        self.first: float | None = None  # seconds from the request to its first text
        # places in the queue, held until the choices are submitted
        self._reserved = len(reply.choices)
        scheduler.reserved += self._reserved
        self.mailbox = Mailbox(reply.choices, lambda: scheduler.busy)

    def begin(self) -> None:
        """Submit the choices."""
        self._release()
        for choice in self.reply.choices:
            self.scheduler.submit(choice)

    def _release(self) -> None:
        self.scheduler.reserved -= self._reserved
        self._reserved = 0

    def cancel(self) -> None:
        self._release()
        for choice in self.reply.choices:
            self.scheduler.cancel(choice)

    async def whole(self) -> Response:
        """Wait for the whole answer and return it."""

        async def follow() -> None:
            async for _, news in self.mailbox.news():
                if news.ended:
                    self._raise_errors()

        try:
            await self.followed(follow(), self.http.receive)
        except ClientDisconnect:
            self.told("cancelled", 499)
            return Json({}, 499)
        finally:
            self.cancel()
        return Whole(self)

    async def followed(self, work: Awaitable[None], receive: Receive) -> None:
        """Submit the choices and wait for ``work``; raise ClientDisconnect if the client goes, ApiError if time runs out."""
        seconds = self.settings.timeout
        gone = asyncio.ensure_future(_disconnected(receive))
        gone.add_done_callback(lambda _: self.mailbox.stop(ClientDisconnect()))
        # in the next turn of the loop, when everything here waits: from then on the models' thread competes for the GIL
        begins = asyncio.get_running_loop().call_soon(self.begin)
        limit = asyncio.timeout(max(seconds - (time.perf_counter() - self.began), 0.0))
        try:
            async with limit:
                await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise ApiError(504, f"no answer within {seconds:g} seconds", code="timeout") from None
        finally:
            begins.cancel()
            gone.cancel()

    def _raise_errors(self) -> None:
        error = next((choice.error for choice in self.reply.choices if choice.error), None)
        if error is None:
            return
        if isinstance(error, ApiError):
            raise error
        if isinstance(error, UnusableError):
            raise ApiError(502, "the model's server sent an unusable answer: see this server's log", code="model_failed") from error  # fmt: skip
        if isinstance(error, UserError):  # for example a lost server of the target
            raise ApiError(503, "the models do not answer at the moment: try again later", code="model_unavailable", headers=RETRY) from error  # fmt: skip
        LOG.error("a request failed", exc_info=error)
        raise ApiError(500, "the server failed to answer: see its log", code="internal")

    async def events(self) -> AsyncIterator[tuple[bytes, bool]]:
        """Yield the bytes of a stream, joined as far as they are ready, and whether more follow."""
        part, left = b"".join(self.reply.first()), len(self.reply.choices)
        async for index, news in self.mailbox.news():
            self._raise_errors()
            if self.first is None and news.items:
                self.first = time.perf_counter() - self.began
            part += b"".join(self.reply.chunks(index, news))
            left -= news.ended
            if left:
                yield part, True
                part = b""
        yield part + b"".join(self.reply.last()), False

    def told(self, outcome: str, status: int, **more: str) -> None:
        """Count the request and write its line into the log, with the fields ``more`` at its end."""
        reply, choices = self.reply, self.reply.choices
        seconds = time.perf_counter() - self.began
        self.metrics.ended(outcome)
        usage = reply.usage
        if outcome == "ok":
            for choice in choices:
                self.metrics.speculated(reply.speculation(choice))
            degraded = sum(choice.degraded for choice in choices)
            self.metrics.answered(usage, degraded, self.first, seconds)
        line: dict[str, Any] = {
            "event": "answer",
            "id": reply.id,
            "request": self.http.scope.get("request_id"),
            "path": self.http.url.path,
            "outcome": outcome,
            "status": status,
            "stream": bool(self.request.stream),
            "prompt_tokens": usage.prompt,
            "cached_tokens": usage.cached,
            "completion_tokens": usage.completion,
            "seconds": round(seconds, 4),
            "first": None if self.first is None else round(self.first, 4),
        }
        if self.settings.log_prompts:
            line["prompts"] = [choice.task.prompt for choice in reply.prompts]
        log({**line, **more})


class Whole(Json):
    """A whole answer; it is counted and logged once it is sent."""

    def __init__(self, work: Work) -> None:
        super().__init__(work.reply.whole())
        self.work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.work.told("ok", 200)


class Streamed(Response):
    """A streamed answer, sent until it ends, its client disconnects, or time runs out.

    Its status is sent with the first news, so that an error before that is answered as one.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.background = None
        self.status_code = 200
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no", "content-type": "text/event-stream; charset=utf-8"}  # fmt: skip
        self.raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work, started = self.work, False

        async def push() -> None:
            nonlocal started
            async for part, more in work.events():
                if not started:
                    started = True
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})  # fmt: skip
                await send({"type": "http.response.body", "body": part, "more_body": more})

        outcome, status, reason = "cancelled", 499, dict[str, str]()
        try:
            if await _left(receive):
                return
            await work.followed(push(), receive)
            outcome, status = "ok", 200
        except ClientDisconnect:
            return
        except ApiError as error:
            outcome, status, reason = str(error.status), error.status, reason_of(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    if not started:
                        await Json(error.body, status, error.headers)(scope, receive, send)
                        return
                    last = event(error.body)
                    await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            work.cancel()
            work.told(outcome, status, **reason)


async def _left(receive: Receive) -> bool:
    """Tell whether the client has disconnected before its stream begins."""
    gone = asyncio.ensure_future(_disconnected(receive))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    gone.cancel()
    return gone.done() and not gone.cancelled()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
