"""Train the token judge of the embedded target (``accept=judge_head``): a minute on a CPU thread.

    python scripts/train_tiny_judge_head.py [--problems 250] [--out hub_artifacts]

Labels come from true solutions of the embedded world and from the same solutions with a value changed: a token is
wrong where the change begins; tokens after it have no label. One pass reads a solution with an
error at each of its steps, as leaves of a tree beside it.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from script_kit import HUB, parser
from tiny_reward_data import corrupt, labelled
from torch import Tensor
from train_tiny_pair import solved

from semspec import world
from semspec.artifacts import base, binding
from semspec.artifacts.judge_head import JudgeHead
from semspec.engines.hf import Hf
from semspec.models.location import ModelConfig, read_facts
from semspec.models.text import Text
from semspec.protocols import Engine
from semspec.training.probes.metrics import auroc
from semspec.types import LAST_STATES, Context, Query, Sampling

SEED = 20261209  # of problems; evaluation, probes and benchmarks use others
PROBLEMS = 250
TARGET = "embedded/tiny-target"
NAME = "judge-head-tiny-target"
TESTED = 0.2  # of the problems, held out


def example(rng: random.Random, text: Text) -> tuple[list[int], list[int], list[int], list[bool]]:
    """Return a prompt, a tree of tokens with its parents, and whether each token is right.

    The tree is a true solution, with the first token of an error as a side branch at each step.
    """
    domain = rng.choice(list(world.DOMAINS.values()))
    problem, steps = solved(rng, domain)
    encoded = [text.encode(step) for step in steps]
    tokens = [token for step in encoded for token in step]
    parents, right = list(range(-1, len(tokens) - 1)), [True] * len(tokens)
    starts = itertools.accumulate(map(len, encoded), initial=0)
    for at, (true, start) in enumerate(zip(encoded, starts, strict=False)):
        step, place = corrupt(rng, domain, problem, steps, at)
        wrong = text.encode(step)
        first = next((i for i, (a, b) in enumerate(zip(true, wrong, strict=False)) if a != b), None)
        # without a place it is another step of the solution; some changes are not errors
        if place is None or first is None:
            continue
        if not labelled(problem, [*steps[:at], step]).labels[-1]:
            tokens.append(wrong[first])
            parents.append(start + first - 1)
            right.append(False)
    return text.prompt(problem.question)[1], tokens, parents, right


def states(
    engine: Engine, text: Text, rng: random.Random, problems: int, group: int
) -> tuple[Tensor, Tensor]:
    """Return the target's last state of every token [tokens, width], and whether the token is right."""
    found, labels = list[Tensor](), list[bool]()
    for number in range(problems):
        prompt, tokens, parents, right = example(rng, text)
        context = Context(group * 10**6 + number, prompt)
        query = Query("target", context, Sampling(1.0), rng, tokens=tokens, parents=parents, reads=(LAST_STATES,))  # fmt: skip
        (answer,) = engine.answer([query])
        engine.forget(context)
        found.append(answer[LAST_STATES][1:, 0])
        labels += right
        if (number + 1) % 50 == 0:
            print(f"read {number + 1}/{problems} solutions", flush=True)
    return torch.cat(found), torch.tensor(labels).float()


def fit(x: Tensor, right: Tensor, decay: float = 1e-4) -> tuple[Tensor, Tensor]:
    """Fit a logistic regression in which wrong tokens together count as much as right ones."""
    mean, deviation = x.mean(0), x.std(0).clamp_min(1e-6)
    scaled = (x - mean) / deviation
    balance = torch.where(right > 0, 0.5 / right.mean(), 0.5 / (1 - right.mean()))
    weight = torch.zeros(x.shape[1], requires_grad=True)
    bias = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(scaled @ weight + bias, right, balance)
        loss = loss + decay * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():  # the scaling goes into the map
        folded = weight / deviation
        return folded, bias - (folded * mean).sum()


def measured(head: JudgeHead, x: Tensor, right: Tensor) -> dict[str, float]:
    said = head(x)
    kept = said >= 0.5
    return {
        "auroc": auroc(said.numpy(), right.numpy()) or 0.0,
        "right_tokens_kept": float(kept[right > 0].float().mean()),
        "wrong_tokens_kept": float(kept[right == 0].float().mean()),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    a = parser(__doc__, problems=PROBLEMS, seed=SEED, out=HUB).parse_args(arguments)
    started = time.perf_counter()
    model = ModelConfig(path=TARGET)
    text = Text(str(model.fetch()))
    engine = Hf(device="cpu").load(str(model.fetch()))
    rng = random.Random(a.seed)
    held = max(1, int(TESTED * a.problems))
    with torch.inference_mode():
        train = states(engine, text, rng, a.problems - held, 0)
        test = states(engine, text, rng, held, 1)
    x, right = (part.clone() for part in train)
    weight, bias = fit(x, right)
    config = {
        "kind": JudgeHead.kind,
        "version": JudgeHead.version,
        "model": binding.of(read_facts(model, text.fingerprint)),
        "data": {"name": "semspec's embedded world", "seed": a.seed, "solutions": a.problems},
        "training": {
            "tokens": len(x),
            "wrong_tokens": int((right == 0).sum()),
            "test_tokens": len(test[0]),
            "test_wrong_tokens": int((test[1] == 0).sum()),
            "minutes": round((time.perf_counter() - started) / 60, 1),
        },
        "metrics": {},
        "provenance": base.made_with(),
    }
    head = JudgeHead(config, {"weight": weight.detach(), "bias": bias.detach()}, name=NAME)
    with torch.inference_mode():
        config["metrics"] = measured(head, *test)
    head.save(a.out / NAME)
    print(f"{a.out / NAME}: {config['metrics']}")


if __name__ == "__main__":
    sys.exit(main())
