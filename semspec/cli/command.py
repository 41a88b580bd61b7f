"""Start and end commands: a user's mistake (exit code 2) or an interruption (130) is one line."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from semspec.errors import UserError
from semspec.storage.screen import complain, echo


def ends_in_one_line(command: Callable[[], object]) -> None:
    """Run a command; report a UserError or an interruption in one line, without a traceback."""
    sys.excepthook = _show_traceback
    try:
        command()
    except UserError as error:
        complain(error)
        sys.exit(2)
    except BrokenPipeError:
        # the reader (such as head) has closed the pipe: discard what is still to be flushed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        complain("interrupted; rerun with the same folder to resume")
        sys.stderr.flush()
        os._exit(130)  # at once, so that nothing still running changes the exit status


def _show_traceback(_: object, error: BaseException, __: object) -> None:
    echo("".join(traceback.format_exception(error)).rstrip(), file=sys.stderr)


def run_command(
    run: Callable[[Sequence[str]], object],
    help_text: str | Callable[[], object],
    arguments: Sequence[str] | None,
    parts: bool = False,
    bare: bool = True,
) -> None:
    """Show a command's help, or run it without transformers' chatter.

    ``parts``: the command knows ``-m part=...`` (``semspec.jobs.stages``). Without ``bare`` it cannot
    do anything without arguments, and shows its help.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(given) or not (given or bare):
        if callable(help_text):
            help_text()
        else:
            echo(help_text.rstrip())
        return
    logging.getLogger("transformers").setLevel(logging.ERROR)

    def checked() -> None:
        if not parts and {"-m", "--multirun"} & set(given):
            raise UserError(
                "-m is for python -m semspec.run, and for part= of train_probe and build_datastore, and not supported here:"
                " run this command once per setting, each in its own folder (docs/scale-out.md)"
            )
        run(given)

    ends_in_one_line(checked)
