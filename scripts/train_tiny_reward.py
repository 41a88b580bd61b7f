"""Train the embedded process-reward model (``accept=rsd``) from the tiny draft, on a CPU, seeded.

    python scripts/train_tiny_reward.py --work /tmp/reward --out hub_artifacts

The model reads a solution and predicts at the end of each step how likely the step is true and in its place.
Rows are true solutions, solutions with one corrupted step, and solutions that the draft writes. The oracle
labels each step, and the row is cut after its first error. The model adds layers on top of the
draft's two, because seeing at a step's end that a value inside it is wrong needs more layers than looking
that value up. Stages (samples, legs of the training) are saved in
``--work`` and not repeated after a kill. scripts/evaluate_tiny_reward.py measures the result.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from script_kit import HUB, parser, read
from tiny_reward_data import ROWS, Batches, Row, sample
from training_kit import completing, for_blocks, narrow
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from semspec.models.location import weights_fingerprint
from semspec.models.text import Text
from semspec.storage.files import write_json
from semspec.storage.swap import check_replaceable

LAYERS = 4
SEED = 20261130  # of problems; evaluation, probes and benchmarks use others
SAMPLED = {0.6: 1400, 1.0: 800}  # temperature -> solutions written by the draft
LEGS, STEPS = 4, 160  # of the training
TRAIN_SEED = 0  # of weights and batches
RATES, WARMUP = (3e-3, 2e-3), 30  # of matrices and of all else


def start(draft: Path) -> Any:
    """Return the draft's backbone below as many copies of its last layer that add nothing yet, with a head of zeros.

    The lower layers know what the draft would write, so that the upper ones can compare it with the text.
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
    """Train for ``STEPS`` steps of weighted binary cross-entropy."""
    model.train()
    optimizers = for_blocks(model, ".layers.", RATES)
    started, losses = time.perf_counter(), list[float]()
    for step in range(STEPS):
        number = leg * STEPS + step
        left = 1 - number / (LEGS * STEPS)
        inputs, labels, weights = batches.batch(number)
        with narrow():
            hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
        judged = weights > 0
        logits = model.score(hidden[judged].float())[:, 0]
        weight = weights[judged]
        entropy = F.binary_cross_entropy_with_logits(logits, labels[judged], reduction="none")
        loss = (entropy * weight).sum() / weight.sum()
        optimizers.step(loss, min(1.0, (step + 1) / WARMUP) * min(1.0, 0.02 + 1.4 * left))
        losses.append(float(loss.detach()))
        if (step + 1) % 20 == 0:
            done = f"leg {leg + 1}/{LEGS} {step + 1:4d}/{STEPS}  loss {sum(losses[-20:]) / 20:.4f}"
            print(f"{done}  {time.perf_counter() - started:4.0f} s", flush=True)
    save(model, folder, {"seconds": time.perf_counter() - started})


def save(model: Any, folder: Path, training: dict[str, Any]) -> None:
    with completing(folder) as unfinished:
        model.save_pretrained(unfinished)
        write_json(unfinished / "training.json", training)


def described(seed: int = TRAIN_SEED) -> dict[str, Any]:
    """Return the options as training.json records them."""
    return {
        "script": "scripts/train_tiny_reward.py",
        "seed": seed,
        "sampled": {f"T={t:g}": n for t, n in SAMPLED.items()},
        "steps": LEGS * STEPS,
        "rows_a_step": ROWS,
    }


def main() -> None:
    work, draft = (Path, "stages are kept here"), HUB / "tiny-draft"
    a = parser(__doc__, work=work, out=HUB, draft=draft, seed=TRAIN_SEED, threads=1).parse_args()
    torch.set_num_threads(a.threads)
    a.work.mkdir(parents=True, exist_ok=True)
    rows, sampling = list[Row](), 0.0
    for temperature, count in SAMPLED.items():
        path = a.work / f"sampled-{temperature}.json"
        if not path.exists():
            started = time.perf_counter()
            found = sample(a.draft, temperature, count, SEED + round(100 * temperature))
            seconds = time.perf_counter() - started
            write_json(path, {"seconds": seconds, "rows": [asdict(row) for row in found]})
        kept = read(path)
        rows += [Row(r["question"], tuple(r["steps"]), tuple(r["labels"])) for r in kept["rows"]]
        sampling += kept["seconds"]
    batches = Batches(Text(str(a.draft)), rows, a.seed)
    torch.manual_seed(a.seed)
    model = start(a.draft)
    for leg in range(LEGS):
        folder = a.work / f"leg{leg}"
        if folder.exists():
            model = LlamaForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
        else:
            train(leg, model, batches, folder)
    training = {
        **described(a.seed),
        "fingerprint": weights_fingerprint(a.draft.resolve()),
        "seconds_sampling": round(sampling),
        "seconds": round(
            sum(read(a.work / f"leg{i}/training.json")["seconds"] for i in range(LEGS))
        ),
    }
    out = a.out / "tiny-reward"
    check_replaceable(out, "model")
    shutil.rmtree(out, ignore_errors=True)
    save(model.to(torch.bfloat16), out, training)
    batches.text.tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
