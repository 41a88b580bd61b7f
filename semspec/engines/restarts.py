"""Restart servers that this process started and that have ended, from a background thread."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from semspec.engines import servers
from semspec.engines.servers import Running

# Seconds before each restart. A server that ends again after the last one, without being steady in between, is given up.
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
STEADY = 60.0  # after so many seconds of answering, a server's count of restarts is reset
LOOK = 0.5  # seconds between checks of the servers

News = Literal["restart", "given_up", "answers"]
Hear = Callable[[News, str], object]  # takes what happened, and why


@dataclass
class _State:
    """The state of one server."""

    at: Literal["up", "waiting", "loading", "given_up"] = "up"
    since: float = 0.0  # when it first answered after its latest restart; 0: never restarted
    due: float = 0.0  # when the next restart begins
    tries: int = 0  # restarts since it was last steady
    why: str = ""


class Restarts:
    """Watches servers and restarts those that have ended, with the same command, until ``retire`` is called.

    It replaces entries in the caller's list, so that the caller later ends the servers that run now.
    """

    def __init__(
        self,
        running: list[Running],
        wait: float,
        pauses: Sequence[float] = PAUSES,
        steady: float = STEADY,
    ) -> None:
        """``wait``: seconds that a restarted server may take to answer."""
        self._running, self._wait = running, wait
        self._pauses, self._steady = pauses, steady
        self._states = {one.planned.url: _State() for one in running}
        self._hearers: defaultdict[str, list[Hear]] = defaultdict(list)
        self._leaving = threading.Event()
        # held while starting or telling: never from two threads at once, never after ``retire``
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="restarts", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.retire()
        self._thread.join()

    def hear(self, url: str, told: Hear) -> None:
        """Call ``told`` for each change of a server, from the watching thread; also now if it is not up."""
        with self._lock:
            self._hearers[url].append(told)
            state = self._states[url]
            if state.at != "up":
                told("given_up" if state.at == "given_up" else "restart", state.why)

    def expects(self, url: str) -> bool:
        """Return whether a server may still answer later, even if it does not now."""
        return self._states[url].at != "given_up" and not self._leaving.is_set()

    def returns(self, url: str) -> bool:
        """Return whether a server has ended and is being restarted."""
        return self._states[url].at in ("waiting", "loading") and not self._leaving.is_set()

    def retire(self) -> None:
        """Stop restarting and telling, and end servers that are still loading. Return at once."""
        with self._lock:
            self._leaving.set()
            for one in self._running:
                if self._states[one.planned.url].at == "loading":
                    one.ask_to_end()

    # ---- in the thread --------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._leaving.wait(LOOK):
            for number in range(len(self._running)):
                self._see_to(number)

    def _see_to(self, number: int) -> None:
        one = self._running[number]
        state = self._states[one.planned.url]
        there = state.at == "loading" and servers.answers(one.planned.url)  # may take seconds
        with self._lock:
            if self._leaving.is_set():
                return
            if state.at == "waiting":
                if time.monotonic() >= state.due and not self._held_up(one):
                    self._start(number, state)
            elif state.at != "given_up" and (ended := one.ended()):
                self._plan(one, state, ended)
            elif there:
                state.at, state.since = "up", time.monotonic()
                self._tell(one, "answers", "")
            elif state.at == "loading" and time.monotonic() - one.began > self._wait:
                one.ask_to_end()  # the next look finds that it has ended

    def _held_up(self, one: Running) -> bool:
        """Return whether it must wait for another server that is loading on the shared device.

        A server takes its share of the memory that is free when it starts, so they start one at a time.
        """
        loading = [x for x in self._running if self._states[x.planned.url].at == "loading"]
        return one.planned.shared and any(other.planned.shared for other in loading)

    def _start(self, number: int, state: _State) -> None:
        before = self._running[number]
        try:
            self._running[number] = servers.start(before.planned, before.log.parent)
            state.at = "loading"
        except OSError as error:  # no memory, or no room for its log
            self._plan(before, state, f"could not be started ({error})")

    def _plan(self, one: Running, state: _State, ended: str) -> None:
        """Schedule the next restart of a server that has ended, or give it up after the last one."""
        now, most = time.monotonic(), len(self._pauses)
        if state.at == "up" and now - state.since >= self._steady:
            state.tries = 0
        if state.tries == most:
            state.at = "given_up"
            state.why = f"it {ended}: see {one.log}; gave up after {most} restarts in a row"
        else:
            pause = self._pauses[state.tries]
            state.at, state.due, state.tries = "waiting", now + pause, state.tries + 1
            state.why = f"it {ended}; try {state.tries} of {most} in {pause:g} s"
        self._tell(one, "given_up" if state.at == "given_up" else "restart", state.why)

    def _tell(self, one: Running, news: News, why: str) -> None:
        for told in self._hearers[one.planned.url]:
            told(news, why)
