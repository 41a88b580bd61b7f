"""Run each test file in its own process, several at a time; print a file's output when it ends.

    python -m tests.support.each_alone --workers 2 "FILE FILE ..." [pytest's arguments]

SGLang loads plugins once per process, and an engine that shuts down ends all children of its process. Importing SGLang
takes 15 s, so it is imported once here, and each file runs in a fork.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
import tempfile
from collections import deque
from pathlib import Path

# modules that an engine or a server has imported when it starts its own processes
MODULES = (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
)
# silences a warning about anyio, which is imported already and has a pytest plugin
QUIETLY = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=str.split, help="the files, with spaces between them")
    parser.add_argument("--workers", type=int, default=2, help="how many run at a time")
    given, pytest_arguments = parser.parse_known_args()
    # largest files first, so that short ones run last
    waiting = deque(sorted(given.files, key=lambda file: -Path(file).stat().st_size))
    imported()
    running: dict[int, Path] = {}
    failed = False
    while waiting or running:
        while waiting and len(running) < given.workers:
            file = waiting.popleft()
            log, path = tempfile.mkstemp(suffix=".log")
            process = os.fork()
            if not process:
                os.dup2(log, 1)
                os.dup2(log, 2)
                sys.argv = ["pytest", *QUIETLY, file, *pytest_arguments]
                tested()
            os.close(log)
            running[process] = Path(path)
        process, status = os.wait()
        sys.stdout.write(running[process].read_text(errors="replace"))
        sys.stdout.flush()
        running.pop(process).unlink()
        failed |= status != 0
    raise SystemExit(failed)


def imported() -> None:
    """Import what all files need, as ``tests/sglang/conftest.py`` would."""
    from tests.support import sglang_env

    sglang_env.activate()
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()  # keep memory pages shared with the forks


def tested() -> None:
    """Run pytest with ``sys.argv``, and end this process with its exit code."""
    import pytest

    raise SystemExit(pytest.main())


if __name__ == "__main__":
    main()
