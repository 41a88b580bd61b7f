"""R-Stitch (Chen et al. 2025, arXiv:2507.17307): each token goes to the model that suffices for it.

The small model writes until it is unsure of a token. That token is dropped; the target writes it and goes on until it is
sure of one itself, and then the small model takes over again. Nothing is rejected: the target never reads text only to
drop it. It reads what the small model has written when it takes over, in the pass for its first token.

The uncertainty of a token is the normalised entropy of the row that it is drawn from,

    H_t = -sum_i p_t,i ln p_t,i / ln V,    0 <= H_t <= 1,

and both handovers use the same threshold. *Ours*, because we did not have the paper's text: p is the model's own
distribution at temperature 1; the default threshold; and ``longest``. R-Stitch+, which learns by reinforcement when to
hand over, is not implemented.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

from semspec.decoding.entropy import entropies
from semspec.errors import UserError
from semspec.protocols import Kit, Plan, Setup
from semspec.registry import register
from semspec.rules._base import RuleBase
from semspec.rules._small import check_drafted
from semspec.types import (
    Answer,
    Context,
    Draft,
    Gate,
    Generate,
    Handover,
    Query,
    Read,
    Verdict,
    What,
)

ROW = Read(What.LOGITS)
MOST = 256  # limit of ``longest``: the target's tokens of a round need room after the context


@register("accept", "r_stitch")
@dataclass(frozen=True, kw_only=True)
class RStitch(RuleBase):
    """Lets the small model write the tokens it is sure of, and the target the others (R-Stitch)."""

    threshold: float = 0.03  # normalised entropy, 0 to 1, from which the target writes a token
    longest: int = 64  # most tokens that the target writes at a time, even if it stays unsure

    needs: ClassVar[frozenset[What]] = frozenset({What.LOGITS})
    splits: ClassVar[frozenset[str] | None] = frozenset({"token"})
    cuts: ClassVar[Literal["tokens", "ends"]] = "ends"  # it keeps drafts whole
    salvages: ClassVar[bool] = False
    reserve: ClassVar[int] = MOST

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UserError(
                f"accept.threshold={self.threshold}: a normalised entropy is above 0, and 1 at most"
            )
        if not 1 <= self.longest <= MOST:
            raise UserError(f"accept.longest={self.longest}: give 1 to {MOST} tokens")

    def check_setup(self, setup: Setup) -> None:
        super().check_setup(setup)
        check_drafted(setup)

    def gate(self) -> Gate:
        return Gate(self.threshold, "token", ROW)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        yield cls(threshold=0.5, longest=8)

    def open(self, kit: Kit) -> RStitchSession:
        return RStitchSession(kit, self)


class RStitchSession:
    def __init__(self, kit: Kit, rule: RStitch) -> None:
        self.kit, self.rule = kit, rule

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        scores = [-doubt for doubt in draft.doubts[: len(draft.tokens)]]
        if len(scores) < len(draft.tokens):  # copied tokens passed no gate
            return Verdict(handover=Handover(units=1))
        written: list[int] = []
        while draft.halted and len(written) < self.rule.longest:
            answer: Answer = yield Query(
                "target",
                context,
                self.kit.sampling,
                self.kit.rng,
                tokens=[*draft.tokens, *written],
                reads=(ROW,),
                generate=Generate(1),
                purpose="write",
            )
            if not answer.tokens:  # the model's context is full
                break
            written += answer.tokens
            (doubt,) = entropies(ROW, answer[ROW])
            if doubt < self.rule.threshold or written[-1] in self.kit.stop_ids:
                break
        note = f"the target writes {len(written)} tokens" if written else ""
        stuck = not draft.tokens and not written
        handover = Handover(units=1) if stuck else None
        return Verdict(len(draft.tokens), written, handover, scores=scores, note=note)
