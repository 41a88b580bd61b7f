"""Errors that a user can cause: one line that says what is wrong and what to do about it."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend. Commands print it as one line and exit with 2."""
