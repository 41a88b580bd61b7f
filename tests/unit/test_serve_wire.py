"""A connection whose client does not read ends all the same: it keeps neither the server nor its memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import Any

import pytest
import uvicorn

from semspec.serve import wire

LARGE = bytes(64 << 20)  # more than the system keeps for a connection


async def app(scope: Any, receive: Any, send: Any) -> None:
    start = {"type": "http.response.start", "status": 200, "headers": []}
    await send(start)
    await send({"type": "http.response.body", "body": LARGE, "more_body": False})


@contextlib.asynccontextmanager
async def running() -> Any:
    options: dict[str, Any] = {"log_config": None, "lifespan": "off", "ws": "none", "port": 0}
    http = wire.wire(30.0, lambda error: None)
    server = uvicorn.Server(uvicorn.Config(app, http=http, **options))
    serving = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server, server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "UNREAD", 0.3)


def asking(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
    return connection


def test_a_server_ends_though_a_client_does_not_read(quick: None) -> None:
    async def work() -> float:
        async with running() as (_, port):
            connection = await asyncio.to_thread(asking, port)
            await asyncio.to_thread(connection.recv, 1)  # it is being sent
            began = time.monotonic()
        connection.close()
        return time.monotonic() - began

    assert asyncio.run(work()) < 10


def test_a_client_that_reads_slowly_gets_all_of_it(quick: None) -> None:
    def read(connection: socket.socket) -> int:
        got = 0
        while part := connection.recv(4 << 20):
            got += len(part)
            time.sleep(0.02)
        return got

    async def work() -> int:
        async with running() as (server, port):
            connection = await asyncio.to_thread(asking, port)
            await asyncio.to_thread(connection.recv, 1)
            reading = asyncio.ensure_future(asyncio.to_thread(read, connection))
            server.should_exit = True  # it closes the connection once all is sent
            return await reading

    assert asyncio.run(work()) > len(LARGE)
