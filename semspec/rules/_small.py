"""Setup check for rules that judge by the draft model's own signals."""

from __future__ import annotations

from semspec import registry
from semspec.errors import UserError
from semspec.protocols import Setup


def check_drafted(setup: Setup) -> None:
    """Raise UserError unless a small model drafts chains, or nothing is drafted."""
    drafter = setup.drafter
    if drafter.plain or (registry.name_of(drafter) == "lm" and not drafter.levels):
        return
    raise UserError(
        f"{setup.rule_choice} needs the draft model's own probabilities of its steps, and"
        f" {setup.drafter_choice} does not give them: use {setup.draft_option}=lm"
        " (tree=chain), or another rule"
    )
