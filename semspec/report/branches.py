"""What a drafted tree proposed at the place where the target went on by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

MOST = 3  # branches that are shown of a place: a tree can have a dozen
LONGEST = 6  # tokens of one


def refused(drafted: Sequence[int], parents: Sequence[int], kept: Sequence[int]) -> list[list[int]]:
    """Tokens of the branches that begin behind the last kept node, in the drafter's order.

    A branch follows first children. Branches beside the kept path are left out: what they would
    have replaced was said by the draft as well.
    """
    children: dict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(parents):
        children[parent].append(node)
    places = [-1]  # several, should siblings hold the same token
    for token in kept:
        places = [n for place in places for n in children[place] if drafted[n] == token]
    found = []
    for node in [n for place in places for n in children[place]][:MOST]:
        branch = [node]
        while children[branch[-1]] and len(branch) < LONGEST:
            branch.append(children[branch[-1]][0])
        found.append([drafted[n] for n in branch])
    return found
