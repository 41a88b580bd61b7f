"""Start and end commands: a user's mistake (exit code 2) or an interruption (130) is one line."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence

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


def no_sweep(arguments: Sequence[str]) -> None:
    """Raise UserError for ``-m`` in a command that cannot sweep."""
    if {"-m", "--multirun"} & set(arguments):
        raise UserError(
            "-m is for python -m semspec.run, and for part= of train_probe and build_datastore, and not supported here:"
            " run this command once per setting, each in its own folder (docs/scale-out.md)"
        )


def run_command(
    run: Callable[[Sequence[str]], object],
    help_text: str,
    arguments: Sequence[str] | None,
    parts: bool = False,
) -> None:
    """Run a command that loads models, without transformers' chatter, or print its help.

    With ``parts`` it accepts ``-m part=...`` (``semspec.jobs.parts``).
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(given):
        echo(help_text.rstrip())
        return
    logging.getLogger("transformers").setLevel(logging.ERROR)

    def checked() -> None:
        if not parts:
            no_sweep(given)
        run(given)

    ends_in_one_line(checked)


def options(arguments: Sequence[str], known: Sequence[str], command: str) -> dict[str, str]:
    """Parse ``name=value`` arguments of a command without Hydra; raises UserError for unknown names."""
    given: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals:
            raise UserError(f"'{argument}' is not an option: options are written name=value")
        if name not in known:
            listed = f"it takes {', '.join(known)}" if known else "it takes none"
            raise UserError(f"unknown option '{name}' of {command}: {listed}")
        given[name] = value
    return given


def flag(given: Mapping[str, str], name: str) -> bool:
    """Return an option that is true or false, by default false; raises UserError for other values."""
    value = given.get(name, "false")
    if value not in ("true", "false"):
        raise UserError(f"{name}={value}: give true or false")
    return value == "true"
