"""Measure the parts of a pass on a CPU: a model's matrix products in several ways, and attention.

    python scripts/bench_products.py [--model hub_artifacts/tiny-target] [--rows 1 4 11] [--positions 250]

It uses all layers' matrices and the output's in turn, so that CPU caches hold what they hold during decoding. Figures are milliseconds of process
CPU time, the lowest of several runs, because other work on the machine can only add to it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from script_kit import parser, table
from torch import Tensor

RUNS, TOKENS = 15, 4


def shapes_of(folder: Path) -> tuple[int, list[tuple[int, int]], int]:
    """Return the number of layers, the shapes of all fused matrices and of the output's, and the width of a head."""
    c = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    width, heads, inner = c["hidden_size"], c["num_attention_heads"], c["intermediate_size"]
    d = c.get("head_dim") or width // heads
    rows = (heads + 2 * c["num_key_value_heads"]) * d
    layer = [(rows, width), (width, heads * d), (2 * inner, width), (width, inner)]
    layers = c["num_hidden_layers"]
    return layers, [*layer * layers, (c["vocab_size"], width)], d


def least(work: Callable[[], object]) -> float:
    """Return the CPU milliseconds of one call, the lowest of several runs."""
    found = []
    with torch.inference_mode():
        work()
        for _ in range(RUNS):
            began = time.process_time()
            for _ in range(TOKENS):
                work()
            found.append((time.process_time() - began) / TOKENS)
    return 1e3 * min(found)


def eight_bits(w: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix in 8 bits, and the scale of each row."""
    scale = w.abs().amax(1) / 127
    return (w / scale[:, None]).round().to(torch.int8).contiguous(), scale.bfloat16()


def products(shapes: list[tuple[int, int]], rows: int) -> Iterator[tuple[str, float]]:
    """Yield ways to multiply all matrices by some rows, with their cost."""
    plain = [torch.randn(shape) for shape in shapes]
    biases, given = (
        [torch.zeros(len(w)) for w in plain],
        {n: torch.randn(rows, n) for _, n in shapes},
    )
    for name, (prepare, multiply) in (ALONE if rows == 1 else TOGETHER).items():
        made = [(prepare(w), b, given[w.shape[1]]) for w, b in zip(plain, biases, strict=True)]
        yield name, least(lambda: [multiply(*part) for part in made])  # noqa: B023


def same(weights: Tensor) -> Tensor:
    return weights


Way = tuple[
    Callable[[Tensor], Any], Callable[..., Tensor]
]  # the one-time preparation of the weights, and the product
ALONE: dict[str, Way] = {
    "reading all weights once": (same, lambda w, b, x: w.sum()),
    "torch.addmv (engine=hf)": (same, lambda w, b, x: torch.addmv(b, w, x[0], alpha=0.5)),
    "torch.mv": (same, lambda w, b, x: torch.mv(w, x[0])),
    "F.linear (transformers)": (same, lambda w, b, x: F.linear(x, w, b)),
    "torch.mv in bfloat16": (Tensor.bfloat16, lambda w, b, x: torch.mv(w, x[0].bfloat16())),
    "weights in 8 bits": (eight_bits, lambda w, b, x: torch._weight_int8pack_mm(x.bfloat16(), *w)),
}
TOGETHER: dict[str, Way] = {
    "F.linear (transformers)": (same, lambda w, b, x: F.linear(x, w, b)),
    "F.linear, stored input by input (engine=hf on Intel)": (
        lambda w: w.t().contiguous().t(),
        lambda w, b, x: F.linear(x, w, b),
    ),
    "packed for oneDNN (engine=hf elsewhere, and large ones)": (
        torch.ops.mkldnn._reorder_linear_weight,
        lambda w, b, x: torch.ops.mkldnn._linear_pointwise(x, w, b, "none", [], ""),
    ),
    "weights in 8 bits": (eight_bits, lambda w, b, x: torch._weight_int8pack_mm(x.bfloat16(), *w)),
}


def attention(layers: int, d: int, positions: int) -> Iterator[tuple[str, float]]:
    """Yield ways to compute one token's attention in all layers, with their cost."""
    cache = torch.randn(layers, 2, 2 * positions, d)
    held = [(keys[None, None], values[None, None]) for keys, values in cache]
    queries = torch.randn(1, 1, 2, d)
    rows, attend = queries[0, 0], F.scaled_dot_product_attention

    def of_each_layer() -> None:
        for k, v in held:
            attend(queries, k.narrow(2, 0, positions), v.narrow(2, 0, positions))

    def views() -> Iterator[tuple[Tensor, ...]]:
        keys, values = cache.narrow(2, 0, positions).unbind(1)
        return zip(keys.mT.unbind(0), values.unbind(0), strict=True)

    def by_products() -> None:
        for k, v in views():
            torch.mm(torch.mm(rows, k).softmax(-1), v)

    name = f"attention to {positions} positions"
    yield f"{name} (engine=hf: fused, views of each layer)", least(of_each_layer)
    yield f"{name} by two products and a softmax, views of all layers at once", least(by_products)


def main() -> int:
    known = parser(__doc__, model=Path("hub_artifacts/tiny-target"), rows=[1, 4, 11], positions=250)
    given = known.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers, shapes, d = shapes_of(given.model)
    shown = table(f"{given.model.name}, milliseconds of CPU time", "", "ms")
    for rows in given.rows:
        for name, took in products(shapes, rows):
            shown.add_row(f"{rows} token{'s' * (rows > 1)}, products: {name}", f"{took:.2f}")
    for name, took in attention(layers, d, given.positions):
        shown.add_row(f"1 token, {name}", f"{took:.2f}")
    Console(width=120).print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
