"""What an engine has to offer to be measured: token ids in, token ids out, plain and speculative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, Self


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt, as a question and as the token ids that every engine is given."""

    id: str
    question: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Problems for one target, and the small model that may draft for it."""

    name: str
    title: str
    model: str  # the target's preset
    target: Path
    draft: Path | None
    stop_ids: tuple[int, ...]
    limit: int  # of tokens an answer
    problems: tuple[Problem, ...]

    def record(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        found = asdict(self)
        return found | {"target": str(self.target), "draft": str(self.draft or "")}

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Self:
        """Return what ``record`` made."""
        problems = tuple(
            Problem(p["id"], p["question"], tuple(p["ids"])) for p in found["problems"]
        )
        own = dict(found) | {"problems": problems, "stop_ids": tuple(found["stop_ids"])}
        draft = Path(found["draft"]) if found["draft"] else None
        return cls(**own | {"target": Path(found["target"]), "draft": draft})


@dataclass(frozen=True, slots=True)
class Written:
    """What an engine wrote after a prompt."""

    ids: list[int]  # without the end of the text
    ended: bool  # False: the limit ended it
    passes: int | None = None  # of the target, where the engine tells

    @property
    def count(self) -> int:
        """How many tokens were decoded, the end of the text included."""
        return len(self.ids) + self.ended


class Rival(Protocol):
    """An engine with its models loaded. It runs on one thread, and decodes greedily."""

    name: str
    kinds: Sequence[str]  # of speculation that it offers for this workload

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the packages that do the work."""
        ...

    def plain(self, ids: Sequence[int], limit: int) -> Written:
        """Continue a prompt by the target alone."""
        ...

    def speculative(self, kind: str, ids: Sequence[int], limit: int) -> Written:
        """Continue a prompt with drafts of one kind; the text has to be the target's own."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


def versions_of(*packages: str) -> dict[str, str]:
    return {name: metadata.version(name) for name in packages}


def cut(ids: Sequence[int], stop_ids: Sequence[int], limit: int) -> tuple[list[int], bool]:
    """Return ids as far as the end of the text or the limit, and whether the text ended."""
    for at, token in enumerate(ids[:limit]):
        if token in stop_ids:
            return list(ids[:at]), True
    return list(ids[:limit]), False
