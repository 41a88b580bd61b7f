"""Start and end of the server: it listens at once, is ready once the models are, and finishes running requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette

from semspec.engines.news import ReplicaLine
from semspec.errors import UserError
from semspec.serve.app import build
from semspec.serve.keys import Keys, check_bind
from semspec.serve.log import Lines, log
from semspec.serve.scheduling import Scheduler
from semspec.serve.service import Service
from semspec.serve.settings import Settings
from semspec.serve.wire import MOST, wire
from semspec.solver import Solver

SIGNALS = (signal.SIGINT, signal.SIGTERM)
TICK = 1.0  # seconds
# Seconds that a thread waits before it asks another one for the GIL. Python's default of 5 ms is long here: the models' thread
# releases the GIL in each operation, which wakes the event loop, and has taken it again by the time the loop runs.
SWITCH = 0.0002
NAP = 0.05  # seconds between checks for running requests during shutdown


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, and without its ten checks a second whether to end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._leaving = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # this also updates the Date header of responses
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await self._leaving.wait()

    def leave(self) -> None:
        self.should_exit = True
        self._leaving.set()


def serve(
    make: Callable[[], Solver],
    settings: Settings,
    keys: Keys,
    *,
    host: str,
    port: int,
    insecure: bool,
    concurrency: int,
    keep: int,
    began: float,
    told: Callable[[str, float], object],
) -> None:
    """Serve until a signal ends it; raise UserError if models cannot be loaded or the address is taken.

    ``make`` loads the models. ``told`` is called with the address, and the seconds since ``began`` (a ``time.monotonic``),
    when the server is ready.
    """
    check_bind(host, keys, insecure)
    logging.basicConfig(handlers=[Lines()], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
    sys.setswitchinterval(SWITCH)
    listening = _listen(host, port)
    asyncio.run(_run(make, settings, keys, listening, concurrency, keep, began, told))


def log_told(line: str) -> None:
    """Log a line about loading models, or about an SGLang server that is lost or back."""
    if isinstance(line, ReplicaLine):
        log({"event": "replica", **line.fields})
    else:
        log({"event": "load", "message": line})


def _listen(host: str, port: int) -> socket.socket:
    """Bind the address; raise UserError if that fails."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
    except OSError as error:
        raise UserError(
            f"host={host} port={port} cannot be used ({error.strerror}): choose another"
        ) from error
    return listening


async def _run(
    make: Callable[[], Solver],
    settings: Settings,
    keys: Keys,
    listening: socket.socket,
    concurrency: int,
    keep: int,
    began: float,
    told: Callable[[str, float], object],
) -> None:
    scheduler = Scheduler(make, concurrency, keep)
    service = Service(scheduler, settings, keys)
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    address, number = listening.getsockname()[:2]
    url = f"http://[{address}]:{number}" if ":" in address else f"http://{address}:{number}"

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(changed.set)

        scheduler.start(tell)
        yield

    options: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
    options |= {"timeout_keep_alive": 30, "h11_max_incomplete_event_size": MOST}
    options |= {"http": wire(settings.patience, service.refused), "ws": "none"}
    config = uvicorn.Config(build(service, lifespan), lifespan="on", **options)
    server = _Server(config)
    ending = asyncio.Event()

    def end() -> None:
        """Shut down after the running requests; at the second signal, at once."""
        if ending.is_set():
            log({"event": "stop", "in_flight": scheduler.busy})
            os._exit(1)
        ending.set()
        scheduler.drain()
        log({"event": "drain", "in_flight": scheduler.busy})

    for one in SIGNALS:
        loop.add_signal_handler(one, end)
    serving = asyncio.ensure_future(server.serve([listening]))
    try:
        await _until(changed, ending, serving)
        if scheduler.state == "ready":
            seconds = time.monotonic() - began
            told(url, seconds)
            log({"event": "ready", "url": url, "model": settings.name, "seconds": round(seconds, 1), "seed_repeats": scheduler.repeats})  # fmt: skip
            changed.clear()
            await _until(changed, ending, serving)
        while scheduler.state == "draining" and (scheduler.busy or service.in_flight):
            await asyncio.sleep(NAP)
    finally:
        server.leave()
        await serving
        if scheduler.state != "starting":
            scheduler.close()
            await asyncio.to_thread(scheduler.join, 30.0)
        for one in SIGNALS:
            loop.remove_signal_handler(one)
    if scheduler.error is not None:
        raise scheduler.error
    log({"event": "end"})


async def _until(
    changed: asyncio.Event, ending: asyncio.Event, serving: asyncio.Future[None]
) -> None:
    """Wait until the scheduler's state changes, a signal comes, or the server ends by itself."""
    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(e.wait()) for e in (changed, ending)]
    await asyncio.wait([*waits, serving], return_when=asyncio.FIRST_COMPLETED)
    for one in waits:
        one.cancel()
