"""Help for training small models: optimizers and learning rates, stages that survive a kill, training.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

IGNORED = -100  # the label of a token that is not learned
NARROW = (
    torch.ops.mkldnn._is_mkldnn_bf16_supported()
)  # elsewhere 16 bits are ten times slower than 32


def narrow() -> torch.autocast:
    """Return a context that multiplies in 16 bits, if this CPU is faster with them."""
    return torch.autocast("cpu", torch.bfloat16, enabled=NARROW)


class Muon(torch.optim.Optimizer):
    """Muon as in ``torch.optim``, but without 16 bits on a CPU that cannot multiply them.

    Matrices of one shape are orthogonalized together, by the same quintic iteration.
    """

    def __init__(self, parameters: Sequence[Tensor], rate: float, decay: float) -> None:
        super().__init__(parameters, {"lr": rate, "weight_decay": decay, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(p.shape, []).append(p)
            for shape, alike in shapes.items():
                updates = torch.stack([self._nesterov(p, group["momentum"]) for p in alike])
                # the root mean square of an update is AdamW's, so that rates are alike
                rate = group["lr"] * 0.2 * max(shape) ** 0.5
                for p, update in zip(alike, orthogonal(updates), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)

    def _nesterov(self, p: Tensor, momentum: float) -> Tensor:
        assert p.grad is not None
        state = self.state[p]
        average = state.setdefault("momentum", torch.zeros_like(p))
        average.lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(average, momentum)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices with singular values near 1, by five quintic Newton-Schulz iterations."""
    x = matrices.bfloat16() if NARROW else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, -4.7750 * gram + 2.0315 * gram @ gram, x, beta=3.4445)
    return (x.mT if tall else x).to(matrices.dtype)


class Optimizers:
    """Muon for the matrices inside the blocks, AdamW for everything else."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        matrices: Collection[str],
        rates: tuple[float, float],
        decay: float = 0.02,
    ) -> None:
        names = (
            [n for n in parameters if n in matrices],
            [n for n in parameters if n not in matrices],
        )
        inside, others = ([parameters[n] for n in part] for part in names)
        muon = Muon(inside, rates[0], decay)
        adam = torch.optim.AdamW(others, rates[1], betas=(0.9, 0.98), weight_decay=0.0)
        self.parameters = list(parameters.values())
        self.each = list(zip((muon, adam), names, rates, strict=True))

    def step(self, loss: Tensor, factor: float) -> None:
        """Learn from a loss, at both rates times ``factor``."""
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimizer, _, rate in self.each:
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def for_blocks(model: torch.nn.Module, mark: str, rates: tuple[float, float]) -> Optimizers:
    """Return the optimizers of a model whose blocks' parameters have ``mark`` in their names."""
    named = dict(model.named_parameters())
    return Optimizers(named, {n for n, p in named.items() if p.ndim == 2 and mark in n}, rates)


def falling(step: int, steps: int, warmup: int, constant: float, floor: float) -> float:
    """Return the learning rate's factor: it rises, stays for a share of the steps, and falls to ``floor``."""
    factor, progress = min(1.0, (step + 1) / warmup), step / steps
    if progress > constant:
        factor *= max(floor, 1 - (progress - constant) / (1 - constant))
    return factor


@contextmanager
def completing(folder: Path) -> Iterator[Path]:
    """Yield a folder that gets its name once it is complete; leftovers of a kill are removed."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    yield part
    part.rename(folder)


def write_training(folder: Path, training: Mapping[str, Any]) -> None:
    text = json.dumps(training, indent=1) + "\n"
    (folder / "training.json").write_text(text, encoding="utf-8")


def write_legs(folder: Path, script: str, legs: Sequence[tuple[Any, float]], **more: Any) -> None:
    """Write to training.json how a model was trained: every leg (a dataclass) with its seconds."""
    stages = [asdict(stage) | {"seconds": seconds} for stage, seconds in legs]
    seconds = sum(seconds for _, seconds in legs)
    write_training(folder, {"script": script, **more, "seconds": seconds, "stages": stages})
