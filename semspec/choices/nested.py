"""``nested=lm salvage=true``, where the command line gives neither: both make rules for steps faster and change no law."""

from __future__ import annotations

from collections.abc import Sequence

from semspec.choices.choice import Choice
from semspec.choices.names import plugin_of
from semspec.choices.presets import given_options, is_yes
from semspec.choices.trial import refusal
from semspec.config import defaults

# options that say something of them; costs= is to repeat what another run has written
SAID = {"salvage", "nested", "nested_accept", "nested_length", "ahead", "experiment", "inside", "engine.inside", "costs"}  # fmt: skip
HELP = ("nested=lm", "salvage=true")
WHY = (
    "the small model also drafts what the target writes, losslessly, and what the target's law allows is kept of rejected"
    " steps; nested=none for neither"
)


def choose_nested(arguments: Sequence[str], brought: bool = False) -> Choice | None:
    """Return ``nested=lm``, which goes with ``salvage=true``; None where an option of either is given, or they cannot be used.

    They go with drafts whose number follows what they cost (``adaptive=true``), by whole steps, of a small model, where rule and
    engine can do both (docs/measurements/step_level.md has what they bring).
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
