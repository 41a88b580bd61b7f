"""Small real tokenizers in folders: byte-level BPE with the special tokens of two model families."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "We add the numbers. The sum is five.\n\nSo the answer is five.\n\nWait, is it so?\n\n",
    "We add three and two.\n\nThe answer is 3.14, e.g. pi. Then we stop.\n\nDone!\n",
] * 20
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

QWQ = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<think>", "</think>"]
QWQ_TEMPLATE = """\
{%- for m in messages -%}
{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>\\n' -}}{%- endif -%}
"""
R1 = ["<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>"]
R1 = [*R1, "<|EOT|>", "<think>", "</think>"]
R1_TEMPLATE = """\
{{- bos_token -}}
{%- for m in messages -%}
{%- if m['role'] == 'system' -%}{{- raise_exception('no system message, please') -}}{%- endif -%}
{{- '<｜User｜>' + m['content'] -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<｜Assistant｜><think>\\n' -}}{%- endif -%}
"""


def bpe(corpus: list[str] | None = None, size: int = 300) -> Tokenizer:
    """Train a byte-level BPE in which ".\\n\\n" and "\\n\\n" are tokens, as in the Qwen family."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus or CORPUS, trainer)
    return tokenizer


def save(
    folder: Path,
    tokenizer: Tokenizer,
    special: list[str],
    template: str | None,
    eos: str | None,
    bos: str | None = None,
    files: Mapping[str, object] | None = None,
) -> str:
    """Write the text part of a model's folder; ``files`` are written as JSON."""
    tokenizer.add_special_tokens([AddedToken(s, normalized=False) for s in special])
    fast: Any = PreTrainedTokenizerFast  # untyped
    wrapped = fast(
        tokenizer_object=tokenizer,
        eos_token=eos,
        bos_token=bos,
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )
    wrapped.save_pretrained(folder)
    for name, content in (files or {}).items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder)


def qwq(folder: Path, **files: object) -> str:
    """Write a folder like QwQ-32B's: <|im_end|> ends a turn, <|endoftext|> a document."""
    return save(folder, bpe(), QWQ, QWQ_TEMPLATE, "<|im_end|>", files=files)


def r1(folder: Path, **files: object) -> str:
    """Write a folder like the R1 distillates': the same ordinary tokens, other special ones."""
    return save(folder, bpe(), R1, R1_TEMPLATE, R1[0], R1[3], files=files)
