"""Plans: generators that ask models, the form in which drafters, rules and stoppers are written."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from semspec.types import Query

T = TypeVar("T")
Plan = Generator[Query | tuple[Query, ...], Any, T]
"""A computation that asks models by yielding queries.

A ``Query`` gets an ``Answer``; a tuple of queries gets a tuple of answers. Queries of one tuple may run at
the same time, so none of them may need what another one draws.
"""
