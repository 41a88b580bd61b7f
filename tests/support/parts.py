"""Compare folders made by one process with those made by several parts."""

from __future__ import annotations

from pathlib import Path

OWN = ("part-", ".submitit", ".lock", "sweep.json")  # files of the parts and their jobs


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files that must not depend on the division into parts."""
    files = {str(f.relative_to(folder)): f for f in sorted(folder.rglob("*")) if f.is_file()}
    return {name: f.read_bytes() for name, f in files.items() if not name.startswith(OWN)}
