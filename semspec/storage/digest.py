"""Compare configurations by a digest or by a list of differences."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from semspec.storage.files import dumps

PLUGINS = "plugins."  # the names of the plugins in a run's configuration (``config.recorded``)
LATER: Mapping[str, Any] = {
    "costs": "",
    "min_p": 0.0,
    "thinking": None,
    "floor": 0.0,
    "shots": 0,
    "system": "",
    "remember": 0,
    "match": 0,  # from here to tree_nodes: options of draft=hybrid
    "lm": "embedded/tiny-draft",
    "eagle3": "embedded/eagle3-tiny",
    "chain": 5,
    "tree": "",
    "tree_depth": 6,
    "tree_top_k": 10,
    "tree_nodes": 32,
    "inside": "auto",
    "attempts": 1,
    "score_temperature": "auto",
    "hopeless": 0.0,
}
"""Options that older versions did not have, by their last name, with the value that older runs behaved as."""


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


def value_of(options: Mapping[str, Any], name: str, unset: Any = None) -> Any:
    """Return a dotted option's value; if it is not recorded, the value it amounted to before it existed."""
    return options.get(name, LATER.get(name.rpartition(".")[2], unset))


def digest(config: Mapping[str, Any], free: Sequence[str] = ()) -> str:
    """Return a digest that does not depend on the order of the options."""
    ordered = dict(sorted(flat(config, free).items()))
    return hashlib.sha256(dumps(ordered).encode()).hexdigest()[:16]


def difference(
    was: Mapping[str, Any], now: Mapping[str, Any], free: Sequence[str] = ()
) -> str | None:
    """Describe the differences in a few words; return None if there are none."""
    sides = [flat(side, free) for side in (was, now)]
    every = sorted({key for side in sides for key in side})
    old, new = ({k: _told(side, k) for k in every} for side in sides)
    keys = [key for key in every if old[key] != new[key]]
    # a changed plugin changes its options, too: name only the plugin
    groups = [key.removeprefix(PLUGINS) for key in keys if key.startswith(PLUGINS)]
    keys = [key for key in keys if key.partition(".")[0] not in groups]
    keys.sort(key=lambda key: not key.startswith(PLUGINS))
    changed = [
        f"{k.removeprefix(PLUGINS)} was {_short(old[k])}, is {_short(new[k])}" for k in keys[:3]
    ]
    more = [f"and {len(keys) - 3} more"] if len(keys) > 3 else []
    return "; ".join(changed + more) or None


def _told(options: Mapping[str, Any], name: str) -> str | None:
    known = name in options or name.rpartition(".")[2] in LATER
    return dumps(value_of(options, name)) if known else None


def _short(text: str | None) -> str:
    shown = "not set" if text is None else text
    return shown if len(shown) <= 40 else shown[:37] + "..."
