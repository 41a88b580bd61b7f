"""Read answers while a server writes them: open streams, how often they report, and what to do if one breaks off.

A stream may continue beyond an answer (``Generate.onward``): the next answer takes the tokens written meanwhile if they
follow the same text, and tokens that nobody asks for are dropped. That does not change the distribution of the tokens
taken: the decision to stop asking is made before the next tokens are seen.
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

EVERY = 0.1  # the fewest seconds between two events of a stream
SHARE = 0.006  # the same, times the number of open streams; the longer of the two counts
MOST = 64  # the most tokens in an event
WEIGHT = 0.2  # of the latest stream in the running average of the speed
PAUSE = 0.1  # seconds before a stream that broke off is reopened
# sampling parameters that only say how much text a request wants
EXTENT = {"max_new_tokens", "stop", "stop_regex", "stream_interval"}


@dataclass
class OpenStream:
    """A text that a server is writing and streams to us."""

    place: Server
    rid: str
    payload: Payload
    first: Reply | None  # its first event, until ``next`` has returned it
    events: AsyncGenerator[Reply]  # each has the text so far
    before: list[int]  # the ids that its next tokens follow
    taken: Taken = field(default_factory=Taken)
    # the rest is not used for the stream of a server's own loop
    told: int = 0  # tokens in its events so far
    ready: deque[int] = field(default_factory=deque)  # tokens received and not yet taken
    meta: Mapping[str, Any] | None = None  # of the last event; None: there was none yet
    ended: bool = False
    # the ready tokens were written between these clock times; tokens taken before were written by ``start``
    start: float = 0.0
    end: float = 0.0
    began: float = 0.0  # when its first tokens came
    first_told: int = 0  # how many tokens came first

    async def more(self, increments: bool) -> None:
        """Wait for the next event and add its tokens to ``ready``."""
        reply = await self.next()
        fresh = reply["output_ids"] if increments else reply["output_ids"][self.told :]
        self.ready.extend(fresh)
        self.start, self.end = self.end, time.perf_counter()
        self.told += len(fresh)
        if not self.began and fresh:
            self.began, self.first_told = self.end, len(fresh)
        self.meta, self.ended = reply["meta_info"], requests.ended(reply)

    def give(self, writing: Writing) -> None:
        """Let an answer take as many ready tokens as it wants."""
        count = len(self.ready)
        while self.ready and not writing.done:
            writing.take([self.ready.popleft()])
        if taken := count - len(self.ready):
            self.start += (self.end - self.start) * taken / count

    def goes_on(self, payload: Payload) -> bool:
        """Return whether the tokens that it writes next also answer this request."""
        own, asked = (
            {k: v for k, v in one["sampling_params"].items() if k not in EXTENT}
            for one in (self.payload, payload)
        )
        return self.before == payload["input_ids"] and own == asked

    async def next(self) -> Reply:
        """Wait for the next event and return it; raise EOFError if the stream breaks off."""
        first, self.first = self.first, None
        if first is not None:
            return first
        async for reply in self.events:
            return reply
        raise EOFError("closed before the end")


class EventSize:
    """Decides how many tokens each event of a stream carries.

    An event takes the server and us about the same time however many tokens it carries: on one shared core, an event for
    every token made answers 8 % slower, one for every second token cost nothing. A slow model therefore reports every token,
    a fast one all tokens of ``EVERY`` seconds, or of a longer time while many streams are open (``SHARE``).
    """

    def __init__(self) -> None:
        self.open = 0  # streams being read
        self._token: float | None = None  # seconds per token of a stream; None: not measured yet

    def interval(self) -> int:
        """Return the tokens per event for a stream that begins now."""
        if self._token is None:
            return 1
        return min(MOST, math.ceil(max(EVERY, SHARE * self.open) / self._token))

    def learn(self, tokens: int, seconds: float) -> None:
        """Learn the speed from one stream: its tokens after the first event, and the time they took."""
        if tokens > 0 and seconds > 0:
            now, before = seconds / tokens, self._token
            self._token = now if before is None else before + WEIGHT * (now - before)


class Reopening:
    """Decides, for one answer, when a stream that broke off is reopened to continue after the tokens it reported."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._since: float | None = None  # time of the first of the failures in a row

    def worked(self) -> None:
        """Record that a stream brought tokens: patience starts afresh."""
        self._since = None

    async def wait(self, place: Server, error: Exception) -> None:
        """Pause; after the server's patience is over, count it as lost, which may raise UserError."""
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since > place.patience:
            self._replicas.lost(place, str(error) or type(error).__name__)
        await asyncio.sleep(PAUSE)


class Streams:
    """The streams of one engine."""

    def __init__(self, sender: Sender, checks: Checks) -> None:
        self._sender, self._checks = sender, checks
        # by context key, open between two answers: of a server's own loop, and of text that is written onward
        self._kept: dict[int, OpenStream] = {}
        self._onward: dict[int, OpenStream] = {}
        self._size = EventSize()

    async def read(
        self,
        context: Context,
        payload: Payload,
        writing: Writing,
        reopening: Reopening,
        onward: bool = False,
    ) -> None:
        """Take tokens as a server writes them, until the answer is complete.

        Return early if the stream breaks off; its tokens so far stay in ``writing``. ``onward``: it continues after the answer.
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
                    if stream.ready:  # the first tokens already show that the server answers
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
        """Pass a stream's speed on to the event size."""
        self._size.learn(stream.told - stream.first_told, stream.end - stream.began)

    async def next_rounds(
        self, context: Context, ids: list[int], problem: Callable[[], Payload], answer: Answer
    ) -> bool:
        """Answer with the next rounds of a problem that the server's own loop solves; return whether it has ended.

        The stream stays open between two answers while the server continues. ``problem`` makes the request to continue
        after ``ids`` if no open stream does so.
        """
        began, reopening = time.perf_counter(), Reopening(self._sender.replicas)
        stream = self._kept.pop(context.key, None)
        if stream is not None and stream.before != ids:  # the caller's text took another path
            self._abort(stream)
            stream = None
        while True:
            if stream is None:
                stream = await self._open(context, requests.streamed(problem()), ids)
            try:
                reply, begins = await stream.next(), not stream.taken.tokens
                written = stream.payload, reply, answer, stream.place.name
                requests.take_inside(*written, stream.taken)
            except (OSError, EOFError) as error:  # open another one after the reported tokens
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
        """Return whether a stream writes beyond what was asked for a context; for any thread."""
        return key in self._onward

    def halt(self, key: int) -> None:
        """End the stream that writes beyond what was asked for a context."""
        if (stream := self._onward.pop(key, None)) is not None:
            self._abort(stream)

    def give_up(self, key: int) -> None:
        """Abort all open streams of a context."""
        self.halt(key)
        if (stream := self._kept.pop(key, None)) is not None:
            self._abort(stream)

    def give_up_all(self) -> None:
        """Abort all open streams."""
        for key in [*self._kept, *self._onward]:
            self.give_up(key)

    def _abort(self, stream: OpenStream) -> None:
        """Abort a stream unless it has ended by itself, and learn from its speed."""
        if stream.ended:
            return
        self._learn(stream)
        self._sender.abort(stream.place, stream.rid, stream.events)
