"""Find the branches of a drafted tree that were refused where the target went on by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

MOST = 3  # branches shown at a place: a tree can have a dozen
LONGEST = 6  # tokens shown of a branch


def refused(drafted: Sequence[int], parents: Sequence[int], kept: Sequence[int]) -> list[list[int]]:
    """Return the tokens of the branches after the last kept node, in the drafter's order.

    A branch follows first children. Branches beside the kept path are left out: there the draft
    itself also proposed the tokens that were kept.
    """
    children: dict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(parents):
        children[parent].append(node)
    places = [-1]  # several if siblings hold the same token
    for token in kept:
        places = [n for place in places for n in children[place] if drafted[n] == token]
    found = []
    for node in [n for place in places for n in children[place]][:MOST]:
        branch = [node]
        while children[branch[-1]] and len(branch) < LONGEST:
            branch.append(children[branch[-1]][0])
        found.append([drafted[n] for n in branch])
    return found
