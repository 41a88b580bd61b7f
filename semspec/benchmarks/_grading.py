"""Compare mathematical answers in a process that is killed if it takes too long."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from semspec.errors import UserError
from semspec.storage import worker

LIMIT = 10.0  # seconds for one answer
STARTING = 120.0  # seconds to import sympy on a busy machine


class Worker(worker.Worker):
    """A process that compares answers."""

    def __init__(self, limit: float = LIMIT) -> None:
        super().__init__(Path(__file__).with_name("_math_worker.py"), STARTING)
        self.limit = limit

    def same(self, gold: str, answer: str) -> bool | None:
        """Return True if both answers mean the same, None if comparing took too long."""
        try:
            reply = self.ask([gold, answer], self.limit)
        except worker.NotStartedError as error:
            raise UserError(
                f"cannot grade mathematics ({error}): run 'pip install math-verify'"
            ) from error
        # no reply: too slow, or killed by its memory limit
        return bool(json.loads(reply)) if reply else None


@cache
def _worker() -> Worker:
    return Worker()


def same_answer(gold: str, answer: str) -> bool | None:
    """Return True if ``answer`` means the same as ``gold``, None if comparing took too long."""
    return _worker().same(gold, answer)
