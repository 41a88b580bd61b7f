"""Training a head: Muon on matrices, AdamW on the rest, progress, and going on after a kill."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from semspec.artifacts import inspection
from semspec.artifacts.base import CARD as CARD_NAME
from semspec.artifacts.base import CONFIG, TENSORS
from semspec.storage.files import replacing, write_all

EVERY = 50  # steps between two lines and two states on disk
Batch = tuple[Tensor, Tensor, Tensor]
"""Tokens [b, n], which of them are learned [b, n], the target's states [b, n, layers, width]."""
Loss = Callable[[dict[str, Tensor], Batch], tuple[Tensor, list[float]]]
"""The loss, and how often the head's favourite is the target's, of each token it looks ahead."""


def train(
    parameters: dict[str, Tensor],
    loss_of: Loss,
    batches: Callable[[int], Iterator[Batch]],
    steps: int,
    state: Path,
    outer: Collection[str],
    matrix_rate: float = 3e-3,
    other_rate: float = 2e-3,
) -> float:
    """Trains the parameters in place, from where ``state`` says; the CPU seconds that it took in all.

    ``outer`` names matrices that Muon is not for: those that give the logits.
    """
    for p in parameters.values():
        p.requires_grad_(True)
    matrices = [n for n, p in parameters.items() if p.ndim == 2 and n not in outer]
    others = [n for n in parameters if n not in matrices]
    optimizers: list[tuple[torch.optim.Optimizer, list[str], float]] = [
        (
            torch.optim.Muon(
                [parameters[n] for n in matrices],
                matrix_rate,
                weight_decay=0.01,
                momentum=0.95,
                nesterov=True,
                adjust_lr_fn="match_rms_adamw",
            ),
            matrices,
            matrix_rate,
        ),
        (
            torch.optim.AdamW(
                [parameters[n] for n in others], other_rate, betas=(0.9, 0.98), weight_decay=0.0
            ),
            others,
            other_rate,
        ),
    ]
    first, seconds = _restore(state, parameters, optimizers)
    rows, began = batches(first), time.process_time() - seconds
    for step in range(first, steps):
        factor = min(1.0, (step + 1) / 30) * min(1.0, max(0.02, 2 * (1 - step / steps)))
        for optimizer, _, rate in optimizers:
            optimizer.param_groups[0]["lr"] = rate * factor
        loss, right = loss_of(parameters, next(rows))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(parameters.values()), 1.0)
        for optimizer, _, _ in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if (step + 1) % EVERY == 0 or step + 1 == steps:
            seconds = time.process_time() - began
            told = f"loss {loss.item():.3f}  right {' '.join(f'{r:.3f}' for r in right)}"
            print(f"{step + 1:5d}/{steps}  {told}  {seconds:5.0f} s", flush=True)
            _keep(state, parameters, optimizers, step + 1, seconds)
    for p in parameters.values():
        p.requires_grad_(False)
    return seconds


Optimizers = list[tuple[torch.optim.Optimizer, list[str], float]]


def _keep(
    path: Path, parameters: dict[str, Tensor], optimizers: Optimizers, step: int, seconds: float
) -> None:
    tensors = {f"parameter {name}": p.detach().clone() for name, p in parameters.items()}
    for optimizer, names, _ in optimizers:
        for name in names:
            for key, value in optimizer.state[parameters[name]].items():
                tensors[f"{key} {name}"] = torch.as_tensor(value).clone()
    tensors["step"] = torch.tensor(step)
    tensors["seconds"] = torch.tensor(seconds, dtype=torch.float64)
    with replacing(path) as fd:
        write_all(fd, save(tensors))


def _restore(
    path: Path, parameters: dict[str, Tensor], optimizers: Optimizers
) -> tuple[int, float]:
    if not path.exists():
        return 0, 0.0
    kept = load(path.read_bytes())
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(kept[f"parameter {name}"])
    for optimizer, names, _ in optimizers:
        for name in names:
            optimizer.state[parameters[name]] = {
                key.split(" ")[0]: value
                for key, value in kept.items()
                if key.endswith(f" {name}") and not key.startswith("parameter ")
            }
    return int(kept["step"]), float(kept["seconds"])


def held_out(parameters: dict[str, Tensor], loss_of: Loss, batches: Sequence[Batch]) -> list[float]:
    """How often the head's favourite is the target's over solutions that it was not trained on."""
    with torch.no_grad():
        rights = [loss_of(parameters, batch)[1] for batch in batches]
    return [sum(column) / len(column) for column in zip(*rights, strict=True)]


CARD = """\
---
license: apache-2.0
library_name: semspec
tags: [semspec, speculative-decoding, tiny]
---
# {name}

{what} of semspec's embedded target (`{target}`), in the format of the published ones, bfloat16,
{parameters:.2f} M parameters. Trained by `{script}` on {solutions} solutions of the embedded
world in {seconds:.0f} CPU seconds, against the target's own distribution.

How often its favourite token is the target's, over solutions that it was not trained on and given
that the tokens before are right, for the first, second, ... token of a draft:
{right}

`docs/token_level.md` has what it gains when it drafts.
"""


def write_head(
    folder: Path, tensors: dict[str, Tensor], config: object, training: dict[str, Any]
) -> None:
    """Floats in bfloat16, config.json, how it was trained, a card and a manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        n: (t.detach().bfloat16() if t.is_floating_point() else t).contiguous()
        for n, t in tensors.items()
    }
    with replacing(folder / TENSORS) as fd:
        write_all(fd, save(stored))
    for file, content in ((CONFIG, config), ("training.json", training)):
        (folder / file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    card = CARD.format(
        name=folder.name,
        what=training["what"],
        target=training["target"],
        parameters=sum(t.numel() for t in tensors.values() if t.is_floating_point()) / 1e6,
        script=training["script"],
        solutions=training["solutions"],
        seconds=training["seconds"],
        right=", ".join(f"{r:.3f}" for r in training["agreement"]) + ".",
    )
    (folder / CARD_NAME).write_text(card, encoding="utf-8")
    inspection.seal(folder)
