"""Token level: a draft may be cut anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from semspec.decoding.units import check_cap
from semspec.protocols import Splitter
from semspec.registry import register
from semspec.types import Boundary, Stops


class TokenBoundary:
    """Every token is a unit, whatever its text."""

    __slots__ = ()

    stops = Stops(cap=1)

    def feed(self, token: int) -> Literal[0]:
        return 0


@register("split", "token")
@dataclass(frozen=True, kw_only=True)
class TokenSplit(Splitter):
    """Every token is a unit by itself."""

    def open(self, piece: Callable[[int], str], cap: int) -> Boundary:
        check_cap(cap)
        return TokenBoundary()
