"""Errors as OpenAI's clients expect them: JSON with a message, a kind, and the field that is to blame."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from semspec.config import did_you_mean
from semspec.storage.screen import visible

LONGEST = 500  # characters of a message: clients' own words stand in some
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


class ApiError(Exception):
    """A request that is not answered, and why: in one line, whatever the client has said."""

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
    """Return a text as one line that commands no terminal, shortened in its middle: ways out stand at the end."""
    ends = text[:LONGEST] + text[-LONGEST:] if len(text) > 2 * LONGEST else text
    shown, half = visible(ends, " "), LONGEST // 2 - 1
    return shown if len(shown) <= LONGEST else f"{shown[:half]}…{shown[-half:]}"


def refused(param: str, message: str) -> ApiError:
    """Return the error for a field that cannot be honoured; its message names the field."""
    named = message if param in message else f"{param}: {message}"
    return ApiError(400, named, param, "invalid_value")


def explained(error: ValidationError, known: Mapping[str, Collection[str]]) -> ApiError:
    """Return the first thing that is wrong, by the path of its field; ``known``: the fields of each object, by its path."""
    first = error.errors(include_url=False, include_input=False)[0]
    skipped = {"str", "list[str]", "list[int]", "list[list[int]]", "list[TextPart]", "TextPart"}
    *parents, name = [str(part) for part in first["loc"] if str(part) not in skipped] or [""]
    path = ".".join([*parents, name])
    if first["type"] == "extra_forbidden":
        near = did_you_mean(name, sorted(known.get(".".join(parents), ())))
        way = ": leave it out" if near == ";" else f"{near} leave it out otherwise"
        return ApiError(400, f"{path} is not known to this server{way}", path, "unknown_parameter")
    # pydantic's own words name classes, or count what is there "after validation"
    message = {
        "model_type": "give an object",
        "too_short": f"give at least {first.get('ctx', {}).get('min_length')}",
    }.get(first["type"], first["msg"].removeprefix("Value error, "))
    return ApiError(400, f"{path}: {message}", path, "invalid_value")
