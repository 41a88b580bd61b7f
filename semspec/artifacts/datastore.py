"""The base class of datastores: besides config and tensors, they have memory-mapped files of any size.

Opening a datastore hashes its files, but of those larger than 256 MiB it checks only headers and sizes, so that a
store larger than memory takes no longer. The manifest has the hashes of all: ``python -m semspec.artifacts verify``
and publishing check them, and a file from the Hub is hashed once, after its download.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from semspec.artifacts import base
from semspec.errors import UserError
from semspec.storage import manifests
from semspec.storage.json_schema import array, integer

COUNT = integer(0, 1 << 48)
COMMON = {
    # how many entries each has
    "shards": array(integer(1, 2**31 - 1), minItems=1, maxItems=1 << 16),
    "documents": COUNT,
    "responses": {"enum": ["target", "as_is"]},
}
"""The part of the schema that all datastores have."""


class Datastore(base.Artifact):
    """An artifact with memory-mapped ``parts``."""

    tags: ClassVar[tuple[str, ...]] = ("datastore", "retrieval")
    hashed_later: ClassVar[frozenset[str]] = frozenset()  # parts that are hashed when they are read

    @classmethod
    def part_names(cls, config: Mapping[str, Any]) -> list[str]:
        """Return the names of the files that a config implies."""
        return shard_names(len(config["shards"]))

    @abstractmethod
    def open(self) -> Any:
        """Map the parts; raise UserError if they do not fit the config."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        made = super().read(folder)
        names = cls.part_names(made.config)
        for name in names:
            path = made.parts[name] = folder / name
            if not path.is_file():
                raise UserError(f"{path} is missing: use an intact copy of the {cls.kind}")
        manifest, later = manifests.read(folder), cls.hashed_later & set(names)
        manifests.check(folder, manifest, set(names) - later, manifests.LARGEST_HASHED)
        manifests.check(folder, manifest, later, largest=-1)  # only the size
        made.open()
        return made

    @classmethod
    @cache
    def example_shard(cls) -> Path:
        """Return the path of an example's shard, in a folder that is removed when the process ends."""
        folder = Path(tempfile.mkdtemp(prefix=f"semspec-{cls.kind}-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder / shard_names(1)[0]


def shard_names(count: int) -> list[str]:
    return [f"shard-{number:05d}.safetensors" for number in range(count)]
