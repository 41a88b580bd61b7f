"""ARC-Decode's calibration (algorithm 1): from measured pairs of tokens to the constants of the bound.

A pair is the likeliest token and another one at the same place of a text, with the divergence between the
target's next steps after each of them. ``COLUMNS`` names the columns of the measurements.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from semspec.calibration.risk import Certified, certify
from semspec.decoding.arc_bound import LARGEST_JS, Constants, bounds
from semspec.deferred import Tensor, special, torch
from semspec.errors import UserError
from semspec.results.metrics import quantile, wilson

COLUMNS = ("setting", "group", "depth", "entropy", "distance", "margin", "js", "drafted")
CORRECTIONS = ("none", "clopper_pearson", "wilson")
DEPTHS = (1, 3)  # buckets of depth: 0; 1 and 2; 3 and more
FEWEST = 100  # pairs in a bucket; one with fewer takes the overall constants


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The levels and corrections of algorithm 1's quantiles."""

    delta: float = 0.05
    sequence: int = 0  # positions that delta covers jointly (union bound); 0: each by itself
    alpha: float = 1.0  # the safety factor of eq. 13
    correction: str = "clopper_pearson"  # for the finite number of samples
    confidence: float = 0.95  # of that correction

    def __post_init__(self) -> None:
        if not (0 < self.delta < 1 and 0 < self.confidence < 1):
            raise UserError(
                f"delta={self.delta}, confidence={self.confidence}: give numbers above 0 and"
                " below 1, such as delta=0.05"
            )
        if self.sequence < 0 or not self.alpha >= 1:
            raise UserError(
                f"sequence={self.sequence}, alpha={self.alpha}: give sequence 0 (off) or more,"
                " and alpha of at least 1 (eq. 13)"
            )
        if self.correction not in CORRECTIONS:
            raise UserError(
                f"unknown correction={self.correction}: give one of {', '.join(CORRECTIONS)}"
            )

    @property
    def share(self) -> float:
        """Return the share of values that may lie beyond one quantile.

        Corollary (ii): over T positions P(some JS > tau) <= T (delta_1 + delta_2), in equal parts here.
        """
        return self.delta / (2 * self.sequence) if self.sequence else self.delta


def upper_quantile(values: Tensor, by: Quantiles) -> float:
    """Return the (1 - delta) quantile; if corrected, it exceeds the true one with ``confidence``.

    Corollary (iii): the k-th of n values exceeds the true quantile of level p unless k or more of them
    fell below it, which has the probability P(Bin(n, p) >= k). Raise UserError for too few values.
    """
    ordered = values.double().sort().values
    count, level = len(ordered), 1 - by.share
    if not count:
        raise UserError("no pair was measured: give more problems= or positions=")
    if by.correction == "none":
        found = quantile(ordered.tolist(), level)
        assert found is not None
        return found
    if by.correction == "clopper_pearson":
        from scipy.stats import binom  # takes a second: listing plugins stays quick

        place = int(binom.ppf(by.confidence, count, level)) + 1
    else:  # the first value for which Wilson's lower limit of the share below it reaches the level
        z, first = float(special.ndtri(by.confidence)), math.ceil(count * level)
        limits = ((n, wilson(n, count, z)) for n in range(max(first, 1), count + 1))
        place = next((n for n, found in limits if found and found[0] >= level), count + 1)
    if place > count:
        raise UserError(
            f"{count} pairs are too few for a quantile of {level:g} with confidence"
            f" {by.confidence:g}: measure more (problems=, positions=), or give"
            " correction=none"
        )
    return float(ordered[place - 1])


def ratios(js: Tensor, raw: Tensor) -> Tensor:
    """Return JS / U_raw; infinite for a divergence over 0, and 0 for 0 / 0."""
    return torch.where(raw > 0, js / raw, torch.where(js > 0, math.inf, 0.0))


def fit(pairs: Tensor, by: Quantiles) -> Constants:
    """Fit the constants to pairs [n, columns] (algorithm 1, lines 11 to 14).

    Raise UserError if no factor bounds the pairs.
    """
    distance, margin, js = (_column(pairs, name) for name in ("distance", "margin", "js"))
    c_s = upper_quantile(ratios(js, distance), by)
    alpha_kappa = by.alpha * upper_quantile(ratios(js, margin.square()), by)
    if not math.isfinite(c_s + alpha_kappa):
        raise UserError(
            "too many pairs have different next steps but equal embeddings and margins, so"
            " no factor bounds them: check the model's embedding table"
        )
    u_min = bounds(distance, margin, Constants(c_s, alpha_kappa, 1.0))
    return Constants(c_s, alpha_kappa, upper_quantile(u_min, by))


def _column(pairs: Tensor, name: str) -> Tensor:
    return pairs[:, COLUMNS.index(name)].double()


@dataclass(frozen=True, slots=True)
class Buckets:
    """Constants by depth in the draft and by the root's entropy (corollary (i))."""

    depths: tuple[int, ...]  # where each bucket of depths begins, except the first
    entropies: tuple[float, ...]
    constants: tuple[tuple[Constants, ...], ...]  # [depths + 1][entropies + 1]

    def of(self, depths: Tensor, entropy: float) -> Constants:
        """Return the constants of each node, whose ``depths`` are [n]."""
        column, on = sum(entropy >= edge for edge in self.entropies), depths.device
        row = torch.bucketize(depths, torch.tensor(self.depths, device=on), right=True)
        own = [row[column] for row in self.constants]
        table = torch.tensor([[c.c_s, c.alpha_kappa, c.tau] for c in own], device=on)
        return Constants(*table[row].unbind(-1))


@dataclass(frozen=True, slots=True)
class Setting:
    """The calibration at one temperature."""

    temperature: float
    constants: Constants
    buckets: Buckets | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)  # counts and quantiles

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, parsed: Mapping[str, Any]) -> Setting:
        buckets, constants = None, _constants(parsed["constants"])
        if given := parsed.get("buckets"):
            depths, entropies = map(int, given["depths"]), map(float, given["entropies"])
            table = tuple(tuple(map(_constants, row)) for row in given["constants"])
            buckets = Buckets(tuple(depths), tuple(entropies), table)
        figures = dict(parsed.get("figures") or {})
        return cls(float(parsed["temperature"]), constants, buckets, figures)


def _constants(parsed: Mapping[str, Any]) -> Constants:
    values = [float(parsed[name]) for name in ("c_s", "alpha_kappa", "tau")]
    if not all(math.isfinite(v) and v >= 0 for v in values):
        raise ValueError(f"constants {values} are not all finite and at least 0")
    return Constants(*values)


def fit_setting(
    pairs: Tensor, temperature: float, by: Quantiles, source: str = "uniform"
) -> Setting:
    """Fit constants and buckets to the pairs of ``source`` at one temperature, and add figures."""
    drafted = _column(pairs, "drafted") > 0
    chosen = pairs[drafted if source == "drafted" else ~drafted]
    constants = fit(chosen, by)
    thirds = _column(chosen, "entropy").quantile(torch.tensor([1 / 3, 2 / 3]).double())
    rows = torch.bucketize(_column(chosen, "depth"), torch.tensor(DEPTHS).double(), right=True)
    columns = torch.bucketize(_column(chosen, "entropy"), thirds, right=True)
    table, counts = [], []
    for row in range(len(DEPTHS) + 1):
        own = [chosen[(rows == row) & (columns == column)] for column in range(3)]
        counts.append([len(part) for part in own])
        table.append(tuple(fit(p, by) if len(p) >= FEWEST else constants for p in own))
    figures = {
        "pairs": len(chosen),
        "bucket_pairs": counts,
        "uniform": figures_of(pairs[~drafted], constants),
        "drafted": figures_of(pairs[drafted], constants),
    }
    buckets = Buckets(DEPTHS, tuple(thirds.tolist()), tuple(table))
    return Setting(temperature, constants, buckets, figures)


def figures_of(pairs: Tensor, by: Constants) -> dict[str, Any] | None:
    """Summarise how divergences and bounds are distributed, and how often the bound holds."""
    if not len(pairs):
        return None
    js = _column(pairs, "js")
    u = bounds(_column(pairs, "distance"), _column(pairs, "margin"), by)
    held = int((js <= u).sum())

    def spread(values: Tensor) -> dict[str, float]:
        ordered = values.sort().values.tolist()
        levels = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
        return {f"{level:g}": quantile(ordered, level) or 0.0 for level in levels}

    return {
        "pairs": len(pairs),
        "groups": len(set(_column(pairs, "group").tolist())),
        "js_mean": float(js.mean()),
        "js": spread(js),
        "u_min": spread(u),
        "coverage": held / len(pairs),
        "coverage_interval": wilson(held, len(pairs)),
    }


def certified(
    pairs: Tensor, by: Constants, *, js: float, risk: float, confidence: float
) -> Certified:
    """Certify the largest U with P(JS > ``js`` | U is at most that) <= ``risk``; ``threshold`` is -U.

    It relies on the measured divergences alone, by learn-then-test (see ``risk``); the bound only orders the
    tokens. One pair of each text is used, chosen at random. Raise UserError if no threshold can be certified.
    """
    u = bounds(_column(pairs, "distance"), _column(pairs, "margin"), by)
    groups = [int(g) for g in _column(pairs, "group").tolist()]
    measured = [-x for x in _column(pairs, "js").tolist()]
    try:
        return certify((-u).tolist(), measured, groups, risk=risk, least=-js, delta=1 - confidence)
    except UserError as error:
        raise UserError(f"with accept.js={js:g}, {error}; or allow a larger js") from error


def vacuous(tau: float) -> str | None:
    """Return a warning if the budget ``tau`` promises nothing, else None."""
    if tau <= LARGEST_JS:
        return None
    return (
        f"tau = {tau:.3g} is above ln 2 = 0.693, and no Jensen-Shannon divergence is: JS <= tau says"
        " nothing here; go by the measured divergence (python -m semspec.audit)"
    )


def hashed(prompt: str) -> str:
    """Return the hash of a prompt that a calibration stores, to exclude the prompt from evaluation."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]
