"""Damage JSON and other bytes, for files and requests; seeded, so that a case can be reproduced.

``SEMSPEC_MUTANTS=20000`` (``make test-attack``) sets the number of mutants of every kind, in place of each test's own.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from typing import Any

MUTANTS = int(os.environ.get("SEMSPEC_MUTANTS", "0"))
DEEP = 100_000
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**70, 10**400, 0.5, -0.0, 1e308),
    *("", "x", "../../../etc/passwd", "/etc/passwd", "x" * 5000, "\ud800", "\x00", "nan", "probe"),
    *([], {}, [[]], [None], {"": {}}, {"__class__": "os.system"}, ["mean"] * 3, [2**40, 2**40]),
    *([0] * 2000, {str(i): i for i in range(500)}),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()  # fmt: skip
    for key, inner in items:
        yield from places(inner, (*path, key))


def twisted(rng: random.Random, text: bytes) -> bytes:
    """Return JSON with one place of its tree changed, or with a name twice in an object."""
    value = json.loads(text)
    *outer, last = rng.choice(list(places(value)))
    inner = value
    for key in outer:
        inner = inner[key]
    what = rng.randrange(6)
    if what == 0 and isinstance(inner, dict):
        del inner[last]
    elif what == 1 and isinstance(inner, dict):
        inner[rng.choice(["more", "", "__proto__", "kind ", "\u0000"])] = rng.choice(HOSTILE)
    elif what == 2 and isinstance(inner[last], int | float):
        inner[last] += rng.choice([1, -1, 0.5, 2**33, -(2**62)])
    elif what == 3 and isinstance(inner[last], list):
        inner[last] = inner[last] * rng.choice([0, 2, 300])
    else:
        inner[last] = rng.choice(HOSTILE)
    told = json.dumps(value)
    if what == 5:
        key = json.dumps(str(last))
        told = told.replace(key, f"{key}: 1, {key}", 1)  # the name twice in one object
    return told.encode()


def scribbled(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with flips, cuts or insertions, in another encoding, or replaced by many brackets."""
    at = rng.randrange(len(data))
    what = rng.randrange(8)
    if what == 0:
        return data[:at]
    if what == 1:
        return data[:at] + data[at + rng.randrange(1, 40) :]
    if what == 2:
        return data[:at] + rng.randbytes(rng.randrange(1, 40)) + data[at:]
    if what == 3:
        return b"\xff\xfe" + data.decode("latin-1").encode("utf-16-le")
    if what == 4 and rng.random() < 0.05:
        return rng.choice([b"[", b'{"a":', b"[[],"]) * DEEP
    if what == 5:
        word = rng.choice([b"NaN", b"Infinity", b"1e999", b"-", b"0x10", b"null", b"9" * 5000])
        return data[:at] + word + data[at + 1 :]
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)
