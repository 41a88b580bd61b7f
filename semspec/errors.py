"""Errors that a user can cause: one line that says what is wrong and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")
_USER = re.compile(r"(?<=://)[^\s/?#\"<>]*@")


class UserError(Exception):
    """Something the user can mend. Commands print it as one line and exit with 2."""


LONGEST = 400  # characters of another library's error: some quote what they were given


def first_line(error: BaseException) -> str:
    """The first line of what an error says without passwords, or its kind where it says nothing."""
    line = without_passwords((str(error).strip() or type(error).__name__).splitlines()[0])
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def told(error: BaseException | None) -> str:
    """What went wrong, in one line; of a fault that no user can mend the kind, too."""
    if error is None or isinstance(error, UserError):
        return "" if error is None else first_line(error)
    return f"{type(error).__name__}: {first_line(error)}"


def without_passwords(value: T) -> T:
    """Remove ``USER:PASSWORD@`` from every URL in a text, or in all texts of a JSON value."""
    return _cleaned(value)  # type: ignore[no-any-return]


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return _USER.sub("", value)
    if isinstance(value, Mapping):
        return {name: _cleaned(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(inner) for inner in value]
    return value
