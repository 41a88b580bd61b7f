"""The base class of artifacts: folders that are written atomically, and read with suspicion.

config.json          kind, version, the model it is bound to, and all figures; checked by a schema
model.safetensors    every tensor; names, shapes and types are those that the config implies
README.md, *.svg     for readers
manifest.json        size and sha256 of each of them

A kind is one file in this package: a dataclass derived from ``Artifact`` that registers itself.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from semspec.artifacts import _card, binding
from semspec.artifacts.binding import Measured
from semspec.artifacts.upload import WHOLE, upload
from semspec.deferred import Tensor, tensor_files
from semspec.errors import UserError, first_line
from semspec.models.hub import Access, locate, split_revision
from semspec.models.location import EMBEDDED, ModelFacts
from semspec.models.wanted import Wanted
from semspec.protocols import Run, Source
from semspec.storage import foreign, json_schema, manifests, provenance, swap
from semspec.storage.files import dumps, os_errors_as_user_errors, replacing, write_all, write_bytes
from semspec.storage.packaged import beside_package
from semspec.storage.tensors import Layout, read_tensor_file

CONFIG, TENSORS, CARD, MANIFEST = "config.json", "model.safetensors", "README.md", manifests.NAME
LARGEST_CONFIG = 4 * 2**20  # bytes; no config of ours is larger
LARGEST_TEXT = 4 * 2**20  # of a card or a plot

SOURCE: json_schema.Schema = {  # what an artifact was converted from, if others published that
    "type": "object",
    "required": ["name", "files"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 200},
        "revision": {"type": "string", "maxLength": 200},
        "files": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 64}},
    },
}

_LOADED = ("*.safetensors", "*.json", "*.jsonl")
WANTED = replace(WHOLE, option="the artifact's name", patterns=_LOADED, unwanted=("*/*",))


def of_schema(properties: Mapping[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    """Return a kind's schema: its own properties and those that every config has."""
    common: dict[str, Any] = {
        "kind": {"type": "string"},
        "version": json_schema.integer(1),
        "license": json_schema.string(1, 64),
        **{name: {"type": "object"} for name in ("provenance", "data", "training", "metrics")},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **json_schema.record(**common | dict(properties)),
        "required": ["kind", "version", *required],
    }


@dataclass
class Artifact(ABC):
    """A trained or measured thing: a config, tensors, and texts for readers."""

    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # card and plots, saved with it
    name: str = ""  # by default its kind
    parts: dict[str, Path] = field(default_factory=dict)  # further files, of any size, not loaded

    kind: ClassVar[str]
    version: ClassVar[int] = 1
    schema: ClassVar[json_schema.Schema]
    made_by: ClassVar[str]  # the command that makes one, for errors and cards
    tags: ClassVar[tuple[str, ...]] = ()  # the card's tags besides semspec and the kind
    text_suffixes: ClassVar[frozenset[str]] = frozenset({".md", ".svg", ".txt"})

    def __post_init__(self) -> None:
        self.name = self.name or self.kind

    @classmethod
    def config_of(cls, **properties: Any) -> dict[str, Any]:
        """Return a config of this kind and version."""
        return {"kind": cls.kind, "version": cls.version, **properties}

    @classmethod
    def layout(cls, config: Mapping[str, Any]) -> Layout:
        """Return the tensors that a config implies (none: no file); raise ValueError for a bad config."""
        return {}

    def check_content(self) -> None:  # noqa: B027 (many kinds have nothing more to check)
        """Raise ValueError if the values of the tensors are impossible for this kind."""

    @classmethod
    @abstractmethod
    def example(cls) -> Self:
        """Return a small artifact, always the same, for the contract tests."""

    def summary(self) -> str:
        """Return a paragraph for the card."""
        return (type(self).__doc__ or "").strip().splitlines()[0]

    def maker(self) -> str:
        """Return the command that made this artifact, for the card."""
        return self.made_by

    def library(self) -> str:
        """Return the library that loads it, for the card."""
        return "semspec"

    def figures(self) -> Mapping[str, float]:
        """Return the figures that the card lists as metrics."""
        return {}

    # ---- files --------------------------------------------------------------------------------

    @classmethod
    def load(cls, folder_or_repo: str | Path, revision: str | None = None) -> Self:
        """Load from a folder, ``embedded/NAME``, or a Hub repository (``owner/name@revision``)."""
        return cls.read(find(str(folder_or_repo), revision))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read from a local folder; raise UserError if anything in it is damaged or does not fit."""
        manifests.check(folder, manifests.read(folder), (CONFIG, TENSORS))
        config = cls.own_config(folder)
        try:
            json_schema.check(config, cls.schema)
            layout = cls.layout(config)
        except (ValueError, OverflowError) as error:
            what = first_line(error)
            raise UserError(
                f"{folder / CONFIG} is not a valid {cls.kind} config ({what})"
            ) from error
        tensors = cls.own_tensors(folder, layout)
        texts = {  # if they are there: a load from the Hub does not download them
            path.name: foreign.read_text(path, LARGEST_TEXT)
            for path in sorted(folder.iterdir())
            if path.suffix in cls.text_suffixes and path.name not in (CONFIG, MANIFEST)
            if not path.name.startswith(".")
        }
        made = cls(config, tensors, texts, folder.name)
        try:
            made.check_content()
        except ValueError as error:
            raise UserError(f"{folder}: {error}") from error
        return made

    @classmethod
    def own_config(cls, folder: Path) -> dict[str, Any]:
        """Read config.json; raise UserError if kind, version or another file is wrong."""
        config = read_json(folder, cls.kind)
        found, version = config.get("kind"), config.get("version")
        if found != cls.kind:
            shown = found[:64] if isinstance(found, str) and found else "something else"
            raise UserError(f"{folder} holds {shown!r}, not a {cls.kind}")
        if type(version) is not int or version != cls.version:
            raise UserError(
                f"{folder} is a {cls.kind} of version {str(version)[:20]}, but this semspec"
                f" reads version {cls.version}: update semspec, or make the artifact again"
            )
        return config

    @classmethod
    def own_tensors(cls, folder: Path, layout: Layout) -> dict[str, Tensor]:
        if layout:
            return read_tensors(folder, layout)
        if (folder / TENSORS).exists():
            raise UserError(f"{folder} contains {TENSORS}, but a {cls.kind} has no tensors")
        return {}

    def save(self, folder: str | Path) -> None:
        """Write the folder: at every moment it is the old or the new one, see ``storage.swap``.

        Raises ValueError if ``load`` would refuse it, and UserError if the folder holds anything but an
        artifact of this kind.
        """
        json_schema.check(foreign.parse(dumps(self.config).encode()), self.schema)
        texts = self.texts
        if CARD not in texts:
            texts = texts | {CARD: _card.default(self, Path(folder).name)}
        folder = swap.place(Path(folder))
        contents = {CONFIG: (dumps(self.config, indent=2) + "\n").encode()}
        contents |= {name: text.encode() for name, text in texts.items()}
        if self.tensors:
            stored = {n: t.contiguous() for n, t in self.tensors.items()}
            contents[TENSORS] = tensor_files.save(stored, {"format": "pt"})
        with os_errors_as_user_errors(folder):
            swap.recover(folder)
            swap.check_replaceable(folder, self.kind)
            beside = swap.stage(folder)
            for name, data in contents.items():
                write_bytes(beside / name, data)
            for name, path in self.parts.items():
                with path.open("rb") as source, replacing(beside / name) as fd:
                    while data := source.read(1 << 24):
                        write_all(fd, data)
            manifests.seal(beside, self.kind, self.version)
            swap.finish(beside, folder)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
    ) -> Self:
        """Load as ``load`` does, with the Hub's usual options."""
        cache = Path(cache_dir) if cache_dir else None
        access = Access(token, cache, local_files_only, force_download)
        return cls.read(find(str(name_or_path), revision, access=access))

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        push_to_hub: bool = False,
        repo_id: str | None = None,
        **options: Any,
    ) -> None:
        """Save as ``save`` does; with ``push_to_hub`` also publish it as ``repo_id`` or the folder's name.

        A name without an owner belongs to the user; the options are those of ``push_to_hub``.
        """
        self.save(save_directory)
        if push_to_hub:
            name = repo_id or Path(save_directory).resolve().name
            upload(Path(save_directory), name, **({"update": True} | options))

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Publish it in one commit and return the commit's id; ``name`` alone means ``user/name``.

        The repository's content is replaced, unless ``update=False``; further options are those of
        ``semspec.artifacts.upload.upload``.
        """
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / repo_id.rpartition("/")[2]
            self.save(folder)
            return upload(folder, repo_id, **({"update": True} | options))

    # ---- what it is bound to ------------------------------------------------------------------

    def check(
        self,
        model: ModelFacts,
        *,
        split: str | None = None,
        temperature: float | None = None,
        role: str | None = None,
        allow_mismatch: bool = False,
        at: str = "model",
        command: str = "",
    ) -> list[str]:
        """Raise UserError, naming both sides and the command that makes one, if it was made for another model or setting.

        With ``allow_mismatch`` the differences are returned instead, except those that cannot work
        at all: other layers or another width. ``at`` is the part of the config about the model.
        """
        impossible, unlike = binding.differences(self.config, model, at, split, temperature, role)
        if impossible or (unlike and not allow_mismatch):
            way = "" if impossible else "; allow_mismatch=true ignores this"
            raise UserError(
                f"{self.kind} {self.name} does not fit: {'; '.join(impossible + unlike)}."
                f" Use the {self.kind} for this model, or make one with"
                f" {command or self.made_by}{way}"
            )
        return unlike

    def check_run(self, run: Run, allow_mismatch: bool) -> None:
        """Raise UserError if it was made for another target, split or temperature than a run's."""
        self.check(
            run.models["target"],
            split=run.split,
            temperature=run.sampling.temperature,
            allow_mismatch=allow_mismatch,
        )

    @property
    def measured(self) -> Measured:
        """Return how the drafts that it was measured on were drawn."""
        return Measured.of(self.config["data"])


def find(
    folder_or_repo: str,
    revision: str | None = None,
    *,
    wanted: Wanted = WANTED,
    access: Access | None = None,
) -> Path:
    """Return the local folder of an artifact: as given, shipped with the package, or from the Hub."""
    if folder_or_repo.startswith(EMBEDDED):
        folder = beside_package("hub_artifacts") / folder_or_repo.removeprefix(EMBEDDED)
        swap.recover(folder)
        if not folder.is_dir():
            raise UserError(f"the package ships no artifact {folder_or_repo}")
        return locate(str(folder), wanted=wanted)
    place, given = split_revision(folder_or_repo)
    return locate(place, revision or given, wanted, access)


def source(what: str, name: str, revision: str | None = None) -> Source:
    """Return where a plugin finds an artifact: the name that it gives to ``load``."""
    place, given = (name, None) if name.startswith(EMBEDDED) else split_revision(name)
    return Source(what, place, revision or given, WANTED)


def made_with() -> dict[str, Any]:
    """Return a config's ``provenance``: the code that made it, and nothing about the machine."""
    found = provenance.collect(argv=())
    return {name: found[name] for name in ("git", "packages", "python")}


def read_json(folder: Path, kind: str) -> dict[str, Any]:
    """Read config.json of any kind; raise UserError if the folder holds a file that no artifact may."""
    config = foreign.read_object(folder / CONFIG, LARGEST_CONFIG, f"give a {kind}'s folder")
    files = [f.name for f in folder.iterdir() if f.is_file() and not f.name.startswith(".")]
    if wrong := manifests.strange(files):
        raise UserError(f"{folder} contains {wrong}: remove it, or use another artifact")
    return config


def read_tensors(folder: Path, layout: Layout) -> dict[str, Tensor]:
    """Read exactly the tensors of ``layout``; raise UserError as ``read_tensor_file`` does."""
    return read_tensor_file(folder / TENSORS, layout)
