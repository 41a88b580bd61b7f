"""Problems that come and go: drafting follows the number of concurrent problems, according to the costs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semspec.decoding.costs import Costs, company
from semspec.decoding.economy import Economy
from semspec.driver import Driver, Inbox
from semspec.engines.toy import Toy
from semspec.loop import speculate
from semspec.protocols import Engine, Plan
from semspec.results import tables
from semspec.solver import Solver
from semspec.types import Context, Generate, Query, Role, Round, Sampling
from tests.support.costs import crowded
from tests.support.pair import configuration
from tests.support.toy_server import Remote, ToyServed

MOST, FEW, LENGTH = 64, (1, 2, 4), 48
ADAPTIVE = ("split=token", "accept=lossless", "temperature=1", "adaptive=true")


@contextmanager
def served(table: Path, *options: str, most: int = MOST) -> Iterator[Solver]:
    """Load the toy models as a server does, deciding by a recorded table."""
    given = [*ADAPTIVE, f"costs={table}", f"concurrency={most}", "max_new_tokens=400", *options]
    config = replace(configuration(*given), engine=ToyServed())
    with Solver(config, beside=True) as solver:
        yield solver


def recorded(folder: Path) -> Path:
    """Record a table by which drafts gain with up to four problems under way and lose with eight or more."""
    costs = crowded(gaining=FEW, losing=(8, 16, 32, 64))
    known = Economy(costs, allowance=0.0)  # nothing is left to be tried out
    file = folder / tables.FILE
    file.write_text(json.dumps(tables.told(costs, {"draft": known})))
    return file


def drafted(rounds: list[Round]) -> float:
    """Return the share of the tokens that came in rounds with a draft."""
    tokens = sum(len(done.tokens) for done in rounds)
    return sum(len(done.tokens) for done in rounds if done.drafted) / tokens


class Crowd:
    """Problems that run in an inbox, and what became of them."""

    def __init__(self, solver: Solver) -> None:
        self.solver, self.inbox = solver, Inbox[Any]()
        self.rounds: dict[Context, list[Round]] = {}

    def put(self, number: int, length: int) -> Context:
        context = self.solver.context([0, 1])
        rounds = self.rounds[context] = list[Round]()
        problem = self.solver.speculation(context, f"{number}", "", length, rounds)
        self.inbox.put(context, speculate(problem))
        return context


@pytest.mark.parametrize("load", [1, 2, 4, 8, 16, 64])
def test_rounds_are_plain_where_the_table_says_that_drafts_lose(tmp_path: Path, load: int) -> None:
    with served(recorded(tmp_path)) as solver:
        solver = solver.variant(ignore_eos=True)
        crowd = Crowd(solver)
        for number in range(load):
            crowd.put(number, LENGTH)
        crowd.inbox.close()
        with closing(solver.driver.run(crowd.inbox, MOST)) as results:
            next(iter(results))  # until there are fewer
    share = drafted([done for rounds in crowd.rounds.values() for done in rounds])
    # what may be lost by trying is a hundredth of the time
    assert share == 1.0 if load in FEW else share < 0.06


def test_a_problem_is_drafted_for_again_when_the_others_have_gone(tmp_path: Path) -> None:
    with served(recorded(tmp_path)) as solver:
        solver = solver.variant(ignore_eos=True)
        crowd = Crowd(solver)
        stays, *others = (crowd.put(number, 300) for number in range(12))
        counts: list[
            int
        ] = []  # rounds of the one that stays, when the others go and when they come

        def written() -> int:
            return sum(len(done.tokens) for done in crowd.rounds[stays])

        with closing(solver.driver.turns(crowd.inbox, MOST)) as turns:
            for _ in turns:
                if len(counts) == 0 and written() >= 64:
                    counts.append(len(crowd.rounds[stays]))
                    for context in others:
                        crowd.inbox.drop(context)
                elif len(counts) == 1 and written() >= 160:
                    counts.append(len(crowd.rounds[stays]))
                    for number in range(12, 24):
                        crowd.put(number, 100)
                    crowd.inbox.close()
        rounds = crowd.rounds[stays]
    gone, back = counts
    assert drafted(rounds[:gone]) < 0.2
    # it looks again after at most 64 tokens, and one round may have been under way
    assert drafted(rounds[gone + 1 : back]) > 0.5 and drafted(rounds[gone + 2 : back]) == 1.0
    assert drafted(rounds[back + 2 :]) < 0.2 and sum(len(one.tokens) for one in rounds) == 300


def test_a_load_counts_as_the_nearest_power_of_two_up_to_the_most() -> None:
    assert [company(n, 64) for n in (0, 1, 2, 3, 5, 6, 8, 11, 12, 48, 64)] == [
        1, 1, 2, 4, 4, 8, 8, 8, 16, 64, 64,
    ]  # fmt: skip
    assert [company(n, 12) for n in (1, 8, 12)] == [1, 8, 12]


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize(
    ("fixed", "most", "loads"),
    [
        # three count as four; a recorded table is not told, nor is who solves one problem at a time
        (False, 4, [4, 4, 4, 2, *[1] * 6]),
        (True, 4, [0] * 10),
        (False, 1, [0] * 10),
    ],
)
def test_a_run_counts_the_problems_that_are_left(
    free: bool, fixed: bool, most: int, loads: list[int]
) -> None:
    costs, seen, ended = Costs(fixed), list[int](), list[int]()

    def plan(context: Context, rounds: int) -> Plan[None]:
        # where answers come at any time, the last one goes on until the others have ended, and for a few rounds more
        while rounds > 0:
            rounds -= context.key != 4 or len(ended) == 3 or not free or rounds > 5
            if context.key == 4:
                seen.append(costs.load)
            asked = "target", context, Sampling(1.0), random.Random(0)
            yield Query(*asked, generate=Generate(1), purpose="write")
        ended.append(context.key)

    engine = Toy().models()["target"]
    remote = Remote(engine, may_go=False)
    with remote.pool:
        engines: dict[Role, Engine] = {"target": remote if free else engine}
        contexts = [Context(number, [0, 1]) for number in (1, 2, 3, 4)]
        plans = (
            (one, plan(one, rounds)) for one, rounds in zip(contexts, (1, 2, 3, 10), strict=True)
        )
        list(Driver(engines, costs).run(plans, most))
    assert seen == loads if not free else (seen[0], seen[-1]) == (loads[0], loads[-1])


def test_a_run_by_a_recorded_table_decides_for_as_many_as_it_was_told(tmp_path: Path) -> None:
    """Problems that are all there from the beginning change no decisions while they become fewer."""
    with served(recorded(tmp_path), most=8) as solver:
        solver = solver.variant(ignore_eos=True)
        rounds: list[list[Round]] = [[], []]
        plans = []
        for number, found in enumerate(rounds):
            context = solver.context([0, 1])
            problem = solver.speculation(context, f"{number}", "", LENGTH, found)
            plans.append((context, speculate(problem)))
        list(solver.driver.run(iter(plans), 8))
    costs = solver.pacing.costs
    assert costs is not None and costs.load == 0
    assert max(drafted(found) for found in rounds) < 0.2


def test_what_questions_cost_is_measured_by_load() -> None:
    costs = Costs()
    assert costs.load == 0 and Economy(costs, together=8).company == 8
    costs.load = 2
    assert Economy(costs, together=8).company == 2
