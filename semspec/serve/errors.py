"""Errors in OpenAI's format: JSON with a message, a type, and the field that caused it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from semspec.config import did_you_mean
from semspec.storage.screen import visible

LONGEST = 500  # characters of a message; some quote the client
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "overloaded_error",
    504: "timeout_error",
}
RETRY = {"retry-after": "1"}  # seconds


class ApiError(Exception):
    """A refused or failed request; its message is one line, whatever it quotes."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, line(message), code
        self.param = None if param is None else line(param)
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = KINDS.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        told = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": told}


def line(text: str) -> str:
    """Return a text as one line without control characters; long ones lose their middle, as advice stands at the end."""
    ends = text[:LONGEST] + text[-LONGEST:] if len(text) > 2 * LONGEST else text
    shown, half = visible(ends, " "), LONGEST // 2 - 1
    return shown if len(shown) <= LONGEST else f"{shown[:half]}…{shown[-half:]}"


def refused(param: str, message: str) -> ApiError:
    """Return the 400 for a field; its message names the field."""
    named = message if param in message else f"{param}: {message}"
    return ApiError(400, named, param, "invalid_value")


_UNIONS = {"str", "list[str]", "list[int]", "list[list[int]]", "list[TextPart]", "TextPart"}


def _place(parts: Sequence[int | str], unknown: bool) -> tuple[list[str], str]:
    """Return a field's place as the client wrote it: the names of its parents, and its own.

    pydantic also names the types of a union, unless the field is ``unknown``: then its own name is last.
    """
    own = [str(parts[-1])] if unknown else []
    named = [str(part) for part in parts[: len(parts) - len(own)] if str(part) not in _UNIONS]
    *parents, name = [*named, *own] or [""]
    return parents, name


def _fields_at(kind: type[BaseModel], parents: Sequence[str]) -> set[str]:
    """Return the known field names of an object within a body."""
    kinds = [kind]
    for part in parents:
        if part.isdigit():  # an index into a list
            continue
        inner = [one.model_fields[part].annotation for one in kinds if part in one.model_fields]
        kinds = [model for annotation in inner for model in _models_in(annotation)]
    return {field.alias or name for one in kinds for name, field in one.model_fields.items()}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def explained(
    error: ValidationError, kind: type[BaseModel], also: Collection[str] = ()
) -> ApiError:
    """Return the 400 for the first error in a body, with the path of its field; ``also``: known fields beside the kind's.

    If a field is missing because its name is misspelt, report the misspelt name.
    """
    found = error.errors(include_url=False, include_input=False)
    places = [_place(one["loc"], one["type"] == "extra_forbidden") for one in found]
    names = [{*_fields_at(kind, parents), *(() if parents else also)} for parents, _ in places]
    nears = [
        did_you_mean(name, sorted(known)) if one["type"] == "extra_forbidden" else ";"
        for one, (_, name), known in zip(found, places, names, strict=True)
    ]
    at = 0
    if found[0]["type"] == "missing":
        at = next((i for i, near in enumerate(nears) if near != ";"), 0)
    first, (parents, name), near = found[at], places[at], nears[at]
    path = ".".join([*parents, name])
    if first["type"] == "extra_forbidden":
        way = ": leave it out" if near == ";" else f"{near} leave it out otherwise"
        return ApiError(400, f"{path} is not known to this server{way}", path, "unknown_parameter")
    # pydantic's own messages name classes, or count items "after validation"
    message = {
        "model_type": "give an object",
        "missing": "is missing",
        "too_short": f"give at least {first.get('ctx', {}).get('min_length')}",
    }.get(first["type"], first["msg"].removeprefix("Value error, "))
    return ApiError(400, f"{path}: {message}", path, "invalid_value")
