"""The one file that knows private names of SGLang: where hooks go, and what they find there.

Each target was looked up in the wheel of every version in ``KNOWN``; a version that is not there is
refused, because a name that moved would be noticed only by what it then fails to do. When a new
SGLang comes: add it here, run ``make test-sglang`` with it, and mend what fails.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from semspec.errors import UserError

KNOWN = (
    *("0.5.14", "0.5.15", "0.5.15.post1", "0.5.16", "0.5.17", "0.5.18"),
    *("0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)

Kind = Literal["BEFORE", "AFTER", "AROUND", "REPLACE"]


@dataclass(frozen=True, slots=True)
class Hook:
    """One function of SGLang, and what is put around it."""

    target: str  # dotted, without ``sglang.srt.``
    function: Callable[..., Any]
    kind: Kind

    @property
    def path(self) -> str:
        return f"sglang.srt.{self.target}"


# ---- versions, and whether hooks took ---------------------------------------------------------


def version() -> str:
    import sglang

    return str(sglang.__version__)


def check_version() -> None:
    """Refuses an SGLang that this file was not written for."""
    if (found := version()) not in KNOWN:
        raise UserError(
            f"it does not know SGLang {found}; it knows {', '.join(KNOWN)}: install one of these, or a"
            " newer semspec, or start the server without it"
        )


def has(target: str) -> bool:
    """Whether this SGLang has something of that name."""
    try:
        pkgutil.resolve_name(f"sglang.srt.{target}")
    except (ImportError, AttributeError):
        return False
    return True


def runs_models() -> bool:
    """Whether this process may run a model: it has imported the scheduler.

    To apply a hook is to import its module; the detokenizer's process is left alone.
    """
    return "sglang.srt.managers.scheduler" in sys.modules


def apply(hooks: Sequence[Hook]) -> None:
    """Registers hooks; once SGLang has applied them, the process ends unless each one took.

    SGLang logs a hook that it cannot apply and goes on. It applies them right after the plugins
    were asked, so what looks whether they took is put behind that very call.
    """
    if not hooks:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    twice = [h.target for h in hooks if h.path in HookRegistry._patched]
    if twice:  # SGLang would ignore a second hook there without a word
        raise UserError(f"{', '.join(twice)} were hooked before: load semspec's plugin once, first")
    for hook in hooks:
        HookRegistry.register(hook.path, hook.function, HookType[hook.kind])
    applied = HookRegistry.apply_hooks

    def apply_and_check() -> None:
        applied()
        if missed := missing(hooks):
            raise SystemExit(
                f"semspec's SGLang plugin: hooks on {', '.join(missed)} did not take with SGLang"
                f" {version()}: report it, and start the server without the plugin meanwhile"
            )

    HookRegistry.apply_hooks = apply_and_check


def missing(hooks: Sequence[Hook]) -> list[str]:
    """Targets whose hook is not in place."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    return [h.target for h in hooks if h.path not in HookRegistry._patched or not _wrapped(h)]


def _wrapped(hook: Hook) -> bool:
    """Whether what stands at the target now is a wrapper."""
    try:
        found = pkgutil.resolve_name(hook.path)
    except (ImportError, AttributeError):
        return False
    return hook.kind == "REPLACE" or hasattr(found, "__wrapped__")
