"""Run models in transformers' format in this process, with the project's own forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from semspec.deferred import torch
from semspec.engines._base import EngineBase
from semspec.errors import UserError
from semspec.models import hub, memory
from semspec.models.hub import locate
from semspec.models.location import ModelConfig, canonical_name
from semspec.protocols import Engine
from semspec.registry import register
from semspec.storage.screen import LOG
from semspec.types import Role, What

WIDTHS = {"auto": 4, "fp32": 4, "bf16": 2}  # bytes of a number on a CPU, by ``dtype``


@register("engine", "hf")
@dataclass(frozen=True, kw_only=True)
class Hf(EngineBase):
    """Llama, Mistral, Qwen2 and Qwen3 models from safetensors, in this process (CPU or CUDA)."""

    dtype: str = "auto"  # fp32, bf16; auto: fp32 on a CPU, bf16 on CUDA
    device: str = "auto"  # cpu, cuda, cuda:1; auto: CUDA if available
    threads: int = 1  # of torch on a CPU; 0: torch's default
    max_context: int = 0  # positions; 0: as many as the model was trained with
    chunk: int = 1024  # tokens of a long prompt that go through the model at a time

    offers: ClassVar[frozenset[What]] = frozenset(What) - {What.SCORE}

    def __post_init__(self) -> None:
        if self.threads < 0 or self.chunk < 1:
            raise UserError(
                f"threads={self.threads}, chunk={self.chunk}: give threads of at least 0,"
                " chunk of at least 1"
            )

    @classmethod
    def suits(cls) -> tuple[int, str]:
        return 1, ""

    def check_machine(self, models: Mapping[Role, ModelConfig], max_new_tokens: int) -> None:
        """Raise UserError if the models do not fit together; warn if there is a GPU that torch cannot use."""
        # return early if possible: importing torch takes seconds
        if (width := self._width_on_a_cpu) and _lacking(models, width) is None:
            return
        from semspec.engines._lean.engine import resolve

        device, dtype = resolve(self.device, self.dtype)
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            sizes = {role: memory.size_of(model) for role, model in models.items()}
            tokens = memory.tokens_for(max_new_tokens, sizes)
            memory.check_device(sizes, free, str(device), tokens)
            return
        if lacking := _lacking(models, dtype.itemsize):
            raise lacking
        if self.device == "auto" and (gpus := memory.visible_gpus()):
            LOG.warning(
                "%s found, but torch cannot use CUDA, so engine=hf runs on the CPU:"
                " install a driver and a torch that match (device=cpu silences this)",
                gpus[0].name,
            )

    @property
    def _width_on_a_cpu(self) -> int:
        """Bytes per number if it is known without importing torch that no GPU is used, else 0."""
        known = self.device == "cpu" or (self.device == "auto" and not memory.visible_gpus())
        return WIDTHS.get(self.dtype, 0) if known else 0

    def needed(
        self, models: Mapping[Role, ModelConfig], max_new_tokens: int, problems: int
    ) -> Sequence[str]:
        sizes = {role: memory.size_of(model) for role, model in models.items()}
        tokens = memory.tokens_for(max_new_tokens, sizes) * problems
        width, more = self._width_on_a_cpu, 0
        where, there = "RAM", f"this machine has {memory.gib(memory.machine_memory())}"
        if not width:
            import torch

            from semspec.engines._lean.engine import resolve

            device, dtype = resolve(self.device, self.dtype)
            width = dtype.itemsize
            if device.type == "cuda":
                free, total = torch.cuda.mem_get_info(device)
                more = memory.reserved(memory.CHUNKS[-1])
                where, there = str(device), f"{memory.gib(free)} free of {memory.gib(total)}"
        held = [f"{role} {memory.held(size, tokens, width)}" for role, size in sizes.items()]
        parts = [size.weights + tokens * size.token for size in sizes.values()]
        whole = memory.shown(sum(parts) * width // memory.HALF + more)
        return [f"{where}: {', '.join(held)}; {whole} at most, {there}"]

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
        if device.type == "cpu" and (
            lacking := _lacking({role: ModelConfig(path=str(folder))}, dtype.itemsize)
        ):
            raise lacking
        return HfEngine(folder, dtype, device, self.max_context, self.chunk)


def _lacking(models: Mapping[Role, ModelConfig], width: int) -> UserError | None:
    """Return the error for models that exceed this machine's memory (it would swap); None if they fit."""
    sizes = {
        canonical_name(model): memory.stored_bytes(hub.sizes(model.location, model.revision))
        for model in models.values()
    }
    needed = sum(sizes.values()) * width // 2  # checkpoints of this size are stored in 16 bits
    there = memory.machine_memory()
    if needed <= there:
        return None
    verb = "need" if len(sizes) > 1 else "needs"
    return UserError(
        f"{' and '.join(sizes)} {verb} {memory.gib(needed)} of memory, but this machine has"
        f" {memory.gib(there)} and no usable GPU: choose a smaller model, or a machine with"
        " a GPU"
    )
