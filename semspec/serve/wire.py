"""HTTP as uvicorn speaks it, with errors in JSON and an end to what a client may keep waiting for."""

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
MOST = 1 << 16  # bytes of a request before its body
FLUSH = "semspec.flush"  # in the state of a scope: sends what was written of the response so far
GRACE = 1.0  # seconds: the application tells a body that comes too slowly first


def wire(patience: float, told: Callable[[ApiError], object]) -> type[asyncio.Protocol]:
    """Return the protocol of a server that waits so many seconds for each request to be there as a whole.

    ``told`` hears of what is refused here, before there is a request.
    """
    LOG.setLevel(logging.ERROR)  # its warnings say the same once more

    class Wire(_Wire):
        seconds = patience + GRACE
        refused = staticmethod(told)

    return Wire


class _Joined:
    """A transport that sends what is written to it in one piece: as soon as ``flush`` is called, or at the loop's next turn.

    uvicorn writes head, body and end of a response one by one. Each write is a system call, which wakes the client.
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
        """Send what is there."""
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        self.flush()
        self._transport.close()


class _Wire(H11Protocol):
    """One connection. uvicorn by itself waits for ever for the rest of a request that has begun, or never begins."""

    seconds: float
    refused: Callable[[ApiError], object]
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._joined = _Joined(transport, self.loop)
        super().connection_made(cast(asyncio.Transport, self._joined))
        # the scope of each request has it: whoever sends a part of a stream has it sent at once
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
        """Begin to wait for the rest of a request, or go on, or stop."""
        if not more and self._due is not None:
            self._due.cancel()
            self._due = None
        elif more and self._due is None and not self.transport.is_closing():
            self._due = self.loop.call_later(self.seconds, self._late)

    def _late(self) -> None:
        if not self.transport.is_closing():
            self._refuse(ApiError(408, "the request did not come in time"))

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, "this is no HTTP request that can be read", code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        """Tell an error where no answer has begun, and end the connection."""
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
