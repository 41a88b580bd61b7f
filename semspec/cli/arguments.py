"""Check the arguments of commands that Hydra composes, and explain a mistake in one line."""

from __future__ import annotations

import contextlib
import difflib
import shlex
from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from semspec import config, registry
from semspec.choices.presets import with_preset
from semspec.config import build, compose, one_line
from semspec.deferred import hydra
from semspec.errors import UserError

FLAGS_WITH_VALUE = {"--cfg", "-c", "--package", "-p", "--config-dir", "-cd", "--info", "-i"}
FLAGS = FLAGS_WITH_VALUE | {"-m", "--multirun", "-r", "--run", "--resolve", "--hydra-help", "-sc", "--shell-completion",
    "-cp", "--config-path", "-cn", "--config-name", "--experimental-rerun"}  # fmt: skip
DASHED = ("--help", "--version", "--multirun")  # arguments that may be written with dashes
KINDS = {  # OmegaConf's message about a bad value: what the user should give instead
    "could not be converted to Integer": "give a whole number",
    "could not be converted to Float": "give a number",
    "is not a valid bool": "give true or false",
}
# groups whose options need no group name (threshold=); nested= and nested_accept= have the same plugins as draft=, accept=
WITHOUT_GROUP = ("draft", "accept", "stop", "engine", "benchmark")


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split into Hydra's own flags with their values, which must come first, and overrides."""
    flags: list[str] = []
    overrides: list[str] = []
    for argument in arguments:
        if flags and flags[-1] in FLAGS_WITH_VALUE:
            flags.append(argument)
        elif argument.startswith("-"):
            if argument.partition("=")[0] not in FLAGS:
                raise UserError(_with_dashes(argument))
            flags.append(argument)
        else:
            overrides.append(argument)
    return flags, overrides


def _with_dashes(argument: str) -> str:
    """Explain why an argument with dashes is not accepted."""
    if near := difflib.get_close_matches(argument, DASHED, n=1, cutoff=0.8):
        return f"'{argument}' is not an option; did you mean '{near[0]}'?"
    plain = argument.lstrip("-").partition("=")[0] or "name"
    return f"'{argument}' is not an option: options are written without dashes, {plain}=VALUE; --help lists all"


def check_arguments(
    given: Sequence[str],
    sweep: bool = True,
    command: str = "semspec.run",
    own: Collection[str] = (),
) -> None:
    """Compose the configuration once for each value of each swept option; raise UserError for any mistake.

    Errors point to the help of ``command``; ``own`` lists options that only this command has.
    """
    choices = []
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(
                f"'{text}' is not an option: options are written name=value; python -m {command} --help lists all"
            )
        if key.startswith("+"):
            raise UserError(f"'{text}' would add an option that nothing reads: leave the + out")
        if key in ("hydra.run.dir", "hydra.sweep.dir") and not value.strip():
            raise UserError(f"{key} is empty: name a folder")
        try:
            (override,) = config.parse([text])
            swept = override.is_sweep_override()
            values = list(override.sweep_string_iterator()) if swept else []
        except hydra.errors.HydraException as error:
            raise UserError(f"cannot read '{text}' ({one_line(error)}): quote it") from error
        if swept and not sweep:
            raise UserError(_several(text, [a for a in given if a != text]))
        choices.append([f"{key}={value}" for value in values] if swept else [text])
    first = [values[0] for values in choices]
    for at, values in enumerate(choices):
        for value in values if at == 0 else values[1:]:
            job = [*first[:at], value, *first[at + 1 :]]
            plain = [a for a in job if not a.startswith(("hydra.", "hydra/"))]
            try:
                build(compose(with_preset(plain)))
            except (hydra.errors.HydraException, OmegaConfBaseException) as error:
                raise UserError(_explain(error, plain, command, own)) from error
    if not choices:
        build(compose([]))


def _several(text: str, others: Sequence[str]) -> str:
    """Explain that several values need -m, and how to quote them if one value was meant."""
    message = f"'{text}' is several values: add -m for a sweep"
    key, _, value = text.partition("=")
    plain = [a for a in others if not a.startswith(("hydra.", "hydra/"))]
    for one in (f"{key}=[{value}]", f"{key}='{value}'"):
        with contextlib.suppress(UserError, hydra.errors.HydraException, OmegaConfBaseException):
            build(compose([*plain, one]))
            return f"{message}, or write {shlex.quote(one)} for one value"
    return message


def _explain(error: Exception, job: Sequence[str], command: str, own: Collection[str]) -> str:
    """Name the wrong argument and say what would be right."""
    keys = [f.name for f in fields(config.RunConfig)]
    for argument in job:
        key, equals, value = argument.partition("=")
        key = key.lstrip("+~")
        if not equals:
            return f"'{argument}' is not an option: options are written name=value"
        if key in config.GROUPS or key == "model":
            known = config.options(key)
            if value not in known:
                near = config.did_you_mean(value, list(known))
                return f"unknown {key} '{value}'{near} known: {', '.join(known)}"
        elif "." not in key and key not in keys:
            return _unknown(key, [*keys, *own], command)
    message = one_line(error)
    culprit = next((a for a in job if f"'{a.partition('=')[2]}'" in message), None)
    wanted = next((kind for words, kind in KINDS.items() if words in message), message)
    return f"{culprit}: {wanted}" if culprit else message


def _unknown(key: str, known: Sequence[str], command: str) -> str:
    """Name the plugins that have this option, if only others than the chosen ones do; else a similar spelling."""
    kinds: dict[str, Any] = {group: config.GROUPS[group] for group in WITHOUT_GROUP}
    if owners := [f"{group}={name}" for group, kind in kinds.items() for name in registry.owners(kind, key)]:  # fmt: skip
        return f"unknown option '{key}' here: it is one of {', '.join(owners)}; choose such a one, or leave it out"
    hint = config.did_you_mean(key, known)
    if hint == ";":
        found = (plugin for kind in kinds.values() for plugin in registry.plugins(kind).values())
        hint = config.did_you_mean(
            key, sorted({one.name for plugin in found for one in fields(plugin.cls)})
        )
    return f"unknown option '{key}'{hint} see python -m {command} --help"
