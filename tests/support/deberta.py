"""A small DeBERTa-v2 with random weights, in the file layout of ``microsoft/deberta-v2-xlarge-mnli``.

That repository holds ``config.json``, ``spm.model``, ``tokenizer_config.json`` and ``pytorch_model.bin``, but no
safetensors and no ``tokenizer.json``. A conversion has ``model.safetensors`` instead of the pickled file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

NAME = "microsoft/deberta-v2-xlarge-mnli"
SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
CONTROL, UNKNOWN, NORMAL = 3, 2, 1  # kinds of pieces
# that repository's config.json with smaller numbers; transformers itself splits "p2c|c2p"
CONFIG: dict[str, Any] = {
    "model_type": "deberta-v2", "architectures": ["DebertaV2ForSequenceClassification"],
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 24, "initializer_range": 0.6, "intermediate_size": 48,
    "max_position_embeddings": 512, "relative_attention": True, "position_buckets": 16,
    "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": "p2c|c2p",
    "layer_norm_eps": 1e-7, "conv_kernel_size": 3, "conv_act": "gelu", "max_relative_positions": -1,
    "position_biased_input": False, "num_attention_heads": 2, "num_hidden_layers": 2,
    "type_vocab_size": 0, "vocab_size": 160, "pooler_dropout": 0, "pooler_hidden_act": "gelu",
    "id2label": {"0": "CONTRADICTION", "1": "NEUTRAL", "2": "ENTAILMENT"},
    "label2id": {"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2},
}  # fmt: skip


def pieces() -> list[tuple[str, float, int]]:
    """Return the special pieces, all printable ASCII characters and some words."""
    made = [(name, 0.0, UNKNOWN if name == "[UNK]" else CONTROL) for name in SPECIAL]
    letters = ["▁", *(chr(code) for code in range(33, 127))]
    words = ["▁the", "▁we", "▁is", "▁x", "ing", "▁so", "▁=", "▁get", "▁and", "▁of", "to"]
    scored = [(word, -3.0 - number / 8, NORMAL) for number, word in enumerate(words)]
    return made + scored + [(letter, -8.0, NORMAL) for letter in letters]


def message(fields: Iterable[tuple[int, Any]]) -> bytes:
    """Serialise a protocol buffer: length-prefixed texts and messages, varints, and floats in four bytes."""
    made = b""
    for number, value in fields:
        if isinstance(value, float):
            made += varint(number << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            made += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            made += varint(number << 3 | 2) + varint(len(data)) + data
    return made


def varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def spm_model() -> bytes:
    """Return a SentencePiece model: pieces, trainer options and the normaliser's name."""
    listed = [(1, message([(1, text), (2, score), (3, kind)])) for text, score, kind in pieces()]
    trainer = message([(3, 1), (4, len(listed)), (40, SPECIAL.index("[UNK]"))])
    return message([*listed, (2, trainer), (3, message([(1, "identity")]))])


def model(seed: int = 0, **changes: Any) -> DebertaV2ForSequenceClassification:
    """Return a model of transformers' own class with random weights."""
    torch.manual_seed(seed)
    made = DebertaV2ForSequenceClassification(DebertaV2Config(**CONFIG | changes))
    with torch.no_grad():
        made.classifier.weight.normal_(0, 1)  # so that pairs differ
    return made.eval()


def write(folder: Path, pickled: bool = True, **changes: Any) -> Path:
    """Write the repository's files, with weights pickled as on the main branch, or as safetensors."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes), encoding="utf-8")
    told = {"do_lower_case": False, "vocab_type": "spm"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    (folder / "spm.model").write_bytes(spm_model())
    weights = model(**changes).state_dict()
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        from safetensors.torch import save_file

        kept = {name: tensor.contiguous() for name, tensor in weights.items()}
        save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder
