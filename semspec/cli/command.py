"""How commands begin, and how every one ends: a user's mistake (2) or an interruption (130) in one line."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from semspec.errors import UserError
from semspec.storage.screen import complain, echo


def ends_in_one_line(command: Callable[[], object]) -> None:
    """Runs a command; what a user can mend or has caused is told in one line, without a traceback."""
    sys.excepthook = _show_traceback
    try:
        command()
    except UserError as error:
        complain(error)
        sys.exit(2)
    except BrokenPipeError:
        # who read along has seen enough, as head does; what is still to be flushed goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        complain("interrupted; the same folder goes on from here")
        sys.stderr.flush()
        os._exit(130)  # nothing that still runs may turn it into another exit status


def _show_traceback(_: object, error: BaseException, __: object) -> None:
    echo("".join(traceback.format_exception(error)).rstrip(), file=sys.stderr)


def no_sweep(arguments: Sequence[str]) -> None:
    """Refuses ``-m`` of ``semspec.run`` in a command that makes one thing."""
    if {"-m", "--multirun"} & set(arguments):
        raise UserError(
            "-m is for python -m semspec.run, and for part= of train_probe and build_datastore; this command makes one thing:"
            " start it once for each, in a folder of its own (docs/scale-out.md)"
        )


def run_command(
    run: Callable[[Sequence[str]], object],
    help_text: str | Callable[[], object],
    arguments: Sequence[str] | None,
    parts: bool = False,
) -> None:
    """Show a command's help, or run it without transformers' chatter.

    ``parts``: the command knows ``-m part=...`` (``semspec.jobs.stages``).
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(given):
        if callable(help_text):
            help_text()
        else:
            echo(help_text.rstrip())
        return
    logging.getLogger("transformers").setLevel(logging.ERROR)

    def checked() -> None:
        if not parts:
            no_sweep(given)
        run(given)

    ends_in_one_line(checked)
