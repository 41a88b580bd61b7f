"""Measure the cost of passes before the first problem, with queries of several sizes like those of rounds."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from semspec.protocols import DraftSession, Kit, Plan
from semspec.types import PROBS, Context, Generate, Query, Read, Role, What

READ = (1, 2, 3, 5, 8, 12, 16, 24, 32, 48, 64)  # tokens of a draft
TREES = (3, 8, 16, 32, 64)
WRITTEN = (1, 2, 4, 8, 16)


def of_draft(
    role: Role, context: Context, kit: Kit, offers: Collection[What], room: int
) -> Plan[None]:
    """Ask a draft model for tokens, in queries of less than ``room`` tokens."""
    yield from _written(role, context, kit, room, (PROBS,) if What.PROBS in offers else ())


def of_target(
    context: Context,
    kit: Kit,
    offers: Collection[What],
    room: int,
    who: Sequence[DraftSession],
    trees: bool,
) -> Plan[None]:
    """Ask the target for passes over drafts, then for tokens: plainly, and with the reads of the drafters ``who``."""
    if What.PROBS in offers:
        yield from _read(context, kit, room, trees)
    along = tuple(dict.fromkeys(read for session in who for read in session.watches))
    # plain, watched, watched, plain: neither is measured at a quieter time than the other
    yield from _written("target", context, kit, room, *([(), along, along, ()] if along else [()]))


def _read(context: Context, kit: Kit, room: int, trees: bool) -> Plan[None]:
    ids = context.tokens
    shapes = [*((n, False) for n in READ), *((n, True) for n in TREES if trees)]
    for turn, (size, tree) in enumerate(shape for shape in shapes if shape[0] < room):
        # begin with another token each time: what is in the KV cache would not be fed again
        tokens = [ids[(turn + i) % len(ids)] for i in range(size)]
        parents = [(i - 1) // 2 for i in range(size)] if tree else None
        asked = "target", context, kit.sampling, kit.rng
        yield Query(*asked, tokens=tokens, parents=parents, reads=(PROBS,))


def _written(
    role: Role, context: Context, kit: Kit, room: int, *kinds: tuple[Read, ...]
) -> Plan[None]:
    """Ask for rows of tokens; each with one set of reads right after the other, so that they can be compared."""
    for count in (n for n in WRITTEN if n < room):
        for reads in kinds:
            asked = role, context, kit.sampling, kit.rng
            yield Query(*asked, reads=reads, generate=Generate(count), purpose="write")
