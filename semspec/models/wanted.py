"""The files of a repository that are needed for a model or a data set."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from semspec.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The files of a repository that are needed, and the words that errors use for them."""

    noun: str
    option: str  # the option that the user would change
    patterns: tuple[str, ...]
    unwanted: tuple[str, ...] = ()
    repo_type: Literal["model", "dataset"] = "model"
    refuses: Callable[[Iterable[str]], str | None] | None = None  # says what is wrong with names

    def of(self, names: Iterable[str]) -> list[str]:
        def among(name: str, patterns: tuple[str, ...]) -> bool:
            return any(fnmatchcase(name, pattern) for pattern in patterns)

        return [n for n in names if among(n, self.patterns) and not among(n, self.unwanted)]

    def check(self, names: Collection[str], at: str) -> None:
        """Raise UserError for a repository with refused or strangely named files, or no wanted ones."""
        if self.refuses and (wrong := self.refuses(names)):
            raise UserError(f"{at} contains {wrong}: it is not loaded; use another {self.noun}")
        if strange := [name for name in self.of(names) if not name.isprintable()]:
            # the Hub client's progress bars print their names to the terminal
            raise UserError(f"{at} contains a file named {strange[0]!r}: use another {self.noun}")
        if not self.of(names):
            raise UserError(f"{at} contains no {self.noun}: check {self.option}")


MODEL = Wanted(
    noun="model",
    option="model.path",
    # top level only; "consolidated" files are a second copy of the weights with other names
    patterns=("*.safetensors", "*.json", "tokenizer*", "*.txt", "*.model", "*.jinja"),
    unwanted=("*/*", "consolidated*"),
)
WITHOUT_WEIGHTS = replace(  # for a model that runs elsewhere
    MODEL, patterns=tuple(p for p in MODEL.patterns if p != "*.safetensors")
)
TABLES = ("*.parquet", "*.jsonl", "*.json")
DATASET = Wanted(noun="data set", option="data", patterns=TABLES, repo_type="dataset")
