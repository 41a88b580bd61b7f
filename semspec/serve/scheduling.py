"""The bridge between the event loop, where requests are, and the driver's thread, where models are.

One thread runs the driver over an inbox; it sleeps while there is nothing to do. Choices are put into the inbox as
they come, and begin at the next turn if there is room. What they tell goes back by ``loop.call_soon_threadsafe``.
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
LEAST_SHARED = 16  # tokens of a prompt that are worth a session that is kept
PAUSE = 0.05  # seconds between two deliveries of what an answer tells
SHARE = 0.004  # the same, for each answer that is under way: the longer one counts
LONG = 0.2  # the same, of an answer that comes faster than anybody reads
READABLE = 100  # tokens a second
TURN = 0.002  # seconds that a delivery may take while the models' thread stands back for it
SILENT = (
    1.25  # times the pause after which what was told is delivered although nothing more has come
)
AGAIN = 15.0  # seconds after which a drafter that was lost is tried again


class Scheduler:
    """Runs choices, so many at a time; the others wait in the order in which they came."""

    def __init__(self, make: Callable[[], Solver], concurrency: int, keep: int = 0) -> None:
        """``make`` loads the models, in the driver's thread. ``keep``: sessions of prompts that stay in the cache."""
        self._make, self.concurrency, self._keep = make, concurrency, keep
        self.state: State = "starting"
        self.error: BaseException | None = None
        self.solver: Solver | None = None
        self._in_turns = False  # choices run in lockstep
        self.reserved = 0  # places in the queue of choices that are about to begin
        self.inbox: Inbox[None] = Inbox()
        self._choices: dict[Context, Choice] = {}
        self._kept: OrderedDict[int, Context] = OrderedDict()
        self._lost_at: float | None = None
        self._changed: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)

    def start(self, changed: Callable[[], object]) -> None:
        """Load the models and begin to work; ``changed`` is called from the thread when the state has changed."""
        self._changed = changed
        self._thread.start()

    # ---- for the event loop ---------------------------------------------------------------------

    def submit(self, choice: Choice) -> None:
        self._choices[choice.context] = choice
        self.inbox.put(choice.context, choice.plan())

    def alone(self) -> bool:
        """Return True if nobody waits for one choice to pause: it is the only one, and wanted, or others need no turn of it."""
        return not self._in_turns or len(self._choices) == 1

    def cancel(self, choice: Choice) -> None:
        """Give a choice up; nothing more is heard of it."""
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
        """True if one seed has one text, whatever else is running: SGLang draws by itself."""
        return self.solver is not None and not self.solver.free

    @cached_property
    def fingerprint(self) -> str:
        """The name of what a seed's text depends on; for when the models are loaded."""
        assert self.solver is not None
        return fingerprint(self.solver)

    @property
    def drafts_lost(self) -> bool:
        """True while its own servers have ended, and for a while after the drafter was lost: the target then works alone."""
        if self._engine_says("draft", "ended"):
            return True
        return self._lost_at is not None and time.monotonic() - self._lost_at < AGAIN

    def lose_drafts(self, why: str) -> None:
        """Take note that drafts cannot be had."""
        if not self.drafts_lost:
            LOG.warning("no drafts for %d seconds, the target goes on alone: %s", AGAIN, why)
        self._lost_at = time.monotonic()

    def away(self, role: Role) -> int:
        """Count the servers of a role that are lost; 0 for models that have no servers."""
        return self._engine_says(role, "away")

    def _engine_says(self, role: Role, name: str) -> int:
        """Return what an engine over servers says of them; 0 for any other one."""
        engines = self.solver.engines if self.solver is not None else {}
        return int(getattr(engines.get(role), name, 0))

    def drain(self) -> None:
        """Take no more choices; those that are there go on."""
        if self.state in ("starting", "ready"):
            self.state = "draining"
            if self.solver is not None:
                self.solver.retire()

    def close(self) -> None:
        """End when everything that is there is done."""
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
        """Let a new context go on in the session of an earlier one that begins alike, so that it finds its prompt cached."""
        best, length = None, LEAST_SHARED - 1
        for key, kept in self._kept.items():
            same = shared(kept.tokens, context.tokens)
            if same > length:
                best, length = key, same
        if best is not None:
            context.key = best
            del self._kept[best]

    def _forget(self, context: Context) -> None:
        """Keep the session of a context that has ended for who goes on from it; let an older one go."""
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
    """What the choices of one request tell, for the event loop.

    To wake the loop costs the driver's thread a system call, and then its turn while the loop works: a delivery takes the
    interpreter's lock three times, and each time the other thread has to be woken. So what comes within ``PAUSE`` of the last
    delivery is delivered together, and an end at once. The pause is longer where the text comes faster than anybody reads (``LONG``), and
    where many answers are under way, so that all of them together are not told more often than every ``SHARE`` seconds. The thread
    that tells looks at the clock itself: a timer would wake the loop once more for every delivery.

    The thread of an answer that is alone stands back until its news are delivered: two threads that both want the lock hand it to
    and fro, which takes several times as long as the delivery does.
    """

    def __init__(self, choices: Sequence[Choice], busy: Callable[[], int] = lambda: 1) -> None:
        """``busy``: how many answers are under way."""
        self._choices, self._busy = choices, busy
        self._event, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self._called = self._told = False  # the loop was woken; there is something for it
        self._next = 0.0  # when it may be woken again
        self._stopped: BaseException | None = None
        self._pause, self._tokens = PAUSE, 0  # the last one, and what was told before it
        self._delivered = threading.Lock()  # free once what was told is delivered
        self._delivered.acquire()
        for choice in choices:
            choice.wake = self._wake

    def _wake(self, ended: bool) -> None:
        self._told = True
        if ended or (not self._called and time.monotonic() >= self._next):
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody listens
                self._loop.call_soon_threadsafe(self._event.set)
            if not ended and self._busy() == 1:
                self._delivered.acquire(timeout=TURN)

    def _look(self) -> None:
        if self._told:
            self._event.set()

    def stop(self, error: BaseException) -> None:
        """Let who waits for news get an error; for the event loop."""
        self._stopped = error
        self._event.set()

    async def news(self) -> AsyncIterator[tuple[int, News]]:
        """Yield what is new, with the number of its choice, until all have ended; raise what ``stop`` was given."""
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
        """Return how long nothing is to be told, now that so many tokens have been."""
        fast = tokens - self._tokens > READABLE * self._pause * len(self._choices)
        self._tokens = tokens
        self._pause = max(LONG if fast else PAUSE, SHARE * self._busy())
        return self._pause
