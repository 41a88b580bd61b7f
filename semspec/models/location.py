"""Where models are: a folder, a Hub repository, or shipped with the package."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from omegaconf import MISSING

from semspec.errors import UserError
from semspec.models.hub import MODEL, WITHOUT_WEIGHTS, locate, split_revision
from semspec.storage import foreign
from semspec.storage.packaged import beside_package
from semspec.types import Role

AGAIN = "download the model again"
EMBEDDED = "embedded/"  # what is shipped with the package: ``path: embedded/tiny-target``


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which weights: a folder, a Hub repository, or one of the embedded models."""

    path: str = MISSING  # of the Hub: owner/name, or owner/name@revision
    revision: str | None = None

    def __post_init__(self) -> None:
        path, revision = split_revision(self.path)
        if revision is None:
            return
        if self.revision not in (None, revision):
            raise UserError(f"{self.path} and revision={self.revision} do not agree: give one of them")  # fmt: skip
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "revision", revision)

    @property
    def location(self) -> str:
        if self.path.startswith(EMBEDDED):
            return str(beside_package("hub_artifacts") / self.path.removeprefix(EMBEDDED))
        return self.path

    def fetch(self, weights: bool = True) -> Path:
        """The local folder; a Hub repository is downloaded first, where it is not yet."""
        return locate(self.location, self.revision, MODEL if weights else WITHOUT_WEIGHTS)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What an artifact is bound to.

    Weights of a folder are told by a hash over their tensors, so that retrained weights under the
    same name are noticed; those of the Hub by repository and commit.
    """

    name: str  # embedded/..., owner/name, or a folder's name
    revision: str | None  # a commit, for models from the Hub
    fingerprint: str  # of the weights, for models in folders; "" where they were not looked at
    layers: int
    width: int
    tokenizer: str  # fingerprint, see Text
    vocabulary: int = 0  # rows of its embedding table; 0: not known


EXAMPLE = ModelFacts("owner/model", "c0ffee00" * 5, "", layers=2, width=4, tokenizer="f" * 64)
"""The model that examples of artifacts and plugins are made for; ``engine=toy`` has its shape."""
EXAMPLE_VOCABULARY = 12


class KnownModels(Mapping[Role, ModelFacts]):
    """The facts of a run's models; weights are hashed when somebody asks, not before."""

    def __init__(self, models: Mapping[Role, tuple[ModelConfig, str | Callable[[], str]]]) -> None:
        self._models = dict(models)  # and the fingerprint of each one's tokenizer

    def __getitem__(self, role: Role) -> ModelFacts:
        model, tokenizer = self._models[role]
        return facts(model, tokenizer if isinstance(tokenizer, str) else tokenizer())

    def __iter__(self) -> Iterator[Role]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


def known_as(model: ModelConfig) -> str:
    """embedded/..., owner/name, or a folder's name: the same however the folder is written."""
    local = model.path.startswith(EMBEDDED) or Path(model.path).expanduser().is_dir()
    if not local:
        return model.path
    folder = Path(model.location).expanduser().resolve()
    shipped = folder.parent == beside_package("hub_artifacts").resolve()
    return f"{EMBEDDED}{folder.name}" if shipped else folder.name


def facts(model: ModelConfig, tokenizer: str) -> ModelFacts:
    """The facts of a model; a folder's weights are looked at, not loaded, and the Hub's not fetched."""
    folder = model.fetch(weights=False)
    try:
        shape = foreign.read_object(folder / "config.json", way_out=AGAIN, finite=False)
        layers, width = int(shape["num_hidden_layers"]), int(shape["hidden_size"])
        vocabulary = int(shape.get("vocab_size") or 0)
    except (ValueError, OverflowError, KeyError, TypeError) as error:
        raise UserError(f"{folder / 'config.json'} does not describe a model: {error}") from error
    local = model.path.startswith(EMBEDDED) or Path(model.path).expanduser().is_dir()
    if not local:  # a snapshot's folder has the commit's name
        return ModelFacts(model.path, folder.name, "", layers, width, tokenizer, vocabulary)
    weights = weights_fingerprint(folder.resolve())
    return ModelFacts(known_as(model), None, weights, layers, width, tokenizer, vocabulary)


def weights_fingerprint(folder: Path) -> str:
    """sha256 (hex) over the tensors of a folder's safetensors; metadata and order do not count."""
    files = []
    for file in sorted(folder.glob("*.safetensors")):
        try:
            files.append((file, file.stat().st_size, file.stat().st_mtime_ns))
        except OSError as error:  # a link that leads nowhere, or to itself
            raise UserError(f"{file} cannot be read ({error.strerror}): {AGAIN}") from error
    return _fingerprint(tuple(files))


@lru_cache(maxsize=16)
def _fingerprint(files: tuple[tuple[Path, int, int], ...]) -> str:
    places: dict[str, tuple[Path, int, int, str]] = {}
    for path, _, _ in files:
        for name, (dtype, shape, start, size) in foreign.tensor_places(path).items():
            places[name] = (path, start, size, f"{name} {dtype} {shape}")
    found = hashlib.sha256()
    for _, (path, offset, left, told) in sorted(places.items()):
        found.update(told.encode())
        with path.open("rb") as file:
            file.seek(offset)
            while left > 0 and (part := file.read(min(left, 1 << 24))):
                found.update(part)
                left -= len(part)
    return found.hexdigest()
