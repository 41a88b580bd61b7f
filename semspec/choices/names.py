"""Expand options to their full names: ``accept=arc theta=0.3`` sets ``accept.theta``."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from omegaconf import OmegaConf

from semspec import registry
from semspec.choices.presets import given_options, with_preset
from semspec.config import CONF, GROUPS, RunConfig, defaults
from semspec.errors import UserError


def full_names(arguments: Sequence[str], brought: bool = False) -> list[str]:
    """Add the group to plugin options that are given without it: ``accept=arc theta=0.3``.

    A key that is not a top-level option but a field of exactly one chosen plugin becomes ``group.key``; if two
    plugins have it, raise UserError and ask for the full name. A Python keyword stands for the option with an
    underscore: ``lambda=1`` sets ``lambda_``. ``brought``: where no plugin is chosen here, use the one that the
    targets' presets will bring.
    """
    known = {f.name for f in fields(RunConfig)}
    chosen = {group: name for group, name in defaults().items() if group in GROUPS}
    for name in given_options(arguments).get("model", "").split(",") if brought else ():
        for option in with_preset([f"model={name}"])[1:]:
            key, _, value = option.partition("=")
            if key in chosen:
                chosen[key] = f"{chosen[key]},{value}"
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in chosen:
            chosen[key] = value
    expanded = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key == "prompt":
            argument = f"prompt={quoted(value)}"
        if keyword.iskeyword(key.rpartition(".")[2]):  # lambda=1 is the field lambda_
            key = f"{key}_"
            argument = f"{key}{equals}{value}"
        if equals and key not in known and key.isidentifier():
            owners = [group for group in GROUPS if key in option_names(group, chosen[group])]
            if len(owners) == 1:
                argument = f"{owners[0]}.{key}={value}"
            elif owners:
                choices = " or ".join(f"{group}.{key}={value}" for group in owners)
                of = " and ".join(f"{group}={chosen[group]}" for group in owners)
                raise UserError(f"{key} is an option of {of}: give {choices}")
        expanded.append(argument)
    return expanded


def quoted(text: str) -> str:
    """Return free text as one literal value of Hydra's override grammar.

    In quotes, a backslash is special only before a quote or the end, and OmegaConf would resolve ``${...}``.
    """
    # the lookbehind lets a run of backslashes match only from its start
    text = re.sub(r"(?<!\\)(\\*)\$\{", r"\1\1\\${", text)
    text = re.sub(r"(?<!\\)(\\*)'", r"\1\1\\'", text)
    text = re.sub(r"(?<!\\)(\\+)\Z", r"\1\1", text)  # $ would match before a last line break, too
    return f"'{text}'"


def option_names(group: str, names: str) -> set[str]:
    """Return the options of the plugins or presets listed in ``names``."""
    plugins = registry.plugins(GROUPS[group])  # type: ignore[arg-type]
    found: set[str] = set()
    for name in names.split(","):
        name = name if name in plugins else plugin_of(group, name)
        if name in plugins:
            found |= {f.name for f in fields(plugins[name].cls)}
    return found


def plugin_of(group: str, preset: str) -> str:
    """Return the plugin that a preset in ``conf/`` is built on, or ""."""
    path = CONF / group / f"{preset}.yaml"
    listed: Any = OmegaConf.load(path) if path.is_file() else {}
    bases = listed.get("defaults", [])
    return next((str(name) for name in bases if isinstance(name, str) and name != "_self_"), "")
