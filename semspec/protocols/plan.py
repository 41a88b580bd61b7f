"""What drafters, rules and stoppers are written as: generators that ask models questions."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from semspec.types import Query

T = TypeVar("T")
Plan = Generator[Query | tuple[Query, ...], Any, T]
"""A computation that asks models questions by yielding them.

For a ``Query`` an ``Answer`` comes back; for a tuple of queries, a tuple of answers. Queries of one
tuple may run at the same time, so none of them may need what another one draws.
"""
