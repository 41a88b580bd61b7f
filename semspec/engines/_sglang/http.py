"""HTTP/1.1 with keep-alive, limited to what a model server needs: JSON out, JSON back.

Small on purpose: at step level a request takes milliseconds, and many run at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncGenerator
from typing import Any

from semspec.engines.address import Address

IDLE = 3.0  # seconds a connection is kept; uvicorn closes connections after five idle seconds
CONNECT = 10.0  # seconds; without it Linux waits two minutes for a host that is gone
LARGEST = 1 << 30  # the most bytes of an answer

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class StaleError(ConnectionError):
    """The server closed a kept connection before any answer."""


class UnreachedError(ConnectionError):
    """The host does not even refuse connections."""


class SilentError(Exception):
    """The connection is open but brought no answer in time."""


class Http:
    """The connections to one base URL, for use in one event loop.

    ``http://USER:PASSWORD@HOST`` uses HTTP basic authentication instead of the key; ``url`` leaves both out.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        at = Address.read(url)
        self.url, self.host, self.port, self.path = at.url, at.host, at.port, at.path
        self.tls = ssl.create_default_context() if at.tls else None
        signed = at.signed or (f"Bearer {key}" if key else "")
        self._head = f"Host: {at.netloc}\r\nAccept: application/json\r\n"
        self._head += f"Authorization: {signed}\r\n" if signed else ""
        self._idle: list[tuple[float, Connection]] = []

    async def request(
        self, method: str, path: str, payload: Any = None, timeout: float | None = None
    ) -> tuple[int, bytes]:
        """Send a request and return status and body.

        Raise OSError or EOFError if the connection fails, SilentError if no answer comes within
        ``timeout`` seconds. Connecting has its own limit, whose TimeoutError is an OSError.
        """
        message = self._message(method, path, payload)
        while (kept := self._kept()) is not None:
            with contextlib.suppress(StaleError):
                return await self._exchange(kept, message, timeout, kept=True)
        return await self._exchange(await self._connect(), message, timeout, kept=False)

    async def lines(
        self, path: str, payload: Any, timeout: float | None = None
    ) -> AsyncGenerator[tuple[int, bytes]]:
        """Send a request and yield (status, line) for each line of the answer as it arrives.

        Raise what ``request`` raises; ``timeout`` applies to each part that arrives. The connection is reused if all lines
        are read.
        """
        message, open_still = self._message("POST", path, payload), False
        kept = self._kept()
        connection = kept or await self._connect()
        try:
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        status, length, chunked, close = await _begun(
                            connection, message, bool(kept)
                        )
                        break
                    except StaleError:
                        connection[1].close()
                        kept = self._kept()
                        connection = kept or await self._connect()
            reader, pending, left = connection[0], b"", length
            while True:
                async with asyncio.timeout(timeout):
                    part = await (_chunk(reader) if chunked else reader.read(min(left, 1 << 16)))
                if not chunked and not part and left:
                    raise EOFError("closed within an answer")
                left -= len(part)
                *whole, pending = (pending + part).split(b"\n")
                for line in whole:
                    yield status, line
                if not part:
                    break
            open_still = not close
            if pending:
                yield status, pending
        except TimeoutError as error:
            raise SilentError from error
        except (ValueError, IndexError) as error:
            raise EOFError("what came back is not HTTP") from error
        finally:
            self._done_with(connection, open_still)

    def _message(self, method: str, path: str, payload: Any) -> bytes:
        body = b"" if payload is None else json.dumps(payload, separators=(",", ":")).encode()
        head = f"{method} {self.path}{path} HTTP/1.1\r\n{self._head}"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode("latin-1") + body

    def _done_with(self, connection: Connection, open_still: bool) -> None:
        """Keep a connection for the next request if it is still open, else close it."""
        if open_still:
            self._idle.append((time.monotonic(), connection))
        else:
            connection[1].close()

    async def _connect(self) -> Connection:
        try:
            async with asyncio.timeout(CONNECT):
                at = (self.host, self.port)
                return await asyncio.open_connection(*at, ssl=self.tls, limit=1 << 20)
        except TimeoutError as error:
            raise UnreachedError(str(error) or f"no connection within {CONNECT:g} s") from error

    def _kept(self) -> Connection | None:
        while self._idle:
            since, connection = self._idle.pop()
            if time.monotonic() - since < IDLE and not connection[1].is_closing():
                return connection
            connection[1].close()
        return None

    async def _exchange(
        self, connection: Connection, message: bytes, timeout: float | None, kept: bool
    ) -> tuple[int, bytes]:
        reader, writer = connection
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                status, length, chunked, close = await _begun(connection, message, kept)
                body = await (_chunks(reader) if chunked else reader.readexactly(length))
        except BaseException as error:
            writer.close()
            if isinstance(error, ValueError | IndexError):
                raise EOFError("what came back is not HTTP") from error
            if isinstance(error, TimeoutError) and limit.expired():
                raise SilentError from error
            raise
        self._done_with(connection, not close)
        return status, body

    def close(self) -> None:
        for _, (_, writer) in self._idle:
            writer.close()
        self._idle.clear()


async def _begun(connection: Connection, message: bytes, kept: bool) -> tuple[int, int, bool, bool]:
    """Send a request and return (status, body length, chunked, connection closes afterwards) from the answer's head.

    Raise StaleError if a kept connection turns out to be closed.
    """
    reader, writer = connection
    try:
        writer.write(message)
        await writer.drain()
        line = await reader.readline()
    except OSError as error:
        raise StaleError(str(error)) if kept else error from error
    if not line:
        raise StaleError("closed") if kept else EOFError("closed without an answer")
    return int(line.split(b" ", 2)[1]), *(await _headers(reader))


async def _headers(reader: asyncio.StreamReader) -> tuple[int, bool, bool]:
    """Return (body length, chunked, connection closes afterwards) from the headers."""
    length, chunked, close = 0, False, False
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        name, value = name.strip().lower(), value.strip().lower()
        if name == "content-length":
            length = int(value)
            if not 0 <= length <= LARGEST:
                raise ValueError
        elif name == "transfer-encoding":
            chunked = "chunked" in value
        elif name == "connection":
            close = value == "close"
    if not line:
        raise EOFError("closed within an answer")
    return length, chunked, close


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while part := await _chunk(reader):
        parts.append(part)
    return b"".join(parts)


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    """Return the next chunk of a body; b"" after the last one."""
    size = int((await reader.readline()).split(b";")[0], 16)
    if not 0 <= size <= LARGEST:
        raise ValueError
    if not size:
        while (await reader.readline()).strip():
            pass  # trailers
        return b""
    part = await reader.readexactly(size)
    await reader.readline()
    return part
