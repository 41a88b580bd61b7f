"""Score a step by the lowest log-probability that the target gives to one of its tokens.

The score is free: the verifying pass gives it anyway. An error sits in one or two tokens, so the lowest log-probability
says more than the mean. The threshold is one of three:

- measured on the run's own pair before the first problem, without labels (``semspec.calibration.threshold``), the default;
- given by hand;
- with ``calibration``, the most lenient one that keeps the requested risk (``semspec.calibration.risk``).

A measured threshold is for log-probabilities at the sampling temperature: models differ in how sharp they are at
temperature 1, and one that was made for a low temperature finds errors likely there. All other thresholds are for
log-probabilities at temperature 1 unless ``score_temperature`` says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from semspec.artifacts.risk import RiskCalibration
from semspec.artifacts.threshold import MeasuredThreshold
from semspec.calibration import threshold as measuring
from semspec.calibration.risk import Certified, certify
from semspec.calibration.threshold import Chosen
from semspec.errors import UserError
from semspec.protocols import Bench, InServer, Kit
from semspec.registry import register
from semspec.rules._risk import Certifiable
from semspec.rules._steps import Judgement, Span, StepSession, lowest_of
from semspec.rules._watching import Watching
from semspec.storage.cache import cache
from semspec.storage.digest import digest
from semspec.storage.files import dumps
from semspec.types import Answer, Context, Draft, Read, Sampling, What

# chosen before it was measured, and never changed; docs/measurements/step_level.md and
# docs/measurements/thresholds.md show what other thresholds do
THRESHOLD = -4.0
AUTO = "auto"
# the shipped pair, for which -4 was measured to keep the accuracy, also with drafters without a model
KNOWN_TARGET, KNOWN_DRAFTS = "embedded/tiny-target", (None, "embedded/tiny-draft")
STEPS = 256  # of each kind: measuring ends when there are this many
SHARE = 8  # one problem takes at most 1 / SHARE of ``warm_up``
MEASURED = (
    "threshold {0.threshold:.2f} at temperature {0.temperature:g}, measured {1} on {0.own_steps} steps of this pair: it rejects {0.own_rejected:.1%} of the target's"
    " own steps and accepts {0.accepted:.0%} of the drafted ones; an estimated {0.doubtful:.1%} of those"
    " (at most {0.at_most:.0%}) are less likely than what the target writes; no guarantee"
)
UNCERTIFIED = "its threshold is measured on the pair at the start of the run, without a guarantee"


@register("accept", "logprob")
@dataclass(frozen=True, kw_only=True)
class LogProb(Certifiable):
    """Accepts a step if its least likely token is likely enough under the target."""

    # auto: measured on the pair; else a natural logarithm: 0 rejects nearly everything
    threshold: Any = AUTO
    # temperature of the log-probabilities, above 0 up to 1; auto: the sampling temperature for a measured threshold
    # (1 if that is 0 or above 1), 1 for any other
    score_temperature: Any = AUTO
    warm_up: int = 16384  # most tokens the target writes to measure it; 0: use -4, uncalibrated
    calibration: str | None = None  # a folder or Hub repository: replaces the threshold
    risk: float | None = None  # at most: P(an accepted step has a semantic probability < least)
    least: float = 0.05  # a step below this is one that the target would hardly say
    confidence: float = 0.95  # of the guarantee, over the draw of the calibration set
    allow_mismatch: bool = False  # go on where the guarantee does not hold

    needs: ClassVar[frozenset[What]] = frozenset({What.LOGPROBS})
    may_change: ClassVar[tuple[str, ...]] = ("warm_up",)  # the measured threshold is recorded
    in_server: ClassVar[InServer | None] = InServer(
        {"threshold": float, "score_temperature": float},
        told=("warm_up", "calibration", "risk", "least", "confidence", "allow_mismatch"),
    )

    def __post_init__(self) -> None:
        if self.threshold != AUTO:
            _check_number(self.threshold)
        if self.score_temperature != AUTO:
            _check_temperature(self.score_temperature)
        if self.warm_up < 0:
            raise UserError(
                f"accept.warm_up={self.warm_up}: give the most tokens to spend on measuring"
                " the threshold, or 0 not to measure"
            )
        self.check_risk(alone=", or accept.threshold= alone")
        if self.calibration is not None and self.threshold != AUTO:
            raise UserError(
                f"accept.threshold={self.threshold:g} and accept.calibration both set the"
                " threshold: give one of them"
            )
        if self.calibration is not None and self.score_temperature not in (AUTO, 1):
            raise UserError(
                f"accept.score_temperature={self.score_temperature:g}: accept.calibration"
                " was measured at 1: leave one of them out"
            )

    certify: ClassVar[Callable[..., Certified]] = staticmethod(certify)
    certified: ClassVar[Certified | None] = None  # set by ``bind``, with a calibration
    chosen: ClassVar[Chosen | None] = None  # once measured
    # the temperature for a threshold that a request gives: that of the server's measured one
    scale: ClassVar[float | None] = None
    why: ClassVar[str] = ""  # set by ``measure``: where the threshold comes from

    @classmethod
    def default_for(cls, target: str, split: str, given: Collection[str]) -> tuple[int, str]:
        if split == "token":
            return 0, ""
        return 2, "" if {"threshold", "calibration"} & set(given) else UNCERTIFIED

    def columns(self, given: RiskCalibration) -> tuple[list[Any], ...]:
        given.check_score(None, self.allow_mismatch)
        return given.columns

    @property
    def level(self) -> float:
        """Return the threshold in use."""
        if found := self.certified or self.chosen:
            return found.threshold
        return THRESHOLD if self.threshold == AUTO else float(self.threshold)

    @property
    def read(self) -> Read:
        """Return the read of a draft's log-probabilities, at the temperature that the threshold is for."""
        if self.chosen is not None:
            return Read(What.LOGPROBS, temperature=self.chosen.temperature)
        if self.scale is not None:
            return Read(What.LOGPROBS, temperature=self.scale)
        # the constant is for temperature 1
        at = 1.0 if AUTO in (self.threshold, self.score_temperature) else self.score_temperature
        return Read(What.LOGPROBS, temperature=float(at))

    def asked_inside(self) -> Mapping[str, Any]:
        at = self.read.temperature
        return {"threshold": self.level, **({"score_temperature": at} if at != 1.0 else {})}

    def measure(self, bench: Bench) -> Self:
        """Take the threshold that was measured on this pair before, or measure it.

        If neither is possible, use the constant; ``origin`` says so.
        """
        standing = bench.standing.chosen if isinstance(bench.standing, LogProb) else None
        if standing and self.threshold != AUTO and self.score_temperature == AUTO:
            return self.bound(scale=standing.temperature)
        if self.calibration is not None or self.threshold != AUTO or not bench.drafts:
            return self
        if bench.recorded is not None:
            found = bench.recorded.get("chosen")
            chosen = Chosen(**found) if found else None
            return self.bound(chosen=chosen, why=str(bench.recorded.get("why", "")))
        known_pair = bench.target == KNOWN_TARGET and bench.draft in KNOWN_DRAFTS
        if known_pair and self.score_temperature in (AUTO, 1):
            return self.bound(why=f"threshold {THRESHOLD:g}, the constant, which was measured to keep"
                              " the accuracy of the embedded pair")  # fmt: skip
        at = self._to_measure_at(bench.sampling)
        # part of the key, so that thresholds that earlier versions chose differently are not reused
        how = {"rejects": measuring.OWN_REJECTED, "scored at": at}
        place = cache("thresholds") / digest({**bench.identity, **how})
        try:
            known = _known(place, bench)
        except UserError as error:
            bench.tell(f"{error}; measuring the threshold again")
            known = None
        when = "before"
        if known is None:
            when, known = "now", self._made(bench, at)
            if (
                known is None
                and standing
                and self.score_temperature in (AUTO, standing.temperature)
            ):
                assert bench.standing is not None
                # closer to this pair's threshold than the constant
                return self.bound(chosen=standing, why=bench.standing.origin())
            if known is None:
                why = (
                    "nothing may be measured"
                    if not self.warm_up
                    else "too few steps were drafted to measure one"
                )
                if self.score_temperature not in (AUTO, 1):
                    why += ", and the constant is for temperature 1, whatever accept.score_temperature= says"
                return self.bound(why=f"{_uncalibrated(THRESHOLD)}: {why}")
            try:
                known.save(place)
            except UserError as error:
                bench.tell(f"the threshold could not be saved for later runs: {error}")
                place = Path()
        kept = f": {place}" if place != Path() else ""
        return self.bound(chosen=known.chosen, why=MEASURED.format(known.chosen, when) + kept)

    def _to_measure_at(self, sampling: Sampling) -> float:
        """Return the temperature of the log-probabilities that a threshold is measured on."""
        if self.score_temperature != AUTO:
            return float(self.score_temperature)
        return 1.0 if sampling.greedy else min(sampling.temperature, 1.0)

    def _made(self, bench: Bench, at: float) -> MeasuredThreshold | None:
        """Have the target write, and the drafter draft beside it, until there are enough steps."""
        watching, written = Watching(read=Read(What.LOGPROBS, temperature=at)), 0
        if not self.warm_up:
            return None
        bench.tell(
            f"no threshold of accept=logprob is known for this pair: measuring one (at most"
            f" {self.warm_up} tokens of the target, once; accept.warm_up)"
        )
        with closing(bench.solve(watching, max(1, self.warm_up // SHARE))) as solutions:
            for tokens in solutions:
                written += tokens
                if len(watching.places) >= STEPS or written >= self.warm_up:
                    break
        own = [place.own for place in watching.places]
        drafted = [place.drafted for place in watching.places]
        if not measuring.enough(own, drafted):
            return None
        how = {"tokens": written}
        split = bench.identity["split"]
        return MeasuredThreshold.of(own, drafted, bench.identity, split, how, at)

    def measured(self) -> Mapping[str, Any]:
        if not self.why:
            return {}
        return {"why": self.why, "chosen": asdict(self.chosen) if self.chosen else None}

    def origin(self) -> str:
        """Say where the threshold comes from, for the first lines of a run and for a plan."""
        if self.calibration is not None:
            found = (
                f"threshold {self.certified.threshold:.2f}, " if self.certified else "threshold "
            )
            return (
                f"{found}certified by {self.calibration}: with confidence {self.confidence:g} at most"
                f" {self.risk:g} of the accepted steps are ones that the target would hardly write"
            )
        if self.threshold != AUTO:
            return f"{_uncalibrated(self.level)}: accept.threshold= was set by hand"
        if self.why:
            return self.why
        if not self.warm_up:
            return f"{_uncalibrated(THRESHOLD)}: accept.warm_up=0 measures nothing"
        return f"threshold measured on the pair at the start of the run (at most {self.warm_up} tokens of the target, once)"

    def open(self, kit: Kit) -> LogProbSession:
        return LogProbSession(kit, self.level, self.read)


def _check_number(threshold: Any) -> None:
    """Raise UserError unless it is a valid threshold."""
    if isinstance(threshold, bool) or not isinstance(threshold, int | float):
        raise UserError(f"accept.threshold={threshold}: give {AUTO}, or a negative number, such as -4")  # fmt: skip
    if not threshold <= 0:  # refuses NaN, too
        raise UserError(
            f"accept.threshold={threshold}: a log-probability cannot be above 0: give a"
            " negative number, such as -4"
        )


def _check_temperature(given: Any) -> None:
    """Raise UserError unless log-probabilities can be read at this temperature."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= 1:
        raise UserError(
            f"accept.score_temperature={given}: give {AUTO}, or a number above 0 up to 1,"
            " the temperature of the servers' log-probabilities"
        )


def _uncalibrated(threshold: float) -> str:
    return f"threshold {threshold:g}, uncalibrated for this pair"


def _known(place: Path, bench: Bench) -> MeasuredThreshold | None:
    """Return what an earlier run measured; raise UserError if it cannot be read."""
    if not place.is_dir():
        return None
    found = MeasuredThreshold.load(place)
    if found.config["measured"] != json.loads(dumps(bench.identity)):
        raise UserError(f"{place} was measured on another pair")
    return found


class LogProbSession(StepSession):
    def __init__(self, kit: Kit, threshold: float, read: Read) -> None:
        super().__init__(kit)
        self.threshold, self.read = threshold, read

    def reads(self, draft: Draft, spans: Sequence[Span]) -> tuple[Read, ...]:
        return (self.read,)

    def weigh(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Judgement:
        lowest = lowest_of(answer[self.read], spans)
        return Judgement(lambda unit: lowest[unit] >= self.threshold, lowest)
