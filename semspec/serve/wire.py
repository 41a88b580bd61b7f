"""uvicorn's HTTP protocol, with JSON errors and a timeout for slow requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from semspec.serve.errors import ApiError
from semspec.serve.replies import dumps

LOG = logging.getLogger("uvicorn.error")
MOST = 1 << 16  # bytes of a request's head
FLUSH = "semspec.flush"  # key in a scope's state: a function that sends the response written so far
GRACE = 1.0  # seconds more than the application waits for a body, which it reports itself
UNREAD = 10.0  # seconds in which the client of a closing connection must read some of the rest


def wire(patience: float, told: Callable[[ApiError], object]) -> type[asyncio.Protocol]:
    """Return a protocol class that waits ``patience`` seconds for each request to arrive completely.

    It calls ``told`` with errors that occur before there is a request.
    """
    LOG.setLevel(logging.ERROR)  # its warnings repeat our errors

    class Wire(_Wire):
        seconds = patience + GRACE
        refused = staticmethod(told)

    return Wire


class _Joined:
    """A transport that joins writes and sends them at ``flush``, or in the loop's next turn.

    uvicorn writes head, body and end of a response separately. Each write would be a system call that wakes the client.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if data and not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def flush(self) -> None:
        """Send what was written so far."""
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        """Close once the client has read what was written, or reads no more."""
        self.flush()
        self._transport.close()
        self._wait_for_reader(self._transport.get_write_buffer_size())

    def _wait_for_reader(self, left: int) -> None:
        if left:
            self._loop.call_later(UNREAD, self._look_at_reader, left)

    def _look_at_reader(self, before: int) -> None:
        left = self._transport.get_write_buffer_size()
        if left < before:
            self._wait_for_reader(left)
        else:
            self._transport.abort()


class _Wire(H11Protocol):
    """One connection with a timeout; uvicorn itself waits forever for the rest of a request, or for its start."""

    seconds: float
    refused: Callable[[ApiError], object]
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._joined = _Joined(transport, self.loop)
        super().connection_made(cast(asyncio.Transport, self._joined))
        # each request's scope has it, so that parts of a stream are sent at once
        self.app_state = {**self.app_state, FLUSH: self._joined.flush}
        self._due = self.loop.call_later(self.seconds, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(False)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._joined.flush()
        super().on_response_complete()

    def handle_events(self) -> None:
        super().handle_events()
        state = self.conn.their_state
        self._wait(
            state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))
        )

    def _wait(self, more: bool) -> None:
        """Start the timeout, unless it runs, if ``more`` of a request is to come; else cancel it."""
        if not more and self._due is not None:
            self._due.cancel()
            self._due = None
        elif more and self._due is None and not self.transport.is_closing():
            self._due = self.loop.call_later(self.seconds, self._late)

    def _late(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            # nothing was asked, and an answer would be taken for the next request's
            self.transport.close()
            return
        self._refuse(ApiError(408, "the request did not arrive in time"))

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, "this is not a valid HTTP request", code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        """Send an error if no response has begun, and close the connection."""
        self._wait(False)
        self.refused(error)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = dumps(error.body)
            headers: Any = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            reason = b"Request Timeout" if error.status == 408 else b"Bad Request"
            for event in (h11.Response(status_code=error.status, headers=headers, reason=reason), h11.Data(data=body), h11.EndOfMessage()):  # fmt: skip
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
