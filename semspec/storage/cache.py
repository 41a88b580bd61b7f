"""Where semspec keeps what it has measured on this machine, to take it again in a later run."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "SEMSPEC_CACHE"


def cache(name: str) -> Path:
    """Return a folder of the user's cache, which need not exist: $SEMSPEC_CACHE, or semspec/ where caches are."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser() / name
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "semspec" / name
