"""OpenVINO GenAI: its pipeline for text, alone, with a draft model, and with prompt lookup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from rivals.base import Workload, Written, cut, versions_of
from rivals.openvino_model import write_ir
from semspec.certify.endpoints.openvino import numbers, pipeline

DRAFTED: dict[str, dict[str, Any]] = {
    "draft model": {"assistant_confidence_threshold": 0.4},
    "draft model, 5 tokens": {"num_assistant_tokens": 5},
    "draft model, 10 tokens": {"num_assistant_tokens": 10},
}
COPIED: dict[str, dict[str, Any]] = {
    "prompt lookup, 5 tokens": {"num_assistant_tokens": 5, "max_ngram_size": 3},
    "prompt lookup, 10 tokens": {"num_assistant_tokens": 10, "max_ngram_size": 3},
}
NUMBERS = numbers("float32", threads=1)  # it would take what the processor is fastest with


class OpenVino:
    """``attention``: paged, as its speculation needs it, or stateful, the plain pipeline."""

    def __init__(self, workload: Workload, folder: Path, attention: str) -> None:
        self.name = f"openvino {attention}"
        self.paged, self.stop_ids = attention == "paged", workload.stop_ids
        self.target = _written(workload.target, folder)
        self.draft = _written(workload.draft, folder) if workload.draft else None
        drafted = DRAFTED if workload.draft else {}
        self.kinds = (*drafted, *COPIED) if self.paged else ()
        self.pipeline = cache(self._pipeline)

    def _pipeline(self, way: str) -> Any:
        options: dict[str, Any] = {"ATTENTION_BACKEND": "PA" if self.paged else "SDPA"}
        if self.paged:
            scheduler = genai.SchedulerConfig()
            scheduler.enable_prefix_caching = False
            scheduler.cache_size = 1
            options["scheduler_config"] = scheduler
        draft = self.draft if way == "draft" else None
        return pipeline(self.target, draft, way == "lookup", NUMBERS, **options)

    def versions(self) -> Mapping[str, str]:
        return versions_of("openvino-genai", "openvino")

    def plain(self, ids: Sequence[int], limit: int) -> Written:
        return self._generate("", ids, limit, {})

    def speculative(self, kind: str, ids: Sequence[int], limit: int) -> Written:
        if kind in DRAFTED:
            return self._generate("draft", ids, limit, DRAFTED[kind])
        return self._generate("lookup", ids, limit, COPIED[kind])

    def _generate(
        self, way: str, ids: Sequence[int], limit: int, own: Mapping[str, Any]
    ) -> Written:
        config = genai.GenerationConfig()
        config.do_sample, config.max_new_tokens = False, limit
        config.eos_token_id, config.stop_token_ids = self.stop_ids[0], set(self.stop_ids)
        config.apply_chat_template = False
        for name, value in own.items():
            setattr(config, name, value)
        reply = self.pipeline(way).generate(ov.Tensor(np.array([ids], dtype=np.int64)), config)
        (tokens,) = reply.tokens
        found, ended = cut(list(tokens), self.stop_ids, limit)
        ended = ended or len(found) < limit
        return Written(found, ended, None)

    def close(self) -> None:
        self.pipeline.cache_clear()


def _written(model: Path, folder: Path) -> Path:
    into = folder / f"{model.name}-openvino"
    if not (into / "openvino_model.bin").exists():
        write_ir(model, into)
    return into
