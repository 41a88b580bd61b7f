"""Training a head: Muon on matrices, AdamW on the rest, progress, and resuming after a kill."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from script_kit import HUB, parser
from tiny_head_data import Batch, Row, batches
from torch import Tensor
from training_kit import Optimizers, write_training

from semspec.artifacts import inspection
from semspec.artifacts.base import CARD as CARD_NAME
from semspec.artifacts.base import CONFIG, TENSORS
from semspec.models.location import ModelConfig, weights_fingerprint
from semspec.models.spec import Spec, read_spec
from semspec.storage.files import replacing, write_all
from semspec.storage.swap import check_replaceable

EVERY = 50  # steps between two lines and two states on disk
HELD_OUT = 100  # solutions
TARGET = "embedded/tiny-target"
COMMON = {"solutions": 1600, "seed": 0}
TINY = {
    "owner": "semspec's embedded target",
    "data": "solutions of the embedded world",
    "page": "docs/token_level.md",
}
Loss = Callable[[dict[str, Tensor], Batch], tuple[Tensor, list[float]]]
"""The loss, and how often the head's favourite is the target's, of each token it looks ahead."""


def begin(doc: str | None, name: str, **own: Any) -> tuple[Namespace, Path, Spec, tuple[int, ...]]:
    """Read the command line; return it with the target's folder, its shape, and three of its layers."""
    work = (Path, "states of the target, and progress")
    places = {"work": work, "out": HUB / f"{name}-tiny", "target": TARGET}
    a = parser(doc, **places, **own, **COMMON).parse_args()
    check_replaceable(a.out, f"{name}_head")
    torch.set_num_threads(1)
    folder = ModelConfig(path=a.target).fetch()
    spec = read_spec(folder, 0)
    return a, folder, spec, layers_of(spec)


def layers_of(spec: Spec) -> tuple[int, ...]:
    """Return the layers whose states are kept: a low, a middle and a high one."""
    return 2, spec.layers // 2, spec.layers - 3


def learn(
    a: Namespace,
    script: str,
    words: Mapping[str, str],
    rows: Sequence[Row],
    fresh: Callable[[], Sequence[Row]],
    parameters: dict[str, Tensor],
    loss_of: Loss,
    outer: Collection[str],
) -> dict[str, Any]:
    """Train the parameters in place, and return what training.json says.

    ``words`` are for the card (TINY). ``fresh`` gives rows for measuring that are not trained on. ``outer`` names
    matrices that Muon does not train: those that give the logits.
    """
    for p in parameters.values():
        p.requires_grad_(True)
    matrices = {n for n, p in parameters.items() if p.ndim == 2 and n not in outer}
    optimizers = Optimizers(parameters, matrices, (3e-3, 2e-3), decay=0.01)
    state = a.work / f"{script}-{a.seed}.safetensors"
    first, seconds = _restore(state, parameters, optimizers)
    drawn, began = batches(rows, a.batch, a.seed, first), time.process_time() - seconds
    for step in range(first, a.steps):
        loss, right = loss_of(parameters, next(drawn))
        fall = min(1.0, max(0.02, 2 * (1 - step / a.steps)))
        optimizers.step(loss, min(1.0, (step + 1) / 30) * fall)
        if (step + 1) % EVERY == 0 or step + 1 == a.steps:
            seconds = time.process_time() - began
            shares = " ".join(f"{r:.3f}" for r in right)
            done = f"{step + 1:5d}/{a.steps}  loss {loss.item():.3f}  right {shares}"
            print(f"{done}  {seconds:5.0f} s", flush=True)
            _keep(state, parameters, optimizers, step + 1, seconds)
    for p in parameters.values():
        p.requires_grad_(False)
    # how often the head's top token is the target's, over rows not trained on
    apart = fresh()
    drawn = islice(batches(apart, 10, 0), len(apart) // 10)
    with torch.no_grad():
        rights = [loss_of(parameters, batch)[1] for batch in drawn]
    return {
        **words,
        "script": f"scripts/{script}.py",
        "target": a.target,
        "fingerprint": weights_fingerprint(ModelConfig(path=a.target).fetch().resolve()),
        "seconds": seconds,
        "agreement": [sum(column) / len(column) for column in zip(*rights, strict=True)],
        **{k: v for k, v in vars(a).items() if k not in ("work", "out", "target")},
    }


def _keep(
    path: Path, parameters: dict[str, Tensor], optimizers: Optimizers, step: int, seconds: float
) -> None:
    tensors = {f"parameter {name}": p.detach().clone() for name, p in parameters.items()}
    for optimizer, names, _ in optimizers.each:
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
    for optimizer, names, _ in optimizers.each:
        for name in names:
            optimizer.state[parameters[name]] = {
                key.split(" ")[0]: value
                for key, value in kept.items()
                if key.endswith(f" {name}") and not key.startswith("parameter ")
            }
    return int(kept["step"]), float(kept["seconds"])


CARD = """\
---
license: apache-2.0
library_name: semspec
tags: [semspec, speculative-decoding, tiny]
---
# {name}

{what} of {owner} (`{target}`), in the format of the published ones, bfloat16,
{parameters:.2f} M parameters. Trained by `{script}` on {rows} {data}
in {seconds:.0f} CPU seconds, against the target's own distribution.

How often its favourite token is the target's, over such rows that it was not trained on and given
that the tokens before are right, for the first, second, ... token of a draft:
{right}

`{page}` has what it gains when it drafts.
"""


def write_head(
    folder: Path, tensors: dict[str, Tensor], config: object, training: dict[str, Any]
) -> None:
    """Write a head: floats in bfloat16, config.json, training.json, a card and a manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        n: (t.detach().bfloat16() if t.is_floating_point() else t).contiguous()
        for n, t in tensors.items()
    }
    with replacing(folder / TENSORS) as fd:
        write_all(fd, save(stored))
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    write_training(folder, training)
    card = CARD.format(
        name=folder.name,
        parameters=sum(t.numel() for t in tensors.values() if t.is_floating_point()) / 1e6,
        right=", ".join(f"{r:.3f}" for r in training["agreement"]) + ".",
        rows=training["solutions"],
        **{
            name: training[name]
            for name in ("what", "owner", "data", "page", "target", "script", "seconds")
        },
    )
    (folder / CARD_NAME).write_text(card, encoding="utf-8")
    inspection.seal(folder)
