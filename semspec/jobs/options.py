"""Typed options of commands that do not use Hydra: a dataclass, read from ``name=value`` arguments."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, field, fields
from typing import Any, TypeVar, get_args, get_type_hints

from semspec.config import did_you_mean
from semspec.errors import UserError

T = TypeVar("T")
NUMBERS: dict[type, str] = {int: "a whole number", float: "a number"}
WIDTH = 110  # columns of a help text


def option(
    default: Any = MISSING,
    text: str = "",
    *,
    choices: Sequence[str] = (),
    least: float | None = None,
    most: float | None = None,
    give: str = "",
    shown: str | None = None,
) -> Any:
    """Declare a dataclass field as an option; without a default it is required.

    ``text`` is its line of help, ``give`` what an error asks for (by default derived from type and limits);
    ``shown`` replaces the default in the help.
    """
    rules = {"choices": choices, "least": least, "most": most, "give": give}
    return field(default=default, metadata=rules | {"text": text, "shown": shown})


def names(options: type[Any]) -> list[str]:
    return [f.name for f in fields(options)]


def pairs(arguments: Sequence[str]) -> dict[str, str]:
    """Return the values by name, the last one if repeated; raise UserError for anything but ``name=value``."""
    for argument in arguments:
        if "=" not in argument:
            raise UserError(f"'{argument}' is not an option: options are written name=value")
    return dict(argument.partition("=")[::2] for argument in arguments)


def take(arguments: Sequence[str], known: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Separate the options with known names from the other arguments."""
    own = [a for a in arguments if "=" in a and a.partition("=")[0] in known]
    return pairs(own), [a for a in arguments if a not in own]


def split_hydra(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate Hydra's own options from the other arguments."""
    own = [a for a in arguments if a.startswith(("hydra.", "hydra/"))]
    return own, [a for a in arguments if a not in own]


def strings(arguments: Sequence[str], known: Sequence[str], command: str) -> dict[str, str]:
    """Return the values by name; raise UserError, naming the module ``command``, for an unknown option."""
    given = pairs(arguments)
    for name in given:
        if name not in known:
            takes = ", ".join(known) or "no options"
            near = did_you_mean(name, known)
            raise UserError(f"unknown option '{name}'{near} python -m {command} takes {takes}")
    return given


def read(options: type[T], arguments: Sequence[str], command: str) -> T:
    """Return a command's options; raise UserError for an unknown or missing one or a wrong value."""
    strings(arguments, names(options), command)
    return read_known(options, arguments, command)[0]


def read_known(options: type[T], arguments: Sequence[str], command: str) -> tuple[T, list[str]]:
    """Return a command's own options, and the other arguments for another parser; raise UserError as ``read``."""
    given, rest = take(arguments, names(options))
    types, values = get_type_hints(options), dict[str, Any]()
    for one in fields(options):  # type: ignore[arg-type]
        choices, missing = one.metadata["choices"], one.default is MISSING
        if missing and not given.get(one.name) and not choices:
            raise UserError(f"{one.name}= is missing: see python -m {command} --help")
        if one.name in given or missing:
            text = given.get(one.name, "")
            values[one.name] = _value(one.name, text, types[one.name], one.metadata)
    return options(**values), rest


def _value(name: str, text: str, kind: Any, rules: Mapping[str, Any]) -> Any:
    choices, least, most = rules["choices"], rules["least"], rules["most"]
    if kind is bool:
        choices = ("true", "false")
    if choices and text not in choices:
        near = did_you_mean(text, choices).rstrip(";")
        raise UserError(f"{name}={text}: give {' or '.join(choices)}{near}")
    if kind is bool:
        return text == "true"
    several, kind = kind in (tuple[float, ...], tuple[int, ...]), next(iter(get_args(kind)), kind)
    if kind not in NUMBERS:
        return text
    try:
        value = [kind(one) for one in (text.strip("[]").split(",") if several else [text])]
    except ValueError:
        raise UserError(f"{name}={text}: give {rules['give'] or NUMBERS[kind]}") from None
    low = least is None or min(value) >= least
    if not (low and (most is None or max(value) <= most)):
        limits = f"at least {least:,}" if most is None else f"{least:,} to {most:,}"
        raise UserError(f"{name}={text}: give {rules['give'] or limits}")
    return tuple(value) if several else value[0]


def described(options: type[Any], others: Mapping[str, str] | None = None) -> str:
    """Return the help for all options, first those in ``others`` (``name=default`` -> text)."""
    rows = dict(others or {})
    for one in fields(options):
        shown = one.metadata["shown"]
        if shown is None:
            shown = "" if one.default is MISSING else str(one.default)
            shown = "true" if one.default is False else shown  # the value that switches it on
        rows[f"{one.name}={shown}"] = one.metadata["text"]
    column = min(28, max(map(len, rows))) + 2
    wrap = textwrap.TextWrapper(WIDTH, subsequent_indent=" " * (column + 2), break_on_hyphens=False)
    return "\n".join(wrap.fill(f"  {name:<{column}}{text}") for name, text in rows.items())
