"""Whether two configurations are the same, and what differs between them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from semspec.storage.files import dumps


def flat(config: Mapping[str, Any], free: Sequence[str] = ()) -> dict[str, Any]:
    """Dotted option -> value, as JSON gives it back; without ``free`` options and what is below."""
    leaves: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        if path and path in free:
            return
        if isinstance(value, dict) and (value or not path):
            for name, inner in value.items():
                walk(inner, f"{path}.{name}" if path else name)
        else:
            leaves[path] = value

    walk(json.loads(dumps(config)), "")
    return leaves


def digest(config: Mapping[str, Any], free: Sequence[str] = ()) -> str:
    """Equal for equal configurations, whatever the order of their options."""
    ordered = dict(sorted(flat(config, free).items()))
    return hashlib.sha256(dumps(ordered).encode()).hexdigest()[:16]


def difference(
    was: Mapping[str, Any], now: Mapping[str, Any], free: Sequence[str] = ()
) -> str | None:
    """What differs, in a few words; None where nothing does."""
    old, new = ({k: dumps(v) for k, v in flat(side, free).items()} for side in (was, now))
    keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    told = [f"{k} was {_short(old.get(k))}, is {_short(new.get(k))}" for k in keys[:3]]
    more = [f"and {len(keys) - 3} more"] if len(keys) > 3 else []
    return "; ".join(told + more) or None


def _short(text: str | None) -> str:
    if text is None:
        return "not set"
    return text if len(text) <= 40 else text[:37] + "..."
