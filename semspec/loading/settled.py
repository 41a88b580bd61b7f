"""The garbage collector, once a command has loaded what it needs."""

from __future__ import annotations

import gc


def settle() -> None:
    """Keep full collections from going over modules and models again and again, which takes a tenth of a second each.

    For commands, which use to their end what they have loaded: what has become garbage by then is collected here, and
    what lives on is never looked at again.
    """
    gc.collect()
    gc.freeze()
