"""transformers' own ``generate``: alone, with an assistant model, and with prompt lookup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rivals.base import Workload, Written, cut, versions_of

CONSTANT = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
DRAFTED: dict[str, dict[str, Any]] = {
    "assistant model": {},  # as it comes: it stops where the small model is unsure
    "assistant model, 5 tokens": {"num_assistant_tokens": 5, **CONSTANT},
    "assistant model, 10 tokens": {"num_assistant_tokens": 10, **CONSTANT},
}
COPIED = {"prompt lookup, 10 tokens": {"prompt_lookup_num_tokens": 10}}


class Transformers:
    name = "transformers"

    def __init__(self, workload: Workload, folder: Path) -> None:
        self.stop_ids = list(workload.stop_ids)
        self.model = self._load(workload.target)
        self.draft = self._load(workload.draft) if workload.draft else None
        self.options = (DRAFTED if workload.draft else {}) | COPIED
        self.kinds = tuple(self.options)
        self.passes = 0
        self.model.register_forward_pre_hook(self._count)

    def _load(self, folder: Any) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def _count(self, *_: object) -> None:
        self.passes += 1

    def versions(self) -> Mapping[str, str]:
        return versions_of("transformers", "torch")

    def plain(self, ids: Sequence[int], limit: int) -> Written:
        return self._generate(ids, limit)

    def speculative(self, kind: str, ids: Sequence[int], limit: int) -> Written:
        options = dict(self.options[kind])
        if kind in DRAFTED:
            # the schedule and the threshold are the assistant's own settings
            own: Any = self.draft
            known = self._defaults(own)
            for name, value in options.items():
                setattr(own.generation_config, name, value)
            try:
                return self._generate(ids, limit, assistant_model=own)
            finally:
                for name, value in known.items():
                    setattr(own.generation_config, name, value)
        return self._generate(ids, limit, **options)

    def _defaults(self, model: Any) -> dict[str, Any]:
        names = ("num_assistant_tokens", *CONSTANT)
        return {name: getattr(model.generation_config, name) for name in names}

    def _generate(self, ids: Sequence[int], limit: int, **options: Any) -> Written:
        self.passes = 0
        asked = torch.tensor([list(ids)])
        with torch.inference_mode():
            whole = self.model.generate(
                asked,
                attention_mask=torch.ones_like(asked),
                do_sample=False,
                max_new_tokens=limit,
                eos_token_id=self.stop_ids,
                pad_token_id=self.stop_ids[0],
                **options,
            )
        found, ended = cut(whole[0, len(ids) :].tolist(), self.stop_ids, limit)
        return Written(found, ended, self.passes)

    def log_probability(self, ids: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """Return the target's log-probabilities of tokens after ids, by one pass without a cache."""
        with torch.inference_mode():
            logits = self.model(torch.tensor([list(ids)]), use_cache=False).logits[0, -1]
        every = torch.log_softmax(logits.double(), -1)
        return [float(every[token]) for token in tokens]

    def close(self) -> None:
        pass
