"""What rules share that keep an asked risk: the options, and the runs that the guarantee is for."""

from __future__ import annotations

from collections.abc import Callable

from semspec.artifacts.binding import Measured
from semspec.errors import UserError
from semspec.types import Sampling


def check_shares(**given: float) -> None:
    """Refuses a risk, a share or a confidence that is none."""
    for name, value in given.items():
        if not 0 < value < 1:
            raise UserError(f"accept.{name}={value}: give more than 0, less than 1")


def hold(
    rule: str,
    measured: Measured,
    sampling: Sampling,
    drafts: str,
    command: Callable[[str], str],
) -> None:
    """Refuses a run that drafts otherwise than the steps that the guarantee was measured on.

    ``command`` is told the options of such a run, and tells what calibrates for it.
    """
    unlike = measured.unlike(sampling, drafts)
    if unlike:
        options = measured.options(sampling, drafts)
        way = f", calibrate for this run ({command(options)})" if options else ""
        raise UserError(
            f"what accept={rule} guarantees was measured {' and '.join(unlike)}: run it as it was"
            f" measured{way}, or set accept.allow_mismatch=true to go on without the guarantee"
        )
