"""Check whether the target's servers answer, for /ready and /health."""

from __future__ import annotations

import asyncio
import time

from semspec.protocols import Standing, Watched
from semspec.serve.scheduling import Scheduler

EVERY = 1.0  # seconds for which one check is reused, however many probes come
LIMIT = 4.0  # seconds after which an unfinished check counts as "away"


class Lookout:
    """Checks the target's servers when a probe comes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._look: asyncio.Task[Standing] | None = None
        self._looked = 0.0  # when the last check began

    async def standing(self) -> Standing:
        """Return whether the target is there; a target in this process always is."""
        solver = self._scheduler.solver
        target = solver.engines["target"] if solver is not None else None
        if not isinstance(target, Watched):
            return "there"
        now = time.monotonic()
        if self._look is None or (self._look.done() and now - self._looked >= EVERY):
            self._look, self._looked = asyncio.create_task(_look(target)), now
        return await asyncio.shield(self._look)


async def _look(target: Watched) -> Standing:
    try:
        async with asyncio.timeout(LIMIT):
            return await asyncio.wrap_future(target.standing())
    except TimeoutError:
        return "away"
