"""What a part of the plugin says of itself; ``settings.PARTS`` names the modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from semspec.sglang_plugin.compat import Hook

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """One part, which its module has as ``PART``; everything here is done in each of a server's processes."""

    options: type[T]
    hooks: Callable[[T], Sequence[Hook]]  # where a model may run
    everywhere: Callable[[T], Sequence[Hook]] = lambda options: ()  # in the other processes, too
    prepare: Callable[[T], None] = lambda options: None  # before anything is loaded; may refuse
    option_names: Callable[[], Sequence[str]] | None = None  # None: the options' fields
