"""While drafting pauses, the target goes on by itself to the end of its text, and no further."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semspec.decoding.pace import Steady
from semspec.decoding.stopping import Stopping
from semspec.decoding.writing import Pen, Writing
from semspec.drafters.lm import LanguageModel
from semspec.loop import Speculation, speculate
from semspec.rules.lossless import Lossless
from semspec.stops.none import NoStop
from semspec.types import Answer, Generate, Handover, Round
from tests.support.words import Words, asked, finish


@dataclass(slots=True)
class Resting(Steady):
    """Drafts nothing, and lets the target write a hundred tokens at a time."""

    def alone(self, left: int) -> int:
        return min(100, left)


def test_nothing_is_written_behind_an_end_of_text_while_nested_drafts_rest() -> None:
    words = Words()
    kit = words.kit()
    pen = Pen(LanguageModel().open(kit), Lossless().open(kit), Resting(0, 1))
    writing = Writing(words.context(" One.\n\n"), kit, 500, pen=pen)
    done = Round()
    plan = writing.write(Handover(units=8), done)
    query = asked(plan)
    assert query.generate is not None and query.generate.units == 8
    step = words.encode(" Two.\n\n")
    # it ends its text before it has written as many steps as it was left
    finish(plan, Answer([*step, 0], ends=[len(step)], finish="eos"))
    assert writing.ended and done.handed == [*step, 0]


def test_what_is_left_of_the_steps_is_asked_for_next() -> None:
    words = Words()
    kit = words.kit()
    pen = Pen(LanguageModel().open(kit), Lossless().open(kit), Resting(0, 1))
    writing = Writing(words.context(), kit, 500, pen=pen)
    done = Round()
    plan = writing.write(Handover(units=2), done)
    asked(plan)
    step = words.encode(" Two.\n\n")
    again = plan.send(Answer(list(step), ends=[len(step)], finish="limit"))
    assert not isinstance(again, tuple)
    assert again.generate is not None and again.generate.units == 1
    finish(plan, Answer(list(step), ends=[len(step)], finish="units"))
    assert done.handed == [*step, *step] and done.handed_ends == [len(step), 2 * len(step)]


@dataclass(slots=True)
class Onward(Resting):
    """Rests for long."""

    onward: bool = True


def resting(pen: bool = False, **options: Any) -> Generate:
    """What the target is asked where drafts rest."""
    words = Words()
    kit = words.kit()
    own = (LanguageModel().open(kit), Lossless().open(kit))
    nested = Pen(LanguageModel().open(kit), Lossless().open(kit), Resting(0, 1)) if pen else None
    problem = Speculation(words.context(), kit, 500, *own, Onward(0, 1), pen=nested, **options)
    query = asked(speculate(problem))
    assert query.generate is not None
    return query.generate


def test_a_text_may_be_written_onward_while_drafts_rest_for_long() -> None:
    asked = resting()
    assert (asked.units, asked.limit, asked.onward) == (100, 500, 500)


def test_a_text_comes_in_steps_where_somebody_needs_their_ends() -> None:
    assert resting(stepwise=True).onward == 0
    assert resting(pen=True).onward == 0
    kit = Words().kit()
    stopping = Stopping.of(NoStop(), "none", kit, kit.boundary, 99)
    assert resting(stopping=stopping).onward == 500  # a limit alone asks nothing
    stopping.boundary = kit.boundary()
    assert resting(stopping=stopping).onward == 0
