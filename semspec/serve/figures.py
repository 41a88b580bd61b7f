"""The figures of a request: usage as OpenAI counts it, and speculation as vLLM and SGLang tell it.

All of it is counted from the rounds, so that it agrees with what a run would have written into rounds.jsonl.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semspec.results.reuse import predicted
from semspec.serve.choices import Choice
from semspec.types import Round


@dataclass(frozen=True, slots=True)
class Speculation:
    """What became of the drafts of one answer: (drafted, accepted) tokens of every round that had a draft."""

    drafts: tuple[tuple[int, int], ...]
    length: int  # tokens of a draft, at most
    drafted_steps: int = 0
    accepted_steps: int = 0
    by_draft: int = 0  # tokens of the answer, by author
    by_target: int = 0

    @classmethod
    def of(cls, rounds: Sequence[Round], length: int) -> Speculation:
        """Count rounds whose drafts have ``length`` tokens at most (0: as many as the longest has)."""
        judged = [done for done in rounds if done.drafted]
        drafts = tuple((len(done.drafted), len(done.kept)) for done in judged)
        return cls(
            drafts,
            max([length, *(drafted for drafted, _ in drafts)]),
            sum(len(done.ends) for done in judged),
            sum(done.units_kept for done in judged),
            sum(len(done.kept) for done in rounds),
            sum(len(done.written) + len(done.handed) for done in rounds),
        )

    @property
    def drafted(self) -> int:
        return sum(drafted for drafted, _ in self.drafts)

    @property
    def accepted(self) -> int:
        return sum(accepted for _, accepted in self.drafts)

    def positions(self) -> Counter[int]:
        """Count the accepted tokens at each position of a draft, from 0."""
        return Counter(at for _, accepted in self.drafts for at in range(accepted))

    def metrics(self, detailed: bool = True) -> dict[str, Any]:
        """Return ``metrics.speculative_decoding`` of a response."""
        steps = len(self.drafts)
        histogram = [0] * (self.length + 1)
        by_length: dict[int, list[int]] = {}
        for drafted, accepted in self.drafts:
            histogram[accepted] += 1
            by_length.setdefault(drafted, [0] * (drafted + 1))[accepted] += 1
        found: dict[str, Any] = {
            "mean_acceptance_length": 1 + self.accepted / steps if steps else 1.0,
            "draft_acceptance_rate": self.accepted / self.drafted if self.drafted else 0.0,
            "acceptance_histogram": histogram,
            "acceptance_histogram_by_draft_length": {
                str(n): by_length[n] for n in sorted(by_length)
            },
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": self.accepted,
            "num_draft_tokens": self.drafted,
            "num_spec_tokens": self.length,
        }
        if detailed:
            found["per_step_accepted"] = [accepted for _, accepted in self.drafts]
            found["per_step_drafted"] = [drafted for drafted, _ in self.drafts]
        return found

    def sglext(self) -> dict[str, Any]:
        """Return ``sglext.spec_tokens_details``."""
        steps = len(self.drafts)
        return {
            "spec_verify_ct": steps,
            "spec_accepted_drafts": self.accepted,
            "spec_proposed_drafts": self.drafted,
            "spec_accept_length": 1 + self.accepted / steps if steps else 1.0,
            "spec_accept_rate": self.accepted / self.drafted if self.drafted else 0.0,
        }


@dataclass(slots=True)
class Usage:
    """Tokens of a request, all of its choices together."""

    prompt: int = 0
    completion: int = 0
    reasoning: int = 0
    cached: int = 0
    predicted: tuple[int, int] | None = (
        None  # tokens of a prediction that were accepted, and rejected
    )

    @classmethod
    def of(cls, prompts: Sequence[Choice], choices: Sequence[Choice]) -> Usage:
        """Count ``choices``; ``prompts`` has one of them for each prompt, which counts once."""
        return cls(
            sum(choice.prompt_tokens for choice in prompts),
            sum(len(choice.tokens) for choice in choices),
            sum(choice.reader.thinking_tokens for choice in choices),
            sum(choice.cached or 0 for choice in prompts),
            _predicted(choices),
        )

    def told(self) -> dict[str, Any]:
        details = {"reasoning_tokens": self.reasoning}
        if self.predicted is not None:
            details["accepted_prediction_tokens"], details["rejected_prediction_tokens"] = (
                self.predicted
            )
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": details,
        }


def _predicted(choices: Sequence[Choice]) -> tuple[int, int] | None:
    """Count what was drafted from predictions, kept and rejected; None where nothing was predicted."""
    if not any(choice.task.references for choice in choices):
        return None
    counts = [predicted(choice.rounds) for choice in choices]
    return sum(kept for kept, _ in counts), sum(rejected for _, rejected in counts)
