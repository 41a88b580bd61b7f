"""A trained head on the target's states decides whether the text suffices for the right answer.

At the end of a step, the target's states are pooled over the step, or over the beginning of an answer after it,
depending on the head (``semspec.artifacts.stop_probe``). This takes one pass, which writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from semspec.artifacts import base
from semspec.artifacts.binding import check_alike
from semspec.artifacts.probe import pools
from semspec.artifacts.stop_probe import StopProbe
from semspec.decoding.stopping import cut_to
from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.probes.features import Features
from semspec.protocols import Kit, Plan, Run, Source
from semspec.registry import register
from semspec.stops._trial import Trial, TrialSession
from semspec.types import Answer, Context, Opinion, Query, What

MAKE = "python -m semspec.calibrate_stop stop=probe train=true"


@dataclass(frozen=True, slots=True)
class Gathering:
    """Training data for a head: the states at every end of a step, by prompt."""

    features: Features
    span: str
    states: dict[str, list[Tensor]] = field(default_factory=dict)  # [pools, layers, width] each


@register("stop", "probe")
@dataclass(frozen=True, kw_only=True)
class Probed(Trial):
    """Ends the thinking once a trained head on the target's states predicts a right answer."""

    probe: str | None = None  # a folder or Hub repository, made with train=true

    needs: ClassVar[frozenset[What]] = frozenset({What.POOLED})
    head: ClassVar[StopProbe]  # set by ``bind``
    gathers: ClassVar[Gathering | None] = None  # if given, only gather states to train a head

    def loads(self, run: Run) -> Sequence[Source]:
        if self.gathers is not None:
            return ()
        return [base.source("stop probe", self._named()), *super().loads(run)]

    def bind(self, run: Run) -> Self:
        if self.gathers is not None:
            return self
        head = StopProbe.load(self._named())
        head.check_run(run, self.allow_mismatch)
        made = {name: head.config["stop"][name] for name in ("words", "answer")}
        unlike = [
            f"with stop.{k}={v}" for k, v in made.items() if not self.allow_mismatch and v != getattr(self, k)
        ]  # fmt: skip
        check_alike("stop", "stop.probe=", unlike, f"train one with {MAKE} and this run's options")
        return super().bind(run).bound(head=head)

    def _named(self) -> str:
        if not self.probe:
            raise UserError(
                f"stop=probe needs a trained head: make one with {MAKE} folder=FOLDER, then give"
                " stop.probe=FOLDER/probe"
            )
        return self.probe

    def described(self, option: str) -> Any:
        if option == "probe" and self.probe:  # independent of its path
            return StopProbe.load(self.probe).digest
        return super().described(option)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        for span in ("step", "closing"):
            StopProbe.example(span).save(folder / span)
            own = str(folder / span)
            yield cls(probe=own, allow_mismatch=True, threshold=0.5, answer_tokens=4, words="")

    def open(self, kit: Kit) -> ProbeSession:
        return ProbeSession(self, kit)


class ProbeSession(TrialSession):
    stop: Probed
    ended: int | None = None  # where the previous step ended
    began: int = 0  # where the current one begins

    def __init__(self, stop: Probed, kit: Kit) -> None:
        super().__init__(stop, kit)
        if stop.gathers is not None:
            stop.gathers.states[kit.prompt] = []

    def consider(self, context: Context, thought: int) -> Plan[Opinion]:
        first = max(len(context) - thought, context.prompt_length)
        self.began = first if self.ended is None else self.ended
        self.ended = len(context)
        return (yield from super().consider(context, thought))

    def score(self, context: Context) -> Plan[float]:
        gathers = self.stop.gathers
        looks = self.stop.head if gathers is None else gathers
        tokens = self.tail
        if looks.span == "step":
            tokens, context = context.tokens[self.began :], cut_to(context, self.began)
        spans = ((0, len(tokens)),)
        reads = pools(looks.features, spans)
        answer: Answer = yield Query(
            "target", context, self.kit.sampling, self.kit.rng, tokens=tokens, reads=reads
        )
        if gathers is None:
            return float(self.stop.head.score(answer.values, reads, spans)[0])
        gathers.states[self.kit.prompt].append(torch.stack([answer[read][0] for read in reads]))
        return 0.0
