"""Locate models: a folder, a Hub repository, or shipped with this package or another one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from omegaconf import MISSING

from semspec.errors import UserError
from semspec.models import packaged
from semspec.models.hub import locate, split_revision
from semspec.models.intact import AGAIN
from semspec.models.wanted import MODEL, WITHOUT_WEIGHTS
from semspec.storage import foreign
from semspec.storage.packaged import beside_package
from semspec.types import Role

EMBEDDED = "embedded/"  # models shipped with the package: ``path: embedded/tiny-target``


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Where a model is (a folder, a Hub repository, embedded or packaged), and whether it should think."""

    path: str = MISSING  # on the Hub: owner/name, or owner/name@revision
    revision: str | None = None
    thinking: bool | None = None  # passed to the chat template; None: nothing is passed

    def __post_init__(self) -> None:
        path, revision = split_revision(self.path)
        if revision is None:
            return
        if self.revision not in (None, revision):
            raise UserError(
                f"{self.path} and revision={self.revision} name different revisions: give one"
                " of them"
            )
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "revision", revision)

    @property
    def location(self) -> str:
        if self.path.startswith(EMBEDDED):
            return str(beside_package("hub_artifacts") / self.path.removeprefix(EMBEDDED))
        if self.path.startswith(packaged.PACKAGED):
            return str(packaged.folder_of(self.path))
        return self.path

    @property
    def local(self) -> bool:
        """True if it is on this machine, not in a Hub repository."""
        shipped = self.path.startswith((EMBEDDED, packaged.PACKAGED))
        return shipped or Path(self.path).expanduser().is_dir()

    def fetch(self, weights: bool = True) -> Path:
        """Return the local folder, after downloading or converting the model if necessary."""
        if self.path.startswith(packaged.PACKAGED):
            packaged.convert_once(self.path)
        return locate(self.location, self.revision, MODEL if weights else WITHOUT_WEIGHTS)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The identity of the model to which an artifact is bound.

    Weights in a folder are identified by a hash of their tensors, so that retrained weights with the same name
    are noticed; weights from the Hub by repository and commit.
    """

    name: str  # embedded/..., packaged/..., owner/name, or a folder's name
    revision: str | None  # a commit, for models from the Hub
    fingerprint: str  # of the weights in a folder; "" if they were not read
    layers: int
    width: int
    tokenizer: str  # the tokenizer's fingerprint, see Text
    vocabulary: int = 0  # rows of the embedding table; 0: unknown


EXAMPLE = ModelFacts("owner/model", "c0ffee00" * 5, "", layers=2, width=4, tokenizer="f" * 64)
"""The model for examples of artifacts and plugins; ``engine=toy`` has its shape."""
EXAMPLE_VOCABULARY = 12


class KnownModels(Mapping[Role, ModelFacts]):
    """The facts about a run's models; weights are hashed only on demand."""

    def __init__(self, models: Mapping[Role, tuple[ModelConfig, str | Callable[[], str]]]) -> None:
        self._models = dict(models)  # each with its tokenizer's fingerprint

    def __getitem__(self, role: Role) -> ModelFacts:
        model, tokenizer = self._models[role]
        return read_facts(model, tokenizer if isinstance(tokenizer, str) else tokenizer())

    def __contains__(self, role: object) -> bool:
        return role in self._models  # does not read the facts

    def __iter__(self) -> Iterator[Role]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


def canonical_name(model: ModelConfig) -> str:
    """Return embedded/..., packaged/..., owner/name or a folder's name, for any spelling of the path."""
    if not model.local:
        return model.path
    folder = Path(model.location).expanduser().resolve()
    if folder.parent == beside_package("hub_artifacts").resolve():
        return f"{EMBEDDED}{folder.name}"
    return packaged.name_of(folder) or folder.name


def read_facts(model: ModelConfig, tokenizer: str) -> ModelFacts:
    """Return a model's facts without loading its weights; raise UserError if config.json lacks them."""
    folder = model.fetch(weights=False)
    try:
        shape = foreign.read_object(folder / "config.json", way_out=AGAIN, finite=False)
        layers, width = int(shape["num_hidden_layers"]), int(shape["hidden_size"])
        vocabulary = int(shape.get("vocab_size") or 0)
    except (ValueError, OverflowError, KeyError, TypeError) as error:
        raise UserError(f"{folder / 'config.json'} does not describe a model: {error}") from error
    if not model.local:  # a snapshot's folder is named after the commit
        return ModelFacts(model.path, folder.name, "", layers, width, tokenizer, vocabulary)
    weights = weights_fingerprint(folder.resolve())
    return ModelFacts(canonical_name(model), None, weights, layers, width, tokenizer, vocabulary)


def weights_fingerprint(folder: Path) -> str:
    """Return the sha256 (hex) of a folder's safetensors tensors, ignoring metadata and order."""
    try:
        found = sorted(folder.glob("*.safetensors"))
        files = tuple((f, f.stat().st_size, f.stat().st_mtime_ns) for f in found)
    except OSError as error:  # a broken or circular link
        raise UserError(f"{error.filename} cannot be read ({error.strerror}): {AGAIN}") from error
    return _fingerprint(files)


@lru_cache(maxsize=16)
def _fingerprint(files: tuple[tuple[Path, int, int], ...]) -> str:
    places: dict[str, tuple[Path, int, int, str]] = {}
    for path, _, _ in files:
        for name, (dtype, shape, start, size) in foreign.tensor_places(path).items():
            places[name] = (path, start, size, f"{name} {dtype} {shape}")
    found = hashlib.sha256()
    for _, (path, offset, left, header) in sorted(places.items()):
        found.update(header.encode())
        with path.open("rb") as file:
            file.seek(offset)
            while left > 0 and (part := file.read(min(left, 1 << 24))):
                found.update(part)
                left -= len(part)
    return found.hexdigest()
