"""``-m part=1/4,2/4,...``: the parts of one command as jobs of a launcher, a stage at a time.

A stage may need what all parts have done in the one before (contexts are chosen of all chains), so that every part
ends a stage before any begins the next. A job is what it is in a sweep: named, skipped where it is finished, and
no other one's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from semspec.errors import UserError
from semspec.jobs.parts import Part, check
from semspec.jobs.sweep import Job, carry_out, ended
from semspec.report.terminal import Screen


def divided(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command's own options, each with one value, and those of the launcher."""
    hydra_ones = [a for a in arguments if a.startswith(("hydra.", "hydra/"))]
    own = [a for a in arguments if a not in hydra_ones]
    for argument in own:
        if _swept(argument):
            raise UserError(
                f"'{argument}' gives several values: here -m is for part= alone; start the command once for"
                " each, in a folder of its own (docs/scale-out.md)"
            )
    return own, hydra_ones


def _swept(argument: str) -> bool:
    try:
        (override,) = OverridesParser.create().parse_overrides([argument])
    except HydraException:
        return False  # whoever reads it says what is wrong
    return bool(override.is_sweep_override())


def carry_out_parts(
    command: str,
    own: Sequence[str],
    hydra_ones: Sequence[str],
    parts: Sequence[Part],
    stages: Sequence[str],
    folder: Path,
    console: Screen,
) -> int:
    """Has every part done as far as the last stage; the exit code.

    ``command`` is the module whose ``do_part`` a job calls.
    """
    from semspec.jobs.launchers import options_of

    launcher, options = options_of(hydra_ones)
    check(parts[0], folder)
    for number, stage in enumerate(stages):
        jobs = [Job(p.name, (*own, f"part={p}"), command, stage) for p in parts]
        console.say(f"{stage}:")
        carry_out(jobs, folder, console, launcher, options)
        if code := ended(jobs, folder):
            return code
        absent = [p for p in parts[0].all() if stage not in p.done(folder)]
        if absent and number + 1 < len(stages):
            raise UserError(
                f"{stages[number + 1]} need the {stage} of all parts: part="
                f"{','.join(map(str, absent))} of {folder} lack them; start those, then this again"
            )
    return 0
