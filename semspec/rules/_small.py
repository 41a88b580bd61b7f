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
        f"{setup.rule_choice} goes by what the small model thinks of the steps that it writes, and"
        f" {setup.drafter_choice} has other drafts: use {setup.draft_option}=lm (tree=chain), or another rule"
    )
