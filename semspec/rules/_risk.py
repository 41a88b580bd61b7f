"""The options of rules that keep an asked risk, and the runs that their guarantee is for."""

from __future__ import annotations

from collections.abc import Callable

from semspec.artifacts.binding import Measured
from semspec.errors import UserError
from semspec.protocols import Run


def check_shares(**given: float) -> None:
    """Raise UserError for a risk, a share or a confidence that is not between 0 and 1."""
    for name, value in given.items():
        if not 0 < value < 1:
            raise UserError(f"accept.{name}={value}: give more than 0, less than 1")


def check_guarantee(rule: str, measured: Measured, run: Run, command: Callable[[str], str]) -> None:
    """Raise UserError if a run drafts otherwise than the steps that the guarantee was measured on.

    ``command`` gives the command that calibrates for the run, from the options that describe it.
    """
    if run.drafts is None:
        return
    unlike = measured.unlike(run.sampling, run.drafts)
    if unlike:
        options = measured.options(run.sampling, run.drafts)
        way = f", calibrate for this run ({command(options)})" if options else ""
        raise UserError(
            f"what accept={rule} guarantees was measured {' and '.join(unlike)}: run it as it was"
            f" measured{way}, or set accept.allow_mismatch=true to go on without the guarantee"
        )
