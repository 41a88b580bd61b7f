"""``python -m tests.support.toy_server port=0``: the real server in front of two Markov models whose law is known.

Everything but the models is the server's own. The tokenizer is the embedded pair's, of whose tokens the toy
models know the first five. ``TOY=free``: they are asked as servers are, each question by itself. ``TOY=lost``: so, too,
and the draft is gone while the file that ``TOY_LOST`` names is there. ``TOY=gone``: the target is, in its place.
``TOY=strange``: the target's answers cannot be used meanwhile. ``TOY_SECONDS``:
each answer takes so long. ``TOY_COUNT``: a file that gets a character for each answer of an engine. ``TOY_LOAD``: the models load once
that file is there. With ``adaptive=true`` a straight line of costs stands for the
questions that a server measures beforehand, which are longer than any text that toy models know.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from semspec.cli import serve
from semspec.config import RunConfig
from semspec.decoding.costs import Costs
from semspec.engines.toy import Toy, ToyEngine
from semspec.errors import UnusableError, UserError
from semspec.jobs.options import read_known
from semspec.protocols import Standing
from semspec.registry import register
from semspec.solver import Solver
from semspec.types import Answer, Query, Role
from tests.support.costs import crowded
from tests.support.pair import configuration

KIND = os.environ.get("TOY", "")
LOST = Path(os.environ.get("TOY_LOST", "/nowhere"))
SECONDS = float(os.environ.get("TOY_SECONDS", 0))
COUNT = os.environ.get("TOY_COUNT", "")
LOAD = os.environ.get("TOY_LOAD", "")


class Local(ToyEngine):
    """A toy engine whose answers are counted and take a while."""

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        worked(len(queries))
        return super().answer(queries)


class Remote(ToyEngine):
    """A toy engine that takes questions one by one, from any thread."""

    def __init__(self, engine: ToyEngine, may_go: bool) -> None:
        super().__init__(engine.logits)
        self.pool, self.may_go = ThreadPoolExecutor(2), may_go

    def submit(self, query: Query) -> Future[Answer]:
        return self.pool.submit(self._later, query)

    def standing(self) -> Future[Standing]:
        found: Future[Standing] = Future()
        found.set_result("away" if self.may_go and LOST.exists() and KIND != "strange" else "there")
        return found

    def _later(self, query: Query) -> Answer:
        if self.may_go and LOST.exists():
            if KIND == "strange":
                raise UnusableError("the model's server has sent something else")
            raise UserError("the model's server does not answer")
        worked(1)
        return self._answer(query)


def worked(answers: int) -> None:
    """Take the time of a batch, and count it."""
    time.sleep(SECONDS)
    if COUNT:
        with Path(COUNT).open("a") as file:
            file.write("x" * answers)


@register("engine", "toy_served")
@dataclass(frozen=True, kw_only=True)
class ToyServed(Toy):
    """The toy models as an engine that loads."""

    def load(
        self,
        folder_or_repo: str,
        revision: str | None = None,
        role: Role = "target",
        probes: Sequence[str] = (),
    ) -> ToyEngine:
        while LOAD and not Path(LOAD).exists():
            time.sleep(0.05)
        engine = self.models()[role]
        goes = {"lost": "draft", "gone": "target", "strange": "target"}.get(KIND)
        return Remote(engine, role == goes) if KIND else Local(engine.logits, engine.stop_ids)


def read(arguments: Sequence[str]) -> tuple[RunConfig, serve.Options]:
    given, rest = read_known(serve.Options, arguments, serve.COMMAND)
    config = configuration("split=token", "accept=lossless", "temperature=1", *rest)
    return replace(config, engine=ToyServed()), given


def assume(solver: Solver, costs: Costs) -> None:
    """Take it that drafts gain, with any number of answers under way, until the clock says otherwise."""
    costs.curves |= crowded(gaining=(1, 2, 4, 8, 16), losing=()).curves


if __name__ == "__main__":
    serve.read, Solver._sweep = read, assume  # type: ignore[method-assign]
    serve.main(sys.argv[1:])
