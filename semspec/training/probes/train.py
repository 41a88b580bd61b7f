"""Stage 4: train the perceptron on semantic probabilities (AdamW, early stopping, seeded)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semspec.errors import UserError
from semspec.training.probes.dataset import Parts, Rows
from semspec.training.probes.settings import ProbeConfig

EVALUATED = 1024  # batch size where nothing is trained


class Mlp(nn.Module):
    """A perceptron over standardised rows that returns logits."""

    def __init__(
        self, inputs: int, hidden: Sequence[int], activation: str, dropout: float = 0.0
    ) -> None:
        super().__init__()
        sizes = [inputs, *hidden, 1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False))
        self.activation = activation
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [rows] of rows [rows, inputs]."""
        for i, layer in enumerate(self.layers):
            x = F.dropout(x, self.dropout, self.training)
            x = layer(x)
            if i < len(self.layers) - 1:
                x = F.gelu(x) if self.activation == "gelu" else F.relu(x)
        return x.squeeze(-1)


@dataclass(slots=True)
class Trained:
    """Weights and normalisation of a probe, and the course of its training."""

    weights: dict[str, Tensor]
    mean: Tensor
    std: Tensor
    hidden: list[int]
    activation: str
    epochs: int = 0
    best_epoch: int = 0
    losses: list[tuple[float, float]] = field(default_factory=list)  # training, validation

    def model(self) -> Mlp:
        made = Mlp(len(self.mean), self.hidden, self.activation)
        made.load_state_dict(self.weights)
        return made.eval()


def moments(rows: Rows, index: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of every feature over these rows, in one pass."""
    count, total = 0, torch.zeros(rows.size, dtype=torch.float64)
    shift: Tensor | None = None  # near the mean, to avoid cancellation in the squares
    second = torch.zeros(rows.size, dtype=torch.float64)
    for batch in rows.batches(index, EVALUATED):
        x = batch.x.double()
        shift = x.mean(0) if shift is None else shift
        x -= shift
        count += len(x)
        total += x.sum(0)
        second += x.square().sum(0)
    assert shift is not None and count
    mean = total / count
    std = (second / count - mean.square()).clamp_min(0).sqrt()
    std[std < 1e-6] = 1.0  # constant features, such as the embedding of the token that ends a step
    return (mean + shift).float(), std.float()


def train(
    rows: Rows,
    training: Sequence[int],
    validation: Sequence[int],
    config: ProbeConfig,
    tell: Callable[[int, float], None] = lambda *_: None,
) -> Trained:
    """Train one probe; stop after ``patience`` epochs without a better validation loss."""
    torch.manual_seed(config.train_seed)
    mean, std = moments(rows, training)
    device = device_of(config.train_device)
    model = Mlp(rows.size, config.hidden, config.activation, config.dropout).to(device)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=config.rate, weight_decay=config.weight_decay
    )
    rng = random.Random(f"{config.train_seed} batches")
    made = Trained({}, mean, std, list(config.hidden), config.activation)
    best = float("inf")
    shift, inverse = mean.to(device), (1 / std).to(device)
    for epoch in range(1, config.epochs + 1):
        model.train()
        total = 0.0
        for batch in rows.batches(training, config.train_batch, rng):
            optimiser.zero_grad(set_to_none=True)
            found = model((batch.x.to(device) - shift) * inverse)
            loss = _loss(found, rows.target[batch.index].to(device), config.loss)
            loss.backward()  # type: ignore[no-untyped-call,unused-ignore]
            optimiser.step()
            total += float(loss.detach()) * len(batch.index)
        held_out = validation_loss(model, rows, validation, shift, inverse, config.loss)
        made.losses.append((total / len(training), held_out))
        made.epochs = epoch
        tell(epoch, held_out)
        if held_out < best:
            best, made.best_epoch = held_out, epoch
            made.weights = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
        elif epoch - made.best_epoch >= config.patience:
            break
    if not made.weights:
        raise UserError("the training loss is not a number: give a lower rate=")
    # round as the artifact will store them, so that its figures hold for the stored weights
    made.weights = {name: w.half().float() for name, w in made.weights.items()}
    return made


def device_of(name: str) -> torch.device:
    """Return the training device; auto is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    elif name == "cuda" and not torch.cuda.is_available():
        raise UserError("train_device=cuda, but this machine has no GPU: use train_device=auto")
    return torch.device(name)


def _loss(logits: Tensor, target: Tensor, kind: str) -> Tensor:
    if kind == "mse":
        return F.mse_loss(logits.sigmoid(), target)
    return F.binary_cross_entropy_with_logits(logits, target)


@torch.inference_mode()
def validation_loss(
    model: Mlp, rows: Rows, index: Sequence[int], shift: Tensor, inverse: Tensor, kind: str
) -> float:
    model.eval()
    total = 0.0
    for batch in rows.batches(index, EVALUATED):
        logits = model((batch.x.to(shift.device) - shift) * inverse)
        target = rows.target[batch.index].to(shift.device)
        total += float(_loss(logits, target, kind)) * len(batch.index)
    return total / len(index)


@torch.inference_mode()
def predict(made: Trained, rows: Rows, index: Sequence[int]) -> np.ndarray:
    """Return the probe's probabilities for these rows, in order."""
    model, inverse = made.model(), 1 / made.std
    scores = np.zeros(len(rows), dtype=np.float32)
    for batch in rows.batches(index, EVALUATED):
        scores[batch.index.numpy()] = model((batch.x - made.mean) * inverse).sigmoid().numpy()
    return scores[list(index)]


def tensors_of(
    made: Trained, rows: Rows, score: np.ndarray, test: Sequence[int]
) -> dict[str, Tensor]:
    """Return an artifact's tensors; ``score`` holds the test rows' scores, in order.

    The calibration tensors take the test steps of the kind that a rule judges: the other model's, if there are any.
    """
    judged = [at for at, i in enumerate(test) if not rows.own[i]] or list(range(len(test)))
    numbers = {name: n for n, name in enumerate(sorted(set(rows.chains)))}
    chosen = [test[at] for at in judged]
    return {
        **{key: w.half() for key, w in made.weights.items()},
        "mean": made.mean,
        "std": made.std,
        "calibration.scores": torch.tensor(score[judged], dtype=torch.float32),
        "calibration.semantic": rows.target[chosen].clone(),
        "calibration.groups": torch.tensor([numbers[rows.chains[i]] for i in chosen]),
    }


def described(
    config: ProbeConfig, made: Trained, rows: Rows, index: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Return the training record for an artifact's config."""
    return {
        **config.learning,
        "epochs": made.epochs,
        "best_epoch": made.best_epoch,
        "rows": {part: len(index[part]) for part in Parts},
        "problems": {part: len({rows.chains[i] for i in index[part]}) for part in Parts},
    }
