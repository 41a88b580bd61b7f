"""OpenVINO GenAI in this process: its pipeline, with or without drafts, and the model graph's plain forward pass."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from semspec.certify.endpoints.base import Drafts
from semspec.certify.endpoints.local import Local
from semspec.certify.laws import Tokens
from semspec.deferred import torch
from semspec.errors import UserError, first_line
from semspec.types import Sampling

GRAPH = "openvino_model.xml"
NUMBERS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
NGRAM = 3  # tokens that prompt lookup matches


def is_openvino(folder: str) -> bool:
    return (Path(folder).expanduser() / GRAPH).is_file()


def numbers(dtype: str = "float32", threads: int = 0) -> dict[str, Any]:
    """Return device options to compute in ``dtype``, KV cache included (8 bits by default); 0 threads: as torch."""
    short, count = NUMBERS[dtype], threads or torch.get_num_threads()
    hint = {"INFERENCE_PRECISION_HINT": short, "KV_CACHE_PRECISION": short}
    return {**hint, "INFERENCE_NUM_THREADS": count, "NUM_STREAMS": 1}


def pipeline(
    folder: Path, draft: Path | None, lookup: bool, device: Mapping[str, Any], **options: Any
) -> Any:
    """Return OpenVINO GenAI's text pipeline, plain or with one kind of speculation."""
    import openvino_genai as genai

    if draft is not None:
        options["draft_model"] = genai.draft_model(str(draft), "CPU", **device)
    if lookup:
        options["prompt_lookup"] = True
    return genai.LLMPipeline(str(folder), "CPU", **device, **options)


class Graph:
    """A folder's graph without a pipeline, called like a transformers model: it returns every position's logits."""

    device = "cpu"

    def __init__(self, folder: str, dtype: str = "float32") -> None:
        import openvino as ov

        file = Path(folder).expanduser() / GRAPH
        self._asked: Any = (
            ov.Core().compile_model(str(file), "CPU", numbers(dtype)).create_infer_request()
        )

    def __call__(self, input_ids: Any) -> Any:
        """Read whole sequences of one length, starting from an empty KV cache."""
        import numpy as np

        rows, length = input_ids.shape
        self._asked.reset_state()
        found = self._asked.infer(
            {
                "input_ids": input_ids.numpy(),
                "attention_mask": np.ones((rows, length), dtype=np.int64),
                "position_ids": np.tile(np.arange(length, dtype=np.int64), (rows, 1)),
                "beam_idx": np.arange(rows, dtype=np.int32),
            }
        )
        return SimpleNamespace(logits=torch.from_numpy(np.array(found["logits"])))


class OpenVino(Local):
    """The pipeline: plain, with a draft model, or with prompt lookup, always with paged attention."""

    kind = "openvino"
    assisted = "draft model"

    def __init__(
        self,
        folder: str,
        dtype: str = "float32",
        assistant: str = "",
        lookup: int = 0,
        seed: int = 0,
    ) -> None:
        try:
            import openvino_genai
        except ImportError as error:
            raise UserError(
                f"{folder} is an OpenVINO model: run 'pip install openvino-genai'"
            ) from error
        if assistant and not is_openvino(assistant):
            raise UserError(
                f"assistant={assistant} contains no {GRAPH}: give an OpenVINO model here, too"
            )
        self.version = openvino_genai.__version__
        target = Path(folder).expanduser()
        draft = Path(assistant).expanduser() if assistant else None
        options: dict[str, Any] = {"ATTENTION_BACKEND": "PA"}
        if draft is not None:  # otherwise 2026.4 fails a check when it draws (its issue 4190)
            options["scheduler_config"] = openvino_genai.SchedulerConfig()
            options["scheduler_config"].enable_prefix_caching = False
        try:
            self._pipeline = pipeline(target, draft, lookup > 0, numbers(dtype), **options)
        except RuntimeError as error:
            raise UserError(f"{folder} cannot be loaded ({first_line(error)})") from error
        super().__init__(folder, assistant, lookup)
        self._seeds, self._kept = random.Random(seed), 0

    @property
    def engine(self) -> str:
        return f"OpenVINO GenAI {self.version}"

    def write(self, prefixes: Sequence[Tokens], length: int, sampling: Sampling) -> list[Tokens]:
        if sampling.top_k and sampling.top_p < 1.0:
            raise UserError(
                "OpenVINO GenAI applies top-p before top-k, unlike semspec: give top_p= or"
                " top_k=, not both"
            )
        return super().write(prefixes, length, sampling)

    def one(self, prefix: Tokens, length: int, sampling: Sampling) -> Tokens:
        import numpy as np
        import openvino as ov
        import openvino_genai as genai

        config = genai.GenerationConfig()
        # ignore the end of text: it counts as an ordinary token
        config.max_new_tokens, config.ignore_eos, config.apply_chat_template = length, True, False
        config.do_sample = not sampling.greedy
        if not sampling.greedy:
            config.rng_seed = self._seeds.getrandbits(31)  # by default all requests share a seed
            config.temperature, config.top_p = sampling.temperature, sampling.top_p
            config.min_p = sampling.min_p
            if sampling.top_k:
                config.top_k = sampling.top_k
        if self.lookup:
            config.num_assistant_tokens, config.max_ngram_size = self.lookup, NGRAM
        try:
            ids = ov.Tensor(np.array([prefix], dtype=np.int64))
            found = self._pipeline.generate(ids, config)
        except RuntimeError as error:
            raise UserError(f"{self.name} failed ({first_line(error)})") from error
        (tokens,) = found.tokens
        self._kept += len(tokens) - len(found.perf_metrics.raw_metrics.m_batch_sizes)
        if len(tokens) < length:
            raise UserError(f"{self.name} stopped after {len(tokens)} of {length} tokens")
        return tuple(tokens[:length])

    def drafts(self) -> Drafts:
        """Return how many tokens came without their own pass since the last call."""
        told, self._kept = Drafts(None, self._kept), 0
        return told
