"""Whether drafts inside SGLang are read: by a clock of the test's, over texts that repeat themselves or do not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from semspec.sglang_plugin.drafts import first_path
from semspec.sglang_plugin.payoff import AGAIN, TRIALS, Payoff, Proposed

PLAIN = 10.0


@dataclass
class Server:
    """Requests whose next tokens are known: a draft of five is right as far as ``right`` says."""

    wide: float  # seconds of a pass over drafts
    right: Callable[[int, int], int]  # request, tokens so far -> drafted tokens that will be kept
    payoff: Payoff = field(default_factory=Payoff)
    now: float = 0.0
    reads: list[bool] = field(default_factory=list)

    def write(self, requests: int, least: int) -> float:
        """Return the seconds until every request has so many tokens."""
        began, texts = self.now, [0] * requests
        gained: list[Sequence[int]] = [[] for _ in texts]
        while min(texts) < least:
            self.payoff.begin(range(requests), self.now)
            for request, tokens in enumerate(gained):
                self.payoff.gained(request, tokens)
            drafts = []
            for request, at in enumerate(texts):
                right = self.right(request, at)
                path = [at + i if i < right else -1 for i in range(5)]  # a text is 0, 1, 2, ...
                drafts.append(Proposed(request, path, len(path), grade=3))
            read = self.payoff.pays(drafts)
            self.payoff.decided(drafts, read, self.now)
            self.reads.append(read)
            self.now += self.wide if read else PLAIN
            for request, at in enumerate(texts):
                new = 1 + (min(self.right(request, at), 5) if read else 0)
                gained[request] = range(at, at + new)
                texts[request] += new
        return self.now - began


@pytest.mark.parametrize("requests", [1, 4, 16])
def test_drafts_that_bring_nothing_cost_nearly_nothing(requests: int) -> None:
    server = Server(wide=25.0, right=lambda request, at: 0)
    server.write(requests, 50)
    took = server.write(requests, 2000)
    assert took <= 1.03 * PLAIN * 2000
    assert sum(server.reads[-2000:]) < 2000 / AGAIN + TRIALS


def test_drafts_that_bring_more_than_they_cost_are_read() -> None:
    server = Server(wide=25.0, right=lambda request, at: 4)
    server.write(4, 50)
    took = server.write(4, 2000)
    assert took < 1.03 * 25 * 2000 / 5
    reluctant = Server(wide=60.0, right=lambda request, at: 4)  # five tokens in the time of six
    reluctant.write(4, 50)
    assert reluctant.write(4, 2000) <= 1.05 * PLAIN * 2000


def test_a_text_that_begins_to_repeat_itself_is_drafted_again() -> None:
    """The drafts that were dropped say so; nothing is tried for it."""
    server = Server(wide=25.0, right=lambda request, at: 5 if at >= 400 else 0)
    server.write(1, 400)
    behind = len(server.reads)
    server.write(1, 900)
    told = server.reads[behind:]
    assert sum(told[:300]) <= 300 / AGAIN + 2 * TRIALS
    assert sum(told[-60:]) > 50


def test_one_request_of_many_does_not_make_all_wait() -> None:
    """One text repeats itself, fifteen do not: five tokens more of 21 are not worth two and a half times the time."""
    server = Server(wide=25.0, right=lambda request, at: 5 if request == 0 else 0)
    server.write(16, 100)
    took = server.write(16, 1000)
    assert took < 1.04 * PLAIN * 1000


def test_never_slower_than_the_better_of_both_by_much() -> None:
    rng = random.Random(3)
    for _ in range(20):
        wide, chance, requests = rng.uniform(11, 60), rng.random(), rng.choice([1, 3, 8, 20])
        own = random.Random(rng.random())
        kept = [[sum(own.random() < chance for _ in range(3)) for _ in range(4096)] for _ in range(requests)]  # fmt: skip
        server = Server(wide, right=lambda request, at, kept=kept: kept[request][at % 4096])  # type: ignore[misc]
        server.write(requests, 100)
        took = server.write(requests, 1500)
        brought = sum(map(sum, kept)) / (4096 * requests)
        best = min(PLAIN, wide / (1 + brought))
        assert took <= 1500 * 1.04 * best, (wide, brought, requests)


def test_time_over_prompts_is_no_pass() -> None:
    payoff = Payoff()
    draft = Proposed("a", [1], 1, 0)
    payoff.begin(["a"], 0.0)
    payoff.decided([draft], True, 0.0)
    payoff.interrupted()
    payoff.begin(["a"], 100.0)
    payoff.decided([draft], True, 100.0)
    payoff.begin(["a", "b"], 200.0)  # another batch
    assert not payoff.seconds
    payoff.decided([draft, Proposed("b", [], 0, 0)], False, 200.0)
    payoff.begin(["a", "b"], 203.0)
    assert payoff.seconds[False, 2].value() == 3.0
    payoff.forget("a")
    assert not payoff.own


def test_the_first_path_of_a_tree() -> None:
    assert first_path([5, 6, 7, 8, 9], [-1, -1, 0, 2, 1]) == [5, 7, 8]
    assert first_path([], []) == []
    assert first_path([4, 5], [-1, 0]) == [4, 5]
