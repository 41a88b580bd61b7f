"""A run's seconds with each pass at its usual price: what other programs add to a pass does not count."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from semspec.engines._lean.step import Step
from semspec.types import Generate
from tests.support import tiny_models

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import pass_times


def run(between: float, **passes: list[float]) -> pass_times.Run:
    """Return a run with so many seconds between its passes."""
    made = pass_times.Run(between + sum(map(sum, passes.values())))
    made.passes.update({(kind,): seconds for kind, seconds in passes.items()})
    return made


def test_an_interrupted_pass_counts_as_its_kind_usually_does_and_all_else_as_measured() -> None:
    runs = [run(0.5, one=[1.0, 1.0, 1.0], many=[2.0]), run(0.25, one=[9.0, 1.0], many=[4.0, 2.0])]
    prices = pass_times.usual_prices(runs)
    assert prices == {("one",): 1.0, ("many",): 2.0}
    assert [pass_times.usual_seconds(each, prices) for each in runs] == [5.5, 6.25]


def test_passes_that_are_slower_in_one_way_than_in_the_other_are_told() -> None:
    drafting, plain = run(0.1, one=[1.2] * 9, tree=[5.0]), run(0.1, one=[1.0] * 20)
    assert pass_times.slower([drafting], [plain]) == pytest.approx(1.2)
    assert pass_times.slower([run(0.1, tree=[5.0])], [plain]) is None


def test_each_pass_of_an_engine_is_timed_and_its_methods_are_as_before() -> None:
    before, made, engine = Step.one, pass_times.Run(), tiny_models.load()
    with pass_times.timed(made):
        for key, length, limit in ((0, 9, 6), (1, 80, 1)):
            at = tiny_models.context(tiny_models.tokens(length), key)
            tiny_models.ask(engine, at, generate=Generate(limit))
    counts = Counter[object]()
    for kind, seconds in made.passes.items():
        counts[kind[0]] += len(seconds)
    # a prompt's pass gives the first token; the last one is not fed
    assert counts == {"few": 1, "one": 5, "many": 1, "logits": 7}
    assert 0 < sum(map(sum, made.passes.values())) < made.seconds
    assert Step.one is before
