"""Choose the engine if none is named: engines rate themselves for this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from semspec import registry
from semspec.choices.choice import Choice
from semspec.choices.names import option_names
from semspec.choices.presets import given_options
from semspec.choices.rule import choose_rule, with_rule
from semspec.choices.trial import refusal
from semspec.config import AUTO, GROUPS, RunConfig, defaults


def choose_engine(
    arguments: Sequence[str], unless_named: bool = True, check: bool = True
) -> Choice | None:
    """Return what ``engine=auto`` means here; None if another engine is named.

    It is the engine whose own options are given, or else the one with the highest rating for this machine
    (``EngineOptions.suits``) that can run the configuration. ``unless_named``: auto is the default. ``check`` is
    False for options of commands other than semspec.run.
    """
    given = given_options(arguments)
    if AUTO not in given.get("engine", AUTO if unless_named else "").split(","):
        return None
    engines = {name: engine.cls for name, engine in registry.plugins("engine").items()}
    rated = {name: found for name, cls in engines.items() if (found := cls.suits()) is not None}
    known = {f.name for f in fields(RunConfig)}
    for option in given:
        group, dot, name = option.rpartition(".")
        if group == "engine" if dot else option not in known:
            owners = [engine for engine in rated if name in option_names("engine", engine)]
            others = [
                g for g in GROUPS if g != "engine" and name in option_names(g, _chosen(g, given))
            ]
            if len(owners) == 1 and not (others and not dot):
                return Choice("engine", owners[0], f"{option}= is given")
    best, *others = sorted((n for n in rated if rated[n][0]), key=lambda n: -rated[n][0])
    why = rated[best][1] or "; ".join(why for rating, why in rated.values() if not rating and why)
    if check and others:
        refused = {name: _refusal(arguments, name) for name in (best, others[0])}
        if refused[best] and not refused[others[0]]:
            return Choice("engine", others[0], refused[best])
    return Choice("engine", best, why)


def _chosen(group: str, given: Mapping[str, str]) -> str:
    return given.get(group) or defaults()[group]


def _refusal(arguments: Sequence[str], engine: str) -> str:
    """Say why an engine cannot run some configuration of a command line; "" if it can run all."""
    named = [a for a in arguments if a.partition("=")[0] != "engine"]
    return refusal([*with_rule(named, choose_rule(named)), f"engine={engine}"])


def with_engine(arguments: Sequence[str], choice: Choice | None) -> list[str]:
    """Replace ``engine=auto`` by a choice."""
    if choice is None:
        return list(arguments)
    given = [argument.partition("=")[2] for argument in arguments if argument.startswith("engine=")]
    names = (given[-1] if given else AUTO).split(",")
    settled = list(dict.fromkeys(choice.name if name == AUTO else name for name in names))
    others = [argument for argument in arguments if not argument.startswith("engine=")]
    # leave the default out, because folders are named after options
    usual = settled == [defaults()["engine"]]
    return others if usual else [*others, f"engine={','.join(settled)}"]
