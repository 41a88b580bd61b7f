"""``part=2/4``: a share of what a command asks models for, done by a process of its own, perhaps elsewhere.

    FOLDER/part-2-of-4/    config.json, .lock
        status.json        as of a sweep's job: running, finished, failed or killed
        result.json        the stages that this part has done, and what each came to

Work is shared out by the groups in which one process would do it too: what is in a group never depends on who does
it, so that all parts together leave what one process leaves. A group's file goes where one process would write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semspec.errors import UserError, describe_error
from semspec.results.records import foreign_status, now, status
from semspec.storage.files import os_errors_as_user_errors, read_json, write_json
from semspec.storage.lock import FolderLock

MANY = {"-m", "--multirun"}
_WRITTEN = re.compile(r"(\d{1,6}|all)/(\d{1,6})")
_NAMED = re.compile(r"part-(\d+)-of-(\d+)")


@dataclass(frozen=True, order=True, slots=True)
class Part:
    """One of so many."""

    number: int  # from 1
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def name(self) -> str:
        return f"part-{self.number}-of-{self.of}"

    def has(self, group: int) -> bool:
        """Whether this group is its own: every ``of``-th one is."""
        return group % self.of == self.number - 1

    def all(self) -> list[Part]:
        return [Part(number, self.of) for number in range(1, self.of + 1)]

    def folder(self, root: Path) -> Path:
        return root / self.name

    def done(self, root: Path) -> dict[str, dict[str, Any]]:
        """The stages that it has done."""
        known = read_json(self.folder(root) / "result.json")
        return dict(known["done"]) if isinstance(known, dict) and "done" in known else {}

    def keep(self, root: Path, stage: str, figures: Mapping[str, Any]) -> None:
        """Says that it has done a stage."""
        done = self.done(root) | {stage: dict(figures)}
        write_json(self.folder(root) / "result.json", {"done": done})

    @contextmanager
    def at_work(self, root: Path, about: Mapping[str, Any]) -> Iterator[Path]:
        """Makes the part's folder and holds it; its status tells how it ended."""
        folder, started = self.folder(root), now()
        with os_errors_as_user_errors(folder):
            if wrong := foreign_status(folder):
                raise UserError(wrong.replace("hydra.run.dir", "folder="))
            folder.mkdir(parents=True, exist_ok=True)
            lock = FolderLock(folder)
            try:
                write_json(folder / "status.json", status(about, "running", started))
                yield folder
                write_json(folder / "status.json", status(about, "finished", started))
            except Exception as error:
                failed = status(about, "failed", started, describe_error(error))
                write_json(folder / "status.json", failed)
                raise
            finally:
                lock.release()


def split(arguments: Sequence[str]) -> tuple[list[Part], bool, list[str]]:
    """The parts that ``part=`` names, whether ``-m`` is there, and the other arguments."""
    several = bool(MANY & set(arguments))
    given = [a.partition("=")[2] for a in arguments if a.startswith("part=")]
    rest = [a for a in arguments if a not in MANY and not a.startswith("part=")]
    parts = _read(given[-1]) if given else []
    if several and not parts:
        raise UserError(
            "-m is here for part=1/4,2/4,... alone, which share the work of one folder; what differs in"
            " other options is a command of its own for each (docs/scale-out.md)"
        )
    if len(parts) > 1 and not several:
        raise UserError(f"part={given[-1]} is several: add -m, or give one of them")
    return parts, several, rest


def _read(text: str) -> list[Part]:
    """``2/4``; ``1/4,3/4``; ``all/4``."""
    parts: list[Part] = []
    for one in text.split(","):
        match = _WRITTEN.fullmatch(one.strip())
        number, of = (match[1], int(match[2])) if match else ("", 0)
        if number == "all" and of:
            parts += Part(1, of).all()
        elif number.isdigit() and 1 <= int(number) <= of:
            parts.append(Part(int(number), of))
        else:
            raise UserError(f"part={text}: give 1/4 to 4/4 of four, for one; with -m also all/4")
    if len({part.of for part in parts}) > 1:
        raise UserError(f"part={text}: give parts of one number, such as part=1/4,2/4")
    return sorted(set(parts))


def begun(root: Path) -> list[Part]:
    """The parts that have a folder."""
    if not root.is_dir():
        return []
    names = [_NAMED.fullmatch(f.name) for f in root.iterdir() if (f / "config.json").exists()]
    found = sorted(Part(int(name[1]), int(name[2])) for name in names if name)
    if len({part.of for part in found}) > 1:
        raise UserError(f"{root} has parts of {found[0].of} and of others: delete those folders")
    return found


def check(part: Part, root: Path) -> None:
    """Refuses a part of a folder that others share out differently, or that one process has begun."""
    known = begun(root)
    if known and known[0].of != part.of:
        raise UserError(
            f"{root} was begun in parts of {known[0].of}: go on with part=1/{known[0].of} and so on,"
            " or give another folder="
        )
    if not known and (root / "config.json").exists():
        raise UserError(
            f"{root} was begun without part=: go on without it, or give another folder="
        )


def check_all(found: Sequence[Part], root: Path, stage: str) -> None:
    """Refuses to go on before every part has done this stage."""
    lacking = [part for part in found[0].all() if stage not in part.done(root)]
    if lacking:
        named = ",".join(map(str, lacking[:8])) + (",..." if len(lacking) > 8 else "")
        raise UserError(
            f"{root} lacks the {stage} of {len(lacking)} of {found[0].of} parts: first give this command"
            f" with -m part={named}, or once with each (docs/scale-out.md)"
        )
