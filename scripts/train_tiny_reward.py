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
import random
import shutil
import time
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from semspec import run, world
from semspec.files import write_json
from semspec.solver import Solver
from semspec.text import Text

LAYERS = 4
SEED = 20261130  # of problems; evaluation, probes and benchmarks use others
SAMPLED = {0.6: 1400, 1.0: 800}  # temperature -> solutions written by the draft
LEGS, STEPS = 4, 160  # of the training
ROWS = 16  # a batch
WITHIN = 0.1  # what a token inside a step counts, against 1 for a step's end
RATE, OTHER_RATE, WARMUP = 3e-3, 2e-3, 30


@dataclass(frozen=True)
class Row:
    """A question, the steps of a solution, and whether each is right; wrong is the last at most."""

    question: str
    steps: tuple[str, ...]
    labels: tuple[bool, ...]
    place: int | None = None  # where in a wrong last step the error begins, if that is known


def labelled(problem: world.Problem, steps: list[str]) -> Row:
    """Up to the first step that the oracle refuses: what follows an error has no truth."""
    before: list[world.Meaning] = []
    labels: list[bool] = []
    for step in steps:
        said = world.meaning(problem, step)
        labels.append(world.is_next(problem, before, said))
        if not labels[-1] or said is None:
            break
        before.append(said)
    return Row(problem.question, tuple(steps[: len(labels)]), tuple(labels))


def sample(draft: Path, temperature: float, count: int, seed: int) -> list[Row]:
    """Solutions as the draft model writes them by itself."""
    options = ["draft=none", f"temperature={temperature}", "concurrency=50", "top_p=1"]
    options += [f"model.path={draft}", f"benchmark.seed={seed}", f"problems={count}"]
    config = run.build(run.compose(options))
    rows = []
    with Solver(config) as solver:
        problems = list(islice(config.benchmark.problems(), count))
        for number, done in enumerate(solver.solve(problems, "plain"), start=1):
            problem = world.find_problem(done.problem.question)
            assert problem is not None
            rows.append(labelled(problem, world.split_steps(done.text)))
            if number % 250 == 0:
                print(f"sampled {number:4d}/{count} at T = {temperature}", flush=True)
    return rows


def made(rng: random.Random) -> Row:
    """A true solution, or one with a step that was changed."""
    domain = rng.choice(list(world.DOMAINS.values()))
    problem = domain.make(rng)
    steps = world.split_steps(world.render_solution(problem, domain.solve(rng, problem)))
    if rng.random() < 0.25:
        return labelled(problem, steps)
    at = rng.randrange(len(steps))
    step, place = corrupt(rng, domain, problem, steps, at)
    return replace(labelled(problem, [*steps[:at], step]), place=place)


def corrupt(
    rng: random.Random, domain: world.Domain, problem: world.Problem, steps: list[str], at: int
) -> tuple[str, int | None]:
    """Another value somewhere in a step, and where; or a step from elsewhere."""
    step = steps[at]
    values = sorted(v for v in set(problem.values.values()) if v in step)
    if not values or rng.random() < 0.1:
        return rng.choice(steps), None
    value = rng.choice(values)
    # mostly a value of another name, as the draft mistakes them
    others = [v for v in problem.values.values() if v != value]
    new = rng.choice(others) if others and rng.random() < 0.6 else domain.draw_value(rng)
    place = rng.choice([i for i in range(len(step)) if step.startswith(value, i)])
    alike = next((i for i, (a, b) in enumerate(zip(value, new, strict=False)) if a != b), 0)
    return step[:place] + new + step[place + len(value) :], place + alike


class Batches:
    """Batch n is drawn from a seed of its own, so that a training can go on anywhere."""

    def __init__(self, text: Text, sampled: list[Row], seed: int) -> None:
        self.text, self.sampled, self.seed = text, sampled, seed

    def ids(self, row: Row) -> tuple[list[int], list[int]]:
        """Token ids, and the last token of each step."""
        ids, ends = list(self.text.prompt(row.question)[1]), []
        for step in row.steps:
            ids += self.text.encode(step)
            if not step.endswith(world.STEP_END):
                ids.append(self.text.eos or 0)  # the last step ends the turn
            ends.append(len(ids) - 1)
        return ids, ends

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids, whether all is right so far, and how much that counts: most at the steps' ends."""
        rng = random.Random(f"{self.seed} batch {number}")
        rows = [rng.choice(self.sampled) if rng.random() < 0.4 else made(rng) for _ in range(ROWS)]
        encoded = [self.ids(row) for row in rows]
        shape = ROWS, max(len(ids) for ids, _ in encoded)
        inputs = torch.full(shape, self.text.tokenizer.pad_token_id)
        labels, weights = torch.ones(shape), torch.zeros(shape)
        for i, (row, (ids, ends)) in enumerate(zip(rows, encoded, strict=True)):
            inputs[i, : len(ids)] = torch.tensor(ids)
            first = ends[0] - len(self.text.encode(row.steps[0])) + 1
            weights[i, first : len(ids)] = WITHIN
            if not row.labels[-1]:
                start = ends[-2] + 1 if len(ends) > 1 else first
                weights[i, start : len(ids)] = 0.0
                if row.place is not None:
                    start += len(self.text.encode(row.steps[-1][: row.place]))
                    weights[i, start : len(ids)] = 3 * WITHIN
                    labels[i, start:] = 0.0
            weights[i, ends] = 1.0
            labels[i, ends] = torch.tensor(row.labels, dtype=torch.float32)
        return inputs, labels, weights


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
    """``STEPS`` steps of binary cross-entropy; the loss that is shown is that at steps' ends."""
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
        losses.append(float(entropy.detach()[weight == 1].mean()))
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


def stored(path: Path, make: Any) -> Any:
    """What ``make`` gives, from the file where it was made before."""
    if not path.exists():
        write_json(path, make())
    return json.loads(path.read_text(encoding="utf-8"))


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
    started, rows = time.perf_counter(), list[Row]()
    for temperature, count in SAMPLED.items():
        told = stored(
            arguments.work / f"sampled-{temperature}.json",
            lambda t=temperature, n=count: [
                asdict(row) for row in sample(arguments.draft, t, n, SEED + round(100 * t))
            ],
        )
        rows += [Row(r["question"], tuple(r["steps"]), tuple(r["labels"])) for r in told]
    sampling = time.perf_counter() - started
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
    shutil.rmtree(out, ignore_errors=True)
    save(model.to(torch.bfloat16), out, training)
    batches.text.tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
