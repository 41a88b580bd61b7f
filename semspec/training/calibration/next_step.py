"""Measure in one pass how far the target's next step moves when one token replaces another.

The target's next-token distribution after a drafted token is compared with that after its likeliest token
(ARC-Decode, eq. 5). All pairs of a text are leaves of one tree over the text, so two passes measure any
number of pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semspec.decoding.arc_bound import distance, margin, next_step_js
from semspec.decoding.whitening import Whitened
from semspec.deferred import Tensor, torch
from semspec.protocols import Kit, Plan
from semspec.types import PROBS, Answer, Context, Query, Sampling


@dataclass(frozen=True, slots=True)
class Swap:
    """The drafted and the likeliest token at one place of a text."""

    place: int  # number of tokens before it
    drafted: int
    likeliest: int


@dataclass(frozen=True, slots=True)
class Measure:
    """How to measure a divergence: on the union of both top-K sets, smoothed by mu."""

    top: int = 20
    smoothing: float = 1e-4
    temperature: float = 1.0

    @property
    def sampling(self) -> Sampling:
        """The sampling of next steps: temperature only, since the top-K union truncates already."""
        # at temperature 0 rows are one-hot, and all changes would look alike
        return Sampling(self.temperature or 1.0)


def read_text(context: Context, tokens: Sequence[int], kit: Kit) -> Plan[Tensor]:
    """Return the target's rows p~ along a text [tokens + 1, V]: token i is drawn from row i."""
    answer: Answer = yield Query(
        "target", context, kit.sampling, kit.rng, tokens=tokens, reads=(PROBS,)
    )
    rows: Tensor = answer[PROBS]
    return rows


def differences(
    drafted: Sequence[int],
    likeliest: Sequence[int],
    p: Tensor,
    context: Context,
    kit: Kit,
    known: Whitened,
) -> Plan[tuple[Tensor, Tensor]]:
    """Return the two tokens' distance at each place, in embedding and in probability; p is [places, V]."""
    both = yield from known.places([*drafted, *likeliest], context, kit, p.shape[-1])
    whitened, nodes = known.rows[both], range(len(drafted))
    distances = distance(whitened[: len(drafted)], whitened[len(drafted) :])
    return distances, margin(p[nodes, likeliest], p[nodes, drafted])


def divergences(
    context: Context, tokens: Sequence[int], swaps: Sequence[Swap], kit: Kit, measure: Measure
) -> Plan[Tensor]:
    """Return the JS divergence of every swap [swaps], by one pass over the text with two leaves for each swap."""
    if not swaps:
        return torch.empty(0)
    spine = list(tokens[: max(swap.place for swap in swaps)])
    nodes, parents = list(spine), list(range(-1, len(spine) - 1))
    for swap in swaps:
        nodes += [swap.drafted, swap.likeliest]
        parents += [swap.place - 1] * 2
    query = Query("target", context, measure.sampling, kit.rng, nodes, parents, reads=(PROBS,))
    answer: Answer = yield query
    rows = answer[PROBS][len(spine) + 1 :]  # row i + 1 is node i
    return next_step_js(rows[0::2], rows[1::2], measure.top, measure.smoothing).cpu()
