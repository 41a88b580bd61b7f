"""A page whose tables are written from figures: results/NAME.json, and the text between marks in a document."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semspec.errors import UserError
from semspec.report.arms import between
from semspec.storage.files import read_json, write_json

ROOT = Path(__file__).resolve().parent.parent


class Kept:
    """Parts of a long measurement, each saved when it is finished, so that an interrupted one resumes.

    ``of`` says what is measured and how; saved parts of anything else are not used.
    """

    def __init__(self, path: Path, of: Mapping[str, Any]) -> None:
        self._path = path
        self._of = json.loads(json.dumps(of))  # as it will be read
        found = read_json(path)
        same = found is not None and found["of"] == self._of
        self._parts: dict[str, Any] = found["parts"] if found is not None and same else {}

    def has(self, name: str) -> bool:
        return name in self._parts

    def part(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return a saved part, or measure and save it."""
        if self.has(name):
            return self._parts[name]
        self._parts[name] = found = json.loads(json.dumps(measure()))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, {"of": self._of, "parts": self._parts})
        return found

    def over(self) -> None:
        """Delete the parts, once everything is measured and written."""
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True)
class FiguresPage:
    """Figures and their page, which ``make NAME`` writes."""

    name: str  # of the target of make, and of the file of figures
    page: str  # the document, below the root of the repository
    marks: tuple[str, str]
    text: Callable[[Mapping[str, Any]], str]  # the text between the marks
    changed: str  # what a different digest of the code means

    @property
    def results(self) -> Path:
        return ROOT / f"results/{self.name}.json"

    @property
    def at(self) -> Path:
        return ROOT / self.page

    def with_tables(self, page: str, found: Mapping[str, Any]) -> str:
        """Return the page with the text between its marks replaced."""
        return between(page, self.marks, self.text(found), self.at.name)

    def write(
        self, found: Mapping[str, Any], results: Path | None = None, at: Path | None = None
    ) -> None:
        """Write figures and page; ``results`` and ``at`` are other places for them."""
        results, at = results or self.results, at or self.at
        write_json(results, found)
        found = json.loads(results.read_text(encoding="utf-8"))  # as ``check`` will read it
        at.write_text(self.with_tables(at.read_text(encoding="utf-8"), found), encoding="utf-8")

    def keep(self, found: Mapping[str, Any], whole: bool) -> None:
        """Write figures and page if the measurement is complete; otherwise print its tables."""
        if whole:
            self.write(found)
            return
        print(self.text(found))
        print(
            f"{self.page} is not rewritten: only a part of its figures was measured",
            file=sys.stderr,
        )

    def check(self, of: str, results: Path | None = None, at: Path | None = None) -> list[str]:
        """Return what is older than its source; nothing if all is up to date."""
        found, again = read_json(results or self.results), f"make {self.name}"
        if found is None:
            return [f"results/{self.name}.json is missing: {again}"]
        old = [] if found["digest"] == of else [f"{self.changed}: {again}"]
        page = (at or self.at).read_text(encoding="utf-8")
        if self.with_tables(page, found) != page:
            old.append(f"{self.page} does not match results/{self.name}.json: {again} ARGS=--show")
        return old

    @property
    def options(self) -> dict[str, Any]:
        """Return the options that ``asked`` carries out, for ``script_kit.parser``."""
        return {
            "check": (False, "measure nothing; print what is out of date"),
            "show": (False, f"measure nothing; write the page from results/{self.name}.json"),
        }

    def asked(self, a: argparse.Namespace, digest: Callable[[], str]) -> int | None:
        """Check or show if requested, and return the exit code; None: measure."""
        if a.check:
            old = self.check(digest())
            print(*old, sep="\n", end="\n" if old else "")
            return 1 if old else 0
        if a.show:
            if (found := read_json(self.results)) is None:
                raise UserError(f"results/{self.name}.json is missing: make {self.name}")
            self.write(found)
            return 0
        return None
