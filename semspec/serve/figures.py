"""The figures of a request: usage as OpenAI counts it, and speculation as vLLM and SGLang report it.

Speculation is counted from the rounds, so that it agrees with what a run writes into rounds.jsonl.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semspec.decoding.trim import depths
from semspec.serve.choices import Choice
from semspec.solver import Solver
from semspec.types import Round

FIRST = 64  # positions of a drafted step that have counters from the start; most steps are shorter


def positions(solver: Solver) -> int:
    """Return how many positions a draft may have under the server's own options, counting ``FIRST`` of a step at most."""
    unit = 1 if solver.config.split == "token" else min(solver.config.longest_unit, FIRST)
    return solver.draft_length * unit if solver.drafts else 0


@dataclass(frozen=True, slots=True)
class Speculation:
    """The drafts of one answer: (drafted, accepted) tokens of every round with a draft, and who wrote the answer."""

    drafts: tuple[tuple[int, int], ...]
    length: int  # tokens of the longest possible draft
    drafted_steps: int = 0
    accepted_steps: int = 0
    by_draft: int = 0  # tokens of the answer, by author
    by_target: int = 0
    by_server: int = 0  # words that close a thinking early
    nested: int = 0  # those of the target's that a nested drafter proposed
    depth: int = 0  # positions of the longest draft; a tree has fewer positions than tokens

    @classmethod
    def of(cls, rounds: Sequence[Round], length: int) -> Speculation:
        """Count rounds; ``length`` is the longest possible draft (0: take the longest there was)."""
        judged = [done for done in rounds if done.drafted]
        inside = [draft for done in rounds for draft in _drafts_inside(done)]
        drafts = *((len(done.drafted), len(done.kept)) for done in judged), *inside
        closing = [done for done in rounds if "closed" in done.stop]
        own = [done for done in rounds if "closed" not in done.stop]
        # the drafts inside may reach beyond the end of the text
        taken = min(sum(kept for _, kept in inside), sum(len(done.handed) for done in own))
        return cls(
            drafts,
            max([length, *(drafted for drafted, _ in drafts)]),
            drafted_steps=sum(len(done.ends) for done in judged),
            accepted_steps=sum(done.units_kept for done in judged),
            by_draft=sum(len(done.kept) for done in rounds) + taken,
            by_target=sum(len(done.written) + len(done.handed) for done in own) - taken,
            by_server=sum(len(done.tokens) for done in closing),
            nested=sum(min(done.nested_kept, len(done.handed)) for done in own),
            depth=max(map(_depth, rounds), default=0),
        )

    @property
    def drafted(self) -> int:
        return sum(drafted for drafted, _ in self.drafts)

    @property
    def accepted(self) -> int:
        return sum(accepted for _, accepted in self.drafts)

    @property
    def tokens(self) -> int:
        return self.by_draft + self.by_target + self.by_server

    def positions(self) -> Counter[int]:
        """Count the accepted tokens at each position of their draft, from 0."""
        return Counter(at for _, accepted in self.drafts for at in range(accepted))

    def metrics(self, detailed: bool = True) -> dict[str, Any]:
        """Return a response's ``metrics.speculative_decoding``, with vLLM's field names."""
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
        """Return an answer's ``sglext.spec_tokens_details``, with SGLang's field names and meanings.

        Drafts here are neither capped nor accepted in blocks, so those figures are 0, as SGLang has them in that case.
        """
        steps = len(self.drafts)
        histogram = [0] * (1 + max((accepted for _, accepted in self.drafts), default=-1))
        for _, accepted in self.drafts:
            histogram[accepted] += 1
        return {
            "spec_accept_rate": self.accepted / self.drafted if self.drafted else 0.0,
            "spec_accept_length": self.tokens / steps if steps else 0.0,
            "spec_cap_length": 0.0,
            "spec_block_accept_length": 0.0,
            "spec_num_correct_drafts": self.accepted,
            "spec_num_proposed_drafts": self.drafted,
            "spec_verify_ct": steps,
            "spec_correct_drafts_histogram": histogram,
            "spec_cap_lens_histogram": [],
        }


def _drafts_inside(done: Round) -> list[tuple[int, int]]:
    """Return the drafts that a server verified by itself, by their accepted tokens: it does not tell their order."""
    if not (count := sum(done.accepted_inside)):
        return []
    length = done.drafted_inside // count  # SGLang's drafts have one length
    return [(length, accepted) for accepted, n in enumerate(done.accepted_inside) for _ in range(n)]


def _depth(done: Round) -> int:
    if not done.drafted:
        return max(len(done.accepted_inside) - 1, 0)
    return len(done.drafted) if done.parents is None else max(depths(done.parents))


@dataclass(slots=True)
class Usage:
    """Tokens of a request, over all of its choices."""

    prompt: int = 0
    completion: int = 0
    reasoning: int = 0
    cached: int = 0
    predicted: tuple[int, int] | None = None  # accepted and rejected tokens of predictions

    @classmethod
    def of(cls, prompts: Sequence[Choice], choices: Sequence[Choice]) -> Usage:
        """Count ``choices``; ``prompts`` has one choice of each prompt, so that a prompt counts once."""
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
    """Sum the accepted and rejected tokens of predictions; None if there was no prediction."""
    if not any(choice.task.references for choice in choices):
        return None
    counts = [choice.predicted for choice in choices]
    return sum(accepted for accepted, _ in counts), sum(rejected for _, rejected in counts)
