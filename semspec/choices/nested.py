"""Add ``nested=lm salvage=true`` if neither is given: both make rules for steps faster and change no distribution."""

from __future__ import annotations

from collections.abc import Sequence

from semspec.choices.choice import Choice
from semspec.choices.names import plugin_of
from semspec.choices.presets import given_options, is_yes
from semspec.choices.trial import refusal
from semspec.config import defaults

# options that concern them; costs= is included because it repeats what another run has written
SAID = {"salvage", "nested", "nested_accept", "nested_length", "ahead", "experiment", "inside", "engine.inside", "costs"}  # fmt: skip
HELP = ("nested=lm", "salvage=true")
WHY = (
    "the small model also drafts what the target writes, losslessly, and rejected steps keep the tokens that the target's"
    " distribution allows; nested=none turns both off"
)


def choose_nested(arguments: Sequence[str], brought: bool = False) -> Choice | None:
    """Return ``nested=lm``, which implies ``salvage=true``; None if an option concerns them, or they cannot be used.

    They suit adaptive drafts (``adaptive=true``) of whole steps by a small model, if rule and engine can do both
    (docs/measurements/step_level.md has their speed-ups).
    """
    given = given_options(arguments)
    if SAID & {*given, *(name.partition(".")[0] for name in given)}:
        return None
    if not is_yes(given.get("adaptive", "true")):
        return None
    if "token" in given.get("split", "").split(","):
        return None
    drafts = given.get("draft", defaults()["draft"]).split(",")
    if any(name != "lm" and plugin_of("draft", name) != "lm" for name in drafts):
        return None
    return Choice("nested", "lm", WHY) if not refusal([*arguments, *HELP], brought) else None


def with_nested(arguments: Sequence[str], choice: Choice | None) -> list[str]:
    """Add the options of a choice."""
    return list(arguments) if choice is None else [*arguments, *HELP]
