"""Check the arguments of calls to ``strict`` tools against their schema, when no grammar constrains the model.

The supported keywords are those of OpenAI's strict schemas. Others are refused, so that none is ignored silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]
MOST = 20_000  # schema checks on one value: schemas may refer to themselves
SAY_NOTHING = {"title", "description", "default", "examples", "$schema", "$id", "$comment"}
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: _number(value),
    "integer": lambda value: _number(value) and value == value // 1,
}
_SIZES = {"minLength": (str, 1), "maxLength": (str, -1), "minItems": (list, 1), "maxItems": (list, -1)}  # fmt: skip
_LIMITS: dict[str, Callable[[float, float], bool]] = {
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
}
_DEFINITIONS = ("$defs", "definitions")


class Strict:
    """A schema that tells whether arguments fit it."""

    def __init__(self, schema: Schema) -> None:
        """Raise ValueError, which names the keyword, if the schema is not supported."""
        self._whole, self._left = schema, 0
        self._check(schema)

    def __call__(self, value: Any) -> bool:
        self._left = MOST
        try:
            return self._fits(value, self._whole)
        except RecursionError:
            return False

    # ---- the schema -----------------------------------------------------------------------------

    def _check(self, schema: Any) -> None:
        if not isinstance(schema, Mapping):
            raise ValueError(f"a schema is an object, not {str(schema)[:40]}")
        for keyword, told in schema.items():
            if keyword not in SAY_NOTHING and not self._known(keyword, told):
                raise ValueError(f"{keyword[:40]} is not checked, or not of this value")

    def _known(self, keyword: str, told: Any) -> bool:
        if keyword in ("properties", *_DEFINITIONS):
            return isinstance(told, Mapping) and self._all(told.values())
        if keyword == "anyOf":
            return isinstance(told, list) and self._all(told)
        if keyword == "items" or (keyword == "additionalProperties" and not isinstance(told, bool)):
            return self._all([told])
        if keyword == "required":
            return isinstance(told, list) and all(isinstance(name, str) for name in told)
        if keyword == "type":
            kinds = told if isinstance(told, list) else [told]
            return all(isinstance(kind, str) and kind in _TYPES for kind in kinds)
        if keyword == "$ref":
            return self._target(told) is not None
        if keyword in _SIZES or keyword in _LIMITS:
            return _number(told)
        return keyword in ("const", "additionalProperties") or (keyword == "enum" and isinstance(told, list))  # fmt: skip

    def _all(self, schemas: Any) -> bool:
        for schema in schemas:
            self._check(schema)
        return True

    def _target(self, reference: Any) -> Schema | None:
        """Return the schema that a reference points to; None if there is none."""
        if reference == "#":
            return self._whole
        if not isinstance(reference, str):
            return None
        for where in _DEFINITIONS:
            name = reference.removeprefix(f"#/{where}/")
            known = self._whole.get(where)
            if name != reference and isinstance(known, Mapping):
                target = known.get(name)
                return target if isinstance(target, Mapping) else None
        return None

    # ---- a value --------------------------------------------------------------------------------

    def _fits(self, value: Any, schema: Schema) -> bool:
        self._left -= 1
        return self._left > 0 and all(self._holds(keyword, told, value, schema) for keyword, told in schema.items())  # fmt: skip

    def _holds(self, keyword: str, told: Any, value: Any, schema: Schema) -> bool:
        if keyword == "type":
            return any(_TYPES[kind](value) for kind in (told if isinstance(told, list) else [told]))
        if keyword in ("const", "enum"):
            return any(_same(one, value) for one in (told if keyword == "enum" else [told]))
        if keyword == "anyOf":
            return any(self._fits(value, one) for one in told)
        if keyword == "$ref":
            target = self._target(told)
            return target is not None and self._fits(value, target)
        if keyword in _SIZES:
            kind, sign = _SIZES[keyword]
            return not isinstance(value, kind) or sign * len(value) >= sign * told
        if keyword in _LIMITS:
            return not _number(value) or _LIMITS[keyword](value, told)
        if keyword == "items":
            return not isinstance(value, list) or all(self._fits(one, told) for one in value)
        return not isinstance(value, dict) or self._holds_of_object(keyword, told, value, schema)

    def _holds_of_object(self, keyword: str, told: Any, value: Schema, schema: Schema) -> bool:
        known = schema.get("properties", {})
        if keyword == "required":
            return all(name in value for name in told)
        if keyword == "properties":
            return all(self._fits(value[name], one) for name, one in known.items() if name in value)
        if keyword == "additionalProperties" and told is not True:
            more = [one for name, one in value.items() if name not in known]
            return not more if told is False else all(self._fits(one, told) for one in more)
        return True


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
