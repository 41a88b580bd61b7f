"""Servers of our own that have ended are started again, by a thread beside everything else."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from semspec.engines import servers
from semspec.engines.servers import Running

# Seconds before each try. A server that has ended again after the last one, without a steady time between, is given up.
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
STEADY = 60.0  # seconds of answering after which a server's tries begin afresh
LOOK = 0.5  # seconds between looks at the servers

News = Literal["restart", "given_up", "answers"]
Hear = Callable[[News, str], object]  # what has happened, and why


@dataclass
class _State:
    """Where one server stands."""

    at: Literal["up", "waiting", "loading", "given_up"] = "up"
    since: float = 0.0  # when it was last seen to answer for the first time; 0: at the start
    due: float = 0.0  # when the next try begins
    tries: int = 0  # since it was last steady
    why: str = ""


class Restarts:
    """Watches servers and starts those that have ended again, with their command, until it retires.

    It replaces entries of the list that it is given, so that whoever ends the servers ends those that run now.
    """

    def __init__(
        self,
        running: list[Running],
        wait: float,
        pauses: Sequence[float] = PAUSES,
        steady: float = STEADY,
    ) -> None:
        """``wait``: seconds that a server may take to answer."""
        self._running, self._wait = running, wait
        self._pauses, self._steady = pauses, steady
        self._states = {one.planned.url: _State() for one in running}
        self._hearers: defaultdict[str, list[Hear]] = defaultdict(list)
        self._leaving = threading.Event()
        self._lock = (
            threading.Lock()
        )  # nothing is started or told by two threads, or once it has retired
        self._thread = threading.Thread(target=self._watch, name="restarts", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.retire()
        self._thread.join()

    def hear(self, url: str, told: Hear) -> None:
        """Tell what becomes of a server, from another thread; at once if it has ended already."""
        with self._lock:
            self._hearers[url].append(told)
            state = self._states[url]
            if state.at != "up":
                told("given_up" if state.at == "given_up" else "restart", state.why)

    def expects(self, url: str) -> bool:
        """Return whether a server that does not answer is going to."""
        return self._states[url].at != "given_up" and not self._leaving.is_set()

    def returns(self, url: str) -> bool:
        """Return whether a server has ended and is being started again."""
        return self._states[url].at in ("waiting", "loading") and not self._leaving.is_set()

    def retire(self) -> None:
        """Start and tell nothing any more; end the servers that are still loading. Returns at once."""
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
                one.ask_to_end()  # and the next look finds that it has ended

    def _held_up(self, one: Running) -> bool:
        """Return whether another server is taking its share of the same device: it counts what is free."""
        loading = [x for x in self._running if self._states[x.planned.url].at == "loading"]
        return one.planned.shared and any(other.planned.shared for other in loading)

    def _start(self, number: int, state: _State) -> None:
        before = self._running[number]
        try:
            self._running[number] = servers.start(before.planned, before.log.parent)
            state.at = "loading"
        except OSError as error:  # no memory, or no room for its log
            self._plan(before, state, f"cannot be started ({error})")

    def _plan(self, one: Running, state: _State, ended: str) -> None:
        """Plan another try for a server that has ended; give it up after the last one."""
        now, most = time.monotonic(), len(self._pauses)
        if state.at == "up" and now - state.since >= self._steady:
            state.tries = 0
        if state.tries == most:
            state.at = "given_up"
            state.why = (
                f"it {ended}: see {one.log}; it was started {most} times in a row, and is not again"
            )
        else:
            pause = self._pauses[state.tries]
            state.at, state.due, state.tries = "waiting", now + pause, state.tries + 1
            state.why = f"it {ended}; try {state.tries} of {most} in {pause:g} s"
        self._tell(one, "given_up" if state.at == "given_up" else "restart", state.why)

    def _tell(self, one: Running, news: News, why: str) -> None:
        for told in self._hearers[one.planned.url]:
            told(news, why)
