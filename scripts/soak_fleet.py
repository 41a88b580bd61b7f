"""The SGLang servers of `make soak`, and a thread that kills them one at a time."""

from __future__ import annotations

import collections
import contextlib
import random
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.sglang_servers import Mortal


class Killer:
    """Kills one of several SGLang servers every now and then, and starts it again before the next."""

    def __init__(self, servers: Sequence[Mortal], every: float, seed: int) -> None:
        self.servers, self.every, self.rng = servers, every, random.Random(seed)
        self.kills: collections.Counter[int] = collections.Counter()  # by the server's index
        self.error: Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._over.wait(self.every * (0.5 + self.rng.random())):
                which = self.rng.randrange(len(self.servers))
                one = self.servers[which]
                one.kill()
                self.kills[which] += 1
                one.ended()
                self._over.wait(4 * self.rng.random())
                one.start()
        except Exception as error:
            self.error = error


@contextlib.contextmanager
def sglang_servers() -> Iterator[list[Mortal]]:
    """Start two servers of the target and one of the draft."""
    from sglang_pair import mortal

    servers = [mortal(role) for role in ("target", "target", "draft")]
    try:
        for one in servers:
            one.start()
        yield servers
    finally:
        for one in servers:
            if one.process is not None and one.process.poll() is None:
                one.interrupt()
