"""Run every file of tests in a process of its own, several at a time; a file's output comes when it has ended.

    python -m tests.support.each_alone --workers 2 "FILE FILE ..." [pytest's arguments]

SGLang loads plugins once a process, and an engine that shuts down ends all children of its process. To import SGLang
takes 15 s, so that it is done once here, and every file's process is a fork of this one.
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

# what an engine's process and a server's have imported when they start their own processes
MODULES = (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
)
# of anyio, which is imported and has a plugin for pytest
QUIETLY = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=str.split, help="the files, with spaces between them")
    parser.add_argument("--workers", type=int, default=2, help="how many run at a time")
    given, pytest_arguments = parser.parse_known_args()
    # the longest files first, so that the last ones are short
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
    gc.freeze()  # what is shared stays shared


def tested() -> None:
    """End this process with pytest's verdict on the file of ``sys.argv``."""
    import pytest

    raise SystemExit(pytest.main())


if __name__ == "__main__":
    main()
