"""Train ``hub_artifacts/tiny-copier``: a target for tasks whose solutions repeat their question.

    python scripts/train_tiny_copier.py --out hub_artifacts/tiny-copier

Copying drafters need repetitive texts. The embedded target never saw such tasks, so this
one takes its six oldest blocks (every fourth: the others were added as copies, see
train_tiny_pair.py), which can already recall values, and learns to edit and to quote. It uses the pair's
tokenizer and has no draft model.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from script_kit import HUB, parser, read
from torch import Tensor
from train_tiny_pair import Rows, Stage, configuration, fit, ship, task_row
from training_kit import write_legs
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from semspec.models.location import weights_fingerprint
from semspec.storage.packaged import beside_package
from semspec.storage.swap import check_replaceable
from semspec.world.reuse import Editing, Grounded, Reuse

EVERY = 4  # of the target's blocks
ROWS = 10  # in a batch
TASKS: tuple[Reuse, ...] = (Editing(), Grounded())
# each leg starts from the one before; a killed leg begins again
LEGS = (
    Stage("copier1", 21, 6, 600, ROWS, 0, 0.0, 3e-3, 2e-3, 20, 0.5, 0.02, "tiny-target", bias=True),
    Stage("copier2", 22, 6, 900, ROWS, 0, 0.0, 3e-3, 2e-3, 20, 0.4, 0.01, "copier1", bias=True),
)


def shortened(source: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a model of every fourth block."""
    small = LlamaForCausalLM(configuration(LEGS[0].layers, tokenizer, LEGS[0].bias))
    kept: dict[str, Tensor] = {}
    for key, value in source.state_dict().items():
        found = re.match(r"model\.layers\.(\d+)\.(.+)", key)
        if found is None:
            kept[key] = value
        elif int(found[1]) % EVERY == 0:
            kept[f"model.layers.{int(found[1]) // EVERY}.{found[2]}"] = value
    small.load_state_dict(kept)
    return small


def batches(rows: Rows, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    rng = random.Random(seed)
    while True:
        encoded = rows.encode([task_row(rng, rng.choice(TASKS)) for _ in range(20 * ROWS)])
        encoded.sort(key=lambda row: len(row[0]))
        groups = [encoded[i : i + ROWS] for i in range(0, len(encoded), ROWS)]
        rng.shuffle(groups)
        for group in groups:
            yield rows.collate(group, [])


def main() -> int:
    a = parser(__doc__, out=HUB / "tiny-copier", threads=os.cpu_count() or 1).parse_args()
    torch.set_num_threads(a.threads)
    target = beside_package("hub_artifacts") / "tiny-target"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(target)
    rows = Rows(tokenizer, 0)
    done = [(s, t) for s in LEGS if (t := finished(a.out, s)) is not None]
    if not done:
        check_replaceable(a.out, "model")
    for stage in LEGS[len(done) :]:
        torch.manual_seed(stage.seed)
        begin = a.out if done else target
        model = LlamaForCausalLM.from_pretrained(begin, dtype=torch.float32)
        if not done:
            model = shortened(model, tokenizer)
        done.append((stage, fit(model, stage, batches(rows, stage.seed), rows.is_value)))
        ship(model, a.out, tokenizer)
        begun = weights_fingerprint(target.resolve())
        write_legs(a.out, "scripts/train_tiny_copier.py", done, fingerprint=begun)
    return 0


def finished(folder: Path, stage: Stage) -> float | None:
    """Return the seconds of a leg that the folder's weights have been trained with."""
    file = folder / "training.json"
    legs = read(file)["stages"] if file.exists() else []
    return next((leg["seconds"] for leg in legs if leg["name"] == stage.name), None)


if __name__ == "__main__":
    sys.exit(main())
