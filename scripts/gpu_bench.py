"""Measure the speed-up that a pair of real shapes allows on this machine, with random weights and the engine's own passes.

    python scripts/gpu_bench.py [--pair qwen2-32b qwen2-1.5b] [--device cuda] [--step 64] [--context 2048]
    python scripts/gpu_bench.py --pair small small-draft --device cpu --step 16 --context 128   tried on a CPU

The cost of a pass does not depend on the weights' values, but it is linear in the number of layers. So
two shallow models of the right width are measured and extrapolated to the full depth (a 32B model's
weights would not fit on most disks beside a benchmark). It reports a token of the draft and of the
target, scoring a step with and without a probe's states, the probe itself, and what follows from these: the speed-up
at step level as a function of the share of accepted steps, all else being equal. Figures go to the file that --json names (results/gpu.json is for a GPU's).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from script_kit import parser, table
from transformers import AutoModelForCausalLM, Qwen2Config

from semspec.engines._lean.engine import HfEngine
from semspec.engines.hf import Hf
from semspec.errors import UserError
from semspec.probes.mlp import NAMES, Folded
from semspec.storage import provenance
from semspec.storage.files import write_json
from semspec.training.probes.train import Mlp
from semspec.types import Context, Generate, Query, Read, Sampling, What

SHAPES = {  # layers, width, MLP, heads, kv heads, vocabulary: of the published configurations
    "qwen2-32b": (64, 5120, 27648, 40, 8, 152064),
    "qwen2-7b": (28, 3584, 18944, 28, 4, 152064),
    "qwen2-1.5b": (28, 1536, 8960, 12, 2, 151936),
    "small": (12, 256, 512, 4, 2, 2000),
    "small-draft": (4, 128, 256, 2, 1, 2000),
}
HIDDEN = (512, 128)  # of the probe
SCORING = {"scoring": (), "scoring_mean": ("mean",), "scoring_plus": ("mean", "max", "last")}
ACCEPTED = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
GREEDY = Sampling(temperature=0.0)


def write_random_model(
    shape: str, layers: int, folder: str, dtype: torch.dtype, device: str
) -> None:
    _, width, inner, heads, kv_heads, vocabulary = SHAPES[shape]
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device(device):  # a GPU draws billions of weights in a second
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder)


class Passes:
    """One shallow model at work on one context."""

    def __init__(self, engine: HfEngine, context: int, step: int, repeats: int) -> None:
        rng = random.Random(0)
        self.engine, self.repeats = engine, repeats
        self.context = Context(1, [rng.randrange(engine.vocabulary) for _ in range(context)])
        self.step = [rng.randrange(engine.vocabulary) for _ in range(step)]
        self._ask(generate=Generate(limit=1))  # the prompt is cached from here on

    def token(self) -> float:
        """Return the seconds of one token, generated greedily."""
        count = len(self.step)
        return least(lambda: self._ask(generate=Generate(limit=count)), self.repeats) / count

    def scoring(self, *reductions: str) -> float:
        """Return the seconds of scoring the step, with states pooled in the pass if reductions are given."""
        spans = ((0, len(self.step)),)
        pooled = tuple(Read(What.POOLED, spans=spans, reduce=r) for r in reductions)  # type: ignore[arg-type]
        reads = (Read(What.LOGPROBS), *pooled)
        return least(lambda: self._ask(tokens=self.step, reads=reads), self.repeats)

    def _ask(self, **asked: Any) -> None:
        self.engine.answer([Query("target", self.context, GREEDY, random.Random(0), **asked)])
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def least(run: Callable[[], object], repeats: int) -> float:
    """Return the seconds of the fastest run, since other work can only add to it."""
    run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def at_full_depth(shape: str, given: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of each kind of pass at full depth, on the line through two depths."""
    layers = SHAPES[shape][0]
    dtype = torch.bfloat16 if given.device.startswith("cuda") else torch.float32
    found: list[dict[str, float]] = []
    for depth in given.depths:
        with tempfile.TemporaryDirectory() as folder:
            write_random_model(shape, depth, folder, dtype, given.device)
            engine = Hf(device=given.device, threads=given.threads).load(folder)
            passes = Passes(engine, given.context, given.step, given.repeats)
            scoring = {kind: passes.scoring(*pools) for kind, pools in SCORING.items()}
            found.append({"token": passes.token()} | scoring)
            engine.close()
    low, high = found
    few, many = given.depths
    each = {k: (high[k] - low[k]) / (many - few) for k in low}
    return {k: low[k] + (layers - few) * each[k] for k in low}


def probing(shape: str, given: argparse.Namespace) -> float:
    """Return the seconds of a probe on means of all layers, for one step."""
    layers, width = SHAPES[shape][:2]
    size = (layers + 1) * width
    weights = {name: w.detach() for name, w in Mlp(size, HIDDEN, "relu").state_dict().items()}
    assert set(weights) == set(NAMES)
    device = torch.device(given.device)
    folded = Folded(weights, torch.zeros(size), torch.ones(size), "relu").on(device)
    x = torch.randn(1, size, device=device)
    with torch.inference_mode():
        return least(lambda: folded(x).tolist(), given.repeats)  # which waits for the device


def speedups(
    target: dict[str, float], draft: dict[str, float], probe: float, step: int
) -> dict[str, float]:
    """Return speed-ups for a step of n tokens: n t_T alone; drafted n t_D + scoring + probe, plus n t_T if it is rejected."""
    alone = step * target["token"]
    tried = step * draft["token"] + target["scoring_mean"] + probe
    return {f"{share:g}": alone / (tried + (1 - share) * alone) for share in ACCEPTED}


def main() -> int:
    threads, step = (1, "of torch, on a CPU"), (64, "tokens of a step")
    known = parser(__doc__, device="cuda", threads=threads, step=step, context=2048, repeats=20)
    known.add_argument("--pair", nargs=2, default=("qwen2-32b", "qwen2-1.5b"), choices=SHAPES, metavar="SHAPE")  # fmt: skip
    known.add_argument(
        "--depths",
        nargs=2,
        type=int,
        default=(4, 16),
        metavar="LAYERS",
        help="depths that are measured",
    )
    known.add_argument("--json", type=Path, help="a file for the figures")
    given = known.parse_args()
    try:
        target, draft = (at_full_depth(shape, given) for shape in given.pair)
        probe = probing(given.pair[0], given)
    except UserError as error:  # no such device, too little memory
        print(f"gpu_bench: {error}", file=sys.stderr)
        return 2
    title = f"{given.device}, step of {given.step} tokens after {given.context}"
    shown = table(title, "milliseconds", *given.pair, names=3)
    for kind in target:
        times = (f"{1e3 * model[kind]:.2f}" for model in (target, draft))
        shown.add_row(kind.replace("_", ", pooled: "), *times)
    shown.add_row("probe", f"{1e3 * probe:.2f}", "")
    gained = speedups(target, draft, probe, given.step)
    console = Console(width=100)
    console.print(shown)
    console.print("speed-up by accepted share:", {k: f"{v:.2f}x" for k, v in gained.items()})
    settings = {
        name: getattr(given, name) for name in ("pair", "device", "step", "context", "depths")
    }
    figures = {"target": target, "draft": draft, "probe": probe, "speedup": gained}
    if given.json:
        write_json(given.json, {"provenance": provenance.collect(), **settings, "seconds": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
