"""The settings of a server's plugin: JSON, from the environment or an argument.

    SEMSPEC_SGLANG='{"probe": {}}' sglang serve --model-path ...
    sglang serve --model-path ... --json-model-override-args '{"semspec": {"probe": {}}}'

The keys are the plugin's parts, the values their options ({} or true for the defaults).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from semspec.errors import UserError

VARIABLE = "SEMSPEC_SGLANG"
MODEL = "SEMSPEC_LM"  # short form to name the small model; also the --speculative-algorithm that drafts with it
ARGUMENT = "--json-model-override-args"
PARTS = ("probe", "verification", "drafting", "timing")  # modules of this package

T = TypeVar("T")


def asked(environment: Mapping[str, str] = os.environ, argv: Sequence[str] | None = None) -> bool:
    """Return whether the settings of this process switch any part on."""
    given = environment.get(VARIABLE) or environment.get(MODEL)
    return bool(given) or _argument(argv) is not None


def read(
    environment: MutableMapping[str, str] = os.environ, argv: Sequence[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the options of each part that is switched on; raise UserError if they are malformed.

    Settings in the argument are copied into the environment, because the server's processes start
    before they learn its arguments.
    """
    given, argument = environment.get(VARIABLE), _argument(argv)
    if argument is not None:
        if given and json.loads(given) != argument:
            raise UserError(f"{VARIABLE} and {ARGUMENT} contradict each other: keep one of them")
        environment[VARIABLE] = given = json.dumps(argument)
    way_out = "give e.g. '{\"probe\": {}}'"
    try:
        parsed = json.loads(given or "{}")
    except ValueError as error:
        raise UserError(f"{VARIABLE} is not JSON ({error}): {way_out}") from error
    if not isinstance(parsed, dict):
        raise UserError(f"{VARIABLE} is not a JSON object: {way_out}")
    if unknown := [part for part in parsed if part not in PARTS]:
        raise UserError(f"{VARIABLE} names {', '.join(unknown)}: there are {', '.join(PARTS)}")
    parts = {}
    for part, options in parsed.items():
        if options in (False, None):
            continue
        if options is not True and not isinstance(options, dict):
            raise UserError(f"{VARIABLE}: {part} must be a JSON object of its options, or true")
        parts[part] = {} if options is True else options
    if model := environment.get(MODEL):
        drafting = parts.get("drafting", {})
        parts["drafting"] = {**drafting, "lm": {"model": model} | drafting.get("lm", {})}
        parts.setdefault("verification", {"accept": "logprob"})
    return parts


def build(
    options: type[T], given: Mapping[str, Any], part: str, names: Sequence[str] | None = None
) -> T:
    """Build a part's options from JSON, with lists as tuples; raise UserError for unknown ones.

    ``names``: the options' names if they are not the fields of a dataclass.
    """
    known = [f.name for f in fields(options)] if names is None else names  # type: ignore[arg-type]
    if unknown := ", ".join(name for name in given if name not in known):
        raise UserError(f"{VARIABLE}: {part} has no option {unknown}: there are {', '.join(known)}")
    try:
        return options(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})
    except TypeError as error:
        raise UserError(f"{VARIABLE}: {part}: {error}") from error


def _argument(argv: Sequence[str] | None) -> Any:
    """Return the "semspec" entry of ``--json-model-override-args``; SGLang checks the other entries."""
    argv = sys.argv if argv is None else argv
    for position, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") != ARGUMENT:
            continue
        if not equals:
            value = argv[position + 1] if position + 1 < len(argv) else ""
        try:
            parsed = json.loads(value)
        except ValueError:
            continue
        if isinstance(parsed, dict) and "semspec" in parsed:
            return parsed["semspec"]
    return None
