"""Measure one plain token of a model on a CPU: as engine=hf writes it, and in ways that might be faster.

    python scripts/bench_token.py [--model hub_artifacts/tiny-target] [--tokens 160] [--no-compile]

Every way feeds the same solutions of the embedded world, token by token. Milliseconds are CPU time (of all threads) and wall
time of a token, each the lowest of several runs. *Same choice* is the share of positions at which a way's most probable token is
engine=hf's, and *KL* how far its distribution is from engine=hf's, in nats: what fewer bits cost. ``--no-compile`` leaves out
torch.compile, which takes minutes to compile and needs a C++ compiler.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from bench_products import eight_bits
from rich.console import Console
from script_kit import parser, table
from torch import Tensor

from semspec import world
from semspec.engines._lean.cache import Cache
from semspec.engines._lean.model import Model
from semspec.engines._lean.session import Session
from semspec.engines._lean.step import Step
from semspec.errors import UserError
from semspec.models.spec import Spec, read_spec
from semspec.models.text import Text
from semspec.models.weights import read_weights
from semspec.types import Context

RUNS = 3
Feed = Callable[[int, int], Tensor]  # a token and its position -> logits
Multiply = Callable[[Any, Tensor], Tensor]


def own(model: Model, positions: int) -> Feed:
    """Return engine=hf's own pass over one token."""
    step, cache = Step(model), Cache(model.spec, model.dtype, model.device)
    cache.admit(session := Session(Context(0, [])))
    cache.reserve(positions)
    return lambda token, at: model.logits(step.one(token, at, session.slot, cache, None))[0]


@dataclass
class Plain:
    """The same pass written out, with one way to multiply; what torch.compile gets."""

    spec: Spec
    matrices: list[tuple[Any, ...]]  # of each layer, then the head
    # of each layer: of queries, keys and values, and of the output
    biases: list[tuple[Tensor, Tensor]]
    multiply: Multiply
    norm: Tensor

    def __call__(
        self, x: Tensor, turn: tuple[Tensor, Tensor], cache: Tensor, at: Tensor, end: int
    ) -> Tensor:
        spec, multiply = self.spec, self.multiply
        d, heads, shared = spec.head_dim, spec.heads, spec.kv_heads
        *layers, (head,) = self.matrices
        for matrices, (first, second), (keys, values) in zip(
            layers, self.biases, cache, strict=True
        ):
            qkv, out, gate_up, down = matrices
            rows = (multiply(qkv, self._normed(x)) + first).view(-1, d)
            turned = _turned(rows[:-shared], turn)
            keys.index_copy_(1, at, turned[heads:, None])
            values.index_copy_(1, at, rows[-shared:, None])
            q = turned[:heads].view(shared, heads // shared, d)
            seen = (q @ keys[:, :end].mT / math.sqrt(d)).softmax(-1) @ values[:, :end]
            x = x + multiply(out, seen.reshape(-1)) + second
            gate, up = multiply(gate_up, self._normed(x)).chunk(2)
            x = x + multiply(down, F.silu(gate) * up)
        return multiply(head, self.norm * self._normed(x))

    def _normed(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.dot(x) / self.spec.width + self.spec.eps)


def _turned(rows: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Apply the rotary embedding of a position, whose cosines and sines ``turn`` holds."""
    (cos, sin), (a, b) = turn, rows.view(*rows.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


WAYS: dict[str, tuple[Callable[[Tensor], Any], Multiply]] = {
    "fp32": (lambda matrix: matrix, torch.mv),
    "bfloat16": (
        lambda matrix: matrix.bfloat16(),
        lambda matrix, x: torch.mv(matrix, x.bfloat16()).float(),
    ),
    "8 bits": (
        eight_bits,
        lambda held, x: torch._weight_int8pack_mm(x.bfloat16()[None], *held)[0].float(),
    ),
}


def written_out(model: Model, positions: int, bits: str, compiled: bool = False) -> Feed:
    """Return the pass written out, in fewer bits or compiled if asked."""
    spec, weights = model.spec, model.weights
    prepare, multiply = WAYS[bits]
    layers: list[tuple[Any, ...]] = [
        tuple(map(prepare, (b.qkv, b.out, b.gate_up, b.down))) for b in weights.blocks
    ]
    zero = torch.zeros(())
    biases = [
        (zero if b.qkv_bias is None else b.qkv_bias, zero if b.out_bias is None else b.out_bias)
        for b in weights.blocks
    ]
    run = Plain(spec, [*layers, (prepare(weights.head),)], biases, multiply, weights.norm)
    call: Callable[..., Tensor] = torch.compile(run.__call__, dynamic=True) if compiled else run
    cache = torch.zeros(spec.layers, 2, spec.kv_heads, positions, spec.head_dim)
    turns = model.turns(positions)[:, 0]
    cosines, sines = turns.real.contiguous(), turns.imag.contiguous()
    places = torch.arange(positions)

    def feed(token: int, at: int) -> Tensor:
        turn = cosines[at], sines[at]
        return call(weights.embed[token], turn, cache, places[at : at + 1], at + 1)

    return feed


def measured(feed: Feed, texts: list[list[int]]) -> tuple[float, float, Tensor]:
    """Return CPU and wall milliseconds of a token, and the logits at all positions."""
    found, spent = [], []
    with torch.inference_mode():
        for run in range(RUNS + 1):  # the first one warms up, or compiles
            cpu, wall = time.process_time(), time.perf_counter()
            for text in texts:
                for at, token in enumerate(text):
                    logits = feed(token, at)
                    logits.argmax().item()  # as greedy decoding does
                    if not run:
                        found.append(logits.clone())
            if run:
                spent.append((time.process_time() - cpu, time.perf_counter() - wall))
    count = sum(map(len, texts))
    return *(1e3 * min(one) / count for one in zip(*spent, strict=True)), torch.stack(found)


def beside(logits: Tensor, reference: Tensor) -> tuple[float, float]:
    """Return how often both have the same most probable token, and the mean KL divergence from the reference."""
    same = (logits.argmax(-1) == reference.argmax(-1)).float().mean()
    own, other = reference.log_softmax(-1), logits.log_softmax(-1)
    return float(same), float((own.exp() * (own - other)).sum(-1).mean())


def main() -> int:
    folder = Path("hub_artifacts/tiny-target")
    given = parser(
        __doc__, model=folder, tokens=160, problems=4, no_compile=(False, "leave out torch.compile")
    ).parse_args()
    torch.set_num_threads(1)
    spec = read_spec(given.model, 0)
    if spec.mlp_bias or spec.qk_norm:
        raise UserError(f"{given.model}: only models of the kind of Llama and Qwen2")
    model = Model(spec, read_weights(given.model, spec, torch.float32, torch.device("cpu")))
    text = Text(str(given.model))
    texts = []
    for seed in range(given.problems):
        rng = random.Random(seed)
        problem = world.DOMAINS["residues"].make(rng)
        solved = world.render_solution(problem, world.DOMAINS["residues"].solve(rng, problem))
        texts.append(text.encode(f"{problem.question}\n\n{solved}")[: given.tokens])
    size = given.tokens + 1
    ways: dict[str, tuple[int, Callable[[], Feed]]] = {
        "engine=hf": (1, lambda: own(model, size)),
        "engine=hf, 2 threads": (2, lambda: own(model, size)),
        "written out, fp32": (1, lambda: written_out(model, size, "fp32")),
        "written out, bfloat16": (1, lambda: written_out(model, size, "bfloat16")),
        "written out, 8 bits": (1, lambda: written_out(model, size, "8 bits")),
    }
    if not given.no_compile:
        ways["torch.compile, fp32"] = 1, lambda: written_out(model, size, "fp32", True)
    shown = table(
        f"{given.model.name}, a token of {sum(map(len, texts))}",
        *("", "CPU ms", "wall ms", "first run, s", "same choice", "KL"),
    )
    reference = None
    for name, (threads, make) in ways.items():
        torch.set_num_threads(threads)
        began = time.perf_counter()
        cpu, wall, logits = measured(make(), texts)
        seconds = time.perf_counter() - began - RUNS * wall * sum(map(len, texts)) / 1e3
        reference = logits if reference is None else reference
        same, apart = beside(logits, reference)
        shown.add_row(name, f"{cpu:.2f}", f"{wall:.2f}", f"{seconds:.1f}", f"{100 * same:.1f} %", f"{apart:.1e}")  # fmt: skip
    Console(width=120).print(shown)
    return 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
