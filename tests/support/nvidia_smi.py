"""A fake ``nvidia-smi`` with scripted output, for machines without a GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int = 0) -> None:
    """Put a program of that name first on PATH that prints a text and exits with a code."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def table(*mebibytes: int, free: Sequence[int | str] = (), name: str = "NVIDIA H100 80GB") -> str:
    """Return the driver's table of GPUs with these memory sizes, all of it free unless ``free`` is given."""
    left = free or mebibytes
    rows = zip(mebibytes, left, strict=True)
    return "\n".join(f"{i}, GPU-{i}a{i}b, {name}, {all_}, {f}" for i, (all_, f) in enumerate(rows))
