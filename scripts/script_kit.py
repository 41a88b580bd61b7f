"""Help for all scripts: command lines, tables for a terminal, a server, and a model folder's contents."""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from semspec.errors import UserError
from semspec.storage.provenance import ROOT

HERE = Path(__file__).resolve().parents[1]
# an environment of another checkout has that one's package: figures would be filed under code that did not run
if ROOT != HERE:
    sys.exit(
        f"{Path(sys.argv[0]).name} would run the package in {ROOT}, not the one beside it:"
        f" set PYTHONPATH={HERE}, or use this checkout's own environment (make env)"
    )
HUB = Path("hub_artifacts")
PATIENCE = 900.0  # seconds for a server to end


@dataclass(frozen=True)
class Started:
    """A server that answers."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextmanager
def server(*options: str) -> Iterator[Started]:
    """Start semspec.serve with these options; end it at exit."""
    log = Path(tempfile.mkdtemp(prefix="semspec-server-")) / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "semspec.serve", "port=0", *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+:\d+", process.stdout.readline())
        if found is None:
            raise UserError(f"the server did not start: see {log}")
        try:
            yield Started(found[0], process, log)
        except UserError as error:
            raise UserError(f"{error} (log of {found[0]}: {log})") from error
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(PATIENCE)


def parser(doc: str | None, **known: Any) -> argparse.ArgumentParser:
    """Return the parser of a script whose docstring's first line is its help.

    An option's default gives its type; an option with only a type is required; in a pair the second item is its help.
    From here on SIGTERM ends the script as Ctrl-C does, so that it ends the servers that it has started.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    made = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    for name, default in known.items():
        default, text = default if isinstance(default, tuple) else (default, None)
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            made.add_argument(flag, action="store_true", help=text)
        elif isinstance(default, type):
            made.add_argument(flag, type=default, required=True, help=text)
        elif isinstance(default, list):
            kind = type(default[0]) if default else str
            made.add_argument(flag, type=kind, nargs="*", default=default, help=text)
        else:
            made.add_argument(flag, type=type(default), default=default, help=text)
    return made


def check_known(given: Iterable[str], known: Collection[str]) -> None:
    """Raise UserError for the first name that is not known."""
    if unknown := [name for name in given if name not in known]:
        raise UserError(f"'{unknown[0]}' is unknown: choose from {', '.join(known)}")


def table(title: str, *headings: str, names: int = 1) -> Table:
    """Return an empty table whose first columns are ``names``, and the others numbers."""
    made = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        made.add_column(heading, justify="left" if number < names else "right")
    return made


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    heading = f"| {' | '.join(headings)} |".replace("|  |", "| |", 1)
    lines = [heading, "|---" * len(headings) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]
