"""semspec: speculative decoding for reasoning models, by whole steps or by tokens.

The library (docs/api.md) is imported on first use: ``semspec.load(...)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semspec.api import Figures, Pair, Solution, Step, UserError, load

__version__ = "0.1.0"
__all__ = ["Figures", "Pair", "Solution", "Step", "UserError", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'semspec' has no attribute '{name}'")
    from semspec import api

    return getattr(api, name)
