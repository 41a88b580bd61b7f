"""Write reports, atomically."""

from __future__ import annotations

from pathlib import Path

from semspec.report.html_transcript import Limits
from semspec.report.page import REPORT, run_page
from semspec.report.runs import read_run, read_sweep
from semspec.report.sweep import sweep_page
from semspec.storage.files import os_errors_as_user_errors, write_text


def write_run(folder: Path, out: Path | None = None, limits: Limits | None = None) -> Path:
    """Write the report of a run's folder, by default into it; return its path."""
    return _write(out or folder / REPORT, run_page(read_run(folder), limits))


def write_sweep(folder: Path, out: Path | None = None) -> Path:
    """Write the report of a folder of runs, by default into it; return its path."""
    place = out or folder / REPORT
    return _write(place, sweep_page(folder, read_sweep(folder), place.parent))


def _write(path: Path, text: str) -> Path:
    with os_errors_as_user_errors(path.parent):
        write_text(path, text)
    return path
