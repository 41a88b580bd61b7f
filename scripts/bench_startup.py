"""Measure start-up times: the import, the help, the error for a misspelt option, and a server that is ready.

    python scripts/bench_startup.py [--times 5] [--only "a server is ready"]

`make bench` includes these figures. A server is ready once GET /ready returns 200.
"""

from __future__ import annotations

import http.client
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from script_kit import check_known, parser, server, table

SERVED = {  # options of semspec.serve
    "a server is ready": (),
    "a server with adaptive=false is ready": ("adaptive=false",),
}
COMMANDS = {
    "import semspec": ("-c", "import semspec"),
    "semspec.run --help": ("-m", "semspec.run", "--help"),
    "wrong option": ("-m", "semspec.run", "drafft=lm"),
}
LOOK = 0.01  # seconds between two polls of /ready


def _start(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Start Python once; return CPU and wall seconds."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False, env=environment)
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def _serve(options: tuple[str, ...]) -> tuple[float, float]:
    """Start a server of the embedded pair; return the CPU and wall seconds until it is ready."""
    begun = time.perf_counter()
    with server(*options) as started:  # which has said that it is ready
        with closing(http.client.HTTPConnection("127.0.0.1", started.port)) as asking:
            while not _ready(asking):
                time.sleep(LOOK)
        wall = time.perf_counter() - begun
        return _cpu_seconds(started.process.pid), wall


def _ready(asking: http.client.HTTPConnection) -> bool:
    asking.request("GET", "/ready")
    got = asking.getresponse()
    got.read()
    return got.status == 200


def _cpu_seconds(process: int) -> float:
    """Return the CPU seconds of a running process, from Linux's /proc."""
    line = Path(f"/proc/{process}/stat").read_text()
    fields = line.rpartition(")")[2].split()  # from the third on: names may have spaces
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


STARTS: dict[str, Callable[[], tuple[float, float]]] = {
    **{name: partial(_start, arguments) for name, arguments in COMMANDS.items()},
    **{name: partial(_serve, options) for name, options in SERVED.items()},
}


def startup(times: int = 5, only: tuple[str, ...] = tuple(STARTS)) -> dict[str, dict[str, float]]:
    """Return each start's median CPU and wall seconds, after one start that does not count."""
    figures = {}
    for name in only:
        STARTS[name]()  # Python compiles what has changed since the last time
        cpu, wall = zip(*(STARTS[name]() for _ in range(times)), strict=True)
        figures[name] = {
            "cpu_seconds": round(statistics.median(cpu), 3),
            "seconds": round(statistics.median(wall), 3),
        }
    return figures


def show_startup(figures: dict[str, dict[str, float]]) -> Table:
    """Return the figures as a table for a terminal."""
    shown = table("seconds to start", "", "CPU", "wall")
    for name, f in figures.items():
        shown.add_row(name, f"{f['cpu_seconds']:.2f}", f"{f['seconds']:.2f}")
    return shown


def main() -> None:
    """Measure the requested starts, and show them."""
    only = (list(STARTS), "which starts")
    asked = parser(__doc__, times=(5, "that count"), only=only).parse_args()
    check_known(asked.only, STARTS)
    Console().print(show_startup(startup(asked.times, tuple(asked.only))))


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(main)
