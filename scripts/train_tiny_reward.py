"""Trains the embedded process-reward model (``accept=rsd``) from the tiny draft, on a CPU, seeded.

    python scripts/train_tiny_reward.py --work /tmp/reward --out hub_artifacts

It reads a solution and says at the end of each step how likely the step is true and in its place.
Rows are true solutions, solutions with one step corrupted, and what the draft really writes, each
step labelled by the oracle and the row cut after its first error. Layers are put on top of the
draft's two: to see at a step's end that a value inside it is wrong takes more of them than to look
that value up. Stages (samples, legs of the training) are kept in
``--work`` and not done again after a kill. scripts/evaluate_tiny_reward.py measures the result.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tiny_reward_data import ROWS, Batches, Row, sample
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from semspec.models.text import Text
from semspec.storage.files import write_json
from semspec.storage.swap import check_replaceable

LAYERS = 4
SEED = 20261130  # of problems; evaluation, probes and benchmarks use others
SAMPLED = {0.6: 1400, 1.0: 800}  # temperature -> solutions written by the draft
LEGS, STEPS = 4, 160  # of the training
RATE, OTHER_RATE, WARMUP = 3e-3, 2e-3, 30


def start(draft: Path) -> Any:
    """The draft's backbone under as many silent copies of its last layer, with a head of zeros.

    What the draft would write is known below, so that above it can be held against what is written.
    """
    source: Any = LlamaForCausalLM.from_pretrained(draft, dtype=torch.float32)
    given = len(source.model.layers)
    config = LlamaConfig.from_pretrained(draft, num_hidden_layers=LAYERS, num_labels=1)
    model: Any = LlamaForSequenceClassification(config)
    weights = source.model.state_dict()
    last = {k: v for k, v in weights.items() if k.startswith(f"layers.{given - 1}.")}
    for layer in range(given, LAYERS):
        for key, value in last.items():
            name = key.replace(f"layers.{given - 1}.", f"layers.{layer}.", 1)
            silent = "o_proj." in name or "down_proj." in name
            weights[name] = torch.zeros_like(value) if silent else value.clone()
    model.model.load_state_dict(weights)
    torch.nn.init.zeros_(model.score.weight)
    return model


def train(leg: int, model: Any, batches: Batches, folder: Path) -> None:
    """``STEPS`` steps of weighted binary cross-entropy."""
    model.train()
    blocks = [p for n, p in model.named_parameters() if p.ndim == 2 and ".layers." in n]
    others = [p for n, p in model.named_parameters() if not (p.ndim == 2 and ".layers." in n)]
    optimizers = [
        torch.optim.Muon(blocks, RATE, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    started, losses = time.perf_counter(), list[float]()
    for step in range(STEPS):
        number = leg * STEPS + step
        left = 1 - number / (LEGS * STEPS)
        factor = min(1.0, (step + 1) / WARMUP) * min(1.0, 0.02 + 1.4 * left)
        for optimizer, rate in zip(optimizers, (RATE, OTHER_RATE), strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
        inputs, labels, weights = batches.batch(number)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
        judged = weights > 0
        logits = model.score(hidden[judged].float())[:, 0]
        weight = weights[judged]
        entropy = F.binary_cross_entropy_with_logits(logits, labels[judged], reduction="none")
        loss = (entropy * weight).sum() / weight.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
        if (step + 1) % 20 == 0:
            seconds = time.perf_counter() - started
            print(
                f"leg {leg + 1}/{LEGS} {step + 1:4d}/{STEPS}  loss {sum(losses[-20:]) / 20:.4f}"
                f"  {seconds:4.0f} s",
                flush=True,
            )
    save(model, folder, {"seconds": time.perf_counter() - started})


def save(model: Any, folder: Path, training: dict[str, Any]) -> None:
    unfinished = folder.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    write_json(unfinished / "training.json", training)
    unfinished.rename(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="stages are kept here")
    parser.add_argument("--out", type=Path, default=Path("hub_artifacts"))
    parser.add_argument("--draft", type=Path, default=Path("hub_artifacts/tiny-draft"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    rows, sampling = list[Row](), 0.0
    for temperature, count in SAMPLED.items():
        path = arguments.work / f"sampled-{temperature}.json"
        if not path.exists():
            started = time.perf_counter()
            found = sample(arguments.draft, temperature, count, SEED + round(100 * temperature))
            seconds = time.perf_counter() - started
            write_json(path, {"seconds": seconds, "rows": [asdict(row) for row in found]})
        told = json.loads(path.read_text(encoding="utf-8"))
        rows += [Row(r["question"], tuple(r["steps"]), tuple(r["labels"])) for r in told["rows"]]
        sampling += told["seconds"]
    batches = Batches(Text(str(arguments.draft)), rows, arguments.seed)
    torch.manual_seed(arguments.seed)
    model = start(arguments.draft)
    for leg in range(LEGS):
        folder = arguments.work / f"leg{leg}"
        if folder.exists():
            model = LlamaForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
        else:
            train(leg, model, batches, folder)
    legs = [json.loads((arguments.work / f"leg{i}/training.json").read_text()) for i in range(LEGS)]
    training = {
        "script": "scripts/train_tiny_reward.py",
        "seed": arguments.seed,
        "sampled": {f"T={t:g}": n for t, n in SAMPLED.items()},
        "steps": LEGS * STEPS,
        "rows_a_step": ROWS,
        "seconds_sampling": round(sampling),
        "seconds": round(sum(leg["seconds"] for leg in legs)),
    }
    out = arguments.out / "tiny-reward"
    check_replaceable(out, "model")
    shutil.rmtree(out, ignore_errors=True)
    save(model.to(torch.bfloat16), out, training)
    batches.text.tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
