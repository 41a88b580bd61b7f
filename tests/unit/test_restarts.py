"""Restarting our own servers after they have ended: real processes that answer like servers."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from semspec.engines import servers
from semspec.engines.restarts import News, Restarts
from tests.support.processes import HEALTHY, left

# It answers if the file GOOD is there, else it ends at once; each start is a line in STARTS.
PROGRAM = """
import os, pathlib, sys, time
port, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
with (folder / "starts").open("a") as file:
    file.write(f"{os.getpid()}\\n")
if (folder / "slow").exists():
    time.sleep(600)
if not (folder / "good").exists():
    sys.exit("Error: out of memory")
"""


class Server:
    """One server under a keeper, and what was heard of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "program.py").write_text(PROGRAM + HEALTHY, encoding="utf-8")
        (folder / "good").touch()
        (self.port,) = servers.free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.heard: list[tuple[News, str]] = []

    @contextlib.contextmanager
    def watched(self, pauses: Sequence[float], steady: float = 60.0) -> Iterator[Restarts]:
        arguments = (sys.executable, str(self.folder / "program.py"), str(self.port), str(self.folder))  # fmt: skip
        one = servers.Planned(
            role="target", arguments=arguments, variables={}, url=self.url, host="127.0.0.1", port=self.port,
        )  # fmt: skip
        with (
            servers.started([one], 60, self.folder / "logs") as running,
            Restarts(running, 60, pauses, steady) as restarts,
        ):
            restarts.hear(self.url, lambda news, why: self.heard.append((news, why)))
            yield restarts

    @property
    def starts(self) -> list[int]:
        """The processes of all starts."""
        return [int(line) for line in (self.folder / "starts").read_text().split()]

    def kill(self) -> None:
        os.kill(self.starts[-1], signal.SIGKILL)

    @property
    def news(self) -> list[News]:
        return [news for news, _ in self.heard]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    one = Server(tmp_path)
    yield one
    assert left(one.starts, 30) == [], "a server was left behind"


def wait(until: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_that_is_killed_comes_back_at_its_address(server: Server) -> None:
    """Each time after the first pause, as it has answered for its steady time in between."""
    with server.watched((0.1,), steady=0.0) as restarts:
        for time_ in (1, 2):
            server.kill()
            wait(lambda time_=time_: server.news.count("answers") == time_)  # type: ignore[misc]
            assert restarts.expects(server.url) and not restarts.returns(server.url)
        assert servers.answers(server.url) and len(server.starts) == 3
    assert server.news == ["restart", "answers"] * 2
    assert server.heard[0][1].startswith("it ended with 137 (")
    assert server.heard[0][1].endswith("; try 1 of 1 in 0.1 s")
    assert (server.folder / "logs" / "target.before.log").exists()


def test_a_server_that_ends_again_and_again_is_given_up(server: Server) -> None:
    with server.watched((0.0, 0.1, 0.2)) as restarts:
        (server.folder / "good").unlink()
        server.kill()
        wait(lambda: server.news)
        assert restarts.returns(server.url) or "given_up" in server.news
        wait(lambda: "given_up" in server.news)
        assert not restarts.expects(server.url) and not restarts.returns(server.url)
        late: list[str] = []
        restarts.hear(server.url, lambda news, why: late.append(news))
        assert late == ["given_up"], "who begins to listen later is told how it stands"
    assert server.news == ["restart"] * 3 + ["given_up"] and len(server.starts) == 4
    why = server.heard[-1][1]
    assert why.startswith("it ended with 1 (Error: out of memory): see ") and "3 restarts" in why
    assert [f"try {n} of 3" in w for n, (_, w) in enumerate(server.heard[:3], 1)] == [True] * 3


def test_nothing_is_started_once_it_retires(server: Server) -> None:
    """Not where a try was planned, nor where a server ends afterwards."""
    with server.watched((1.5,)) as restarts:
        server.kill()
        wait(lambda: server.news)
        assert restarts.returns(server.url)
        restarts.retire()
        assert not restarts.expects(server.url) and not restarts.returns(server.url)
        time.sleep(2.5)
    assert server.news == ["restart"] and len(server.starts) == 1


def test_a_server_that_still_loads_when_it_retires_is_ended(server: Server) -> None:
    with server.watched((0.0,)) as restarts:
        (server.folder / "slow").touch()
        server.kill()
        wait(lambda: len(server.starts) == 2)
        restarts.retire()
        assert left(server.starts, 30) == []
    assert server.news == ["restart"]


def test_retiring_while_a_server_is_started_leaves_none_behind(server: Server) -> None:
    """Whatever the thread is doing at the time; the fixture looks for what is left."""
    with server.watched((0.0,), steady=0.0) as restarts:
        server.kill()
        thread = threading.Timer(0.5, restarts.retire)
        thread.start()
        thread.join()
        count = len(server.starts)
        time.sleep(1.2)
        assert (
            len(server.starts) <= count + 1
        )  # one whose process was begun may have come to its first line
