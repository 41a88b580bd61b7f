"""Trains the embedded Medusa heads in ``hub_artifacts/medusa-tiny``, on a CPU, seeded.

    python scripts/train_medusa.py --work /tmp/heads [--out hub_artifacts/medusa-tiny]

Medusa-1 (Cai et al. 2024, section 2.2.1): the target stays as it is, head k learns what token i + k + 2 is
from the state of position i, and counts 0.8^k. Both stages go on after a kill; the target's states
are those that ``train_eagle3.py`` keeps.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from tiny_head_data import batches, collect
from tiny_head_training import Batch, held_out, train, write_head
from torch import Tensor

from semspec.heads._files import from_target
from semspec.heads.medusa import Medusa, Shape, config_of
from semspec.models.location import ModelConfig
from semspec.models.spec import read_spec
from semspec.storage.swap import check_replaceable

DECAY = 0.8  # what a head counts, relative to the one before it
HELD_OUT = 100  # solutions


def loss_of(heads: Medusa, teacher: Tensor, batch: Batch) -> tuple[Tensor, list[float]]:
    """Cross-entropy of every head with the target's own distribution of its token."""
    tokens, learned, states = batch
    last = states[..., -1, :]
    with torch.no_grad():
        raw = F.linear(last, teacher)
        goal, best = raw.softmax(-1), raw.argmax(-1)
    total, right = torch.zeros(()), []
    rows = heads.logits(last.flatten(0, 1)).unflatten(1, tokens.shape)
    for k, logits in enumerate(rows):
        # token i + k + 2 is what the target's row i + k + 1 predicts
        mask = learned[:, k + 2 :]
        own, ahead = logits[:, : mask.shape[1]][mask], goal[:, k + 1 : -1][mask]
        total = total - DECAY**k * (ahead * own.log_softmax(-1)).sum(-1).mean()
        right.append((own.argmax(-1) == best[:, k + 1 : -1][mask]).float().mean().item())
    return total, right


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--work", type=Path, required=True, help="states of the target, and progress"
    )
    parser.add_argument("--out", type=Path, default=Path("hub_artifacts/medusa-tiny"))
    parser.add_argument("--target", default="embedded/tiny-target")
    parser.add_argument("--solutions", type=int, default=1600)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    check_replaceable(arguments.out, "medusa_head")
    torch.set_num_threads(1)
    target = ModelConfig(path=arguments.target).fetch()
    spec = read_spec(target, 0)
    layers = (2, spec.layers // 2, spec.layers - 3, -1)
    rows = collect(target, layers, arguments.solutions, arguments.seed, arguments.work)
    size = (spec.vocabulary, spec.width)
    name = "model.embed_tokens.weight" if spec.tied else "lm_head.weight"
    teacher = from_target(target, name, size).float()
    shape = Shape(arguments.heads, 1, spec.width, spec.vocabulary)
    # as published: blocks begin as the identity, the last matrices as the target's own
    parameters = {
        name: teacher.clone() if len(wanted) == 2 and wanted == size else torch.zeros(wanted)
        for name, (wanted, _) in shape.layout().items()
    }

    def loss(own: dict[str, Tensor], batch: Batch) -> tuple[Tensor, list[float]]:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(Medusa(shape, own), teacher, batch)

    seconds = train(
        parameters,
        loss,
        lambda first: batches(rows, arguments.batch, arguments.seed, first),
        arguments.steps,
        arguments.work / f"medusa-{arguments.seed}.safetensors",
        outer={n for n, p in parameters.items() if tuple(p.shape) == size},
    )
    fresh = collect(target, layers, HELD_OUT, arguments.seed + 1, arguments.work)
    some = list(islice(batches(fresh, 10, 0), HELD_OUT // 10))
    told = {
        "what": "Medusa heads",
        "script": "scripts/train_medusa.py",
        "target": arguments.target,
        "seconds": seconds,
        "agreement": held_out(parameters, loss, some),
        **{k: v for k, v in vars(arguments).items() if k not in ("work", "out", "target")},
    }
    write_head(arguments.out, parameters, config_of(shape, arguments.target), told)


if __name__ == "__main__":
    main()
