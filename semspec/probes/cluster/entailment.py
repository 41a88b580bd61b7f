"""Entailment between two steps after one context, by a model of the MNLI kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from semspec.deferred import torch
from semspec.errors import UserError, first_line
from semspec.probes.cluster.greedy import Triple

ENTAILMENT = "entailment"


class Entailment:
    """A sequence classifier that decides whether one text entails another.

    The paper's is ``microsoft/deberta-v2-xlarge-mnli``; the embedded one is ``tiny-nli``. The class of
    entailment is looked up in ``config.id2label``, because models differ in their order.
    """

    def __init__(self, model: Any, tokenizer: Any, *, batch_size: int = 64) -> None:
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}: a batch has at least one pair")
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.label = entailment_label(model.config.id2label)
        self.max_length = _longest(model.config, tokenizer)
        self._special = tokenizer.num_special_tokens_to_add(pair=True)

    @classmethod
    def load(cls, folder: Path | str, *, device: str = "cpu", batch_size: int = 64) -> Entailment:
        """Load a model from a folder, such as ``ModelConfig(path=...).fetch()``."""
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        # half the memory where bfloat16 is native; exact where speed does not matter
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        try:
            where = torch.device(device)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            model = AutoModelForSequenceClassification.from_pretrained(
                folder, dtype=dtype, use_safetensors=True
            )
            model = model.to(where).eval()
        except Exception as e:  # transformers raises whatever its parsers raise
            raise UserError(
                f"no entailment model can be loaded from {folder} ({first_line(e)[:200]}): it needs "
                "a sequence classifier's config, tokenizer and safetensors weights (for a Hub model "
                "without them, give the revision of its conversion)"
            ) from e
        if not tokenizer.is_fast:
            raise UserError(f"{folder} has a Python-only tokenizer: take a model with a fast one")
        return cls(model, tokenizer, batch_size=batch_size)

    def both_ways(self, pairs: Sequence[Triple]) -> list[bool]:
        """Return whether a and b mean the same after the context: each entails the other, strictly.

        (context + a => context + b) and (context + b => context + a) must both be classified as
        entailment by argmax. The second is only tested where the first holds.
        """
        held = [i for i, yes in enumerate(self.entails(pairs)) if yes]
        back = self.entails([(pairs[i][0], pairs[i][2], pairs[i][1]) for i in held])
        both = [False] * len(pairs)
        for i, yes in zip(held, back, strict=True):
            both[i] = yes
        return both

    def entails(self, pairs: Sequence[Triple]) -> list[bool]:
        """Return whether context + a entails context + b."""
        if not pairs:
            return []
        encoded = self._encode(pairs)
        ids = encoded["input_ids"]
        order = sorted(range(len(pairs)), key=lambda i: len(ids[i]), reverse=True)
        answers = [False] * len(pairs)
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]  # of similar length: little padding
            inputs = self.tokenizer.pad(
                {name: [rows[i] for i in batch] for name, rows in encoded.items()},
                return_tensors="pt",
            ).to(self.model.device)
            with torch.inference_mode():
                labels = self.model(**inputs).logits.argmax(-1).tolist()
            for i, label in zip(batch, labels, strict=True):
                answers[i] = label == self.label
        return answers

    def _encode(self, pairs: Sequence[Triple]) -> dict[str, list[list[int]]]:
        """Encode both texts of each pair, the context cut from the left so that the steps survive.

        The room that the two steps leave is divided between the two copies of the context's end. Steps
        that do not fit by themselves also lose their beginnings, the longer one first.
        """
        cut = {context: self._cutter(context) for context in {context for context, _, _ in pairs}}
        steps = {step for _, a, b in pairs for step in (a, b)}
        sizes = {step: len(self._read(step.rstrip())["input_ids"]) for step in steps}
        left, right = [], []
        for context, a, b in pairs:
            room = (self.max_length - self._special - sizes[a] - sizes[b]) // 2
            tail = cut[context](max(0, room))
            left.append(tail + a.rstrip())
            right.append(tail + b.rstrip())
        self.tokenizer.truncation_side = "left"
        limit = {"truncation": "longest_first", "max_length": self.max_length}
        encoded = self.tokenizer(left, right, **limit)
        return {name: encoded[name] for name in self.tokenizer.model_input_names if name in encoded}

    def _read(self, text: str, **options: bool) -> Any:
        return self.tokenizer(text, add_special_tokens=False, verbose=False, **options)

    def _cutter(self, context: str) -> Callable[[int], str]:
        """Return a function that maps a number of tokens to that much of the context's end."""
        offsets = self._read(context, return_offsets_mapping=True)["offset_mapping"]
        starts = [start for start, _ in offsets]

        def tail(tokens: int) -> str:
            if tokens >= len(starts):
                return context
            return context[starts[len(starts) - tokens] :] if tokens else ""

        return tail


def entailment_label(id2label: dict[int, str]) -> int:
    """Return the class named entailment, in any case; raise UserError unless there is one."""
    found = [int(i) for i, name in id2label.items() if str(name).strip().lower() == ENTAILMENT]
    if len(found) != 1:
        names = ", ".join(map(str, id2label.values()))
        raise UserError(
            f"the model has no class '{ENTAILMENT}' (its classes: {names}): take a model trained on "
            "MNLI, or name its classes in config.json under id2label"
        )
    return found[0]


def _longest(config: Any, tokenizer: Any) -> int:
    """Return the most tokens of an input; a tokenizer without a limit reports a huge one."""
    positions = getattr(config, "max_position_embeddings", 512)
    return min(int(tokenizer.model_max_length), int(positions))
