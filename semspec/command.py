"""How every command ends: one line for a user's mistake (2) or an interruption (130)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from semspec.errors import UserError


def ends_in_one_line(command: Callable[[], object]) -> None:
    """Runs a command; what a user can mend or has caused is told in one line, without a traceback."""
    try:
        command()
    except UserError as error:
        print(f"semspec: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("semspec: interrupted; the same folder goes on from here", file=sys.stderr)
        sys.stderr.flush()
        os._exit(130)  # nothing that still runs may turn it into another exit status
