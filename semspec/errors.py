"""Errors that a user can cause: one line that says what is wrong and what to do about it."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend. Commands print it as one line and exit with 2."""


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
