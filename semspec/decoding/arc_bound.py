"""ARC-Decode's arithmetic: pure, vectorised tensor functions, for the loop and serving engines.

"ARC-Decode: Risk-Bounded Acceptance for Sampling-Based Speculative Decoding"; equation numbers are the
paper's. Nothing here depends on a model: embeddings, probabilities and constants are arguments.
Divergences are in nats, so the largest possible one is ln 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from semspec.deferred import Tensor, torch

CLAMP = 1e-10  # epsilon of the paper's clamp: lower probabilities count as this
LARGEST_JS = math.log(2)  # the largest Jensen-Shannon divergence
RARE = 1e-3  # figures count tokens below this probability as rare


@dataclass(frozen=True, slots=True)
class Constants:
    """The factors of the two bounds and the budget of U: one for all nodes, or [n] per node (buckets)."""

    c_s: float | Tensor  # c_s' of eq. 10
    alpha_kappa: float | Tensor  # alpha * kappa of eq. 13
    tau: float | Tensor  # tau_delta of eq. 15


class Moments:
    """Running mean and standard deviation of each dimension of a table, added in parts."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.square = torch.zeros(())

    def add(self, rows: Tensor) -> None:
        """Add ``rows`` [n, d]; sums are in float64 because tables have up to 150k rows."""
        part, own = rows.double(), len(rows)
        if not own:
            return
        mean = part.mean(0)
        gap, total = mean - self.mean, self.count + own
        # Chan, Golub, LeVeque 1979: avoids subtracting two large numbers
        self.square = self.square + ((part - mean) ** 2).sum(0) + gap**2 * self.count * own / total
        self.mean = self.mean + gap * own / total
        self.count = total

    def deviation(self) -> Tensor:
        """Return sigma_k of each dimension, [d] float32."""
        return (self.square / max(self.count, 1)).sqrt().float()


def inverse_deviation(sigma: Tensor) -> Tensor:
    """Return the diagonal of W (eq. 10): 1 / sigma_k, and 0 for a dimension without variation."""
    return torch.where(sigma > 0, 1 / sigma.clamp_min(torch.finfo(sigma.dtype).tiny), 0.0)


def distance(drafted: Tensor, likeliest: Tensor) -> Tensor:
    """Return ||W (e_td - e_tm)||^2 (eq. 6, 10); both [n, d] are rows of the whitened table, W e."""
    return (drafted - likeliest).square().sum(-1)


def margin(p_likeliest: Tensor, p_drafted: Tensor, clamp: float = CLAMP) -> Tensor:
    """Return log p~(t_m) - log p~(t_d) of probabilities after the logits processor (eq. 11).

    A drafted token with probability NaN counts as 0. Without a likeliest token (a row of zeros or NaN) the margin
    is NaN, which ``bounds`` makes infinite.
    """
    low = p_drafted.nan_to_num(nan=0.0).clamp_min(clamp)
    high = torch.where(p_likeliest > 0, p_likeliest.clamp_min(clamp), math.nan)
    return high.log() - low.log()


def bounds(distances: Tensor, margins: Tensor, by: Constants) -> Tensor:
    """Return U = min(U_emb, U_logit) (eq. 14); infinite if either side is NaN."""
    u_emb = by.c_s * distances  # eq. 10
    u_logit = by.alpha_kappa * margins.square()  # eq. 13
    return torch.minimum(u_emb, u_logit).nan_to_num(nan=math.inf)


def lts(u: Tensor, tau: float | Tensor) -> Tensor:
    """Return the local tolerance score, 1 - U / tau (eq. 15)."""
    # NaN can only be 0 / 0: the tokens are equal, and no difference is allowed
    return (1 - u / tau).nan_to_num(nan=1.0, posinf=math.inf, neginf=-math.inf)


def loose_nodes(
    distances: Tensor,
    p_likeliest: Tensor,
    p_drafted: Tensor,
    ends: Tensor,
    by: Constants,
    theta: float,
    keep_excluded: bool = False,
    floor: float = 0.0,
) -> Tensor:
    """Return which nodes the bound keeps: bool, in the arguments' common shape.

    A token of probability 0 (excluded by temperature, top-k, top-p or min-p) is not kept. The paper's formula
    counts its probability as ``CLAMP`` and may keep it; ``keep_excluded`` does so too. ``floor`` is ours: tokens
    below it are not kept either. ``ends`` marks nodes where only one of the two tokens ends the text: there is
    no next step to compare, so the bound does not apply.
    """
    u = bounds(distances, margin(p_likeliest, p_drafted), by).masked_fill(ends, math.inf)
    loose = lts(u, by.tau) >= theta
    if floor > 0:
        return loose & (p_drafted >= floor)
    return loose if keep_excluded else loose & (p_drafted > 0)


def sides(
    distances: Tensor, p_likeliest: Tensor, p_drafted: Tensor, by: Constants, theta: float
) -> tuple[Tensor, Tensor]:
    """Return which nodes U_emb alone would keep, and which U_logit alone would; their union is what U keeps."""
    u_logit = by.alpha_kappa * margin(p_likeliest, p_drafted).square()
    first, second = (u.nan_to_num(nan=math.inf) for u in (by.c_s * distances, u_logit))
    return lts(first, by.tau) >= theta, lts(second, by.tau) >= theta


def normalised_entropy(p: Tensor) -> Tensor:
    """Return H_m (eq. 2) of rows [..., V]: 0 for a certain token, 1 for the uniform distribution."""
    if p.shape[-1] < 2:
        return torch.zeros(p.shape[:-1], device=p.device)
    entropy: Tensor = torch.special.entr(p.float()).sum(-1)
    return entropy / math.log(p.shape[-1])


def next_step_js(first: Tensor, second: Tensor, top: int, smoothing: float) -> Tensor:
    """Return the JS divergence of two next-step distributions (eq. 5), rows [..., V], as in algorithm 1.

    Both are restricted to the union of their ``top`` likeliest tokens, smoothed there by mu = ``smoothing``, and
    renormalised (A.1).
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
