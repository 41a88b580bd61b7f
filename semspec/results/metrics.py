"""The figures of a run, computed only from the lines of problems.jsonl.

So a killed and resumed run reports the same as an unbroken one. Figures are ratios of sums over problems (a long
problem weighs more), unless a name says mean or median. A figure that cannot be computed is None: an interval of
one problem, the acceptance of a run without drafts.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from semspec.results import bound, reuse, stopped
from semspec.results.attempts import Groups, answers_of, counts_of, mean_of, problem_of, summed
from semspec.results.step_truth import ACCEPTED, ASKED, LEAST, WRONG

Interval = tuple[float, float]
T = TypeVar("T")

Z95 = 1.959963984540054  # the normal distribution's 97.5 % quantile
SUMMED = tuple(
    "seconds wall tokens drafts drafted_units drafted_tokens kept_units kept_tokens written_tokens"
    " handed_tokens gained_tokens draft_passes target_passes draft_seconds verify_seconds"
    " write_seconds".split()
)
CACHE = ("draft_fed", "draft_cached", "target_fed", "target_cached")
LATER = (*CACHE, "drafted_length")  # missing in older lines


def ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def quantile(values: Sequence[float], q: float) -> float | None:
    """Interpolate linearly between order statistics, as numpy does by default."""
    if not values:
        return None
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def wilson(successes: float, trials: float, z: float = Z95) -> Interval | None:
    """Return Wilson's score interval for a proportion (Wilson 1927); 95 % by default."""
    if trials == 0:
        return None
    share = successes / trials
    centre = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    # exactly 0 and 1 at the edges, where rounding would give 1e-17
    low = 0.0 if successes == 0 else (centre - half) / scale
    high = 1.0 if successes == trials else (centre + half) / scale
    return low, high


def share_interval(groups: Groups, z: float = Z95) -> Interval | None:
    """Return the interval of a share over problems; ``groups`` holds each problem's attempts as 0 or 1.

    Wilson's interval, with as many trials as the attempts are worth (one per problem without further attempts).
    """
    return wilson(*counts_of(groups, z), z) if groups else None


def central(drawn: Sequence[float]) -> Interval | None:
    """Return the interval of the middle 95 % of the draws."""
    low, high = quantile(drawn, 0.025), quantile(drawn, 0.975)
    return (low, high) if low is not None and high is not None else None


def ratio_interval(
    pairs: Sequence[tuple[float, float]], *, seed: int = 0, resamples: int = 2000
) -> Interval | None:
    """Return the 95 % percentile bootstrap interval of sum(first) / sum(second), over pairs; None for fewer than two."""
    if len(pairs) < 2:
        return None
    rng = random.Random(seed)
    ratios = []
    for _ in range(resamples):
        drawn = rng.choices(pairs, k=len(pairs))
        below = sum(b for _, b in drawn)
        if below > 0:
            ratios.append(sum(a for a, _ in drawn) / below)
    return central(ratios)


def rate_ratio(
    rows: Sequence[tuple[float, float, float, float]], *, seed: int = 0, resamples: int = 2000
) -> tuple[float, Interval | None]:
    """Return the ratio of two ways' tokens per second, and its 95 % bootstrap interval over rows.

    A row holds tokens and seconds of one way, then of the other. Rates are taken over sums, not row by row, because
    sampled texts differ in length.
    """

    def of(some: Sequence[tuple[float, float, float, float]]) -> float:
        tokens, seconds, others, theirs = (math.fsum(column) for column in zip(*some, strict=True))
        return (tokens / seconds) / (others / theirs)

    return resampled(rows, of, seed=seed, resamples=resamples)


def resampled(
    rows: Sequence[T], of: Callable[[Sequence[T]], float], *, seed: int = 0, resamples: int = 2000
) -> tuple[float, Interval | None]:
    """Return a figure of rows and its 95 % bootstrap interval (None for fewer than two rows)."""
    rng = random.Random(seed)
    again = range(resamples if len(rows) > 1 else 0)
    return of(rows), central([of(rng.choices(rows, k=len(rows))) for _ in again])


def mcnemar(lost: int, won: int) -> float:
    """Return the exact two-sided p-value of McNemar's test (1947): could ``lost`` and ``won`` come from a fair coin?

    With one answer per problem this is also the paired permutation test: swapping a problem's two answers matters
    only if they differ.
    """
    n = lost + won
    tail = sum(math.comb(n, k) for k in range(min(lost, won) + 1))
    return min(1.0, float(2 * tail / 2**n))


def flipped(differences: Sequence[int]) -> float:
    """Return the exact two-sided p-value of the paired permutation test over problems.

    ``differences``: for each problem, how many more of its attempts are right in one run than in the other. If the runs
    are equally good, each sign is equally likely. With one answer per problem this is McNemar's test.
    """
    unlike = [abs(d) for d in differences if d]
    if max(unlike, default=0) <= 1:
        return mcnemar(sum(d < 0 for d in differences), sum(d > 0 for d in differences))
    ways = {0: 1}  # sum: number of sign choices that give it
    for d in unlike:
        reached: Counter[int] = Counter()
        for at, count in ways.items():
            reached[at + d] += count
            reached[at - d] += count
        ways = dict(reached)
    seen = abs(sum(differences))
    return float(sum(count for at, count in ways.items() if abs(at) >= seen) / 2 ** len(unlike))


@dataclass(slots=True)
class _Tally:
    """Sums over the solves of one mode; keeps numbers but no texts."""

    sums: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)  # per answer: kept tokens / draft lengths
    asked: set[str] = field(default_factory=set)  # problems
    graded: dict[str, list[int]] = field(default_factory=dict)  # by problem: is the answer right?
    harmed: dict[str, list[int]] = field(default_factory=dict)  # by problem: made wrong by a stop?
    cut_off: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # integers in the details
    shares: dict[str, list[float]] = field(default_factory=dict)  # floats in the details
    reuse: Counter[str] = field(default_factory=Counter)
    bound: Counter[str] = field(default_factory=Counter)

    def add(self, solve: Mapping[str, Any], problem: str) -> None:
        self.asked.add(problem)
        self.sums.update({name: solve[name] for name in SUMMED})
        self.sums.update({name: solve.get(name, 0) for name in LATER})
        if length := solve.get("drafted_length"):
            self.accepted.append(solve["kept_tokens"] / length)
        self.latencies.append(solve["seconds"])
        self.cut_off += solve["finish"] == "budget"
        if solve["correct"] is not None:
            self.graded.setdefault(problem, []).append(int(solve["correct"]))
        if solve["details"].get(stopped.CHECKED):
            self.harmed.setdefault(problem, []).append(solve["details"][stopped.HARMED])
        self.reuse.update(solve.get("reuse", {}))
        self.bound.update(solve.get("counts", {}))
        for name, value in solve["details"].items():
            if isinstance(value, int):
                self.counts[name] += value
            elif isinstance(value, float):
                self.shares.setdefault(name, []).append(value)

    def figures(self) -> dict[str, Any]:
        n, s = len(self.latencies), self.sums
        right = list(self.graded.values())
        graded = sum(map(len, right))
        by_target = s["written_tokens"] + s["handed_tokens"]
        return {
            "problems": len(self.asked),
            **({"answers": n} if n != len(self.asked) else {}),
            "graded": graded,
            "ungraded": n - graded,
            "cut_off": self.cut_off,
            "pass_at_1": mean_of(right) if right else None,
            "pass_at_1_interval": share_interval(right),
            "tokens_per_second": ratio(s["tokens"], s["wall"]),
            "latency": mean(self.latencies),
            "latency_median": quantile(self.latencies, 0.5),
            "latency_p90": quantile(self.latencies, 0.9),
            "tokens": ratio(s["tokens"], n),
            "acceptance_rate": ratio(s["kept_units"], s["drafted_units"]),
            "acceptance_rate_tokens": ratio(s["kept_tokens"], s["drafted_tokens"]),
            "mean_acceptance_rate": mean(self.accepted),
            "accept_length": ratio(s["gained_tokens"], s["drafts"]),
            "target_share": ratio(by_target, by_target + s["kept_tokens"]),
            "target_passes": s["target_passes"],
            "draft_passes": s["draft_passes"],
            "prefix_reuse": {
                role: ratio(s[f"{role}_cached"], s[f"{role}_cached"] + s[f"{role}_fed"])
                for role in ("target", "draft")
            },
            "time": self._time(),
            "details": self._details(),
            "reuse": reuse.figures(self.reuse),
            "pruned": bound.pruned(self.bound),
            "bound": bound.figures(self.bound),
        }

    def _time(self) -> dict[str, float] | None:
        """Return shares of the time by purpose; time outside of queries is overhead."""
        spent = {p: float(self.sums[f"{p}_seconds"]) for p in ("draft", "verify", "write")}
        # a batched pass counts in full for each of its problems, so the sum may exceed the total
        whole = max(float(self.sums["seconds"]), math.fsum(spent.values()))
        if not whole:
            return None
        shares = {purpose: seconds / whole for purpose, seconds in spent.items()}
        return {**shares, "overhead": max(0.0, 1 - math.fsum(shares.values()))}

    def _details(self) -> dict[str, float]:
        """Sum integers and average floats; ``x_true`` over ``x`` gives ``x_true_share``."""
        details: dict[str, float] = dict(self.counts)
        for name in self.counts:
            share = ratio(self.counts[name], self.counts.get(name.removesuffix("_true"), 0))
            if name.endswith("_true") and share is not None:
                details[f"{name}_share"] = share
        return details | {name: math.fsum(v) / len(v) for name, v in self.shares.items()}


def summarise(lines: Iterable[Mapping[str, Any]], *, seed: int = 0) -> dict[str, Any]:
    """Compute what result.json holds: figures of the speculative mode, those of ``plain``, and a comparison.

    For each mode:

    - ``pass_at_1``: correct / graded; ``pass_at_1_interval``: Wilson, 95 %. ``ungraded`` problems
      count for speed only. ``cut_off``: how many ended at the token budget.
    - ``answers``: the number of answers, if ``problems`` had several attempts. Then ``graded``, ``ungraded``,
      ``cut_off`` and means count answers, ``pass_at_1`` is the mean over problems of each problem's mean over its
      attempts, and intervals are over problems (``results.attempts``).
    - ``tokens_per_second``: all output tokens / total wall time (throughput).
    - ``latency``, ``latency_median``, ``latency_p90``: seconds per problem. ``tokens``: mean length.
    - ``acceptance_rate``: units kept / units drafted; ``acceptance_rate_tokens``: the same in
      tokens. Drafted units include those after a rejection, and every node of a tree.
    - ``mean_acceptance_rate`` (MAR, DReSD, section 4.3): tokens kept / lengths of the drafts, for each
      problem, averaged over the problems with drafts. A tree counts by its depth, since only one
      of its branches can be kept.
    - ``accept_length`` (tau): tokens gained per verified draft, that is (kept + written by the rule:
      correction, residual, bonus) / (rounds with a draft). Tokens that the target writes after a
      handover take passes of their own and do not count; nor do nested drafts.
    - ``target_share``: share of the output written by the target (rule or handover).
    - ``target_passes``, ``draft_passes``: totals, as the rounds recorded them.
    - ``prefix_reuse``: by role, the share of the tokens in queries that the model did not have to
      compute, because their prefix was cached.
    - ``time``: shares of the seconds: draft, verify, write, and overhead for the rest.
    - ``details``: counts of the benchmark's grading, such as the truth of steps.
    - ``reuse``: what retrieval found and how much of it was kept (``reuse.figures``); None without it.
    - ``pruned`` (rho): the share of drafted nodes that a rule pruned before the target's pass; None without pruning.
    - ``bound``: which side of ARC-Decode's bound kept tokens (``bound.figures``); None without it.

    Compared over the problems that have both modes:

    - ``speedup``: wall time of plain / wall time of speculative; ``speedup_interval``: 95 %
      paired bootstrap over problems, seeded.
    - ``speedup_per_token``: the ratio of tokens per second, which leaves out the effect of longer
      or shorter answers. ``speedup_median``: median of the problems' own ratios.
    - ``only_plain_correct``, ``only_speculative_correct``: answers that are right in one mode only;
      ``pass_at_1_p``: how likely chance alone gives a difference at least as large (``flipped``).

    ``risk``, if a rule was asked for one and the benchmark knows the truth of steps: the risk ``asked`` (for steps
    to which the target gives a probability below ``least``), and the measured share of ``accepted`` drafted steps
    that are ``wrong``, with Wilson's 95 % interval.

    ``stop``, if a stopper was used: how many problems were ``stopped``, of these ``by_limit`` (the answer
    needed the rest of the budget) and as ``hopeless``; ``trials``: how often the stopper asked; ``thinking_tokens``:
    mean per answer. ``checked`` problems were also solved to their natural end, with the same seed: ``saved`` is the
    share of the thinking that was left out (None unless all were checked); ``harmed`` answers became wrong by the stop,
    ``mended`` ones right; ``measured`` is the share of harmed ones, with Wilson's interval, to compare with the risk
    ``asked``. ``saved_of_plain``: the share saved relative to the target alone.
    """
    own, plain, paired = _Tally(), _Tally(), _Tally()
    walls: list[tuple[float, float]] = []
    names: list[str] = []  # the problems of ``walls``
    lost = won = 0
    changed: Counter[str] = Counter()  # by problem: won minus lost
    for line in lines:
        own.add(line, problem := problem_of(line))
        other = line.get("plain")
        if other is None:
            continue
        plain.add(other, problem)
        paired.add(line, problem)
        walls.append((other["wall"], line["wall"]))
        names.append(problem)
        if None not in (other["correct"], line["correct"]):
            changed[problem] += line["correct"] - other["correct"]
            lost += other["correct"] and not line["correct"]
            won += line["correct"] and not other["correct"]
    pairs = summed(names, walls)
    figures = own.figures()
    rates = [ratio(t.sums["tokens"], t.sums["wall"]) for t in (paired, plain)]
    return figures | {
        "speedup": ratio(plain.sums["wall"], paired.sums["wall"]),
        "speedup_interval": ratio_interval(pairs, seed=seed),
        "speedup_per_token": rates[0] / rates[1] if rates[0] is not None and rates[1] else None,
        "speedup_median": quantile([p / s for p, s in pairs if s > 0], 0.5),
        "only_plain_correct": lost if pairs else None,
        "only_speculative_correct": won if pairs else None,
        "pass_at_1_p": flipped(list(changed.values())) if changed else None,
        "plain": plain.figures() if pairs else None,
        "risk": _risk(figures["details"]),
        "stop": _stop(own, figures, plain.figures()["details"] if pairs else {}),
    }


def _stop(
    tally: _Tally, own: Mapping[str, Any], plain: Mapping[str, float]
) -> dict[str, Any] | None:
    """Return what a stopper saved and changed; None without a stopper."""
    details, answers = own["details"], answers_of(own)
    if stopped.STOPPED not in details:
        return None
    checked, harmed = (int(details.get(name, 0)) for name in (stopped.CHECKED, stopped.HARMED))
    tokens = details[stopped.THINKING]
    whole, alone = details.get(stopped.UNSTOPPED), plain.get(stopped.THINKING)
    return {
        "stopped": int(details[stopped.STOPPED]),
        "by_limit": int(details[stopped.LIMITED]),
        "hopeless": int(details.get(stopped.GIVEN_UP, 0)),
        "trials": int(details[stopped.TRIED]),
        "thinking_tokens": ratio(tokens, answers),
        "saved": 1 - tokens / whole if whole and checked == answers else None,
        "saved_of_plain": 1 - tokens / alone if alone else None,
        "asked": details.get(stopped.ASKED),
        "checked": checked,
        "harmed": harmed,
        "mended": int(details.get(stopped.MENDED, 0)),
        "measured": ratio(harmed, checked),
        "measured_interval": share_interval(list(tally.harmed.values())),
    }


def _risk(details: Mapping[str, float]) -> dict[str, Any] | None:
    """Return requested and measured risk; None if no risk was asked or the truth of steps is unknown."""
    if not {ASKED, LEAST, ACCEPTED, WRONG} <= set(details):
        return None
    accepted, wrong = int(details[ACCEPTED]), int(details[WRONG])
    found = {"asked": details[ASKED], "least": details[LEAST], "accepted": accepted, "wrong": wrong}
    share, interval = ratio(wrong, accepted), wilson(wrong, accepted)
    return {**found, "measured": share, "measured_interval": interval}
