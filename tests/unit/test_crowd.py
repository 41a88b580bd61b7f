"""Drafts for all concurrent problems or for none: what is learned and at what cost, by a clock that the tests control."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest

from semspec.decoding.crowd import CHECK, DEARER, HOLD, LASTS, LOOK, SETTLED, SHORT, Crowd, Crowds
from semspec.decoding.economy import Economy
from semspec.decoding.experience import DEBT, EXPLORE
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


def test_a_load_that_is_there_for_a_moment_is_not_tried_where_drafts_have_lost_under_another() -> (
    None
):
    few = Server(Crowd(2), lambda now: 3.0, kept=5)
    few.crowd.expect(Crowd(16, "writing", False, owed=200.0))
    few.run(0.8 * LASTS * TOKEN)
    assert not few.trials
    few.run(3 * LASTS * TOKEN)
    assert few.crowd.gained


@pytest.mark.parametrize("size", [2, 16])
def test_drafts_are_not_doubted_for_the_bad_places_of_answers_that_began_together(
    size: int,
) -> None:
    """For a while in every second they lose, and gain more in the rest."""
    server = Server(Crowd(size), lambda now: 3.0 if now % 1 < 0.6 else 7.0, kept=6)
    server.run(4)
    assert server.crowd.state == "drafting"
    assert server.run(80) > 1.35 * plain(size)
    assert server.trials <= server.tokens / size / CHECK + 2  # all write but now and then


@pytest.mark.parametrize(("spent", "tried"), [(9.0, True), (12.0, False)])
def test_one_hard_place_of_answers_that_began_together_ends_no_trial(
    spent: float, tried: bool
) -> None:
    """Six tokens a round lose a third of nine, which one draft each does not prove, or half of twelve."""
    crowd, size = Crowd(16, state="trial"), 16
    for _ in range(size):
        crowd.closed(6, 0.0, spent * TOKEN, TOKEN, False)
    assert (crowd.state == "trial") is tried
    for _ in range(size * tried):
        crowd.closed(20, spent * TOKEN, (spent + 9) * TOKEN, TOKEN, False)
    assert crowd.gained is tried


@pytest.mark.parametrize("size", [2, 16])
def test_drafts_that_gain_in_a_few_places_alone_are_given_up(size: int) -> None:
    """A trial may fall into such a place, and again when they are doubted."""
    server = Server(Crowd(size), lambda now: 2.0 if now % 1 < 0.2 else 8.0, kept=4)
    assert server.run(400) > 0.95 * plain(size)


def test_all_begin_to_draft_at_about_the_same_time() -> None:
    server = Server(Crowd(16), lambda now: 3.0, kept=5)
    server.run((SETTLED + 2 * SHORT + 2) * TOKEN)
    assert server.crowd.state in ("trial", "drafting") and set(server.rows) == {SHORT}


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
    assert server.crowd.gained and server.crowd.plain.token > 1.3 * TOKEN
    assert server.run(400) > 0.95 * plain(8) / 1.5 * 5 / 4


@pytest.mark.parametrize("size", [2, 16, 64])
def test_drafts_are_tried_again_once_a_plain_token_takes_longer_than_one_with_drafts(
    size: int,
) -> None:
    """What six tokens took with drafts, seven plain ones did; then plain tokens grow dearer, as in longer texts."""

    def price(now: float) -> float:
        return TOKEN * min(max(now / 20, 1.0), 2.0)

    server = Server(Crowd(size), lambda now: 7.0 * TOKEN / price(now), kept=6, price=price)
    server.run(20)
    assert server.crowd.gained is False
    before = server.trials
    server.run(40)
    assert server.crowd.gained and server.trials <= before + 2
    assert server.run(60) > 0.9 * plain(size) * 6 / 7


@pytest.mark.parametrize(("size", "most"), [(4, 240), (64, 110)])
def test_a_trial_that_hardly_lost_is_soon_repeated_when_plain_tokens_grow_dearer(
    size: int, most: float
) -> None:
    """Answers that began together grow together, and a token takes a third longer: drafts gain within so many earlier ones."""
    crowd, now = Crowd(size, "trial"), 1.0
    crowd.plain.rows.add(1000 * TOKEN, 1000)

    def turn(token: float, rounds: float, kept: int) -> None:
        nonlocal now
        rows = [crowd.row(now, TOKEN) for _ in range(size)]
        took = token * (max(rows) or rounds)
        for row in rows:
            crowd.closed(row or kept, now, now + took, TOKEN, False)
        now += took

    while crowd.state == "trial":
        turn(TOKEN, 5.2, 5)
    assert crowd.gained is False
    began = now
    while crowd.state != "drafting":
        turn(1.33 * TOKEN, 5.2 / 1.33, 5)
        assert now < began + most * TOKEN


@pytest.mark.parametrize("size", [4, 64])
def test_drafts_whose_tokens_grow_dearer_too_are_tried_a_few_times(size: int) -> None:

    def price(now: float) -> float:
        return TOKEN * min(max(now / 20, 1.0), 2.0)

    server = Server(Crowd(size), lambda now: 7.0, kept=6, price=price)
    alone = Server(Crowd(size, gained=False, owed=math.inf), lambda now: 7.0, kept=6, price=price)
    assert server.run(100) > 0.97 * alone.run(100) and not alone.trials
    assert server.crowd.gained is False
    assert server.trials <= 1 + math.log(2.0 * 7 / 6, DEARER) + 1


def test_drafts_that_begin_well_and_lose_in_the_end_are_not_tried_early_again() -> None:
    """As in lists that are copied up to a change: the whole try counts, not its beginning."""
    crowd, now, size = Crowd(16, "writing", False, owed=50.0, own=True), 1.0, 16
    dear = 2.0 * TOKEN

    def all_write() -> None:
        nonlocal now
        rows = [crowd.row(now, TOKEN) for _ in range(size)]
        assert len(set(rows)) == 1 and rows[0]
        for row in rows:
            crowd.closed(row, now, now + row * dear, TOKEN, False)
        now += rows[0] * dear

    def all_draft(tokens: int) -> None:
        nonlocal now
        drafts = [crowd.row(now, TOKEN) == 0 for _ in range(size)]
        assert all(drafts)
        for _ in range(size):
            crowd.closed(tokens, now, now + 6 * dear, TOKEN, False)
        now += 6 * dear

    crowd.price = 1.2 * TOKEN
    all_write()
    all_write()
    for _ in range(5):
        all_draft(7)
    assert crowd.gained and crowd.state == "drafting"
    while crowd.gained:
        if crowd.state == "drafting" and crowd._doubted is not None:
            now += TOKEN
            all_write()
        all_draft(1)
    assert crowd.owed > 50.0
    crowd.price = 0.5 * dear  # a plain token takes longer than one with drafts did
    for _ in range(3):
        all_write()
    assert crowd.state == "writing"


def in_a_slow_moment(known: int) -> tuple[Crowd, float]:
    """Return a crowd whose drafts have failed, after a slow row of each problem, and the time; ``known``: earlier plain tokens."""
    crowd, now = Crowd(16, "writing", False, owed=50.0, own=True), 1.0
    crowd.price = 1.2 * TOKEN
    crowd.plain.rows.add(known * TOKEN, known)
    for _ in range(16):
        crowd.closed(32, now, now + 32 * 2.0 * TOKEN, TOKEN, False)
    now += 32 * 2.0 * TOKEN
    return crowd, now


def test_rows_are_measured_again_after_a_slow_moment() -> None:
    """A try was called off before half of the problems had joined it: later rows still show the price."""
    crowd, now = in_a_slow_moment(known=10_000)
    assert crowd.row(now, TOKEN) > 0 and crowd.state == "gathering"
    now += 20 * TOKEN
    assert crowd.row(now, TOKEN) > 0 and crowd.state == "writing"
    for _ in range(16):
        crowd.closed(32, now, now + 32 * 2.0 * TOKEN, TOKEN, False)
    assert crowd.plain.latest.token == pytest.approx(2.0 * TOKEN)


def test_a_slow_moment_is_no_reason_to_try_drafts_that_have_failed() -> None:
    """Prompts of others were read meanwhile: the rows before the trial show that it has passed."""
    crowd, now = in_a_slow_moment(known=1000)
    rows = [crowd.row(now, TOKEN) for _ in range(16)]
    assert crowd.state == "gathering"
    for row in rows:
        crowd.closed(row, now, now + row * TOKEN, TOKEN, False)
    now = now + max(rows) * TOKEN + 1.0
    assert crowd.row(now, TOKEN) > 0 and crowd.state == "writing"
    assert crowd.row(now, TOKEN) > 0 and crowd.state == "writing"  # and not again at once


def test_a_doubt_that_the_price_of_a_plain_token_explains_is_dropped() -> None:
    """Drafts seemed to lose a fifth by an old price. By the new one they gain as much."""
    crowd, size = Crowd(16, "drafting", True), 16
    crowd.plain.rows.add(TOKEN * 64, 64)
    for _ in range(4 * size):
        crowd.closed(4, 1.0, 1.0 + 5 * TOKEN, TOKEN, False)
    now = 2.0
    assert crowd.row(1.0 + 5 * TOKEN, TOKEN) == 0  # as the others in this turn
    rows = [crowd.row(now, TOKEN) for _ in range(size)]
    assert crowd.state == "gathering"
    now += rows[0] * 1.5 * TOKEN
    for row in rows:
        crowd.closed(row, 2.0, now, TOKEN, False)
    assert crowd.row(now, TOKEN) == 0 and crowd.state == "trial"
    for _ in range(5):
        for _ in range(size):
            crowd.closed(4, now, now + 5 * TOKEN, TOKEN, False)
        now += 5 * TOKEN
    assert crowd.gained and crowd.state == "drafting"


def test_a_plain_token_among_others_is_expected_to_be_as_dear_as_under_the_load_before() -> None:
    many, few = Crowd(64, "drafting", True, own=True), Crowd(32)
    many.plain.rows.add(64 * 1.5 * TOKEN, 64)
    many.plain.known, few.plain.known = TOKEN, 0.6 * TOKEN
    few.expect(many)
    assert few.plain.token == pytest.approx(0.9 * TOKEN)
    few.plain.rows.add(64 * TOKEN, 64)
    assert few.plain.token == pytest.approx(TOKEN)


@pytest.mark.parametrize("lengths", [(16, 16, 9, 3), (3, 9, 16, 16), (9, 16, 3, 16)])
def test_texts_that_end_within_a_row_do_not_make_its_tokens_look_dear(
    lengths: tuple[int, ...],
) -> None:
    """All rows of a batch are answered when its longest is done."""
    crowd = Crowd(4)
    for number in range(30):
        began = 1.0 + number
        for tokens in lengths:
            crowd.closed(tokens, began, began + 16 * TOKEN, TOKEN, False)
    assert crowd.plain.rows.token == pytest.approx(TOKEN, rel=0.02)


def test_what_lies_between_short_rows_counts_as_between_long_ones() -> None:
    crowd = Crowd(4)
    for number in range(30):
        began = 1.0 + number
        for _ in range(4):
            crowd.closed(16, began, began + 24 * TOKEN, TOKEN, False, 16 * TOKEN, 8 * TOKEN)
    assert crowd.plain.rows.token == pytest.approx(TOKEN * (1 + 8 / LOOK))


def test_drafts_that_clearly_lose_are_doubted_after_a_round_each() -> None:
    crowd, size = Crowd(16, "drafting", True), 16
    for _ in range(size):
        crowd.closed(3, 1.0, 1.0 + 12 * TOKEN, TOKEN, False)
    later = 1.0 + 24 * TOKEN
    assert crowd.row(later, TOKEN) > 0 and crowd.state == "gathering"


@pytest.mark.parametrize(("share", "gained"), [(1.0, True), (0.5, False)])
def test_rounds_of_the_last_few_of_a_group_count_by_what_their_tokens_cost(
    share: float, gained: bool
) -> None:
    """Five tokens in the time of four gain, unless half as many problems would have written eight."""
    crowd = Crowd(16, "trial")
    for _ in range(64):
        crowd.closed(5, 1.0, 1.0 + 4 * TOKEN, TOKEN, False, share=share)
        if crowd.state != "trial":
            break
    assert crowd.gained is gained


def test_rows_of_the_last_few_of_a_group_do_not_price_a_token_among_all() -> None:
    crowd = Crowd(16)
    for number in range(8):
        crowd.closed(16, number, number + 16 * TOKEN, TOKEN, False)
    for number in range(8, 64):
        crowd.closed(16, number, number + 4 * TOKEN, TOKEN, False, share=0.25)
    assert crowd.plain.token == pytest.approx(TOKEN)


def test_a_load_without_a_trial_follows_the_nearest_with_one() -> None:
    crowds = Crowds()
    crowds.known[16] = Crowd(16)
    crowds.known[64] = many = Crowd(64, "drafting", True, own=True)
    few = crowds.running(32, 0.0, TOKEN)
    assert few.gained and few.state == "drafting"
    crowds.part()
    many.gained, many.state, many.owed = False, "writing", 20.0
    assert crowds.running(32, 1.0, TOKEN) is few and few.gained is False and few.owed > 0


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
    gained, lost = Crowd(8, "drafting", True), Crowd(8, "writing", False, owed=40.0, own=True)
    for size in (2, 32):
        one, other = Crowd(size), Crowd(size)
        one.expect(gained)
        other.expect(lost)
        assert one.state == "drafting" and other.state == "writing"
        # what loses under a load loses more under a larger one, and may gain under a smaller one that lasts
        assert other.owed == (160 if size == 32 else EXPLORE * LASTS * size)
    lost.expect(gained)  # it knows better
    assert lost.gained is False


def test_a_trial_that_is_left_in_the_middle_has_found_nothing() -> None:
    crowd = Crowd(8)
    server = Server(crowd, lambda now: 3.0, kept=1)
    while crowd.state != "trial":
        server.run(server.now + TOKEN)
    server.run(server.now + 4 * TOKEN)
    crowd.leave()
    assert crowd.state == "writing" and crowd.gained is None and crowd.owed > 0
    # until its loss is made up for, rows are as long as where drafts have lost: each row costs a round
    assert crowd.row(server.now, TOKEN) == LOOK and not crowd.untried
    crowd.owed = 0.0
    assert crowd.untried and crowd.row(server.now, TOKEN) <= SHORT
    # drafts that have gained, and are suspected to do so no more, are tried when there are as many again
    again = Crowd(8, "trial", True)
    again.plain.rows.add(SHORT * TOKEN, SHORT)
    again.leave()
    assert again.state == "gathering" and again.row(5.0, TOKEN) == 0 and again.state == "trial"


def test_drafts_are_not_judged_by_a_price_that_was_never_measured_under_this_load() -> None:
    """They were taken over from a larger load, and a plain token is dearer than was guessed."""
    crowd = Crowd(8, "drafting", True)
    guess, real = TOKEN, 3 * TOKEN

    def draft(now: float) -> float:
        """All draft: five tokens in the time of six guessed ones, or of two real ones."""
        for _ in range(8):
            crowd.closed(5, now, now + 6 * guess, guess, False)
        return now + 6 * guess

    now = 1.0
    while crowd._doubted is None:
        now = draft(now)
    now = math.nextafter(now, math.inf)
    assert crowd.row(now, guess) == SHORT and crowd.state == "gathering"
    crowd.leave()  # before anybody has written a row: it was no loss that anybody has seen
    crowd.enter(now)
    assert crowd.state == "drafting" and crowd.row(now, guess) == 0
    while crowd._doubted is None:
        now = draft(now)
    now = math.nextafter(now, math.inf)
    rows = [crowd.row(now, guess) for _ in range(8)]
    assert rows == [SHORT] * 8
    late = now + (SHORT + 1) * guess  # all but one draft longer than expected
    assert crowd.row(late, guess) == SHORT and crowd.state == "gathering"
    for _ in range(8):
        crowd.closed(SHORT, now, now + SHORT * real, guess, False)
    now += 2 * SHORT * real
    assert crowd.row(now, guess) == 0 and crowd.state == "trial"
    for _ in range(20):
        now = draft(now)
    assert crowd.gained and crowd.state == "drafting"


def economy(load: int) -> Economy:
    costs = table(together=8)
    costs.load, costs.fixed = load, False
    return Economy(costs)


def test_an_economy_keeps_one_for_each_load_that_lasts() -> None:
    one = economy(8)
    first = one.crowd(0.0)
    first.state, first.gained = "drafting", True
    one.costs.load = 2
    token = one.token
    assert one.crowd(2.0) is first and one.crowd(2.0 + 0.9 * HOLD * token) is first
    few = one.crowd(2.1 + HOLD * token)
    assert few.size == 2 and few.state == "drafting"  # as was found among more
    one.costs.load = 8
    token = one.token
    assert one.crowd(100.0) is few and one.crowd(101.0 + HOLD * token) is first
    # rounds that began under the other load say nothing
    now = 102.0 + HOLD * token
    for _ in range(200):
        first.closed(1, 100.0, now, token, False)
    assert first.state == "drafting"
    for _ in range(200):
        first.closed(1, now, now + 20.0 * token, token, False)
    assert first.row(now + 20.0 * token, token) == 0  # as the others in this turn
    assert first.row(now + 21.0 * token, token) > 0 and first.state == "gathering"
    one.crowds.part()  # but one is left
    assert one.crowd(now + 1.0) is first and first.row(now + 30.0 * token, token) == 0


@pytest.mark.parametrize("every", [5, 20, 40])
def test_a_load_that_goes_up_and_down_hides_nothing(every: int) -> None:
    """Twelve problems are counted as sixteen, and eleven as eight."""
    one, now, tokens, drafted = economy(16), 0.0, 0, 0
    one.crowd(now).state, one.crowd(now).gained = "drafting", True
    token = one.token
    for step in range(40_000):
        one.costs.load = 16 if (step // every) % 2 else 8
        crowd = one.crowd(now)
        row = crowd.row(now, token)
        took = (row or 10) * token / 12  # the others have their turn meanwhile
        one.crowd(now + took).closed(row or 5, now - 11 * took, now + took, token, False)
        now, tokens, drafted = now + took, tokens + (row or 5), drafted + 5 * (not row)
    assert drafted < 0.2 * tokens


@pytest.mark.parametrize("size", [2, 8, 64])
def test_a_pause_while_all_write_does_not_make_drafts_look_good(size: int) -> None:
    pauses = [5.0]

    def price(now: float) -> float:
        if pauses and now > pauses[0]:
            pauses.pop()
            return TOKEN + 20.0 / LOOK  # the machine stands still for twenty seconds
        return TOKEN

    server = Server(Crowd(size, owed=3.0), lambda now: 3.0, kept=2, price=price)
    server.run(30)
    assert server.run(400) > 0.97 * plain(size)


@pytest.mark.parametrize("size", [2, 8, 32])
def test_plain_tokens_that_have_become_cheaper_are_noticed(size: int) -> None:
    server = Server(
        Crowd(size),
        lambda now: 4.0 if now < 100 else 6.0,
        kept=5,
        price=lambda now: 1.5 * TOKEN if now < 100 else TOKEN,
    )
    server.run(100)
    assert server.crowd.state == "drafting"
    server.run(300)
    assert server.run(600) > 0.95 * plain(size)


@pytest.mark.parametrize("size", [2, 4, 8, 64])
def test_drafts_that_gain_a_little_on_average_are_kept(size: int) -> None:
    """Lengths that are kept vary: each token with a chance of .8, eight at most."""
    rng = random.Random(size)

    def kept() -> int:
        length = 1
        while length < 9 and rng.random() < 0.8:
            length += 1
        return length

    class Varying(Server):
        @property  # type: ignore[override]
        def kept(self) -> int:
            return kept()

        @kept.setter
        def kept(self, kept: int) -> None:
            """Take no note: it varies."""

    mean = sum(0.8**i for i in range(9))
    server = Varying(Crowd(size), lambda now: mean / 1.2, kept=0)
    assert server.run(600) > 1.13 * plain(size)


def test_all_rows_after_a_check_are_equally_long() -> None:
    """A shorter one would wait for the longest."""
    crowd, now = in_a_slow_moment(known=1000)
    rows = [crowd.row(now, TOKEN) for _ in range(16)]
    for row in rows:
        crowd.closed(row, now, now + row * TOKEN, TOKEN, False)
    now = now + max(rows) * TOKEN + 1.0
    assert len({crowd.row(now, TOKEN) for _ in range(16)}) == 1 and crowd.state == "writing"


def test_few_tokens_are_written_beside_the_last_drafts() -> None:
    """Those who asked before the trial ended read one more draft, and would wait for long rows of the others."""
    crowd, now = Crowd(16, "trial"), 2.0
    crowd.plain.rows.add(1000 * TOKEN, 1000)
    for _ in range(4 * 16):
        crowd.closed(1, 1.0, now, TOKEN, False)
    assert crowd.state == "writing"
    assert 0 < crowd.row(now, TOKEN) <= 4
    assert crowd.row(now + TOKEN, TOKEN) >= SHORT
