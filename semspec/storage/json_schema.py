"""Check values against the subset of JSON Schema (2020-12) that configs need.

An unknown keyword in a schema raises AssertionError, so that no check is silently skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = {
    *("$schema", "$id", "title", "description"),  # these say nothing about the value
    *("type", "const", "enum", "minimum", "maximum", "minLength", "maxLength"),
    *("properties", "required", "additionalProperties"),
    *("items", "minItems", "maxItems", "uniqueItems"),
}
SHOWN = 40  # characters of a value in an error


def integer(least: int, most: int | None = None) -> dict[str, Any]:
    return {"type": "integer", "minimum": least} | ({} if most is None else {"maximum": most})


def string(least: int, most: int) -> dict[str, Any]:
    return {"type": "string", "minLength": least, "maxLength": most}


def array(items: Schema, **limits: int | bool) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


def mapping(values: Schema) -> dict[str, Any]:
    """Return the schema of an object with any names, whose values all have the schema ``values``."""
    return {"type": "object", "additionalProperties": values}


def record(**properties: Schema) -> dict[str, Any]:
    """Return the schema of an object with exactly these properties."""
    return {
        "type": "object",
        "required": list(properties),
        "additionalProperties": False,
        "properties": properties,
    }


def check(value: Any, schema: Schema, path: str = "") -> None:
    """Raise ValueError, naming the place in ``value``, if it does not fit the schema."""
    unknown = set(schema) - _KNOWN
    assert not unknown, f"schema at {path or 'the top'}: unknown keywords {unknown}"
    where = path or "the config"
    if "type" in schema:
        named = schema["type"]
        kinds = [named] if isinstance(named, str) else list(named)
        if not any(_is(value, kind) for kind in kinds):
            raise ValueError(f"{where} is {_shown(value)}, not {' or '.join(kinds)}")
    if "const" in schema and value != schema["const"]:
        raise ValueError(f"{where} is {_shown(value)}, not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        known = ", ".join(map(str, schema["enum"]))
        raise ValueError(f"{where} is {_shown(value)}, not one of {known}")
    if isinstance(value, str):
        _range(where, len(value), schema.get("minLength"), schema.get("maxLength"), "characters")
    elif isinstance(value, dict):
        _object(value, schema, path)
    elif isinstance(value, list):
        _array(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _range(where, value, schema.get("minimum"), schema.get("maximum"), "")


def _object(value: Mapping[str, Any], schema: Schema, path: str) -> None:
    where, known = path or "the config", schema.get("properties", {})
    if missing := [name for name in schema.get("required", ()) if name not in value]:
        raise ValueError(f"{where} has no {', '.join(missing)}")
    more = schema.get("additionalProperties", True)
    for name, inner in value.items():
        at = f"{path}.{name[:SHOWN]}" if path else name[:SHOWN]
        if name in known:
            check(inner, known[name], at)
        elif more is False:
            raise ValueError(f"{where} has {name[:SHOWN]!r}, which is not known")
        elif isinstance(more, Mapping):
            check(inner, more, at)


def _array(value: Sequence[Any], schema: Schema, path: str) -> None:
    where = path or "the config"
    _range(where, len(value), schema.get("minItems"), schema.get("maxItems"), "items")
    if schema.get("uniqueItems") and any(x in value[:i] for i, x in enumerate(value)):
        raise ValueError(f"{where} holds the same twice")
    for number, inner in enumerate(value):
        check(inner, schema.get("items", {}), f"{path}[{number}]")


def _range(where: str, value: float, least: float | None, most: float | None, unit: str) -> None:
    if (least is not None and value < least) or (most is not None and value > most):
        allowed = f"{'' if least is None else least} to {'' if most is None else most}"
        raise ValueError(f"{where} is {_shown(value)} {unit}".rstrip() + f", not {allowed.strip()}")


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):  # in Python a bool is an int
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    if isinstance(value, int) and abs(value) > 1 << 64:
        return "a very large number"
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
