"""Errors that a user can fix: one line that says what is wrong and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")
_USER = re.compile(r"(?<=://)[^\s/?#\"<>]*@")


class UserError(Exception):
    """A mistake that the user can fix. Commands print it as one line and exit with 2."""


class UnusableError(UserError):
    """A model's server has answered with something unusable; a retry would bring the same."""


class RefusedError(UnusableError):
    """A server has rejected a request as invalid; another server would too."""


LONGEST = 400  # most characters of a library's error: some quote their whole input


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without passwords; its type if there is no message."""
    line = without_passwords((str(error).strip() or type(error).__name__).splitlines()[0])
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def describe_error(error: BaseException | None) -> str:
    """Describe an error in one line, with its type unless it is a UserError; "" for None."""
    if error is None or isinstance(error, UserError):
        return "" if error is None else first_line(error)
    return f"{type(error).__name__}: {first_line(error)}"


def without_passwords(value: T) -> T:
    """Remove ``USER:PASSWORD@`` from every URL in a string, or in all strings of a JSON value."""
    return _cleaned(value)  # type: ignore[no-any-return]


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return _USER.sub("", value)
    if isinstance(value, Mapping):
        return {name: _cleaned(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(inner) for inner in value]
    return value
