"""Models in transformers' format, run by the project's own lean forward pass in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from semspec.deferred import torch
from semspec.engines._base import EngineBase
from semspec.errors import UserError
from semspec.models import memory
from semspec.models.hub import locate
from semspec.models.location import ModelConfig
from semspec.protocols import Engine
from semspec.registry import register
from semspec.storage.screen import LOG
from semspec.types import Role, What


@register("engine", "hf")
@dataclass(frozen=True, kw_only=True)
class Hf(EngineBase):
    """Llama, Mistral, Qwen2 and Qwen3 models from safetensors, in this process (CPU or CUDA)."""

    dtype: str = "auto"  # fp32, bf16; auto: fp32 on a CPU, bf16 on CUDA
    device: str = "auto"  # cpu, cuda, cuda:1; auto: CUDA if available
    threads: int = 1  # of torch on a CPU; 0: leave as it is
    max_context: int = 0  # positions; 0: as many as the model was trained with
    chunk: int = 1024  # tokens of a long prompt that go through the model at a time

    offers: ClassVar[frozenset[What]] = frozenset(What) - {What.SCORE}

    def __post_init__(self) -> None:
        if self.threads < 0 or self.chunk < 1:
            raise UserError(
                f"threads={self.threads}, chunk={self.chunk}: threads is at least 0, chunk 1"
            )

    @classmethod
    def suits(cls) -> tuple[int, str]:
        return 1, ""

    def check_machine(self, models: Mapping[Role, ModelConfig], max_new_tokens: int) -> None:
        """Raise UserError for models that do not fit on one GPU together; warn of one that is of no use."""
        from semspec.engines._lean.engine import resolve

        device, _ = resolve(self.device, self.dtype)
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            sizes = {role: memory.size_of(model) for role, model in models.items()}
            tokens = memory.tokens_for(max_new_tokens, sizes)
            memory.check_device(sizes, free, str(device), tokens)
        elif self.device == "auto" and (gpus := memory.visible_gpus()):
            LOG.warning(
                "%s is there, but torch cannot use CUDA, and engine=hf runs on the CPU: install a driver and a"
                " torch that go together (device=cpu says that this is meant)",
                gpus[0].name,
            )

    def load(
        self,
        folder_or_repo: str,
        revision: str | None = None,
        role: Role = "target",
        probes: Sequence[str] = (),
    ) -> Engine:
        """Load one model from a folder or from a Hub repository at a revision."""
        from semspec.engines._lean.engine import HfEngine, resolve

        device, dtype = resolve(self.device, self.dtype)
        if self.threads and device.type == "cpu":
            torch.set_num_threads(self.threads)
        folder = locate(folder_or_repo, revision)
        if device.type == "cpu":
            _check_memory(folder, 4 if dtype == torch.float32 else 2)
        return HfEngine(folder, dtype, device, self.max_context, self.chunk)


def _check_memory(folder: Path, width: int) -> None:
    """Raise UserError for weights that exceed this machine's memory, before it starts to swap."""
    # checkpoints of this size are stored in 16 bits
    needed = sum(file.stat().st_size for file in folder.glob("*.safetensors")) * width // 2
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise UserError(
            f"{folder.name} needs {needed / 2**30:.0f} GiB of memory, this machine has"
            f" {memory / 2**30:.0f} GiB and no GPU that could be used: choose a smaller model,"
            " or a machine with a GPU"
        )
