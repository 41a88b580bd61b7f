"""Compare configurations: a digest that is equal for equal ones, and a list of differences."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from semspec.storage.files import dumps


def flat(config: Mapping[str, Any], free: Sequence[str] = ()) -> dict[str, Any]:
    """Flatten to dotted option -> JSON value, leaving out ``free`` options and everything below them."""
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
    """Return a digest that does not depend on the order of the options."""
    ordered = dict(sorted(flat(config, free).items()))
    return hashlib.sha256(dumps(ordered).encode()).hexdigest()[:16]


def difference(
    was: Mapping[str, Any], now: Mapping[str, Any], free: Sequence[str] = ()
) -> str | None:
    """Describe what differs in a few words; return None if nothing does."""
    old, new = ({k: dumps(v) for k, v in flat(side, free).items()} for side in (was, now))
    keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    changed = [f"{k} was {_short(old.get(k))}, is {_short(new.get(k))}" for k in keys[:3]]
    more = [f"and {len(keys) - 3} more"] if len(keys) > 3 else []
    return "; ".join(changed + more) or None


def _short(text: str | None) -> str:
    shown = "not set" if text is None else text
    return shown if len(shown) <= 40 else shown[:37] + "..."
