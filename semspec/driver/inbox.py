"""Plans waiting to run: given all at once, or arriving while others run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from semspec.protocols import Plan
from semspec.types import Context

T = TypeVar("T")


class Inbox(Generic[T]):
    """Plans that arrive from other threads while earlier ones run, and notes of those given up.

    Closing it ends the driver once all its plans are done.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Context, Plan[T]]] = deque()
        self._dropped: list[Context] = []
        self._closed = False
        self._wake: Callable[[], object] = lambda: None

    def put(self, context: Context, plan: Plan[T]) -> None:
        """Add a plan; it begins as soon as there is room."""
        with self._changed:
            assert not self._closed, "the inbox is closed"
            self._waiting.append((context, plan))
        self._tell()

    def drop(self, context: Context) -> bool:
        """Give up a plan, running or waiting; return True if it had not begun, so it will give no result."""
        with self._changed:
            for item in self._waiting:
                if item[0] is context:
                    self._waiting.remove(item)
                    item[1].close()
                    return True
            self._dropped.append(context)
        self._tell()
        return False

    def close(self) -> None:
        with self._changed:
            self._closed = True
        self._tell()

    def __len__(self) -> int:
        """Count the plans that have not begun."""
        return len(self._waiting)

    # ---- for the driver -------------------------------------------------------------------------

    def wake_by(self, wake: Callable[[], object]) -> None:
        """Set the function that wakes a driver waiting for something else."""
        self._wake = wake

    def take(self, idle: bool) -> tuple[Context, Plan[T]] | None:
        """Return the next plan or None; with ``idle``, wait until there is one or the inbox is closed."""
        with self._changed:
            while idle and not (self._waiting or self._closed):
                self._changed.wait()
            return self._waiting.popleft() if self._waiting else None

    def given_up(self) -> list[Context]:
        """Return the contexts of the plans that were given up since the last call."""
        if not self._dropped:
            return []
        with self._changed:
            dropped, self._dropped = self._dropped, []
        return dropped

    @property
    def over(self) -> bool:
        return self._closed and not self._waiting

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._wake()


class Given(Generic[T]):
    """Plans that are all given at the start; they are taken only when needed."""

    def __init__(self, plans: Iterable[tuple[Context, Plan[T]]]) -> None:
        self._plans, self.over = iter(plans), False

    def take(self, idle: bool) -> tuple[Context, Plan[T]] | None:
        item = next(self._plans, None)
        self.over = item is None
        return item

    def given_up(self) -> list[Context]:
        return []
