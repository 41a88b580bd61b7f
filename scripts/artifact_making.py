"""An entry of the table of `make artifacts`: one artifact's commands, and what its files must then contain."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from script_kit import read

from semspec.models.location import EMBEDDED, ModelConfig, ModelFacts, read_facts
from semspec.models.text import Text
from semspec.storage.digest import digest

TRAINING, EVALUATION = "training.json", "evaluation.json"
Wanted = Mapping[str, Any]
"""By file, what it has to say; of an object no more than the named properties, of a card parts of its text."""
HERE = Path(ModelConfig(path=f"{EMBEDDED}tiny-target").location).parent  # read by all scripts
TARGET, DRAFT = "tiny-target", "tiny-draft"
BOTH = (TARGET, DRAFT)


@dataclass(frozen=True)
class Making:
    """An artifact: how it is made, and what its files must then contain."""

    name: str
    needs: tuple[str, ...]
    commands: Callable[[Path, Path], list[list[str]]]  # below one folder are stages, in one results
    wanted: Callable[[Path], Wanted]  # of the artifact's folder
    then: str = ""  # what no script does

    def made(self, work: Path) -> Path:
        return work / "made" / self.name


def facts(name: str) -> ModelFacts:
    """Return the identity of a model of the pair as it is now."""
    return _facts(name, (HERE / name / "model.safetensors").stat().st_mtime_ns)


@cache
def _facts(name: str, changed: int) -> ModelFacts:
    return read_facts(ModelConfig(path=f"{EMBEDDED}{name}"), Text(str(HERE / name)).fingerprint)


def stages(work: Path, label: str, *depends: Any) -> Path:
    """Return the folder for a script's stages, named after what they depend on.

    With a changed constant or another model, nothing made earlier is reused.
    """
    return work / f"{label}-{digest({'depends': depends})}"


def script(name: str, *options: object) -> list[str]:
    return [sys.executable, str(Path(__file__).parent / f"{name}.py"), *map(str, options)]


def command(module: str, *options: str) -> list[str]:
    return [sys.executable, "-m", f"semspec.{module}", *options]


def plain(value: Any) -> Any:
    """Return a value as JSON represents it."""
    return json.loads(json.dumps(value))


def legs(stages: Sequence[Any]) -> list[dict[str, Any]]:
    return [asdict(stage) for stage in stages]


def copying(source: Path, out: Path) -> list[str]:
    copied = "import shutil, sys; shutil.copytree(*sys.argv[1:], dirs_exist_ok=True)"
    return [sys.executable, "-c", copied, str(source), str(out)]


def weights() -> list[str]:
    """Return the identities of both models of the pair."""
    return [facts(name).fingerprint for name in ("tiny-target", "tiny-draft")]


def found_in(folder: Path, file: str, path: str) -> Any:
    """Return a value of a JSON file; None if it or the file is not there."""
    value = read(folder / file) if (folder / file).exists() else None
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
