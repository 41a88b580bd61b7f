"""The description of one part of the plugin; ``settings.PARTS`` names the modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from semspec.sglang_plugin.compat import Hook

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """One part, which its module defines as ``PART``; each process of a server evaluates it."""

    options: type[T]
    hooks: Callable[[T], Sequence[Hook]]  # in processes that may run a model
    everywhere: Callable[[T], Sequence[Hook]] = lambda options: ()  # in every process
    prepare: Callable[[T], None] = lambda options: None  # before anything is loaded; may refuse
    option_names: Callable[[], Sequence[str]] | None = None  # None: the options' fields
