"""Help for the training of small models: optimizers and rates, stages that survive a kill, training.json."""

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

IGNORED = -100  # the label of a token that nothing is learned from


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
        muon = torch.optim.Muon(
            inside, rates[0], weight_decay=decay, adjust_lr_fn="match_rms_adamw"
        )
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
    """Return a rate's factor: it rises, stays for a share of the steps, and falls to ``floor``."""
    factor, progress = min(1.0, (step + 1) / warmup), step / steps
    if progress > constant:
        factor *= max(floor, 1 - (progress - constant) / (1 - constant))
    return factor


@contextmanager
def completing(folder: Path) -> Iterator[Path]:
    """Yield a folder that takes its name once it is complete; what a kill left of it is removed."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    yield part
    part.rename(folder)


def write_training(folder: Path, training: Mapping[str, Any]) -> None:
    text = json.dumps(training, indent=1) + "\n"
    (folder / "training.json").write_text(text, encoding="utf-8")


def write_legs(folder: Path, script: str, legs: Sequence[tuple[Any, float]]) -> None:
    """Say in training.json how a model was trained: every leg (a dataclass) with its seconds."""
    stages = [asdict(stage) | {"seconds": seconds} for stage, seconds in legs]
    seconds = sum(seconds for _, seconds in legs)
    write_training(folder, {"script": script, "seconds": seconds, "stages": stages})
