"""What stoppers that try an answer share: how it begins, when it is tried, and what decides."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from semspec import registry
from semspec.artifacts import base
from semspec.artifacts.binding import check_alike, check_shares
from semspec.artifacts.stopping import StopCalibration
from semspec.calibration.stopping import CertifiedStop, certify, described_stop
from semspec.decoding.hopeless import HOPELESS, Judge
from semspec.errors import UserError
from semspec.models.text import CLOSE
from semspec.protocols import Kit, Plan, Run, Source
from semspec.stops._base import Closes
from semspec.storage.files import dumps
from semspec.types import Context, Opinion, What

BEGINS = "The answer is \\boxed{"  # the beginning of a forced answer


@dataclass(frozen=True, kw_only=True)
class Trial(Closes):
    """A stopper that scores, 0 to 1, the answer that would come now, and stops if the score is high enough."""

    answer: str = BEGINS
    threshold: float = 0.95
    every: int = 1  # steps between trials
    least: int = 0  # tokens of the thinking before the first trial
    # limit on P(a stop makes a right answer wrong), instead of a threshold
    risk: float | None = None
    confidence: float = 0.95  # of that guarantee, over the random choice of calibration problems
    calibration: str | None = None  # a folder or Hub repository, made by semspec.calibrate_stop
    hopeless: float = 0.0  # share of the risk for giving up problems whose score stays low; 0: none
    allow_mismatch: bool = False  # use a calibration that was made for something else

    certified: ClassVar[CertifiedStop | None] = None  # set by ``bind``
    needs: ClassVar[frozenset[What]] = frozenset({What.TOP_K})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.threshold <= 1:
            raise UserError(f"stop.threshold={self.threshold}: give a score from 0 to 1")
        if self.every < 1:
            raise UserError(f"stop.every={self.every}: give at least 1")
        if self.least < 0:
            raise UserError(f"stop.least={self.least}: give at least 0")
        check_shares("stop", risk=self.risk, confidence=self.confidence)
        if self.hopeless:
            check_shares("stop", hopeless=self.hopeless)
        if self.hopeless and self.risk is None:
            raise UserError(
                f"stop.hopeless={self.hopeless:g} is a share of stop.risk=: give"
                " stop.risk=, such as 0.05, and stop.calibration="
            )
        if self.risk is not None and self.calibration is None:
            raise UserError(f"stop.risk={self.risk:g} needs a calibration: {self._command()}")
        if self.risk is None and self.calibration is not None:
            raise UserError(
                "stop.calibration= needs the risk to certify: give stop.risk=, such as 0.02"
            )

    def _command(self) -> str:
        """Say how to make a calibration."""
        return (
            f"run python -m semspec.calibrate_stop stop={registry.name_of(self)} with this run's options, then add"
            " stop.calibration=FOLDER/calibration"
        )

    def asked_risk(self) -> float | None:
        return self.risk

    def loads(self, run: Run) -> Sequence[Source]:
        return [base.source("stop calibration", self.calibration)] if self.calibration else []

    def bind(self, run: Run) -> Self:
        if self.calibration is None or self.risk is None:
            return self
        given = StopCalibration.load(self.calibration)
        given.check_run(run, self.allow_mismatch)
        if not self.allow_mismatch:
            self._check(given, run)
        found = certify(
            given.problems,
            risk=self.risk,
            delta=1 - self.confidence,
            hopeless=self.hopeless,
            budget=given.budget if self.hopeless else 0,
        )
        return self.bound(certified=found)

    def _check(self, given: StopCalibration, run: Run) -> None:
        """Raise UserError if the calibration used another score or solved its problems in another way."""
        unlike = given.measured.unlike(run.sampling, run.drafts or "none")
        made, own = given.config["stop"], json.loads(dumps(described_stop(self)))
        if made["name"] != own["name"]:
            unlike.append(f"with stop={made['name']}")
        else:
            theirs = made["options"]
            unlike += [f"with stop.{k}={theirs.get(k)}" for k, v in own["options"].items() if theirs.get(k) != v]  # fmt: skip
        if run.rule and given.config["rule"] != run.rule:
            unlike.append(f"with accept={given.config['rule']}")
        # a problem given up within one budget may be solved within another
        if self.hopeless and run.max_new_tokens not in (None, given.budget):
            unlike.append(f"with max_new_tokens={given.budget}")
        check_alike("stop", f"stop.risk={self.risk:g}", unlike, self._command())

    def origin(self) -> str:
        if (found := self.certified) is None:
            return f"stop: threshold {self.threshold:g}, uncalibrated, so without any guarantee"
        floor = f", hopeless below {found.floor or 'no score'}" if self.hopeless else ""
        return (
            f"stop: threshold {found.threshold:.4f}{floor}, certified by {self.calibration}: with confidence"
            f" {self.confidence:g} at most {self.risk:g} of the answers turn from right to wrong because of a stop"
        )

    @property
    def reserve(self) -> int:
        return 128

    @property
    def level(self) -> float:
        """The threshold in use."""
        return self.threshold if self.certified is None else self.certified.threshold

    def judge(self) -> Judge:
        """Return the judge of one problem."""
        return Judge(self.level, self.certified.floor if self.certified else None)


class TrialSession:
    """A stopper that tries answers, at work on one problem."""

    def __init__(self, stop: Trial, kit: Kit) -> None:
        self.stop, self.kit = stop, kit
        self.tail = kit.encode(f"{CLOSE}\n\n{stop.answer}")
        self.steps = 0
        self.judge = stop.judge()

    def consider(self, context: Context, thought: int) -> Plan[Opinion]:
        self.steps += 1
        if thought < self.stop.least or self.steps % self.stop.every:
            return Opinion(False)
        score = yield from self.score(context)
        verdict = self.judge.closes(thought, score)
        why = f"{score:.3f} sure of the answer after {thought} tokens"
        if verdict == HOPELESS:
            why = f"given up as hopeless: {why}"
        return Opinion(bool(verdict), score, why, hopeless=verdict == HOPELESS)

    @abstractmethod
    def score(self, context: Context) -> Plan[float]:
        """Return the confidence, 0 to 1, in the answer that would follow the context."""
        raise NotImplementedError
