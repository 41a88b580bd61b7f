"""Errors that a user can cause: one line that says what is wrong and what to do about it."""

from __future__ import annotations

from semspec.urls import without_passwords


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
