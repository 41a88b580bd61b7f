"""A small probe with random weights, and options for a small, fast sampling of the embedded draft."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from semspec.artifacts.probe import Probe
from semspec.models.location import ModelFacts
from semspec.probes.features import LOGPROB_NAMES
from semspec.probes.mlp import shapes
from semspec.training.probes.compose import build
from semspec.training.probes.settings import ProbeConfig

LAYERS, WIDTH = 3, 8
FACTS = ModelFacts("owner/model", "c0ffee" * 6, "", LAYERS, WIDTH, "f" * 64)


def options(folder: Path, *more: str) -> list[str]:
    """Return options for a quick training of the embedded draft's probe."""
    return [
        "model.path=embedded/tiny-draft",
        f"folder={folder}",
        "problems=14",
        "per_problem=1",
        "samples=6",
        "batch=5",
        "cluster=oracle",
        "pooling=[mean,max,last]",
        "hidden=[16,8]",
        "epochs=3",
        *more,
    ]


def configuration(folder: Path, *more: str) -> ProbeConfig:
    return build(options(folder, *more))


def random_probe(
    pooling: Sequence[str] = ("mean",),
    layers: Sequence[int] = (),
    logprobs: bool = False,
    activation: str = "relu",
    facts: ModelFacts = FACTS,
    seed: int = 0,
    **changes: Any,
) -> Probe:
    """Return an untrained probe."""
    torch.manual_seed(seed)
    rows = len(layers) or facts.layers + 1
    size = len(pooling) * rows * facts.width + logprobs * len(LOGPROB_NAMES)
    tensors = {n: 0.3 * torch.randn(shape) for n, shape in shapes(size, (6, 4)).items()}
    tensors |= {"mean": torch.randn(size), "std": torch.rand(size) + 0.5}
    tensors |= {f"calibration.{n}": torch.rand(5) for n in ("scores", "semantic")}
    tensors["calibration.groups"] = torch.arange(5)
    config: dict[str, Any] = {
        "kind": "probe",
        "version": 1,
        "role": "target",
        "model": {
            "id": facts.name,
            "revision": facts.revision,
            "fingerprint": facts.fingerprint,
            "layers": facts.layers,
            "width": facts.width,
            "tokenizer": facts.tokenizer,
        },
        "split": "paragraph",
        "temperature": {"sampled": 0.6, "lowest": 0.0, "highest": 1.0},
        "features": {
            "pooling": list(pooling),
            "layers": list(layers),
            "logprobs": logprobs,
            "inputs": size,
            "hidden": [6, 4],
            "activation": activation,
        },
        "data": {},
        "training": {},
        "metrics": {},
    }
    return Probe(config | changes, tensors, {"README.md": "# a probe\n"})
