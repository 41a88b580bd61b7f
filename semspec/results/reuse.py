"""Count what retrieval found and how much of it was kept: AdaPLD's tables 10 to 12, from a run's rounds.

Each problem keeps whole numbers that can be added up; shares are computed at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from semspec.types import Round

FOUND = ("lexical", "semantic", "none")
REFERENCE = "reference"  # drafts copied from texts that came with the problem
ORIGINS = ("main", "branch", "successor", "mismatch")
LONGEST = 5  # this length and longer ones are one class
END = chr(0x10FFFF)  # ends a reference whose tokens are written as characters


def count(rounds: Iterable[Round]) -> dict[str, int]:
    """Count rounds by how a match was found, by where the kept tokens came from, and by their number."""
    counts: Counter[str] = Counter()
    for r in rounds:
        if r.found:
            counts[f"found_{r.found}"] += 1
        if r.origin:
            counts.update({f"origin_{r.origin}": 1, "tokens": len(r.kept)})
            if r.kept:
                counts[f"length_{min(len(r.kept), LONGEST)}"] += 1
    return dict(counts)


def predicted(rounds: Sequence[Round], references: Iterable[Sequence[int]]) -> tuple[int, int]:
    """Count which tokens of a problem's references its text has taken over, and the others; each token once.

    A copied draft that was at least partly kept is extended to both sides as far as text and reference agree. All
    these tokens count as taken over, whoever wrote them: for example the bonus token after a fully kept draft.
    """
    known = "".join(_characters(one) + END for one in references)
    text = "".join(_characters(r.tokens) for r in rounds)
    taken = bytearray(len(known))
    at = end = written = 0  # after the last such stretch: at in the references, end in the text
    for r in rounds:
        start, written = written, written + len(r.tokens)
        if r.found != REFERENCE or start + len(r.kept) <= max(start, end):
            continue
        copy = _characters(r.drafted)
        # the next place after the last stretch, as the drafter searches, else the nearest before it
        place = known.find(copy, at)
        if place < 0 and (place := known.rfind(copy, 0, at + len(copy))) < 0:
            continue
        first, left = start, place
        while first > end and left and text[first - 1] == known[left - 1]:
            first, left = first - 1, left - 1
        left += max(0, end - first)  # count each token of the text only once, too
        end = max(start, end)
        at = place + end - start
        while end < len(text) and text[end] == known[at]:
            end, at = end + 1, at + 1
        taken[left:at] = bytes([1]) * (at - left)
    accepted = sum(taken)
    return accepted, len(known) - known.count(END) - accepted


def _characters(tokens: Iterable[int]) -> str:
    """Write each token as one character, so that searching is as fast as in strings."""
    return "".join(map(chr, tokens))


def figures(counts: Mapping[str, int]) -> dict[str, Any] | None:
    """Return shares; None if nothing was retrieved.

    - ``found``: the shares of lookups with a lexical match, only a semantic match, no match (table 10), and
      a match in a reference if there were references; ``recovered``: of the lookups without a lexical match, the
      share with a semantic one.
    - ``origin``: the shares of drafts whose last kept token came from the copy, from a branch or from a
      branch's successor, and of drafts rejected entirely (figure 4).
    - ``rate``: the share of drafts kept at least partly; ``branched``: of these, the share that went along a
      branch; ``length``: their mean number of kept tokens (table 11).
    - ``lengths``: of these, the shares with 1, 2, ... and 5 or more kept tokens (table 12).
    """
    referred = counts.get(f"found_{REFERENCE}", 0)
    found = {name: counts.get(f"found_{name}", 0) for name in FOUND}
    found |= {REFERENCE: referred} if referred else {}
    origin = {name: counts.get(f"origin_{name}", 0) for name in ORIGINS}
    drafts = sum(origin.values())
    if not drafts and not any(found.values()):
        return None
    missed = found["semantic"] + found["none"]
    reused = drafts - origin["mismatch"]
    lengths = {str(n): counts.get(f"length_{n}", 0) for n in range(1, LONGEST + 1)}
    return {
        "found": _shares(found),
        "recovered": found["semantic"] / missed if missed else None,
        "origin": _shares(origin),
        "rate": reused / drafts if drafts else None,
        "branched": (origin["branch"] + origin["successor"]) / reused if reused else None,
        "length": counts.get("tokens", 0) / reused if reused else None,
        "lengths": _shares(lengths),
    }


def _shares(counts: Mapping[str, int]) -> dict[str, float] | None:
    whole = sum(counts.values())
    return {name: n / whole for name, n in counts.items()} if whole else None
