"""The folder where semspec caches measurements of this machine for later runs."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "SEMSPEC_CACHE"


def cache(name: str) -> Path:
    """Return a cache folder, which may not exist yet: in $SEMSPEC_CACHE, or in semspec/ in the user's cache."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser() / name
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "semspec" / name
