"""Inspect folders of artifacts on disk: find their kind, seal and verify them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from semspec import registry
from semspec.artifacts import _card, base
from semspec.artifacts.model import Model
from semspec.errors import UserError
from semspec.models.location import EMBEDDED
from semspec.storage import manifests, swap
from semspec.storage.files import os_errors_as_user_errors, write_bytes, write_text


@dataclass(frozen=True, slots=True)
class Found:
    """A folder that ``below`` found, and what is wrong with it."""

    folder: Path
    kind: str | None
    wrong: tuple[str, ...]


def local(place: str) -> Path:
    """Return an existing folder for a path or embedded/NAME; raise UserError if there is none."""
    if place.startswith(EMBEDDED):
        return base.find(place)
    folder = Path(place).expanduser()
    swap.recover(folder)
    if not folder.is_dir():
        raise UserError(f"folder {folder} does not exist: give an artifact's folder, path=FOLDER")
    return folder


def kind_of(folder: Path) -> type[base.Artifact]:
    """Return the kind of an artifact's or model's folder; raise UserError for any other."""
    config = base.read_json(folder, "artifact")
    known = registry.plugins("artifact")
    kind = config.get("kind")
    if kind is None and "model_type" in config:
        heads = {n: p.cls.architecture for n, p in known.items() if issubclass(p.cls, Model)}
        own = (n for n, a in heads.items() if a and [a] == config.get("architectures"))
        kind = next(own, "model")
    if not isinstance(kind, str) or kind not in known:
        raise UserError(f"{folder} is not an artifact's folder: its config.json names no kind of"
f" {', '.join(known)}")  # fmt: skip
    cls: type[base.Artifact] = known[kind].cls
    return cls


def seal(folder: Path) -> type[base.Artifact]:
    """Write the manifest of a valid folder, and a card if there is none; raise UserError if invalid."""
    with os_errors_as_user_errors(folder):
        cls, manifest = kind_of(folder), folder / base.MANIFEST
        for name in (base.CARD, base.MANIFEST):  # left by an earlier run that was killed
            (folder / f".{name}.tmp").unlink(missing_ok=True)
        if not (folder / base.CARD).exists():
            manifest.unlink(missing_ok=True)
            text = _card.default(cls.read(folder), folder.name)
            write_text(folder / base.CARD, text)
        was = manifest.read_bytes() if manifest.exists() else None
        manifests.seal(folder, cls.kind, cls.version)
        try:
            check(folder)
        except UserError:
            if was is None:
                manifest.unlink()
            else:
                write_bytes(manifest, was)
            raise
        return cls


def check(folder: Path) -> base.Artifact:
    """Return the folder's artifact; raise UserError unless it is exactly what would be published."""
    manifest = manifests.read(folder)
    if manifest is None:
        raise UserError(f"{folder} has no {base.MANIFEST}: run python -m semspec.artifacts seal path={folder}")  # fmt: skip
    if unlike := manifests.differences(folder, manifest):
        raise UserError(f"{folder} does not match its manifest: {'; '.join(unlike[:3])}")
    cls = kind_of(folder)
    if (manifest["kind"], manifest["version"]) != (cls.kind, cls.version):
        raise UserError(
            f"{folder}: the manifest describes a {manifest['kind']}, version"
            f" {manifest['version']}, but the folder is a {cls.kind}, version {cls.version}"
        )
    artifact = cls.read(folder)
    if not (folder / base.CARD).is_file():
        raise UserError(f"{folder} has no {base.CARD}, which every artifact needs")
    _card.check(artifact.texts[base.CARD], artifact.library())
    return artifact


def below(path: Path) -> Iterator[Found]:
    """Yield every artifact's folder at or below a path, and every file that belongs to none."""
    if (path / base.CONFIG).is_file() or (path / base.MANIFEST).is_file():
        yield _found(path)
        return
    for inner in sorted(path.iterdir()):
        if inner.is_dir() and inner.name not in manifests.THEIRS:
            yield from below(inner)
        elif not inner.is_dir() and inner.name not in manifests.THEIRS:
            yield Found(inner, None, (f"{inner} belongs to no artifact",))


def _found(folder: Path) -> Found:
    kind = None
    try:
        kind = kind_of(folder).kind
        check(folder)
    except UserError as error:
        return Found(folder, kind, (str(error),))
    return Found(folder, kind, ())
