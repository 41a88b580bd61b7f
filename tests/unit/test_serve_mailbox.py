"""When the event loop gets a choice's news: the first at once, then bundled, and the end at once again."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, cast

import pytest

from semspec.serve import scheduling
from semspec.serve.choices import Choice
from semspec.serve.news import News
from semspec.serve.scheduling import Mailbox


class Teller:
    """Tells numbers from a thread of its own, as a choice does."""

    def __init__(self) -> None:
        self.wake: Any = None
        self.told: list[Any] = []
        self.ended = False
        self.tokens = 0
        self._lock = threading.Lock()

    def say(self, *numbers: int) -> None:
        with self._lock:
            self.told += numbers
            self.tokens += len(numbers)
        self.wake(False)

    def end(self) -> None:
        self.ended = True
        self.wake(True)

    def take(self) -> News:
        with self._lock:
            news = News(tokens=self.tokens, ended=self.ended)
            news.items, self.told = self.told, []
        return news


def heard(
    tell: Any, pause: float, monkeypatch: pytest.MonkeyPatch, share: float = 0.0, busy: int = 1
) -> list[tuple[float, Any]]:
    """Return what arrives, each with the seconds since the start."""
    monkeypatch.setattr(scheduling, "PAUSE", pause)
    monkeypatch.setattr(scheduling, "SHARE", share)

    async def listen() -> list[tuple[float, Any]]:
        teller = Teller()
        mailbox = Mailbox([cast(Choice, teller)], lambda: busy)
        began = time.monotonic()
        thread = threading.Thread(target=tell, args=(teller,))
        thread.start()
        got = [(time.monotonic() - began, news.items) async for _, news in mailbox.news()]
        thread.join()
        return got

    return asyncio.run(listen())


@pytest.mark.parametrize(("pause", "share", "busy"), [(0.4, 0.01, 1), (0.01, 0.01, 40)])
def test_what_comes_within_the_pause_is_delivered_together(
    pause: float, share: float, busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one answer, and of one among many."""

    def tell(teller: Teller) -> None:
        for number in range(40):
            teller.say(number)
            time.sleep(0.02)
        time.sleep(1)
        teller.end()

    got = heard(tell, pause, monkeypatch, share, busy)
    assert [one for _, items in got for one in items] == list(range(40))
    assert got[0][0] < 0.3  # the first at once
    assert 3 <= len(got) <= 8
    # nothing that is told stays behind until more comes
    assert got[-2][0] < got[-1][0] - 0.3 and got[-1][1] == []


def test_what_comes_faster_than_anybody_reads_is_told_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tell(teller: Teller) -> None:
        for number in range(200):
            teller.say(number)
            time.sleep(0.005)
        teller.end()

    monkeypatch.setattr(scheduling, "READABLE", 20)
    monkeypatch.setattr(scheduling, "LONG", 0.5)
    got = heard(tell, 0.02, monkeypatch)
    assert [one for _, items in got for one in items] == list(range(200))
    assert got[0][0] < 0.3
    assert len(got) < 8  # instead of some fifty


def test_the_end_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(teller: Teller) -> None:
        teller.say(1)
        time.sleep(0.2)
        teller.say(2)
        teller.end()

    got = heard(tell, 30.0, monkeypatch)
    assert [one for _, items in got for one in items] == [1, 2]
    assert got[-1][0] < 10


def test_nothing_is_lost_between_the_look_and_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(teller: Teller) -> None:
        for number in range(3_000):
            teller.say(number)
        teller.end()

    got = heard(tell, 0.0, monkeypatch)
    assert [one for _, items in got for one in items] == list(range(3_000))


@pytest.mark.parametrize(("busy", "stands_back"), [(1, True), (2, False)])
def test_a_thread_that_is_alone_stands_back_until_its_news_are_delivered(
    busy: int, stands_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With others under way it does not wait: they have work for it."""
    monkeypatch.setattr(scheduling, "TURN", 60.0)
    delivered, seen = threading.Event(), list[bool]()

    async def listen() -> None:
        teller = Teller()
        mailbox = Mailbox([cast(Choice, teller)], lambda: busy)
        going = threading.Event()

        def tell() -> None:
            teller.say(1)
            seen.append(delivered.is_set())
            going.set()
            teller.end()  # nobody stands back for an end: nothing else is to be done

        thread = threading.Thread(target=tell)
        thread.start()
        async for _, news in mailbox.news():
            if not stands_back:  # so that it would be seen if it waited for this
                assert await asyncio.to_thread(going.wait, 30)
            if news.items:
                delivered.set()
        thread.join()

    asyncio.run(listen())
    assert seen == [stands_back]


def test_nobody_stands_back_for_long_for_a_loop_that_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduling, "TURN", 0.05)
    said = threading.Event()

    async def listen() -> list[Any]:
        teller = Teller()
        mailbox = Mailbox([cast(Choice, teller)])

        def tell() -> None:
            for number in range(3):
                teller.say(number)
            said.set()
            teller.end()

        thread = threading.Thread(target=tell)
        thread.start()
        assert said.wait(30)  # the loop itself: it hears of nothing meanwhile
        got = [one async for _, news in mailbox.news() for one in news.items]
        thread.join()
        return got

    assert asyncio.run(listen()) == [0, 1, 2]
