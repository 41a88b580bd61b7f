"""Show the progress of a job in stages: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from semspec.report.terminal import Screen, duration
from semspec.storage.screen import visible

EVERY = 5.0  # seconds between lines


class Steps:
    """Shows the stages of a job one after the other, and keeps the seconds that each took."""

    def __init__(self, console: Screen, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.live = not quiet and console.is_interactive and console.file.isatty()
        self.seconds: dict[str, float] = {}

    def say(self, line: str) -> None:
        if not self.quiet:
            self.console.say(line)

    @contextmanager
    def stage(self, name: str, total: int | None) -> Iterator[Stage]:
        began = time.monotonic()
        described = TextColumn("{task.description}", markup=False)
        parts = (described, BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn())
        if self.live:
            with Progress(*parts, console=self.console, transient=True) as bar:
                yield Stage(self, name, total, bar)
        else:
            yield Stage(self, name, total, None)
        took = self.seconds[name] = time.monotonic() - began
        self.say(f"{name}: done in {duration(took)}")


class Stage:
    """The counter of one stage."""

    def __init__(self, steps: Steps, name: str, total: int | None, bar: Progress | None) -> None:
        self.steps, self.name, self.total, self.bar = steps, name, total, bar
        self.done, self._printed = 0, time.monotonic()
        self._task = bar.add_task(visible(name, newline=" "), total=total) if bar else None

    def by(self, count: int) -> None:
        self.to(self.done + count)

    def to(self, done: int) -> None:
        self.done = done
        if self.bar is not None and self._task is not None:
            self.bar.update(self._task, completed=done)
        elif time.monotonic() - self._printed >= EVERY:
            self._printed = time.monotonic()
            self.steps.say(f"{self.name}: {done}" + (f"/{self.total}" if self.total else ""))
