"""Train variants of the embedded target that write the same with other log-probabilities, on a CPU, seeded.

    python scripts/train_other_targets.py --out runs/variants/distilled-2.5 --temperature 2.5
    python scripts/train_other_targets.py --out runs/variants/smoothed-0.1 --smoothing 0.1

``--temperature``: the target learns, at temperature 1, its own distribution at the given temperature. With 2.5, sample it at
0.6 / 2.5 to get what the original writes at 0.6. ``--smoothing``: it continues to learn the world's solutions with that share of
every label spread over the vocabulary. docs/measurements/thresholds.md says what they are for.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from script_kit import HUB, parser
from torch import Tensor
from train_tiny_pair import Rows, Stage, ship
from training_kit import IGNORED, falling, for_blocks, narrow, write_training
from transformers import AutoTokenizer, LlamaForCausalLM

EVERY = 10  # steps between two lines
Both = tuple[Tensor, Tensor]


def losses(a: Namespace, student: LlamaForCausalLM, batches: Iterator[Both]) -> Iterator[Tensor]:
    """Yield the loss of each batch; for a distribution, minus the entropy that no model could avoid."""
    teacher = LlamaForCausalLM.from_pretrained(a.target, dtype=torch.float32).eval()
    for inputs, labels in batches:
        learned = labels[:, 1:] != IGNORED

        def logits(
            model: LlamaForCausalLM, inputs: Tensor = inputs, learned: Tensor = learned
        ) -> Tensor:
            with narrow():
                hidden = model.model(input_ids=inputs[:, :-1], use_cache=False).last_hidden_state
                return model.lm_head(hidden[learned]).float()

        if a.smoothing:
            yield F.cross_entropy(
                logits(student), labels[:, 1:][learned], label_smoothing=a.smoothing
            )
            continue
        with torch.no_grad():
            goal = (logits(teacher) / a.temperature).log_softmax(-1)
        own = logits(student).log_softmax(-1)
        yield F.kl_div(own, goal, reduction="batchmean", log_target=True)


def main() -> None:
    a = parser(
        __doc__, out=Path, target=HUB / "tiny-target", temperature=1.0, smoothing=0.0, steps=150, batch=16, seed=0
    ).parse_args()  # fmt: skip
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    tokenizer = AutoTokenizer.from_pretrained(a.target)
    stage = Stage("", a.seed, 24, a.steps, a.batch, 0, 0.35, 1.5e-3, 1e-3, 10, 0.3, 0.02)
    batches = Rows(tokenizer, a.seed * 1009 + 11).batches(stage)
    student = LlamaForCausalLM.from_pretrained(a.target, dtype=torch.float32)
    student.train()
    optimizers = for_blocks(student, ".layers.", (stage.matrix_rate, stage.other_rate))
    began, seen = time.process_time(), list[float]()
    for step, loss in zip(range(a.steps), losses(a, student, batches), strict=False):
        factor = falling(step, a.steps, stage.warmup, stage.constant, stage.floor)
        optimizers.step(loss, factor)
        seen.append(loss.item())
        if (step + 1) % EVERY == 0:
            seconds = time.process_time() - began
            print(
                f"{step + 1}/{a.steps}  loss {sum(seen[-EVERY:]) / EVERY:.4f}  {seconds:.0f} s",
                flush=True,
            )
    ship(student, a.out, tokenizer)
    given = {name: value for name, value in vars(a).items() if name not in ("out", "target")}
    write_training(a.out, {"script": "scripts/train_other_targets.py", **given, "loss": seen[-1]})
    print(json.dumps(given), a.out)


if __name__ == "__main__":
    main()
