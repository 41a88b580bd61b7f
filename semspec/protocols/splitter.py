"""Splitters: decide where a unit ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from semspec.protocols.plugin import Plugin
from semspec.types import Boundary


class Splitter(Plugin, Protocol):
    """Tells where a unit (token, sentence, paragraph) ends."""

    def open(self, piece: Callable[[int], str], cap: int) -> Boundary:
        """Return a fresh boundary; ``piece`` returns a token's text, ``cap`` is the longest unit in tokens."""
        ...
