"""What a pair of real shapes allows on this machine: random weights, the engine's own passes.

    python scripts/gpu_bench.py [--pair qwen2-32b qwen2-1.5b] [--device cuda] [--step 64] [--context 2048]
    python scripts/gpu_bench.py --pair small small-draft --device cpu --step 16 --context 128   tried on a CPU

What a pass costs does not depend on what the numbers are, but it is linear in the number of layers; so
two shallow models of the right width are measured and the line through them is taken to the full depth (a 32B model's
weights would not fit on most disks beside a benchmark). Told are a token of the draft and of the
target, scoring a step with and without a probe's states, the probe itself, and what follows: the speed-up
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
from rich.table import Table
from transformers import Qwen2Config, Qwen2ForCausalLM

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
DEPTHS = (2, 4)  # layers of the models that are measured
HIDDEN = (512, 128)  # of the probe
ACCEPTED = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
GREEDY = Sampling(temperature=0.0)


def random_model(shape: str, layers: int, folder: Path, dtype: torch.dtype) -> Path:
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
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        Qwen2ForCausalLM(config).save_pretrained(folder)
    finally:
        torch.set_default_dtype(before)
    return folder


class Passes:
    """One shallow model at work on one context."""

    def __init__(self, engine: HfEngine, context: int, step: int, repeats: int) -> None:
        rng = random.Random(0)
        self.engine, self.repeats = engine, repeats
        self.context = Context(1, [rng.randrange(engine.vocabulary) for _ in range(context)])
        self.step = [rng.randrange(engine.vocabulary) for _ in range(step)]
        self._ask(generate=Generate(limit=1))  # the prompt is cached from here on

    def token(self) -> float:
        """Seconds of one generated token, greedily."""
        count = len(self.step)
        return self._least(lambda: self._ask(generate=Generate(limit=count))) / count

    def scoring(self, *reductions: str) -> float:
        """Seconds of scoring the step, with states pooled in the pass where reductions are given."""
        spans = ((0, len(self.step)),)
        pooled = tuple(Read(What.POOLED, spans=spans, reduce=r) for r in reductions)  # type: ignore[arg-type]
        reads = (Read(What.LOGPROBS), *pooled)
        return self._least(lambda: self._ask(tokens=self.step, reads=reads))

    def _ask(self, **asked: Any) -> None:
        self.engine.answer([Query("target", self.context, GREEDY, random.Random(0), **asked)])
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def _least(self, run: Callable[[], None]) -> float:
        run()
        times = []
        for _ in range(self.repeats):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        return min(times)  # others on the machine can only add to it


def at_full_depth(shape: str, given: argparse.Namespace) -> dict[str, float]:
    """Seconds of each kind of pass, on the line through two depths."""
    layers = SHAPES[shape][0]
    dtype = torch.bfloat16 if given.device.startswith("cuda") else torch.float32
    found: list[dict[str, float]] = []
    for depth in DEPTHS:
        with tempfile.TemporaryDirectory() as folder:
            at = random_model(shape, depth, Path(folder), dtype)
            engine = Hf(device=given.device, threads=given.threads).load(str(at))
            passes = Passes(engine, given.context, given.step, given.repeats)
            found.append(
                {
                    "token": passes.token(),
                    "scoring": passes.scoring(),
                    "scoring_mean": passes.scoring("mean"),
                    "scoring_plus": passes.scoring("mean", "max", "last"),
                }
            )
            engine.close()
    low, high = found
    each = {k: (high[k] - low[k]) / (DEPTHS[1] - DEPTHS[0]) for k in low}
    return {k: low[k] + (layers - DEPTHS[0]) * each[k] for k in low}


def probing(shape: str, given: argparse.Namespace) -> float:
    """Seconds of a probe on means of all layers, one step."""
    layers, width = SHAPES[shape][:2]
    size = (layers + 1) * width
    weights = {name: w.detach() for name, w in Mlp(size, HIDDEN, "relu").state_dict().items()}
    assert set(weights) == set(NAMES)
    device = torch.device(given.device)
    folded = Folded(weights, torch.zeros(size), torch.ones(size), "relu").on(device)
    x = torch.randn(1, size, device=device)
    times = []
    with torch.inference_mode():
        for _ in range(given.repeats + 1):
            began = time.perf_counter()
            folded(x).tolist()  # waits for the device
            times.append(time.perf_counter() - began)
    return min(times[1:])


def speedups(
    target: dict[str, float], draft: dict[str, float], probe: float, step: int
) -> dict[str, float]:
    """A step of n tokens: n t_T alone; drafted n t_D + scoring + probe, and n t_T where it is rejected."""
    alone = step * target["token"]
    tried = step * draft["token"] + target["scoring_mean"] + probe
    return {f"{share:g}": alone / (tried + (1 - share) * alone) for share in ACCEPTED}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pair", nargs=2, default=("qwen2-32b", "qwen2-1.5b"), choices=SHAPES, metavar="SHAPE")  # fmt: skip
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, default=1, help="of torch, on a CPU")
    parser.add_argument("--step", type=int, default=64, help="tokens of a step")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="a file for the figures")
    given = parser.parse_args()
    try:
        target, draft = (at_full_depth(shape, given) for shape in given.pair)
        probe = probing(given.pair[0], given)
    except UserError as error:  # no such device, too little memory
        print(f"gpu_bench: {error}", file=sys.stderr)
        return 2
    table = Table("milliseconds", *given.pair, title=f"{given.device}, step of {given.step} behind {given.context}", title_justify="left")  # fmt: skip
    for kind in target:
        table.add_row(
            kind.replace("_", ", pooled: "), f"{1e3 * target[kind]:.2f}", f"{1e3 * draft[kind]:.2f}"
        )
    table.add_row("probe", f"{1e3 * probe:.2f}", "")
    gained = speedups(target, draft, probe, given.step)
    console = Console(width=100)
    console.print(table)
    console.print("speed-up by accepted share:", {k: f"{v:.2f}x" for k, v in gained.items()})
    told = {
        "pair": given.pair,
        "device": given.device,
        "step": given.step,
        "context": given.context,
    }
    figures = {"target": target, "draft": draft, "probe": probe, "speedup": gained}
    if given.json:
        write_json(given.json, {"provenance": provenance.collect(), **told, "seconds": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
