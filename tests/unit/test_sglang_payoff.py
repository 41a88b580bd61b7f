"""Whether drafts inside SGLang pay off and are used, by a clock of the test's, for repetitive and other texts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.rules.logprob import LogProb
from semspec.sglang_plugin import model_drafts
from semspec.sglang_plugin.payoff import AGAIN, TRIALS, Payoff, Proposed
from semspec.sglang_plugin.steps import Steps
from semspec.types import Sampling
from tests.support.inside import Asked, drafts_of, rows_of

PLAIN, GREEDY = 10.0, Sampling(0.0)


@dataclass
class Server:
    """Requests whose next tokens are known: a draft of five is right as far as ``right`` says."""

    wide: float  # seconds of a pass over drafts
    right: Callable[[int, int], int]  # request, tokens so far -> drafted tokens that will be kept
    payoff: Payoff = field(default_factory=Payoff)
    now: float = 0.0
    reads: list[bool] = field(default_factory=list)
    # seconds by which a pass is longer, by its number
    pauses: dict[int, float] = field(default_factory=dict)

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
            self.now += self.pauses.get(len(self.reads), 0.0)
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
    assert sum(server.reads[-2000:]) < 2000 / AGAIN / 4


@pytest.mark.parametrize("again", [AGAIN, model_drafts.AGAIN])
@pytest.mark.parametrize("paused", range(1, 9))
def test_a_pause_of_the_machine_changes_no_decision(paused: int, again: int) -> None:
    """One pass takes fifty times as long, early, when few have been measured."""
    payoff = Payoff(again=again)
    useless = Server(25.0, lambda request, at: 0, payoff, pauses={paused: 50 * PLAIN})
    assert useless.write(1, 300) <= 50 * PLAIN + 1.1 * PLAIN * 300
    good = Server(25.0, lambda request, at: 4, Payoff(again=again), pauses={paused: 50 * PLAIN})
    assert good.write(1, 300) <= 50 * PLAIN + 1.2 * 25 * 300 / 5


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
    assert payoff.seconds[False, 2].value == 3.0
    payoff.forget("a")
    assert not payoff.own


def drafted_by_a_model(
    monkeypatch: pytest.MonkeyPatch,
    wide: float,
    *,
    like: bool,
    steps: Steps | None = None,
    adaptive: bool | str = True,
) -> tuple[float, float, list[list[int]]]:
    """Write greedily with the toy draft inside; return the share of passes over drafts, the seconds, and the texts."""
    toy = Toy(vocabulary=6, seed=4, likeness=0.0)
    target = toy.models()["target"]
    drafts = drafts_of(toy, 4)
    drafts.options = replace(drafts.options, adaptive=adaptive)
    if like:
        drafts.model.logits = target.logits  # type: ignore[attr-defined]
    drafts.may_drop, now, read = True, 0.0, []
    monkeypatch.setattr(model_drafts.time, "perf_counter", lambda: now)
    requests = [Asked(str(i), [i, 1], 1200, steps, GREEDY) for i in range(3)]
    rids = [one.rid for one in requests]
    while len(requests[0].output) < 600:
        if drafts.rests(rids):  # SGLang decodes them by itself
            now += PLAIN
            read.append(False)
            for one in requests:
                row = rows_of(target, [*one.prompt, *one.output], [])[0]
                one.output.append(int(row.argmax()))
            continue
        drafts.meet([(one.rid, one, one.prompt, one.output) for one in requests])
        texts = [[*one.prompt, *one.output] for one in requests]
        nodes, _ = drafts.batch_get(rids, [text[-8:] for text in texts], list(map(len, texts)))
        read.append(not drafts.nothing_drafted)
        now += wide if read[-1] else PLAIN
        counts, loops = list(drafts.counts), list(drafts.loops)
        for one, text, own, count, loop in zip(requests, texts, nodes.reshape(-1, 4), counts, loops, strict=True):  # fmt: skip
            chain = own[1:count].tolist()
            rows = rows_of(target, text, chain)
            if loop is not None:
                one.output += loop.verified(rows)
                continue
            for row, token in zip(rows, [*chain, -1], strict=True):
                one.output.append(int(row.argmax()))
                if one.output[-1] != token:
                    break
    return sum(read) / len(read), now, [one.output[:600] for one in requests]


def test_tokens_of_a_small_model_are_drafted_where_that_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rarely, took, texts = drafted_by_a_model(monkeypatch, 30.0, like=False)
    assert rarely < 0.06 and took < 1.06 * 600 * PLAIN
    often, took, others = drafted_by_a_model(monkeypatch, 15.0, like=True)
    assert often > 0.9 and took < 0.65 * 600 * PLAIN
    for one, other in zip(texts, others, strict=True):
        least = min(len(one), len(other))
        assert least > 500 and one[:least] == other[:least]


def test_steps_are_drafted_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rule for steps may keep must not depend on a clock."""
    asked = Steps(rule=LogProb(threshold=-9.0))
    slow = drafted_by_a_model(monkeypatch, 500.0, like=False, steps=asked)
    fast = drafted_by_a_model(monkeypatch, 11.0, like=False, steps=asked)
    assert slow[0] == fast[0] > 0.5 and slow[2] == fast[2]


def test_steps_are_drafted_where_that_pays_if_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Steps(rule=LogProb(threshold=-0.01))
    rarely, took, _ = drafted_by_a_model(monkeypatch, 60.0, like=False, steps=asked, adaptive="steps")  # fmt: skip
    assert rarely < 0.06 and took < 1.06 * 600 * PLAIN
    often, took, _ = drafted_by_a_model(monkeypatch, 15.0, like=True, steps=Steps(rule=LogProb(threshold=-9.0)), adaptive="steps")  # fmt: skip
    assert often > 0.9 and took < 0.65 * 600 * PLAIN


def test_what_the_target_writes_alone_passes_by_the_loop() -> None:
    """Where drafts of steps do not pay, it is asked rarely whether they do; a step that was begun is finished by the target."""
    toy, cap = Toy(vocabulary=6, seed=4, likeness=0.0), 7
    target = toy.models()["target"]
    alone: list[int] = []
    while len(alone) < 300:
        alone.append(int(rows_of(target, [0, 1, *alone], [])[0].argmax()))
    drafts = drafts_of(toy, 1 + cap)
    drafts.options = replace(drafts.options, adaptive="steps")
    drafts.payoff, drafts.may_drop = Coin(random.Random(1)), True
    one = Asked("a", [0, 1], 300, Steps(rule=LogProb(threshold=0.0), step_cap=cap), GREEDY)
    rested = asked = 0
    told: list[tuple[int, int]] = []
    while len(one.output) < 300:
        if drafts.rests(["a"]):
            rested += 1
            one.output.append(int(rows_of(target, [*one.prompt, *one.output], [])[0].argmax()))
            continue
        asked += 1
        drafts.meet([("a", one, one.prompt, one.output)])
        text = [*one.prompt, *one.output]
        drafts.batch_get(["a"], [text[-2 * (1 + cap) :]], [len(text)])
        (loop,) = drafts.loops
        if loop is None:
            assert drafts.nothing_drafted and drafts.nothing_judged
            one.output.append(int(rows_of(target, text, [])[0].argmax()))
            continue
        assert not drafts.nothing_judged
        one.output += loop.verified(rows_of(target, text, drafts._sessions["a"].tree.tokens))  # type: ignore[union-attr]
        session = drafts._sessions["a"]
        told += [(len(done.drafted), len(done.kept)) for done in loop.problem.rounds]
        assert session.resting is None
    assert one.output[:300] == alone[:300]
    assert rested > 100 and asked > 20 and any(drafted for drafted, _ in told)
    assert not any(kept for _, kept in told)
    drafts.erase_match_state(["a"])
    assert not drafts._sessions


class Coin(Payoff):
    """Decides by a coin."""

    def __init__(self, coins: random.Random) -> None:
        super().__init__()
        self.coins = coins

    def pays(self, drafts: Sequence[Proposed]) -> bool:
        return self.coins.random() < 0.5


def test_passes_that_were_not_decided_about_share_the_time() -> None:
    payoff = Payoff()
    draft = Proposed("a", None, 1, 1)
    payoff.begin(["a"], 0.0)
    payoff.decided([draft], False, 0.0)
    for _ in range(3):
        payoff.again_so()
    payoff.begin(["a"], 8.0)
    assert payoff.seconds[False, 1].value == 2.0 and payoff.passes == 4
    payoff.decided([draft], True, 8.0)
    payoff.begin(["a"], 11.0)
    assert payoff.seconds[True, 1].value == 3.0


def test_what_may_depend_on_a_clock_has_three_words() -> None:
    with pytest.raises(UserError, match=r"give true, false or .steps."):
        model_drafts.ModelOptions(model="toy", adaptive="always")
