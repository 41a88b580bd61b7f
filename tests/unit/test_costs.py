"""The cost model: lines fitted to measurements, and the measurements that the driver supplies."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from semspec.decoding.costs import (
    ASK,
    MEMORY,
    OUTLIER,
    READ,
    TREE,
    WATCH,
    WRITE,
    Costs,
    Curve,
    bin_of,
)
from semspec.decoding.economy import Economy
from semspec.decoding.sweep import WRITTEN, of_target
from semspec.driver import Driver
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.protocols import Plan
from semspec.results import tables
from semspec.types import Answer, Context, Generate, Query, Read, Sampling, What
from tests.support.costs import economy, table


def test_a_curve_goes_through_what_was_measured_and_straight_between() -> None:
    curve = Curve()
    for size, seconds in ((1, 1.0), (3, 2.0), (8, 3.0)):
        for _ in range(5):
            curve.add(size, seconds)
    assert [curve.at(n) for n in (1, 2, 3, 8)] == pytest.approx([1.0, 1.5, 2.0, 3.0])
    assert curve.at(5.5) == pytest.approx(2.5)
    assert curve.at(0.5) == pytest.approx(1.0)
    assert curve.each() == pytest.approx(2 / 7)
    assert curve.at(15) == pytest.approx(3 + 7 * 2 / 7)  # beyond: as steep as on the whole


def test_a_curve_never_falls_and_one_long_pass_does_not_bend_it() -> None:
    curve = Curve()
    for size, seconds in ((1, 2.0), (2, 1.0), (16, 4.0)):
        for _ in range(5):
            curve.add(size, seconds)
    assert curve.at(1) == curve.at(1.4) == pytest.approx(1.5)  # averaged: each weighs the same
    assert curve.at(16) == 4.0
    curve.add(16, 400.0)
    assert curve.at(16) == pytest.approx(4.0 + (OUTLIER - 1) * 4.0 / 6)
    everything = [curve.at(n / 2) for n in range(2, 80)]
    assert everything == sorted(everything)


def test_of_the_first_few_measurements_the_median_counts() -> None:
    """One that was interrupted would keep drafts away for a long time: what is not drafted is not measured again."""
    curve = Curve()
    for seconds in (1.0, 9.0, 1.2):
        curve.add(4, seconds)
    assert curve.at(4) == 1.2
    for seconds in (1.1, 1.1, 1.1):
        curve.add(4, seconds)
    assert curve.at(4) == pytest.approx(1.1)


def test_old_measurements_fade() -> None:
    curve = Curve()
    for seconds in [1.0] * 500 + [2.0] * 500:
        curve.add(4, seconds)
    assert curve.at(4) == pytest.approx(2.0, rel=0.01)


def test_sizes_share_a_bin_with_sizes_like_them() -> None:
    assert len({bin_of(n) for n in (1, 2, 3, 4)}) == 4
    assert bin_of(40) == bin_of(36) != bin_of(60)


def test_what_was_not_measured_is_judged_by_what_is_nearest() -> None:
    costs = table(passing=1.0, fed=0.1, token=1.0)
    assert costs.seconds("target", READ, 4) == pytest.approx(1.4)
    assert costs.seconds("target", READ, 4, together=8) == pytest.approx(1 + 3.2)  # 32 in all
    both = costs.seconds("target", WRITE, 10, together=8)
    assert both == pytest.approx(10 * (1 + 0.8) / 1.1, rel=0.01)
    assert costs.seconds("target", WATCH, 4) == costs.seconds("target", WRITE, 4)
    del costs.curves["target", TREE, 1]
    assert costs.seconds("target", TREE, 8) == costs.seconds("target", READ, 8)
    assert costs.seconds("draft", WRITE, 3) is None
    assert costs.token() == pytest.approx(1.0)


@pytest.mark.parametrize("together", [2, 4, 8, 16, 32])
def test_a_written_token_under_another_load_is_priced_by_all_tokens_of_the_pass(
    together: int,
) -> None:
    """Measured where eight problems share passes that take 10 + 1 for each of all their tokens."""
    costs = Costs()
    for size in (1, 2, 4, 8):
        costs.add("target", READ, 8, size, 10.0 + 8 * size)
    costs.add("target", WRITE, 8, 1, 18.0)
    assert costs.seconds("target", WRITE, 1, together) == pytest.approx(10.0 + together)
    assert costs.seconds("target", READ, 2, together) == pytest.approx(10.0 + max(2 * together, 8))


def test_the_only_row_of_a_load_says_what_one_token_costs() -> None:
    """Four problems have written sixteen tokens each, once, in 16 x 0.02 s."""
    costs = Costs()
    costs.add("target", WRITE, 4, 16, 0.32)
    assert costs.token(4) == pytest.approx(0.02)
    for size in (1, 4, 64):
        assert costs.seconds("target", WRITE, size, 4) == pytest.approx(0.02 * size)


def test_rows_shorter_than_any_measured_cost_less_but_for_their_start() -> None:
    costs = Costs()
    for size in (16, 32):
        costs.add("target", WRITE, 4, size, 0.1 + 0.02 * size)
    assert costs.seconds("target", WRITE, 1, 4) == pytest.approx(0.12)
    costs.add("target", READ, 4, 16, 0.3)  # a pass, which is hardly shorter with fewer tokens
    assert costs.seconds("target", READ, 1, 4) == pytest.approx(0.3)


@pytest.mark.parametrize("together", [2, 4, 8])
def test_a_written_token_between_two_loads_lies_on_the_line_between_them(together: int) -> None:
    """The nearest load alone made eight problems as dear as sixteen, and four as cheap as one."""
    costs = Costs()
    for size in (1, 8, 16):
        costs.add("target", READ, 1, size, 1.0 + 0.01 * size)
        costs.add("target", READ, 16, size, 4.0 + 0.2 * size)
        costs.add("target", WRITE, 1, size, 1.0 * size)
        costs.add("target", WRITE, 16, size, 4.0 * size)
    assert costs.token(together) == pytest.approx(1.0 + 3.0 * (together - 1) / 15)


def rows(costs: Costs, shares: Sequence[float], slower: float = 1.0) -> None:
    """Let the target write pairs of rows, the second one watched; ``slower``: the watched ones of one more, slower time."""
    watching = (Read(What.HIDDEN),)
    for share in shares:
        for reads, seconds in (((), 1.0), (watching, share)):
            asked = "target", Context(0, [0]), Sampling(1.0), random.Random(0)
            query = Query(*asked, reads=reads, generate=Generate(8), purpose="write")
            costs.took([(query, Answer([1] * 8, fed=8))], seconds, 0.0, 1)
    costs.add("target", WATCH, 1, 8, slower)


def test_watching_is_priced_by_rows_in_turn() -> None:
    """A machine that others slow down at times must not make watching look expensive."""
    costs = Costs()
    rows(costs, [1.02, 0.9, 1.02], slower=5.0)
    for size in (8, 32):
        written = costs.seconds("target", WRITE, size)
        assert written is not None
        assert costs.seconds("target", WATCH, size) == pytest.approx(1.02 * written)
    recorded = Costs.of(json.loads(json.dumps(costs.told())))
    assert recorded.seconds("target", WATCH, 8) == pytest.approx(1.02)


def test_the_sweep_measures_watched_rows_before_and_after_plain_ones() -> None:
    watching = (Read(What.HIDDEN),)

    class Watcher:
        watches = watching

    kit: Any = type("AnyKit", (), {"sampling": Sampling(0.0), "rng": random.Random(0)})
    who: Any = Watcher()
    asked = list(of_target(Context(0, [0, 1]), kit, {What.PROBS}, 100, [who], trees=False))
    written = [(one.generate.limit, one.reads) for one in asked if one.generate is not None]
    for count in WRITTEN:
        turn = [reads for limit, reads in written if limit == count]
        assert turn == [(), watching, watching, ()]


def test_only_the_newest_pairs_of_rows_count() -> None:
    costs = Costs()
    rows(costs, [2.0] * 200)
    assert len(costs.watching[1]) == MEMORY


def test_watching_saves_no_time_and_a_single_pair_says_nothing() -> None:
    costs = Costs()
    rows(costs, [0.8, 0.8, 0.8])
    assert costs.seconds("target", WATCH, 8) == costs.seconds("target", WRITE, 8)
    costs = Costs()
    rows(costs, [1.5], slower=1.5)
    assert costs.seconds("target", WATCH, 8) == pytest.approx(1.5)  # the curve's


def test_the_driver_brings_the_time_of_every_question_by_kind_size_and_company() -> None:
    costs = Costs()
    models = Toy(vocabulary=4, seed=3).models()
    probs = (Read(What.PROBS),)

    def plan(context: Context) -> Plan[None]:
        asked = "target", context, Sampling(1.0), random.Random(0)
        yield Query(*asked, tokens=[1, 2, 3], reads=probs)
        yield Query(*asked, tokens=[1, 2, 3], parents=[-1, -1, 0], reads=probs)
        yield Query(*asked, generate=Generate(5), purpose="write")
        yield Query(*asked, generate=Generate(5), reads=probs, purpose="write")
        yield Query("draft", *asked[1:], generate=Generate(2), reads=probs, purpose="draft")
        yield Query(*asked, tokens=[1], reads=(Read(What.EMBEDDINGS),))  # no pass

    for together in (1, 3):

        def plans(together: int = together) -> Iterator[tuple[Context, Plan[None]]]:
            for number in range(together):
                context = Context(number, [0, 1])
                yield context, plan(context)

        list(Driver(dict(models), costs).run(plans(), together))  # type: ignore[arg-type]
    kinds = {("target", READ): 3, ("target", TREE): 3, ("target", WRITE): 5, ("target", WATCH): 5}
    found = {(*k, n) for k in [*kinds, ("draft", WRITE)] for n in (1, 3)}
    assert set(costs.curves) == found
    for (role, kind), size in kinds.items():
        (point,) = costs.curves[role, kind, 3].points.values()
        assert (point.size, point.count, point.seconds > 0) == (size, 1, True)
    costs.fixed = True
    before = json.dumps(costs.told())
    list(Driver(dict(models), costs).run(plans(), 3))  # type: ignore[arg-type]
    assert json.dumps(costs.told()) == before


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    costs, one = table(token=0.25), economy(table())
    one.beliefs.learn([(("a", "b"), True), (("a",), False)])
    one.net, one.lengths = -0.5, [3, 4]
    (tmp_path / tables.FILE).write_text(json.dumps(tables.told(costs, {"draft": one})))
    for place in (tmp_path, tmp_path / tables.FILE):
        read = tables.read(str(place))
        assert read.costs.fixed and read.costs.told() == costs.told()
        again = Economy(read.costs)
        read.fill(again)
        assert again.told() == one.told()
        read.fill(Economy(read.costs, "nested"))  # nothing was learned of these


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no readable costs.json"),
        ("{}", "is not a cost table"),
        ('{"version": 99, "costs": [], "learned": {}}', "version 99"),
        ('{"version": 1, "costs": [{"who": "target"}], "learned": {}}', "is not a cost table"),
        (
            '{"version": 1, "costs": [{"who": "t", "kind": "read", "together": 1,'
            ' "points": [[1, -1, 0, 1]]}], "learned": {}}',
            "no measurement",
        ),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / tables.FILE).write_text(text)
    with pytest.raises(UserError, match=says):
        tables.read(str(tmp_path))


def test_damaged_learning_is_refused(tmp_path: Path) -> None:
    told = tables.told(table(), {"draft": economy(table())})
    told["learned"]["draft"]["bank"] = "much"
    (tmp_path / tables.FILE).write_text(json.dumps(told))
    with pytest.raises(UserError, match="is not a cost table"):
        tables.read(str(tmp_path)).fill(Economy(table()))


def test_short_drafts_are_cheap_until_they_are_measured() -> None:
    costs = Costs()
    for size in (1, 16):
        costs.add("target", WRITE, 1, size, float(size))
    one = Economy(costs, model=True)
    assert one.asking(4) == 0.0  # nothing is known
    costs.add("draft", WRITE, 1, 1, 0.5)
    costs.add("draft", WRITE, 1, 5, 2.5)
    assert one.asking(4) == pytest.approx(2.0)
    costs.add("draft", ASK, 1, 8, 4.0)
    assert one.asking(8) == 4.0 and 1.0 < one.asking(1) < one.asking(4) < 4.0
