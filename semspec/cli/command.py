"""How commands begin, and how every one ends: a user's mistake (2) or an interruption (130) in one line."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence

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
    help_text: str,
    arguments: Sequence[str] | None,
    parts: bool = False,
) -> None:
    """A command that loads models: its help, or its work without transformers' chatter.

    ``parts``: whether it knows ``-m part=...`` (``semspec.jobs.parts``).
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
    """``name=value`` arguments of a command that is not composed by Hydra."""
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
    """An option that is true or false; false unless given."""
    value = given.get(name, "false")
    if value not in ("true", "false"):
        raise UserError(f"{name}={value}: give true or false")
    return value == "true"
