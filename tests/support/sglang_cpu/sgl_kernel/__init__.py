"""Stands in for SGLang's CUDA kernels, which have no CPU build: every name imports, no call works.

A call that raises shows that SGLang took a path which the CPU does not have; see sitecustomize.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(
            f"sgl_kernel.{name} has no CPU build; this is tests/support's stand-in"
        )

    return missing
