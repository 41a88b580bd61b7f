"""The seconds that begin every use: the import, the help, and the answer to a misspelt option."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time

STARTS = {
    "import semspec": ("-c", "import semspec"),
    "--help": ("-m", "semspec.run", "--help"),
    "wrong option": ("-m", "semspec.run", "drafft=lm"),
}


def _start(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Start Python once; returns CPU and wall seconds."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False, env=environment)
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def startup(times: int = 5) -> dict[str, dict[str, float]]:
    """Measure each start: the median CPU and wall seconds, after one start that is not counted."""
    figures = {}
    for name, arguments in STARTS.items():
        _start(arguments)  # Python compiles what has changed since the last time
        cpu, wall = zip(*(_start(arguments) for _ in range(times)), strict=True)
        figures[name] = {
            "cpu_seconds": round(statistics.median(cpu), 3),
            "seconds": round(statistics.median(wall), 3),
        }
    return figures
