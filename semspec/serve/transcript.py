"""The text of one choice as its client gets it: whole at the end, or in pieces (``News``) while it is written."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from semspec.models.text import opening
from semspec.serve.calls.base import Call
from semspec.serve.news import Author, Logprob, News, Step
from semspec.serve.reading import Reader, Said
from semspec.serve.task import Task


class Transcript:
    """Everything that one choice has sent to its client so far.

    The driver's thread adds tokens one by one. Where no token can end the text it adds whole runs undecoded, and the thread
    that takes the news decodes them, which keeps this work off the driver's thread.
    """

    def __init__(self, task: Task, wake: Callable[[bool], None]) -> None:
        """Call ``wake`` with False when there is news, and with True at the end."""
        self._task, self._wake = task, wake
        self.tokens: list[int] = []
        self.reasoning: list[str] = []
        self.content: list[str] = []
        self.calls: list[Call] = []
        self.logprobs: list[Logprob] = []
        self.steps: list[Step] = []
        self.reader = Reader(
            task.solver.said,
            opened=bool(opening(task.prompt)),
            chat=task.chat,
            stops=task.stops,
            calls=task.calls() if task.calls else None,
            one_call=task.one_call,
        )
        # runs and steps not decoded yet
        self._unread: deque[tuple[Author, Sequence[int]] | Step] = deque()
        self._news, self._lock = News(), threading.RLock()  # the lock also guards decoding

    # ---- in the driver's thread -----------------------------------------------------------------

    def add(self, author: Author, token: int, logprob: Logprob | None = None) -> None:
        """Add a token and decode it now."""
        self.tokens.append(token)
        self._say(self.reader.feed(token), author, logprob)

    def add_step(self, step: Step) -> None:
        self.steps.append(step)
        if self._task.live:
            with self._lock:
                self._news.items.append(step)

    def put_off(self, item: tuple[Author, Sequence[int]] | Step) -> None:
        """Add a run of tokens or a step, to be decoded by ``read``."""
        self._unread.append(item)

    def flush(self) -> None:
        """Add the text that the reader still holds back; call it when no more tokens come."""
        self._say(self.reader.flush(), "target")

    def notify(self) -> None:
        """Wake the reader of a stream if there is news."""
        if self._task.live and (self._unread or self._news.items or self._news.logprobs):
            self._wake(False)

    def end(self) -> None:
        with self._lock:
            self._news.ended = True
        self._wake(True)

    # ---- in either thread -----------------------------------------------------------------------

    def read(self) -> None:
        """Decode what ``put_off`` has added; consecutive runs of one author are decoded together."""
        with self._lock:
            while self._unread:
                first = self._unread.popleft()
                if isinstance(first, Step):
                    self.add_step(first)
                    continue
                author, run = first[0], list(first[1])
                while self._unread and not isinstance(then := self._unread[0], Step):
                    if then[0] != author:
                        break
                    run += then[1]
                    self._unread.popleft()
                run = run[: self._task.budget - len(self.tokens)]
                self.tokens += run
                self._say(self.reader.feed_run(run), author)

    def take(self) -> News:
        """Return the news since the last call; called from the event loop's thread."""
        with self._lock:
            self.read()
            news, self._news = self._news, News(tokens=self._news.tokens, ended=self._news.ended)
        return news

    def _say(self, said: Sequence[Said], author: Author, logprob: Logprob | None = None) -> None:
        for one in said:
            if isinstance(one, Call):
                self.calls.append(one)
            else:
                (self.reasoning if one[0] == "reasoning" else self.content).append(one[1])
        if logprob is not None:
            self.logprobs.append(logprob)
        with self._lock:
            self._news.tokens = len(self.tokens)
            if self._task.live:
                self._news.items += [(author, one) for one in said]
                self._news.logprobs += [logprob] if logprob is not None else []
