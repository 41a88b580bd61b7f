"""Sessions are opened when they are first needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semspec.drafters._base import DraftSessionBase
from semspec.drafters._first import SeveralSessions
from semspec.drafters.opening import LazySession, Opener
from semspec.driver import Timed
from semspec.engines.toy import Toy
from semspec.protocols import DraftSession, Plan
from semspec.rules.lossless import Lossless
from semspec.types import Context, Draft, Read, Room, Round, Sampling, Seen, What
from tests.support.law import toy_kit

READ = Read(What.TOP_K, k=3)


class Watching(DraftSessionBase):
    watches = (READ,)
    recalls = False

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def see(self, seen: Seen) -> None:
        self.seen.append(seen)

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        yield from ()
        return Draft([len(context)])


class Learning(Watching):
    def observe(self, context: Context, done: Round) -> None:
        """Learn from a round."""


def counted(kind: type[Watching]) -> tuple[list[Watching], Callable[[], DraftSession]]:
    made: list[Watching] = []

    def opening() -> DraftSession:
        made.append(kind())
        return made[-1]

    return made, opening


def drafted(session: DraftSession) -> list[int]:
    plan = session.draft(Context(0, [1, 2, 3]), Room(4, 4, 1))
    try:
        next(plan)
    except StopIteration as stop:
        return list(stop.value.tokens)
    raise AssertionError("it asks nothing")


def test_the_first_session_says_what_the_later_ones_watch_before_they_are_open() -> None:
    made, opening = counted(Watching)
    opener = Opener()
    opener(opening)
    assert len(made) == 1
    later = opener(opening)
    assert isinstance(later, LazySession) and len(made) == 1
    assert later.watches == (READ,) and later.recalls is False
    assert drafted(later) == [3] and drafted(later) == [3]
    assert len(made) == 2


def test_rows_open_a_session_and_a_round_does_not() -> None:
    made, opening = counted(Watching)
    later = LazySession(opening, (READ,), True)
    later.observe(Context(0, [1]), Round())
    assert not made
    seen = Seen(0, 1, {})
    later.see(seen)
    assert made[0].seen == [seen]


def test_a_session_that_learns_from_rounds_is_there_from_the_first_one_on() -> None:
    made, opening = counted(Learning)
    opener = Opener()
    for count in range(1, 4):
        assert isinstance(opener(opening), Learning)
        assert len(made) == count


class Recalling(Watching):
    recalls = True


class Blind(Watching):
    watches = ()
    recalls = True


@pytest.mark.parametrize(
    ("kinds", "recalls"),
    [((Watching, Blind), False), ((Watching, Recalling), True), ((Recalling, Blind), True)],
)
def test_sessions_side_by_side_recall_if_one_that_watches_does(
    kinds: tuple[type[Watching], ...], recalls: bool
) -> None:
    kit = toy_kit(Lossless(), Toy().models()["target"], Sampling(1.0), 1)
    both = SeveralSessions([kind() for kind in kinds], kit)
    assert both.watches == (READ,) and both.recalls is recalls
    assert Timed(both).recalls is recalls
