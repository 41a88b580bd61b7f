"""ARC-Decode's arithmetic: pure, vectorised tensor functions, in the loop and in a serving engine alike.

"ARC-Decode: Risk-Bounded Acceptance for Sampling-Based Speculative Decoding"; the equations' numbers
are the paper's. Nothing here knows a model: embeddings, probabilities and constants are given.
Divergences are in nats, so that ln 2 is the largest there is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from semspec.deferred import Tensor, torch

CLAMP = 1e-10  # epsilon of the paper's clamp: what a probability is taken for at least
LARGEST_JS = math.log(2)  # no Jensen-Shannon divergence is larger


@dataclass(frozen=True, slots=True)
class Constants:
    """What a calibration sets: the two bounds' factors, and the budget that U is held against.

    One for all nodes, or a tensor [n] with one for each (bucketed calibration).
    """

    c_s: float | Tensor  # c_s' of eq. 10
    alpha_kappa: float | Tensor  # alpha * kappa of eq. 13
    tau: float | Tensor  # tau_delta of eq. 15


class Moments:
    """Mean and deviation of every dimension of a table of which parts are seen one after another."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.square = torch.zeros(())

    def add(self, rows: Tensor) -> None:
        """``rows`` [n, d]; sums in float64, for tables of 150k rows."""
        part, own = rows.double(), len(rows)
        if not own:
            return
        mean = part.mean(0)
        gap, total = mean - self.mean, self.count + own
        # Chan, Golub, LeVeque 1979: no difference of two large numbers
        self.square = self.square + ((part - mean) ** 2).sum(0) + gap**2 * self.count * own / total
        self.mean = self.mean + gap * own / total
        self.count = total

    def deviation(self) -> Tensor:
        """sigma_k of every dimension, [d] float32."""
        return (self.square / max(self.count, 1)).sqrt().float()


def inverse_deviation(sigma: Tensor) -> Tensor:
    """The diagonal of W (eq. 10): 1 / sigma_k, and 0 where a dimension is the same for every token."""
    return torch.where(sigma > 0, 1 / sigma.clamp_min(torch.finfo(sigma.dtype).tiny), 0.0)


def distance(drafted: Tensor, likeliest: Tensor) -> Tensor:
    """||W (e_td - e_tm)||^2 (eq. 6, 10); both [n, d] are rows of the whitened table, W e."""
    return (drafted - likeliest).square().sum(-1)


def margin(p_likeliest: Tensor, p_drafted: Tensor, clamp: float = CLAMP) -> Tensor:
    """log p~(t_m) - log p~(t_d) of probabilities after the logits processor (eq. 11).

    A drafted token whose probability is no number has none. Where there is no likeliest token (a row
    of zeros or of no numbers) there is no margin, either: NaN, which ``bounds`` makes infinite.
    """
    low = p_drafted.nan_to_num(nan=0.0).clamp_min(clamp)
    high = torch.where(p_likeliest > 0, p_likeliest.clamp_min(clamp), math.nan)
    return high.log() - low.log()


def bounds(distances: Tensor, margins: Tensor, by: Constants) -> Tensor:
    """U = min(U_emb, U_logit) (eq. 14); infinite where either side is no number."""
    u_emb = by.c_s * distances  # eq. 10
    u_logit = by.alpha_kappa * margins.square()  # eq. 13
    return torch.minimum(u_emb, u_logit).nan_to_num(nan=math.inf)


def lts(u: Tensor, tau: float | Tensor) -> Tensor:
    """The local tolerance score, 1 - U / tau (eq. 15)."""
    # no number is 0 / 0 alone: nothing would change, and nothing may
    return (1 - u / tau).nan_to_num(nan=1.0, posinf=math.inf, neginf=-math.inf)


def loose_nodes(
    distances: Tensor,
    p_likeliest: Tensor,
    p_drafted: Tensor,
    ends: Tensor,
    by: Constants,
    theta: float,
    keep_excluded: bool = False,
) -> Tensor:
    """Which nodes the bound keeps: bool, of any shape that the arguments share.

    A token of probability 0, which temperature, top-k or top-p exclude, is one that the target would
    never write, and is not kept. The paper's formula takes its probability for ``CLAMP`` and may keep
    it: ``keep_excluded``.

    ``ends`` says where one of the two tokens, and not the other, ends the text: it has no next step
    that could be compared, and the bound says nothing.
    """
    u = bounds(distances, margin(p_likeliest, p_drafted), by).masked_fill(ends, math.inf)
    loose = lts(u, by.tau) >= theta
    return loose if keep_excluded else loose & (p_drafted > 0)


def normalised_entropy(p: Tensor) -> Tensor:
    """H_m (eq. 2) of rows [..., V]: 0 for a certain token, 1 for the uniform distribution."""
    if p.shape[-1] < 2:
        return torch.zeros(p.shape[:-1], device=p.device)
    entropy: Tensor = torch.special.entr(p.float()).sum(-1)
    return entropy / math.log(p.shape[-1])


def next_step_js(first: Tensor, second: Tensor, top: int, smoothing: float) -> Tensor:
    """JS of two next-step distributions (eq. 5), rows [..., V] of probabilities, as algorithm 1 has it.

    Restricted to the union of both rows' ``top`` likeliest tokens, smoothed by mu = ``smoothing`` on
    that union, and renormalised (A.1).
    """
    count = min(top, first.shape[-1])
    union = torch.zeros_like(first, dtype=torch.bool)
    for p in (first, second):
        union.scatter_(-1, p.topk(count, -1).indices, True)
    q, r = (torch.where(union, p.double() + smoothing, 0.0) for p in (first, second))
    q, r = q / q.sum(-1, keepdim=True), r / r.sum(-1, keepdim=True)
    middle = (q + r) / 2
    # JS = H(m) - (H(q) + H(r)) / 2; entr(0) = 0
    entropy = torch.special.entr
    js: Tensor = entropy(middle).sum(-1) - (entropy(q).sum(-1) + entropy(r).sum(-1)) / 2
    return js.clamp(0.0, LARGEST_JS).float()
