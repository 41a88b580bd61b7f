"""Answers that are read while a server writes them: open streams, how often they report, what follows if one breaks off.

A stream may go on behind an answer (``Generate.onward``): the next answer takes what it has written meanwhile, if it stands
behind the same text, and what nobody asks for is dropped. That does not change the law of what is taken: whoever stops
asking has not seen what comes next.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
# of a request: how much of a text it wants
EXTENT = {"max_new_tokens", "stop", "stop_regex", "stream_interval"}


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
    # of a stream that is no loop of the server's own:
    told: int = 0  # tokens in its events so far
    ready: deque[int] = field(default_factory=deque)  # of the last event, those that nobody took
    meta: Mapping[str, Any] | None = None  # of the last event; None: there was none yet
    ended: bool = False
    # seconds on the clock, between which what is ready was written: what was taken was written by the first
    start: float = 0.0
    end: float = 0.0
    began: float = 0.0  # when its first tokens came, and how many these were
    first_told: int = 0

    async def more(self, increments: bool) -> None:
        """Wait for the next event and have its tokens ready."""
        reply = await self.next()
        fresh = reply["output_ids"] if increments else reply["output_ids"][self.told :]
        self.ready.extend(fresh)
        self.start, self.end = self.end, time.perf_counter()
        self.told += len(fresh)
        if not self.began and fresh:
            self.began, self.first_told = self.end, len(fresh)
        self.meta, self.ended = reply["meta_info"], requests.ended(reply)

    def give(self, writing: Writing) -> None:
        """Let an answer take what is ready, as much as it wants."""
        count = len(self.ready)
        while self.ready and not writing.done:
            writing.take([self.ready.popleft()])
        if taken := count - len(self.ready):
            self.start += (self.end - self.start) * taken / count

    def goes_on(self, payload: Payload) -> bool:
        """Tell whether what it writes next is an answer to this request, too."""
        own, asked = (
            {k: v for k, v in one["sampling_params"].items() if k not in EXTENT}
            for one in (self.payload, payload)
        )
        return self.before == payload["input_ids"] and own == asked

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
        self._kept: dict[int, OpenStream] = {}  # by context: open between two answers of a loop
        self._onward: dict[int, OpenStream] = {}  # the same, of texts that are written onward
        self._size = EventSize()

    async def read(
        self,
        context: Context,
        payload: Payload,
        writing: Writing,
        reopening: Reopening,
        onward: bool = False,
    ) -> None:
        """Take what a server writes as it comes, until the text is complete or no more of it is wanted.

        Return early where the stream breaks off; what it reported stays in ``writing``. ``onward``: it goes on behind the answer.
        """
        answer, before = writing.answer, len(writing.answer.tokens)
        stream, began = self._onward.pop(context.key, None), time.perf_counter()
        self.give_up(context.key)
        if stream is not None and not stream.goes_on(payload):
            self._abort(stream)
            stream = None
        if begins := stream is None:
            asked = requests.streamed(payload, self._size.interval())
            stream = await self._open(context, asked, payload["input_ids"])
            stream.end = began
        assert stream is not None
        since = stream.end if begins else stream.start
        await self._take(stream, writing, reopening)
        if stream.meta is None:
            return
        if stream.ended and not stream.told:
            raise requests.nothing_written(stream.place.name)
        stream.before = [*payload["input_ids"], *answer.tokens[before:]]
        keeps = onward and writing.done and answer.finish != "eos"
        if keeps and (stream.ready or not stream.ended):
            self._onward[context.key] = stream
        else:
            self._abort(stream)
        if begins and not keeps:
            requests.account(stream.meta, answer, time.perf_counter() - began)
            return
        answer.onward = True
        answer.seconds += stream.start - since
        answer.fed += len(answer.tokens) - before
        if begins:
            requests.account_prompt(stream.meta, answer)

    async def _take(self, stream: OpenStream, writing: Writing, reopening: Reopening) -> None:
        """Let an answer take a stream's tokens until it is complete, or the stream ends or breaks off."""
        increments, told = stream.place.name in self._checks.increments, stream.told
        self._size.open += 1
        try:
            while not writing.done and (stream.ready or not stream.ended):
                if not stream.ready:
                    await stream.more(increments)
                    if stream.ready:  # a slow answer is one from its first token on
                        self._sender.replicas.answered(stream.place)
                    if stream.ended:
                        self._learn(stream)
                        self._sender.finish(stream.events)
                stream.give(writing)
        except (OSError, EOFError) as error:
            await reopening.wait(stream.place, error)
        except (asyncio.CancelledError, UserError):
            self._abort(stream)
            raise
        finally:
            self._size.open -= 1
        if stream.told > told:
            reopening.worked()

    def _learn(self, stream: OpenStream) -> None:
        """Learn how fast a stream was."""
        self._size.learn(stream.told - stream.first_told, stream.end - stream.began)

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

    def writes_onward(self, key: int) -> bool:
        """Tell whether more of a context's text is written than was asked for; for any thread."""
        return key in self._onward

    def halt(self, key: int) -> None:
        """Write no more of a context's text than was asked for."""
        if (stream := self._onward.pop(key, None)) is not None:
            self._abort(stream)

    def give_up(self, key: int) -> None:
        """Abort every stream that is kept open for a context."""
        self.halt(key)
        if (stream := self._kept.pop(key, None)) is not None:
            self._abort(stream)

    def give_up_all(self) -> None:
        """Abort every stream that is kept open."""
        for key in [*self._kept, *self._onward]:
            self.give_up(key)

    def _abort(self, stream: OpenStream) -> None:
        """End a stream, unless its server has done so."""
        if stream.ended:
            return
        self._learn(stream)
        self._sender.abort(stream.place, stream.rid, stream.events)
