"""Load tokenizers of entailment models, including DeBERTa's, without the packages that transformers would need.

DeBERTa's repositories hold the model of a SentencePiece tokenizer (``spm.model``) and no ``tokenizer.json``.
transformers needs sentencepiece and protobuf to read it, but its tokenizer takes only the pieces and their scores from
there. They are read here, from a protocol buffer of which two fields matter.
"""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from semspec.errors import UserError
from semspec.storage import foreign

DEBERTA, PIECES = "deberta-v2", "spm.model"
PACKAGES = {"sentencepiece": "sentencepiece", "google.protobuf": "protobuf"}  # module -> package
LARGEST = 64 << 20  # bytes of a tokenizer's model; DeBERTa's has 2.4 million
# fields of ModelProto, SentencePiece and TrainerSpec in sentencepiece_model.proto
_PIECE, _TRAINER = 1, 2
_TEXT, _SCORE, _KIND = 1, 2, 3
_UNKNOWN = 40
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5  # wire types


def tokenizer_of(folder: Path) -> Any:
    """Load the tokenizer of a model's folder; raise UserError if a package is missing or it is a slow tokenizer."""
    from transformers import AutoTokenizer

    if (folder / "tokenizer.json").exists() or not any(folder.glob("*.model")):
        tokenizer = AutoTokenizer.from_pretrained(folder)
    elif (folder / PIECES).is_file() and _model_type(folder) == DEBERTA:
        tokenizer = _debertas(folder)
    else:
        _check_packages(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    if not tokenizer.is_fast:
        raise UserError(f"{folder} has a Python-only tokenizer: use a model with a fast tokenizer")
    return tokenizer


def _model_type(folder: Path) -> object:
    return foreign.read_object(folder / "config.json").get("model_type")


def _check_packages(folder: Path) -> None:
    missing = [package for module, package in PACKAGES.items() if not _there(module)]
    if missing:
        raise UserError(
            f"{folder} has a SentencePiece tokenizer but no tokenizer.json: pip install"
            f" {' '.join(missing)}, or save the tokenizer once with save_pretrained where"
            " they are installed"
        )


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # even the package that it would be in is missing
        return False


def _debertas(folder: Path) -> Any:
    """Make transformers' own DeBERTa tokenizer from the pieces in ``spm.model``."""
    from transformers import DebertaV2Tokenizer

    pieces, unknown = read_pieces(folder / PIECES)
    file = folder / "tokenizer_config.json"
    given = dict(foreign.read_object(file)) if file.is_file() else {}
    for name in ("tokenizer_class", "auto_map", "vocab_file", "vocab_type", "added_tokens_decoder"):
        given.pop(name, None)  # they say how others load it
    return DebertaV2Tokenizer(vocab=pieces, unk_id=unknown, **given)


def read_pieces(path: Path) -> tuple[list[tuple[str, float]], int]:
    """Return the pieces of a SentencePiece model with their scores, and the index of the unknown piece.

    Raises UserError if the file is no such model.
    """
    pieces: list[tuple[str, float]] = []
    unknown = 0
    try:
        for field, value in _fields(memoryview(foreign.read_bytes(path, LARGEST))):
            if field == _PIECE:
                one = dict(_fields(_nested(value)))
                (score,) = struct.unpack("<f", _nested(one.get(_SCORE, memoryview(bytes(4)))))
                pieces.append((str(_nested(one[_TEXT]), "utf-8"), score))
            elif field == _TRAINER:
                unknown = _number(dict(_fields(_nested(value))).get(_UNKNOWN, 0))
        if not 0 <= unknown < len(pieces):
            raise ValueError(f"piece {unknown} of {len(pieces)} is the unknown one")
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise UserError(
            f"{path} is not a SentencePiece model ({error}): download the model again, or"
            " use another"
        ) from error
    return pieces, unknown


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield number and value of every field of a message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        size = {_EIGHT: 8, _FOUR: 4}.get(kind)
        if kind == _BYTES:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError(f"no message at byte {at}")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at a byte, with seven bits in each byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError(f"no number at byte {at}")


def _nested(value: memoryview | int) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number in the place of a text")
    return value


def _number(value: memoryview | int) -> int:
    if not isinstance(value, int):
        raise ValueError("a text in the place of a number")
    return value
