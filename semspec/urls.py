"""Server addresses as they may be shown and stored: without user name and password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")
_USER = re.compile(r"(?<=://)[^\s/?#\"<>]*@")


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
