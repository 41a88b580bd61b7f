"""Connect the event loop, which handles requests, with the driver's thread, which runs the models.

One thread runs the driver over an inbox and sleeps while there is nothing to do. Choices go into the inbox as they come and
begin at the driver's next turn if there is room. Their news goes back by ``loop.call_soon_threadsafe``.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from functools import cached_property
from typing import Literal

from semspec.decoding.trim import shared
from semspec.driver import Finished, Inbox
from semspec.serve.choices import Choice
from semspec.serve.news import News
from semspec.serve.seeds import fingerprint
from semspec.solver import Solver
from semspec.storage.screen import LOG
from semspec.types import Context, Role

State = Literal["starting", "ready", "draining", "over", "failed"]
LEAST_SHARED = 16  # tokens that a prompt must share with a kept session to reuse it
PAUSE = 0.05  # seconds between two deliveries of an answer's news
SHARE = 0.004  # the same, times the answers under way; the longer pause counts
LONG = 0.2  # the same, for an answer that comes faster than anybody reads
READABLE = 100  # tokens a second that somebody can read
TURN = 0.002  # seconds that the models' thread waits for a delivery, at most
SILENT = 1.25  # pauses after which news is delivered even if no more comes
AGAIN = 15.0  # seconds after which a lost drafter is tried again


class Scheduler:
    """Runs up to ``concurrency`` choices at a time; others wait in order of arrival."""

    def __init__(self, make: Callable[[], Solver], concurrency: int, keep: int = 0) -> None:
        """``make`` loads the models, in the driver's thread. ``keep``: ended sessions whose KV cache stays."""
        self._make, self.concurrency, self._keep = make, concurrency, keep
        self.state: State = "starting"
        self.error: BaseException | None = None
        self.solver: Solver | None = None
        self._in_turns = False  # choices run in lockstep
        self.reserved = 0  # places in the queue for choices that will be submitted soon
        self.inbox: Inbox[None] = Inbox()
        self._choices: dict[Context, Choice] = {}
        self._kept: OrderedDict[int, Context] = OrderedDict()
        self._lost_at: float | None = None
        self._changed: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)

    def start(self, changed: Callable[[], object]) -> None:
        """Load the models and start working; the driver's thread calls ``changed`` when the state changes."""
        self._changed = changed
        self._thread.start()

    # ---- for the event loop ---------------------------------------------------------------------

    def submit(self, choice: Choice) -> None:
        self._choices[choice.context] = choice
        self.inbox.put(choice.context, choice.plan())

    def alone(self) -> bool:
        """Tell whether no other choice waits for its turn: there is only one, or choices do not run in turns."""
        return not self._in_turns or len(self._choices) == 1

    def cancel(self, choice: Choice) -> None:
        """Drop a choice; it sends no more news."""
        if self._choices.pop(choice.context, None) is not None:
            self.inbox.drop(choice.context)

    @property
    def waiting(self) -> int:
        return len(self.inbox)

    @property
    def running(self) -> int:
        return max(0, len(self._choices) - len(self.inbox))

    @property
    def busy(self) -> int:
        """Count the choices that run or wait."""
        return len(self._choices)

    @property
    def repeats(self) -> bool:
        """True if the same seed gives the same text whatever else runs; over SGLang it does not, as SGLang samples by itself."""
        return self.solver is not None and not self.solver.free

    @cached_property
    def fingerprint(self) -> str:
        """The ``system_fingerprint``; the models have to be loaded."""
        assert self.solver is not None
        return fingerprint(self.solver)

    @property
    def drafts_lost(self) -> bool:
        """True if the target works alone: the draft's own servers have ended, or it was lost less than ``AGAIN`` seconds ago."""
        if self._engine_says("draft", "ended"):
            return True
        return self._lost_at is not None and time.monotonic() - self._lost_at < AGAIN

    def lose_drafts(self, why: str) -> None:
        """Record that the drafter is lost."""
        if not self.drafts_lost:
            LOG.warning("no drafts for %d seconds, the target goes on alone: %s", AGAIN, why)
        self._lost_at = time.monotonic()

    def away(self, role: Role) -> int:
        """Count the lost servers of a role; 0 for models without servers."""
        return self._engine_says(role, "away")

    def _engine_says(self, role: Role, name: str) -> int:
        """Return a number that an engine over servers has about them; 0 for other engines."""
        engines = self.solver.engines if self.solver is not None else {}
        return int(getattr(engines.get(role), name, 0))

    def drain(self) -> None:
        """Take no more choices; finish those that are there."""
        if self.state in ("starting", "ready"):
            self.state = "draining"
            if self.solver is not None:
                self.solver.retire()

    def close(self) -> None:
        """End the thread when all choices are done."""
        self.drain()
        self.inbox.close()

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    # ---- in the driver's thread -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._make() as solver:
                self.solver = solver
                self._in_turns = not solver.free
                if self.state == "starting":
                    self.state = "ready"
                else:
                    solver.retire()
                self._changed()
                turns = solver.driver.turns(self.inbox, self.concurrency, self._forget)
                with closing(turns):
                    for done in turns:
                        if done is not None:
                            self._end(done)
            self.state = "over"
        except BaseException as error:
            self.state, self.error = "failed", error
            for choice in list(self._choices.values()):
                choice.end(
                    Finished(
                        choice.context, None, 0.0, 0.0, None, RuntimeError("the server has failed")
                    )
                )
        finally:
            self._changed()

    def _end(self, done: Finished[None]) -> None:
        choice = self._choices.pop(done.context, None)
        if choice is not None:
            choice.end(done)

    def adopt(self, context: Context) -> None:
        """Give a new context the kept session with the longest common prefix, so that its prompt is in the KV cache."""
        best, length = None, LEAST_SHARED - 1
        for key, kept in self._kept.items():
            same = shared(kept.tokens, context.tokens)
            if same > length:
                best, length = key, same
        if best is not None:
            context.key = best
            del self._kept[best]

    def _forget(self, context: Context) -> None:
        """Keep the session of an ended context for follow-up requests; drop the oldest one if there are too many."""
        solver = self.solver
        assert solver is not None
        if not self._keep or solver.free:
            solver.driver.forget(context)
            return
        solver.rewind(context)
        self._kept[context.key] = context
        while len(self._kept) > self._keep:
            _, oldest = self._kept.popitem(last=False)
            solver.driver.forget(oldest)


class Mailbox:
    """Delivers the news of one request's choices to the event loop.

    Waking the loop costs the driver's thread a system call, and its time while the loop works: a delivery takes the GIL three
    times, and each time the other thread has to be woken. So news that comes within ``PAUSE`` of the last delivery is delivered
    together; an end is delivered at once. The pause is longer if the text comes faster than anybody reads (``LONG``), and if many
    answers are under way, so that there is at most one delivery every ``SHARE`` seconds over all of them. The driver's thread
    checks the clock itself, because a timer would wake the loop once more for every delivery.

    While only one answer is under way, the driver's thread waits until its news is delivered: two threads that compete for the
    GIL pass it back and forth, which takes several times as long as the delivery.
    """

    def __init__(self, choices: Sequence[Choice], busy: Callable[[], int] = lambda: 1) -> None:
        """``busy`` returns how many answers are under way."""
        self._choices, self._busy = choices, busy
        self._event, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self._called = self._told = False  # the loop was woken; there is news for it
        self._next = 0.0  # when the loop may be woken again
        self._stopped: BaseException | None = None
        self._pause, self._tokens = PAUSE, 0  # the last pause, and the tokens delivered before it
        self._delivered = threading.Lock()  # released after each delivery
        self._delivered.acquire()
        for choice in choices:
            choice.wake = self._wake

    def _wake(self, ended: bool) -> None:
        self._told = True
        if ended or (not self._called and time.monotonic() >= self._next):
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._event.set)
            if not ended and self._busy() == 1:
                self._delivered.acquire(timeout=TURN)

    def _look(self) -> None:
        if self._told:
            self._event.set()

    def stop(self, error: BaseException) -> None:
        """Make ``news`` raise an error; called from the event loop."""
        self._stopped = error
        self._event.set()

    async def news(self) -> AsyncIterator[tuple[int, News]]:
        """Yield news with the number of its choice until all have ended; raise the error given to ``stop``."""
        left, tokens = set(range(len(self._choices))), [0] * len(self._choices)
        silence: asyncio.TimerHandle | None = None
        while left:
            await self._event.wait()
            self._event.clear()
            if silence is not None:
                silence.cancel()
            if self._stopped is not None:
                raise self._stopped
            self._told = False
            for number in sorted(left):
                news = self._choices[number].take()
                tokens[number] = news.tokens
                if news.ended:
                    left.discard(number)
                if news.items or news.logprobs or news.ended:
                    yield number, news
            pause = self._next_pause(sum(tokens))
            if left:
                silence = self._loop.call_later(SILENT * pause, self._look)
            self._next, self._called = time.monotonic() + pause, False
            if self._delivered.locked():
                self._delivered.release()

    def _next_pause(self, tokens: int) -> float:
        """Return the pause until the next delivery, after ``tokens`` tokens in all."""
        fast = tokens - self._tokens > READABLE * self._pause * len(self._choices)
        self._tokens = tokens
        self._pause = max(LONG if fast else PAUSE, SHARE * self._busy())
        return self._pause
