"""``python -m tests.support.toy_server port=0``: the real server with two Markov models of known distribution.

Everything but the models is the real server. The tokenizer is the embedded pair's; the toy models know its first
five tokens. Environment variables:

    TOY=free      the models are queried like servers, each query by itself
    TOY=lost      the same, and the draft is unavailable while the file ``TOY_LOST`` exists
    TOY=gone      the same for the target
    TOY=strange   the same, but meanwhile the target's answers are unusable
    TOY_SECONDS   seconds that each answer takes
    TOY_COUNT     a file that gets one character for each answer of an engine
    TOY_LOAD      a file: the models load once it exists

With ``adaptive=true``, linear costs replace the measurements that a server makes beforehand: their texts would be too
long for toy models.
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
    """A toy engine whose answers are counted and delayed."""

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        worked(len(queries))
        return super().answer(queries)


class Remote(ToyEngine):
    """A toy engine that takes queries one by one, from any thread."""

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
    """Wait for the time of a batch, and count its answers."""
    time.sleep(SECONDS)
    if COUNT:
        with Path(COUNT).open("a") as file:
            file.write("x" * answers)


@register("engine", "toy_served")
@dataclass(frozen=True, kw_only=True)
class ToyServed(Toy):
    """The toy models as a loadable engine."""

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
    """Assume that drafts pay off at any batch size, until measurements say otherwise."""
    costs.curves |= crowded(gaining=(1, 2, 4, 8, 16), losing=()).curves


if __name__ == "__main__":
    serve.read, Solver._sweep = read, assume  # type: ignore[method-assign]
    serve.main(sys.argv[1:])
