"""What servers tell while they write: the streams that are open, how often they are told, and those that break off."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from semspec.engines._sglang.replicas import Replicas
from semspec.engines._sglang.requests import Payload, Taken
from semspec.engines._sglang.server import Reply, Server

EVERY = 0.1  # seconds between two events of a stream, at least
SHARE = 0.006  # the same, for each stream that is open: the longer one counts
MOST = 64  # tokens of an event at most
WEIGHT = 0.2  # of the newest stream in what is known of the speed
PAUSE = 0.1  # seconds before a stream that broke off is begun again


@dataclass
class Telling:
    """A text that a server is writing, and telling as it grows."""

    place: Server
    rid: str
    payload: Payload
    first: Reply | None  # what it told first, until that is taken
    events: AsyncGenerator[Reply]  # what it has written so far, each time
    ids: list[int]  # the text that it goes on behind
    taken: Taken = field(default_factory=Taken)

    async def next(self) -> Reply:
        """Return all that it has written, once that is more than before; raise EOFError where it breaks off."""
        first, self.first = self.first, None
        if first is not None:
            return first
        async for reply in self.events:
            return reply
        raise EOFError("closed before the end")


class Pulse:
    """How many tokens an event of a stream is to have.

    An event costs the server and us some time, whatever it has: on one core for all, each token by itself made answers 8 % slower, every
    second one none. So a slow model tells every token, and a fast one those of ``EVERY`` seconds together; many streams at a
    time share that out.
    """

    def __init__(self) -> None:
        self.open = 0  # streams under way
        self._token: float | None = None  # seconds, in one stream; None: nothing was measured

    def interval(self) -> int:
        """Return the tokens of an event of a stream that begins now."""
        if self._token is None:
            return 1
        return min(MOST, math.ceil(max(EVERY, SHARE * self.open) / self._token))

    def took(self, tokens: int, seconds: float) -> None:
        """Learn from so many tokens of one stream, those of its first event not counted."""
        if tokens > 0 and seconds > 0:
            now, before = seconds / tokens, self._token
            self._token = now if before is None else before + WEIGHT * (now - before)


class Breaks:
    """Streams of one answer that break off: another one goes on behind what was told."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._since: float | None = None  # nothing has come since then

    def over(self) -> None:
        """Take note that something came."""
        self._since = None

    async def another(self, place: Server, error: Exception) -> None:
        """Wait a moment; raise UserError once nothing comes of it and no replica is left."""
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since > place.patience:
            self._replicas.lost(place, str(error) or type(error).__name__)
        await asyncio.sleep(PAUSE)
