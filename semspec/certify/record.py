"""The folder of a certificate: the options, every answer, and the results.

config.json       the options; a resumed run must have the same
samples.jsonl     a line for each round of drawn tokens and each greedy text: a kill loses at most one round
laws.jsonl        distributions that cost requests to learn
certificate.json  the verdict and all figures
report.html       the same as a page
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from semspec.certify.laws import Law, Token, Tokens
from semspec.errors import UserError, without_passwords
from semspec.storage.digest import difference
from semspec.storage.files import (
    LineFile,
    cut_torn_line,
    os_errors_as_user_errors,
    parse,
    read_json,
    whole_lines,
    write_json,
)
from semspec.storage.lock import FolderLock

CERTIFICATE, REPORT = "certificate.json", "report.html"
MARK = "certify"  # the key of the options in config.json


class Record:
    """A folder that this process has locked; it replays answers that an earlier process stored."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self.folder = folder
        with os_errors_as_user_errors(folder), ExitStack() as held:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(folder)
            held.callback(self._lock.release)
            self._check(without_passwords(dict(options)))
            files = [folder / name for name in ("samples.jsonl", "laws.jsonl")]
            for file in files:
                cut_torn_line(file)
            self._lines: dict[str, Any] = {}
            for raw in whole_lines(files[0]):
                if (line := parse(raw)) is not None:
                    self._lines[str(line.get("id"))] = line.get("value")
            self.laws = dict(_law(line) for raw in whole_lines(files[1]) if (line := parse(raw)))
            self._samples, self._laws = (held.enter_context(LineFile(file)) for file in files)
            self._held = held.pop_all()

    def _check(self, options: Mapping[str, Any]) -> None:
        file = self.folder / "config.json"
        stored = read_json(file)
        known = stored.get(MARK) if isinstance(stored, dict) else None
        if known is None:
            others = ("config.json", "samples.jsonl", "laws.jsonl", CERTIFICATE, REPORT)
            if there := next((n for n in others if (self.folder / n).exists()), None):
                raise UserError(
                    f"{self.folder} contains {there}, which this command did not write:"
                    " give another out="
                )
            write_json(file, {MARK: options})
        elif (
            not (self.folder / "samples.jsonl").exists()
            or not (self.folder / "samples.jsonl").stat().st_size
        ):
            write_json(file, {MARK: options})  # no answers under the old options yet
        elif unlike := difference(known, options):
            raise UserError(
                f"{self.folder} was begun with other options ({unlike}): give another out="
            )

    def once(self, name: str, ask: Callable[[], Any]) -> Any:
        """Return the value stored under a name; if there is none, call ``ask`` and store its result."""
        if name not in self._lines:
            value = ask()
            with os_errors_as_user_errors(self.folder):
                self._samples.append({"id": name, "value": value})
            self._lines[name] = value
        return self._lines[name]

    def keep_laws(self, laws: Mapping[Tokens, Law]) -> None:
        with os_errors_as_user_errors(self.folder):
            for prefix, law in laws.items():
                self._laws.append(
                    {"prefix": prefix, "tokens": law.tokens, "probs": law.probs, "rest": law.rest}
                )

    def finish(self, certificate: Mapping[str, Any]) -> None:
        with os_errors_as_user_errors(self.folder):
            write_json(self.folder / CERTIFICATE, certificate)

    def close(self) -> None:
        self._held.close()


def tokens_of(value: Any) -> list[Tokens]:
    """Return outcomes read from JSON as tuples."""
    return [tuple(one) for one in value]


def _law(line: Mapping[str, Any]) -> tuple[tuple[Token, ...], Law]:
    law = Law(tuple(line["tokens"]), tuple(line["probs"]), line["rest"])
    return tuple(line["prefix"]), law
