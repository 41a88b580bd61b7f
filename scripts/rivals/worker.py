"""One engine in a process of its own: questions come as lines of JSON, answers go back the same way.

What the engine's native code prints goes to stderr, never between the answers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(name: str, workload: str, folder: str, core: str) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if core:
        os.sched_setaffinity(0, {int(core)})  # before any engine counts the cores

    def say(line: dict[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    import torch

    from rivals.base import Workload
    from rivals.catalogue import open_rival

    torch.set_num_threads(1)
    given = Workload.read(json.loads(Path(workload).read_text(encoding="utf-8")))
    opened: list[Any] = []

    def hello() -> dict[str, Any]:
        rival = open_rival(name, given, Path(folder))
        opened.append(rival)
        return {"kinds": list(rival.kinds), "versions": dict(rival.versions())}

    say(_answered(hello))
    for line in sys.stdin:
        asked = json.loads(line)
        rival = opened[0]
        if asked["do"] == "score":
            say(_answered(lambda: {"scores": rival.log_probability(asked["ids"], asked["tokens"])}))  # noqa: B023
        else:
            say(_answered(lambda: _timed(rival, asked)))  # noqa: B023
    for rival in opened:
        rival.close()


def _answered(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except Exception as error:  # an engine may raise anything, and the others go on
        return {"error": f"{type(error).__name__}: {str(error).strip()[:300]}"}


def _timed(rival: Any, asked: dict[str, Any]) -> dict[str, Any]:
    kind, ids, limit = asked["kind"], asked["ids"], asked["limit"]
    wall, cpu = time.perf_counter(), time.process_time()
    written = rival.speculative(kind, ids, limit) if kind else rival.plain(ids, limit)
    took = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    found = {"ids": written.ids, "ended": written.ended, "count": written.count}
    return {**found, "passes": written.passes, **took}


if __name__ == "__main__":
    main(*sys.argv[1:])
