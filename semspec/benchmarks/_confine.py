"""Runs a program that a model wrote in a confined process; see ``_candidate.py`` for what that is."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from semspec.errors import UserError

CANDIDATE = Path(__file__).with_name("_candidate.py")
MEMORY = 1 << 30  # bytes of address space


def run_program(program: str, seconds: float, strict: bool = True) -> str:
    """ "passed" where it ran to its end, else what stopped it.

    ``strict=False`` leaves the system-call filter out: limits of time, memory and file size only.
    """
    order = {"program": program, "seconds": int(seconds), "memory": MEMORY, "strict": strict}
    with tempfile.TemporaryDirectory(prefix="semspec-") as folder:
        process = subprocess.Popen(
            # -I: no variables, no user's packages; -S: the standard library and nothing else
            [sys.executable, "-I", "-S", "-B", str(CANDIDATE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            answer, _ = process.communicate(json.dumps(order).encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return f"timed out after {seconds:g} s"
    lines = answer.decode(errors="replace").splitlines()
    if lines[:1] == ["unconfined"]:
        raise UserError(
            f"this system cannot confine programs ({lines[1]}), so none is run: give"
            " benchmark.confine=limits to run them with limits of time and memory only"
        )
    return lines[1] if len(lines) > 1 else f"died (exit status {process.returncode})"
