"""Folders that ship with semspec: ``conf/`` and ``hub_artifacts/``."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def beside_package(name: str) -> Path:
    """Return a top-level folder: inside the package if installed, beside it in a checkout."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name
