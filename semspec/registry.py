"""Find plugins: each module of a kind's package registers its own plugins.

A new drafter, rule, stopper, splitter, engine, benchmark or kind of artifact is one new file in its package. Discovery
imports all modules of the package. The contract tests run over the same registry. ``semspec.protocols`` describes
the life cycle of plugins.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar

from semspec.errors import UserError

Kind = Literal["drafter", "accept", "stop", "split", "engine", "benchmark", "artifact", "calls"]

PACKAGES: dict[Kind, str] = {
    "drafter": "semspec.drafters",
    "accept": "semspec.rules",
    "stop": "semspec.stops",
    "split": "semspec.splitters",
    "engine": "semspec.engines",
    "benchmark": "semspec.benchmarks",
    "artifact": "semspec.artifacts",
    "calls": "semspec.serve.calls",
}

C = TypeVar("C", bound=type)


@dataclass(frozen=True, slots=True)
class Registered:
    kind: Kind
    name: str
    cls: type[
        Any
    ]  # a frozen, kw_only dataclass: its fields are the options (artifacts: no options)

    @property
    def summary(self) -> str:
        return (self.cls.__doc__ or "").strip().splitlines()[0]


_PLUGINS: dict[Kind, dict[str, Registered]] = {kind: {} for kind in PACKAGES}


def register(kind: Kind, name: str) -> Callable[[C], C]:
    """Return a class decorator that registers a plugin under ``name``."""

    def decorate(cls: C) -> C:
        assert is_dataclass(cls), f"{cls.__name__}: a plugin is a dataclass of its options"
        assert cls.__doc__, f"{cls.__name__}: the docstring's first line is the plugin's help"
        known = _PLUGINS[kind].get(name)
        assert known is None or known.cls.__module__ == cls.__module__, f"{kind} {name} twice"
        _PLUGINS[kind][name] = Registered(kind, name, cls)
        return cls

    return decorate


@cache
def _discover(kind: Kind) -> None:
    package = importlib.import_module(PACKAGES[kind])
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{package.__name__}.{module.name}")


def plugins(kind: Kind) -> dict[str, Registered]:
    """Return all plugins of a kind by name; an artifact kind may be defined in the file of the plugin that needs it."""
    for home in PACKAGES if kind == "artifact" else (kind,):
        _discover(home)
    return dict(sorted(_PLUGINS[kind].items()))


def owners(kind: Kind, option: str) -> list[str]:
    """Return the names of the plugins of a kind that have an option."""
    known = plugins(kind).values()
    return [plugin.name for plugin in known if option in {one.name for one in fields(plugin.cls)}]


def name_of(made: object) -> str:
    """Return the name under which a plugin's class is registered."""
    found = (p.name for known in _PLUGINS.values() for p in known.values() if p.cls is type(made))
    name = next(found, None)
    assert name is not None, f"{made} is no registered plugin"
    return name


def plugin(kind: Kind, name: str) -> Registered:
    """Return the plugin of that name; raise UserError, suggesting the nearest name, if there is none."""
    known = plugins(kind)
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {kind}={near[0]}?" if near else f"choose one of: {', '.join(known)}"
    raise UserError(f"unknown {kind} '{name}': {hint}")
