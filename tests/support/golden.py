"""Golden runs: texts and round counts that a refactoring must not change.

    python -m tests.support.golden            print the current results as JSON
    python -m tests.support.golden --write    replace tests/golden/runs.json (after an intended change)

The cases cover every drafter with a fitting rule, every rule with a fitting drafter, and the loop's options. They
leave out times, and adaptive drafts, which depend on times.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "golden" / "runs.json"
# use the same kernels on every processor, so that rounding does not depend on the machine
KERNELS = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
}

TOKEN = ("split=token", "draft_length=5")
TREE = ("split=token", "tree=dynamic")
COMMON = (
    "adaptive=false",
    "engine=hf",
    "seed=7",
    "max_new_tokens=72",
    "problems=2",
    "temperature=0.6",
)
DRAFTERS = (
    "adapld dresd eagle3 hybrid logitspec medusa pld_plus prompt_lookup rest suffix token_recycling"
).split()
TOKEN_RULES = "lossless typical topk_delta fuzzy judge_head".split()
STEP_RULES = (
    "semantic semantic_plus semantic_risk logprob judge lookahead token random oracle triggers rsd"
    " confspec cascade"
).split()

CASES: dict[str, tuple[str, ...]] = {
    "plain": ("draft=none",),
    **{f"drafter {name}": (f"draft={name}", "accept=lossless", *TOKEN) for name in DRAFTERS},
    **{f"rule {name}, chain": (f"accept={name}", *TOKEN) for name in TOKEN_RULES},
    **{f"rule {name}, tree": (f"accept={name}", *TREE) for name in TOKEN_RULES},
    **{f"rule {name}, steps": (f"accept={name}",) for name in STEP_RULES},
    "rule specguard, steps": ("accept=specguard", "accept.threshold=0.3"),
    "rule arbitrage, steps": ("accept=arbitrage", "accept.threshold=0.15"),
    "rule r_stitch": ("accept=r_stitch", "split=token", "draft_length=16"),
    "rule glimprouter, steps": ("accept=glimprouter", "accept.threshold=3"),
    "drafter reference": (
        "draft=reference",
        "file=tests/golden/reference.txt",
        "accept=lossless",
        *TOKEN,
    ),
    "rule greedy": ("accept=greedy", *TOKEN, "temperature=0"),
    "rule greedy, tree": ("accept=greedy", *TREE, "temperature=0"),
    "rule arc": ("accept=arc", "theta=0.7", *TREE, "temperature=1"),
    "rule arc, pruned": ("accept=arc", "theta=0.7", "prune=entropy", *TREE, "temperature=1"),
    "rule arc, EAGLE-3": ("draft=eagle3", "accept=arc", "theta=0.7", *TOKEN, "temperature=1"),
    "rule arc_certified": ("accept=arc_certified", *TREE, "js=0.69", "risk=0.5", "temperature=1"),
    "lossless steps": ("accept=lossless", "split=paragraph"),
    "sentences": ("accept=logprob", "split=sentence", "draft_length=2"),
    "two paragraphs": ("accept=logprob", "draft_length=2"),
    "top-p, top-k": ("accept=lossless", *TOKEN, "top_p=0.9", "top_k=8"),
    "static tree": ("accept=lossless", "split=token", "tree=static"),
    "sampled tree": ("accept=lossless", "split=token", "tree=sampled"),
    "salvage": ("accept=logprob", "salvage=true"),
    "nested": ("accept=logprob", "salvage=true", "nested=lm"),
    "nested retrieval": ("accept=semantic_plus", "nested=suffix"),
    "ahead": ("accept=logprob", "ahead=true"),
    "answer by the target": ("accept=logprob", "answer_by=target", "max_new_tokens=300"),
    "four at a time": ("accept=logprob", "concurrency=4", "problems=4"),
    "rule random, greedy": ("accept=random", "temperature=0"),
}


def run(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Solve a few problems of the embedded world; return their texts and round counts."""
    from semspec.choices.settle import expand_shorthands
    from semspec.solver import Solver
    from tests.support.pair import configuration

    config = configuration(*expand_shorthands([*COMMON, *overrides]))
    problems = list(islice(config.benchmark.problems(), config.problems))
    with Solver(config) as solver:
        solved = {s.problem.id: s for s in solver.solve(problems, "speculative")}
    return {name: _told(solved[name]) for name in sorted(solved)}


def _told(solution: Any) -> dict[str, Any]:
    rounds = solution.outcome.rounds
    drafted = json.dumps([r.drafted for r in rounds]).encode()
    return {
        "text": solution.text,
        "rounds": len(rounds),
        "drafted": sum(len(r.drafted) for r in rounds),
        "kept": sum(len(r.kept) for r in rounds),
        "drafts": hashlib.sha256(drafted).hexdigest()[:16],
    }


def frozen() -> dict[str, Any]:
    """Return the stored golden runs."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def fresh(cases: Mapping[str, tuple[str, ...]] = CASES) -> dict[str, Any]:
    """Return the current results, from a process whose kernels do not depend on the processor."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.golden", *cases],
        env=os.environ | KERNELS,
        cwd=FILE.parent.parent.parent,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


def main(arguments: list[str]) -> None:
    if "--write" in arguments:
        FILE.write_text(json.dumps(fresh(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    import torch

    from semspec.models import processor

    torch.set_num_threads(1)
    processor.intel = lambda: False  # matrices are stored, and multiplied, as on other processors
    print(json.dumps({name: run(CASES[name]) for name in arguments or CASES}))


if __name__ == "__main__":
    main(sys.argv[1:])
