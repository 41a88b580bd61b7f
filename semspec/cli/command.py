"""Start and end commands: report a user's mistake (exit code 2), Ctrl-C (130) or SIGTERM (143) in one line."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from semspec.errors import UserError
from semspec.storage.screen import complain, echo


class Terminated(KeyboardInterrupt):
    """SIGTERM, as an exception that the same handlers as for Ctrl-C clean up after."""


def ends_in_one_line(command: Callable[[], object]) -> None:
    """Run a command; report a UserError or an interruption in one line, without a traceback.

    Notes attached to the interruption say what was kept and how to resume.
    """
    sys.excepthook = _show_traceback
    try:
        with _sigterm_raises():
            command()
    except UserError as error:
        complain(error)
        sys.exit(2)
    except BrokenPipeError:
        # the reader (such as head) has closed the pipe: discard the output that is left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt as error:
        notes = getattr(error, "__notes__", ["rerun with the same folder to resume"])
        complain("; ".join(["interrupted", *notes]))
        sys.stderr.flush()
        ended = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
        os._exit(128 + ended)  # at once, so that nothing still running changes the exit status


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Make the first SIGTERM raise Terminated; a second one ends the process at once."""

    def terminate(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL:  # the parent process set a handler: keep it
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is terminate:
            signal.signal(signal.SIGTERM, before)


def _show_traceback(_: object, error: BaseException, __: object) -> None:
    echo("".join(traceback.format_exception(error)).rstrip(), file=sys.stderr)


def run_command(
    run: Callable[[Sequence[str]], object],
    help_text: str | Callable[[], object],
    arguments: Sequence[str] | None,
    parts: bool = False,
    bare: bool = True,
) -> None:
    """Print a command's help, or run it with transformers' warnings off.

    ``parts``: the command accepts ``-m part=...`` (``semspec.jobs.stages``). ``bare``: the command runs
    without arguments; otherwise it then prints its help.
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
