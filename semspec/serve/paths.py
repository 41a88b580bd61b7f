"""Errors for paths and methods that do not exist; they name what the client probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from semspec.serve.errors import ApiError

LONGEST = 100  # characters; longer paths are not compared
NEAR = 0.75  # difflib's ratio of two similar paths, at least
BASES = ("openai", "api", "v1")  # parts that clients add before a path, or leave out


def unknown_path(method: str, path: str, methods: Mapping[str, str]) -> ApiError:
    """Return the 404 for a path; ``methods`` has the method of each existing path."""
    near = nearest(path, list(methods))
    if near is None:
        way = f"this server has {', '.join(f'{methods[one]} {one}' for one in methods)}"
    else:
        way = f"did you mean {methods[near]} {near}?"
    return ApiError(404, f"{method} {path}: no such path; {way}", code="unknown_url")


def wrong_method(method: str, path: str, headers: Mapping[str, str]) -> ApiError:
    """Return the 405 for an existing path; ``headers`` lists its methods under ``Allow``."""
    allowed = headers.get("Allow", "").split(", ")
    right = "POST" if "POST" in allowed else "GET"
    message = f"{method} {path}: wrong method; did you mean {right} {path}?"
    return ApiError(405, message, code="method_not_supported", headers=headers)


def nearest(path: str, known: Sequence[str]) -> str | None:
    """Return the known path nearest to ``path``, ignoring bases such as /v1; None if none is similar."""
    wanted = _without_base(path)
    if not wanted or len(path) > LONGEST:
        return None
    ends = {_without_base(one): one for one in known}
    near = [end for end in ends if end.startswith(f"{wanted}/")]
    near = near or difflib.get_close_matches(wanted, ends, n=1, cutoff=NEAR)
    return ends[near[0]] if near else None


def _without_base(path: str) -> str:
    parts = [part for part in path.lower().split("/") if part]
    while parts and parts[0] in BASES:
        del parts[0]
    return "/".join(parts)
