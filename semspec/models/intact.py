"""Check a model's folder before other code reads it: regular files, plausible sizes, its manifest.

The readers of transformers and tokenizers block on pipes, allocate as much as a config states, and abort the
whole process if an id is too large.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from semspec.errors import UserError
from semspec.storage import foreign, manifests

LARGEST_FILE = 128 * 2**20  # bytes of a tokenizer or a config; weights may have any size
AGAIN = "download the model again"
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")  # fmt: skip
_SIZES = (
    *("hidden_size", "intermediate_size", "vocab_size", "head_dim"),
    *("num_attention_heads", "num_key_value_heads"),
)
LIMITS: Mapping[str, int] = (
    dict.fromkeys(_LAYERS, 4096)
    | dict.fromkeys(_SIZES, foreign.LARGEST_TOKEN)
    | {"max_position_embeddings": 1 << 31}
)


def check_model(folder: Path, wanted: Callable[[Iterable[str]], list[str]]) -> None:
    """Raise UserError if a model's folder is damaged or implausible.

    ``wanted`` selects the names of files that will be read. If the folder has this project's manifest, sizes and
    sha256 (of files up to 256 MiB) must match it.
    """
    there = wanted(sorted(f.name for f in folder.iterdir()))
    for name in there:
        _check_plain(folder / name)
    if "config.json" in there:
        weights = [folder / name for name in there if name.endswith(".safetensors")]
        path = folder / "config.json"
        config = foreign.read_object(path, way_out=AGAIN, finite=False)
        check_sizes(path, config)
        if weights:
            _check_fit(path, config, weights)
    if "tokenizer.json" in there:
        path = folder / "tokenizer.json"
        stamp = foreign.stamp(path)
        check_tokenizer(path) if stamp is None else _check_tokenizer_once(path, stamp)
    if manifests.is_ours(folder):
        manifest = manifests.read(folder)
        assert manifest is not None
        # the code that reads weights reports missing ones, because a server may have its own
        listed = [n for n in manifest["files"] if not n.endswith(".safetensors")]
        names = set(wanted(listed)) | set(there) - {manifests.NAME}
        manifests.check(folder, manifest, names, manifests.LARGEST_HASHED)


def _check_plain(path: Path) -> None:
    try:
        state = path.stat()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): {AGAIN}") from error
    if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
        raise UserError(f"{path} is not a regular file: {AGAIN}")
    if state.st_size > LARGEST_FILE and path.suffix != ".safetensors":
        raise UserError(f"{path} has {state.st_size:,} bytes, too many for such a file: {AGAIN}")


def check_sizes(path: Path, config: Mapping[str, Any]) -> None:
    """Raise UserError if a config.json states impossible sizes."""
    for part in _parts(config):
        for name, most in LIMITS.items():
            value = part.get(name)
            if isinstance(value, int) and not 0 <= value <= most:
                shown = value if abs(value) < 10**20 else "a number of many digits"
                raise UserError(f"{path}: {name} is {shown}, above the limit of {most:,}: {AGAIN}")


def _parts(config: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return config, *(inner for inner in config.values() if isinstance(inner, dict))


def _check_fit(path: Path, config: Mapping[str, Any], weights: Iterable[Path]) -> None:
    """Raise UserError for a config with more layers than there are tensors, or with matrices larger than all weights."""
    files = [foreign.tensor_places(file) for file in weights]
    tensors = sum(len(file) for file in files)
    bits = 8 * sum(size for file in files for _, _, _, size in file.values())
    for part in _parts(config):
        sizes = {name: n for name in LIMITS if isinstance(n := part.get(name), int)}
        layers = max((sizes.get(name, 0) for name in _LAYERS), default=0)
        width = sizes.get("hidden_size", 0)
        most = width * max(sizes.get("vocab_size", 0), sizes.get("intermediate_size", 0))
        if layers > tensors or most > bits:
            raise UserError(
                f"{path} does not match the weights beside it ({tensors:,} tensors of"
                f" {bits // 8:,} bytes are not such a model): {AGAIN}"
            )


@lru_cache(maxsize=64)
def _check_tokenizer_once(path: Path, _: tuple[int, ...]) -> None:
    check_tokenizer(path)


def check_tokenizer(path: Path) -> None:
    """Raise UserError if a tokenizer.json cannot be read or has impossible ids.

    Its reader reserves memory up to the largest id, and aborts the process if that fails.
    """
    tokenizer = foreign.read_object(path, LARGEST_FILE, AGAIN)
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    listed = added if isinstance(added, list) else []
    ids += [token.get("id") for token in listed if isinstance(token, dict)]
    foreign.token_ids(ids, str(path))
