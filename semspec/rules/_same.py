"""Compare the meanings of two steps, for ``lookahead``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from semspec import world
from semspec.deferred import torch
from semspec.errors import UserError, first_line
from semspec.models.location import ModelConfig
from semspec.probes.cluster import Entailment, fetched
from semspec.protocols import Kit

Same = Callable[[str, str, str], bool]
"""(what was said so far, a step, another step) -> whether these say the same."""


def plain(step: str) -> str:
    """Return a step's text with each run of white space as one space."""
    return " ".join(step.split())


def by_text(said: str, a: str, b: str) -> bool:
    return plain(a) == plain(b)


def by_oracle(kit: Kit) -> Same:
    """Compare true meanings, which only the embedded world knows."""
    problem = world.find_problem(kit.prompt)
    if problem is None:
        raise UserError(
            "accept.compare=oracle works only on the embedded world's problems: use"
            " benchmark=synthetic, or accept.compare=nli"
        )

    def same(said: str, a: str, b: str) -> bool:
        first, second = world.meaning(problem, a), world.meaning(problem, b)
        return by_text(said, a, b) if first is None or second is None else first == second

    return same


def by_entailment(model: ModelConfig) -> Same:
    """Compare by whether each step entails the other, given what was said before."""
    entailment = _entailment(fetched(model))

    def same(said: str, a: str, b: str) -> bool:
        (both,) = entailment.both_ways([(said, a, b)])
        return bool(both)

    return same


@cache
def _entailment(folder: Path) -> Any:
    _no_bars()
    return Entailment.load(folder)


def by_embedding(model: ModelConfig, threshold: float) -> Same:
    """Compare by the cosine of an encoder's mean-pooled last states, ignoring what was said before."""
    encoder = _encoder(model.fetch())

    def same(said: str, a: str, b: str) -> bool:
        return encoder.cosine(plain(a), plain(b)) > threshold

    return same


def _no_bars() -> None:
    """Turn off transformers' progress bars, which would break into the run's own display."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@cache
def _encoder(folder: Path) -> Encoder:
    return Encoder(folder)


class Encoder:
    """Any encoder (or decoder) that transformers' AutoModel loads."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        _no_bars()
        tokenizers: Any = AutoTokenizer
        try:
            self.tokenizer: Any = tokenizers.from_pretrained(folder)
            self.model: Any = AutoModel.from_pretrained(
                folder, dtype=torch.float32, use_safetensors=True
            ).eval()
        except Exception as reason:  # transformers raises whatever its parsers raise
            raise UserError(
                f"cannot load an encoder from {folder} ({first_line(reason)[:200]}): it"
                " needs config, tokenizer and safetensors weights"
            ) from reason
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def cosine(self, a: str, b: str) -> float:
        if a == b:
            return 1.0
        if not a or not b:
            return 0.0
        limit = min(int(self.tokenizer.model_max_length), self._positions())
        inputs = self.tokenizer(
            [a, b], padding=True, truncation=True, max_length=limit, return_tensors="pt"
        )
        known = {k: v for k, v in inputs.items() if k in ("input_ids", "attention_mask")}
        with torch.inference_mode():
            states = self.model(**known).last_hidden_state
        shown = inputs["attention_mask"][:, :, None].to(states.dtype)
        pooled = (states * shown).sum(1) / shown.sum(1)
        return float(torch.cosine_similarity(pooled[0], pooled[1], dim=0))

    def _positions(self) -> int:
        return int(getattr(self.model.config, "max_position_embeddings", 512))
