"""Train the embedded Medusa heads in ``hub_artifacts/medusa-tiny``, on a CPU, seeded.

    python scripts/train_medusa.py --work /tmp/heads [--out hub_artifacts/medusa-tiny]

Medusa-1 (Cai et al. 2024, section 2.2.1): the target stays frozen, head k learns to predict token i + k + 2
from the state of position i, with weight 0.8^k. Both stages resume after a kill; the target's states
are those that ``train_eagle3.py`` saves.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tiny_head_data import Batch, Row, collect
from tiny_head_training import HELD_OUT, TINY, begin, learn, write_head
from torch import Tensor
from training_kit import narrow

from semspec.heads._files import from_target
from semspec.heads.medusa import Medusa, Shape, config_of

DECAY = 0.8  # weight of a head relative to the one before it
OPTIONS = {"steps": 1500, "batch": 12, "heads": 4}


def loss_of(heads: Medusa, teacher: Tensor, batch: Batch) -> tuple[Tensor, list[float]]:
    """Return the cross-entropy of every head with the target's own distribution of its token."""
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
    a, target, spec, some = begin(__doc__, "medusa", **OPTIONS)
    layers = (*some, -1)  # of which only the last is read: the others are kept for EAGLE-3
    rows = collect(target, layers, a.solutions, a.seed, a.work)
    size = (spec.vocabulary, spec.width)
    name = "model.embed_tokens.weight" if spec.tied else "lm_head.weight"
    teacher = from_target(target, name, size).float()
    shape = Shape(a.heads, 1, spec.width, spec.vocabulary)
    # as published: blocks begin as the identity, the last matrices as the target's own
    parameters = {
        name: teacher.clone() if len(wanted) == 2 and wanted == size else torch.zeros(wanted)
        for name, (wanted, _) in shape.layout().items()
    }

    def loss(own: dict[str, Tensor], batch: Batch) -> tuple[Tensor, list[float]]:
        with narrow():
            return loss_of(Medusa(shape, own), teacher, batch)

    outer = {n for n, p in parameters.items() if tuple(p.shape) == size}

    def fresh() -> list[Row]:
        return collect(target, layers, HELD_OUT, a.seed + 1, a.work)

    words = TINY | {"what": "Medusa heads"}
    training = learn(a, "train_medusa", words, rows, fresh, parameters, loss, outer)
    write_head(a.out, parameters, config_of(shape, a.target), training)


if __name__ == "__main__":
    main()
