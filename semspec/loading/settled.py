"""Set up the garbage collector once a command has loaded what it needs."""

from __future__ import annotations

import gc


def settle() -> None:
    """Keep full collections from scanning modules and models again and again, which takes 0.1 s each time.

    For commands, which use what they have loaded until they end: garbage so far is collected here, and everything
    else is never scanned again.
    """
    gc.collect()
    gc.freeze()
