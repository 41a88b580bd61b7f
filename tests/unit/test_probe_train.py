"""Training a probe: when it stops, and which weights it keeps."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from semspec.training.probes.dataset import Batch
from semspec.training.probes.train import train, validation_loss
from tests.support.probes import configuration


class Noise:
    """Rows whose targets have nothing to do with them: what is learned holds for no other row."""

    size = 12

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(count, self.size, generator=generator)
        self.target = (torch.rand(count, generator=generator) < 0.5).float()

    def batches(
        self, rows: Sequence[int], size: int, rng: random.Random | None = None
    ) -> Iterator[Batch]:
        order = list(rows)
        if rng is not None:
            rng.shuffle(order)
        for start in range(0, len(order), size):
            index = torch.tensor(order[start : start + size])
            yield Batch(self.x[index], index)


@pytest.mark.parametrize("patience", [2, 5])
def test_training_stops_when_only_the_training_rows_improve(tmp_path: Path, patience: int) -> None:
    more = ("epochs=40", f"patience={patience}", "rate=0.01", "train_batch=16", "dropout=0")
    config = configuration(tmp_path, *more, "train_device=cpu")
    rows: Any = Noise(120)
    validation = range(60, 120)
    told: list[int] = []
    made = train(rows, range(60), validation, config, lambda epoch, _: told.append(epoch))
    held_out = [loss for _, loss in made.losses]
    assert made.epochs == made.best_epoch + patience < 40
    assert told == list(range(1, made.epochs + 1)) and len(held_out) == made.epochs
    assert made.best_epoch == 1 + held_out.index(min(held_out))
    assert made.losses[-1][0] < made.losses[0][0], "the rows that it learns from get better"
    # what is kept are the weights of the best epoch, not of the last one
    kept = validation_loss(made.model(), rows, validation, made.mean, 1 / made.std, config.loss)
    assert kept == pytest.approx(min(held_out), abs=1e-3)
    assert held_out[-1] > kept + 5e-3
