"""Answers that are read while a server writes them: open streams, how often they report, what follows if one breaks off."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from semspec.engines._sglang import requests
from semspec.engines._sglang.checks import Checks
from semspec.engines._sglang.replicas import Replicas
from semspec.engines._sglang.requests import Payload, Taken, Writing
from semspec.engines._sglang.sender import Sender
from semspec.engines._sglang.server import Reply, Server
from semspec.errors import UserError
from semspec.types import Answer, Context

EVERY = 0.1  # seconds between two events of a stream, at least
SHARE = 0.006  # the same, for each open stream; the longer of the two counts
MOST = 64  # tokens in an event, at most
WEIGHT = 0.2  # of the latest stream in the running average of the speed
PAUSE = 0.1  # seconds before a stream that broke off is opened again


@dataclass
class OpenStream:
    """A text that a server is writing, reported as it grows."""

    place: Server
    rid: str
    payload: Payload
    first: Reply | None  # its first event, until ``next`` has returned it
    events: AsyncGenerator[Reply]  # each has the text so far
    before: list[int]  # the ids that its next tokens follow
    taken: Taken = field(default_factory=Taken)

    async def next(self) -> Reply:
        """Wait for the next event and return it; raise EOFError where the stream breaks off."""
        first, self.first = self.first, None
        if first is not None:
            return first
        async for reply in self.events:
            return reply
        raise EOFError("closed before the end")


class EventSize:
    """How many tokens each event of a stream should carry.

    An event costs the server and us about the same time whatever it carries: on one shared core, an event for every token
    made answers 8 % slower, an event for every second token cost nothing. A slow model therefore reports every token, and a
    fast one what it writes in ``EVERY`` seconds, or longer while many streams are open (``SHARE``).
    """

    def __init__(self) -> None:
        self.open = 0  # streams under way
        self._token: float | None = (
            None  # seconds for one token of a stream; None: not measured yet
        )

    def interval(self) -> int:
        """Return the tokens between two events of a stream that begins now."""
        if self._token is None:
            return 1
        return min(MOST, math.ceil(max(EVERY, SHARE * self.open) / self._token))

    def learn(self, tokens: int, seconds: float) -> None:
        """Learn the speed from one stream: its tokens after the first event, and the time they took."""
        if tokens > 0 and seconds > 0:
            now, before = seconds / tokens, self._token
            self._token = now if before is None else before + WEIGHT * (now - before)


class Reopening:
    """When a stream that broke off may be opened again, to go on behind what it had reported; for one answer."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._since: float | None = None  # when the first of the failures in a row happened

    def worked(self) -> None:
        """Record that a stream brought something: patience starts afresh."""
        self._since = None

    async def wait(self, place: Server, error: Exception) -> None:
        """Wait a moment; once the server's patience is over, count it as lost, which may raise UserError."""
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since > place.patience:
            self._replicas.lost(place, str(error) or type(error).__name__)
        await asyncio.sleep(PAUSE)


class Streams:
    """The streams of one engine."""

    def __init__(self, sender: Sender, checks: Checks) -> None:
        self._sender, self._checks = sender, checks
        self._kept: dict[int, OpenStream] = {}  # by context: open between two answers
        self._size = EventSize()

    async def read(
        self, context: Context, payload: Payload, writing: Writing, reopening: Reopening
    ) -> None:
        """Take what a server writes as it comes, until the text is complete or no more of it is wanted.

        Return early where the stream breaks off; what it reported stays in ``writing``.
        """
        payload, began = requests.streamed(payload, self._size.interval()), time.perf_counter()
        stream = await self._open(context, payload, payload["input_ids"])
        increments, taken, first = stream.place.name in self._checks.increments, 0, 0
        self._size.open += 1
        reply: Reply | None = None
        try:
            while reply is None or not (writing.done or requests.ended(reply)):
                reply = await stream.next()
                fresh = reply["output_ids"] if increments else reply["output_ids"][taken:]
                taken += len(fresh)
                if not first:
                    first, started = taken, time.perf_counter()
                    if first:  # a slow answer is one from its first token on
                        self._sender.replicas.answered(stream.place)
                writing.take(fresh)
        except (OSError, EOFError) as error:
            await reopening.wait(stream.place, error)
        except (asyncio.CancelledError, UserError):
            self._abort(stream)
            raise
        finally:
            self._size.open -= 1
        if reply is None:
            return
        if requests.ended(reply):
            self._sender.finish(stream.events)
        else:
            self._abort(stream)
        if requests.ended(reply) and not taken:
            raise requests.nothing_written(stream.place.name)
        reopening.worked()
        self._sender.replicas.answered(stream.place)
        self._size.learn(taken - first, time.perf_counter() - started)
        requests.account(reply["meta_info"], writing.answer, time.perf_counter() - began)

    async def next_rounds(
        self, context: Context, ids: list[int], problem: Callable[[], Payload], answer: Answer
    ) -> bool:
        """Answer with the next rounds of a problem that the server's own loop solves; return whether it has ended.

        The stream stays open between two answers, and the server goes on meanwhile. ``problem`` makes the request for what
        follows ``ids``, where no stream is open that goes on there.
        """
        began, reopening = time.perf_counter(), Reopening(self._sender.replicas)
        stream = self._kept.pop(context.key, None)
        if stream is not None and stream.before != ids:  # the caller's text went another way
            self._abort(stream)
            stream = None
        while True:
            if stream is None:
                stream = await self._open(context, requests.streamed(problem()), ids)
            try:
                reply, begins = await stream.next(), not stream.taken.tokens
                written = stream.payload, reply, answer, stream.place.name
                requests.take_inside(*written, stream.taken)
            except (OSError, EOFError) as error:  # open another one behind what was reported
                place, stream = stream.place, None
                await reopening.wait(place, error)
                continue
            except (asyncio.CancelledError, UserError):
                self._abort(stream)
                raise
            ended = requests.ended(reply)
            if answer.tokens:
                break
            stream = None if ended else stream  # the end came in an event without tokens
        self._sender.replicas.answered(stream.place)
        meta, answer.seconds = reply["meta_info"], time.perf_counter() - began
        answer.fed = len(answer.tokens)
        if begins:
            answer.cached = int(meta.get("cached_tokens") or 0)
            answer.fed += int(meta["prompt_tokens"]) - answer.cached
        if not ended:
            stream.before = [*ids, *answer.tokens]
            self._kept[context.key] = stream
        return ended

    async def _open(self, context: Context, payload: Payload, before: list[int]) -> OpenStream:
        async def begin(place: Server, rid: str) -> OpenStream:
            first, events = await place.stream({**payload, "rid": rid})
            return OpenStream(place, rid, payload, first, events, before)

        return await self._sender.at_home(context, begin)

    def give_up(self, key: int) -> None:
        """Abort the stream that is kept open for a context, if there is one."""
        if (stream := self._kept.pop(key, None)) is not None:
            self._abort(stream)

    def give_up_all(self) -> None:
        """Abort every stream that is kept open."""
        for key in list(self._kept):
            self.give_up(key)

    def _abort(self, stream: OpenStream) -> None:
        self._sender.abort(stream.place, stream.rid, stream.events)
