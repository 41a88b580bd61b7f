"""Drafts for all problems under way or for none: what is found out, and what that costs, by a clock that the tests turn."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest

from semspec.decoding.crowd import CHECK, DEBT, LOOK, SETTLED, Crowd
from semspec.decoding.economy import Economy
from tests.support.costs import table

TOKEN = 0.02  # seconds of a plain token where all write


@dataclass
class Server:
    """Problems that write and draft as their crowd says; a round of a draft takes as many plain tokens as ``takes`` says."""

    crowd: Crowd
    takes: Callable[[float], float]  # by the time
    kept: int  # tokens of a round with a draft
    price: Callable[[float], float] = lambda now: TOKEN
    now: float = 0.0
    tokens: int = 0
    drafted: int = 0
    trials: int = 0
    rows: list[int] = field(default_factory=list)

    def run(self, until: float) -> float:
        """Let time go by; return the tokens a second."""
        began, before = self.now, self.tokens
        tie, under_way = count(), list[tuple[float, int, float, int, bool]]()

        def begin(now: float) -> None:
            state = self.crowd.state
            row = self.crowd.row(now, TOKEN)
            self.trials += state != "trial" and self.crowd.state == "trial"
            took = self.price(now) * (row or self.takes(now))
            if row:
                self.rows.append(row)
            heapq.heappush(under_way, (now + took, next(tie), now, row or self.kept, not row))

        for _ in range(self.crowd.size):
            begin(self.now)
        while self.now < until:
            self.now, _, since, tokens, drafts = heapq.heappop(under_way)
            self.tokens, self.drafted = self.tokens + tokens, self.drafted + tokens * drafts
            self.crowd.closed(tokens, since, self.now, TOKEN, False)
            begin(self.now)
        return (self.tokens - before) / (self.now - began)


def plain(size: int) -> float:
    return size / TOKEN


@pytest.mark.parametrize("size", [2, 8, 64])
def test_drafts_that_lose_are_tried_and_left(size: int) -> None:
    server = Server(Crowd(size), lambda now: 3.0, kept=1)
    assert server.run(400) > 0.98 * plain(size)
    assert server.crowd.gained is False and server.trials >= 2  # and tried again
    assert server.drafted < 0.01 * server.tokens


@pytest.mark.parametrize("size", [2, 8, 64])
def test_drafts_that_gain_go_on(size: int) -> None:
    server = Server(Crowd(size), lambda now: 3.0, kept=5)
    server.run(3)
    assert server.crowd.state == "drafting"
    assert server.run(400) > 0.97 * plain(size) * 5 / 3
    assert server.trials <= server.tokens / size / CHECK + 1  # all write but now and then


def test_all_begin_to_draft_at_about_the_same_time() -> None:
    server = Server(Crowd(16), lambda now: 3.0, kept=5)
    server.run((SETTLED + 2 * LOOK + 2) * TOKEN)
    assert server.crowd.state in ("trial", "drafting") and set(server.rows) == {LOOK}


def test_drafts_that_begin_to_lose_are_given_up() -> None:
    server = Server(Crowd(8), lambda now: 3.0 if now < 20 else 9.0, kept=5)
    server.run(20)
    assert server.crowd.state == "drafting"
    assert server.run(400) > 0.97 * plain(8) and server.crowd.gained is False


def test_a_plain_token_that_has_grown_dearer_is_measured_again() -> None:
    """Rounds take longer with longer texts, and so do plain tokens: drafts that seem to lose still gain."""
    server = Server(
        Crowd(8), lambda now: 4.0, kept=5, price=lambda now: TOKEN * (1 if now < 20 else 1.5)
    )
    server.run(20)
    server.run(60)
    assert server.crowd.gained and server.crowd.token(0.0) > 1.3 * TOKEN
    assert server.run(400) > 0.95 * plain(8) / 1.5 * 5 / 4


def test_a_pause_of_the_machine_is_no_judgement_for_ever() -> None:
    crowd = Crowd(8)
    slow = Server(crowd, lambda now: 50.0, kept=5)
    slow.run(6)
    assert crowd.gained is False and 0 < crowd.owed <= DEBT * 8
    Server(crowd, lambda now: 3.0, kept=5, now=slow.now).run(150)
    assert crowd.gained and crowd.state == "drafting"


def test_a_round_with_a_prompt_is_not_counted() -> None:
    crowd = Crowd(2, "drafting", True)
    for _ in range(100):
        crowd.closed(1, 0.0, 100.0, TOKEN, True)
    assert crowd.state == "drafting"


def test_what_is_known_of_one_load_is_expected_of_another() -> None:
    gained, lost = Crowd(8, "drafting", True), Crowd(8, "writing", False, owed=40.0)
    for size in (2, 32):
        assert gained.like(size).state == "drafting"
        assert lost.like(size).state == "writing"
    # what loses under a load loses more under a larger one, and may gain under a smaller one
    assert lost.like(32).owed == 160 and lost.like(2).owed == 0


def test_a_trial_that_is_left_in_the_middle_has_found_nothing() -> None:
    crowd = Crowd(8)
    server = Server(crowd, lambda now: 3.0, kept=1)
    while crowd.state != "trial":
        server.run(server.now + TOKEN)
    server.run(server.now + 4 * TOKEN)
    crowd.leave()
    assert crowd.state == "writing" and crowd.gained is None and crowd.owed > 0
    again = Crowd(8, "gathering", True)
    again.leave()
    assert again.state == "drafting"


def test_an_economy_keeps_one_for_each_load() -> None:
    costs = table(together=8)
    costs.load, costs.fixed = 8, False
    one = Economy(costs)
    first = one.crowd(0.0)
    first.state, first.gained = "drafting", True
    assert one.crowd(1.0) is first
    costs.load = 2
    assert one.crowd(2.0).state == "drafting" and one.crowd(2.0).size == 2
    costs.load = 8
    assert one.crowd(3.0) is first
    # rounds that began under the other load say nothing
    for _ in range(200):
        first.closed(1, 2.5, 20.0, TOKEN, False)
    assert first.state == "drafting"
    for _ in range(200):
        first.closed(1, 3.0, 20.0, TOKEN, False)
    assert first.state == "gathering"
