"""Two ranks of a tensor-parallel group with different numbers must commit the same tokens."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import sglang_env

pytestmark = pytest.mark.deep
ROOT = Path(__file__).parents[2]

RANK = """
import json, sys
from types import SimpleNamespace
import torch
from sglang.srt.distributed import parallel_state
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative import eagle_utils
from semspec.sglang_plugin.verification import Options, Verification
from tests.support.verifying import Request, Tree, verified

rank, port = int(sys.argv[1]), int(sys.argv[2])
torch.distributed.init_process_group(
    "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
)
group = parallel_state.init_model_parallel_group(
    [[0, 1]], rank, "gloo", use_pynccl=False, use_custom_allreduce=False, group_name="tp"
)
parallel_state._TP = group
eagle_utils.get_spec = lambda: SimpleNamespace(speculative_use_rejection_sampling=False)

rules = Verification(Options(accept="topk_delta", k=4, delta=0.3))
# token 2 is behind the likeliest by a little more on one rank, and a little less on the other
drafted, results = [Tree([0, 2], [-1, 0]), Tree([0, 3], [-1, 0])], {}
p = torch.tensor([0.1, 0.5, 0.2, 0.2]).repeat(2, 2, 1)
p[0, 0, 2] += 1e-4 if rank == 0 else -1e-4
p[1, 0, 3] += -1e-4 if rank == 0 else 1e-4
for name, ranks in (("hooked", group), ("apart", SimpleNamespace(world_size=1))):
    with get_parallel().override(tp_group=ranks):
        found = verified(
            lambda *a: rules.sample(eagle_utils.eagle_sample, *a), drafted, [Request(), Request()], p.log()
        )
    results[name] = [one.path for one in found]

# a rule for whole steps: the second rank's numbers would keep and write something else
from semspec.types import Sampling
from tests.sglang import test_handed_laws as handed

toy = handed.TOY
models = toy.models()
if rank:
    models["target"].logits = models["target"].logits.roll(1, -1)
alike = SimpleNamespace(vocabulary=toy.vocabulary, models=lambda: models)
for name, ranks in (("hooked", group), ("apart", SimpleNamespace(world_size=1))):
    with get_parallel().override(tp_group=ranks):
        rule = {"accept": "logprob", "threshold": handed.THRESHOLD, "step_cap": handed.CAP}
        asked = [handed.Writing(Sampling(0.0), rule, seed) for seed in range(3)]
        handed.write(handed.serving(alike), alike, asked)
    results[f"steps {name}"] = [one.output_ids for one in asked]
print(json.dumps(results), flush=True)
torch.distributed.barrier()
"""


def test_all_ranks_follow_the_first_one() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(port)],
            env=sglang_env.environment() | {"PYTHONPATH": _path()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], [error[-2000:] for _, error in said]
    told = [json.loads(out.splitlines()[-1]) for out, _ in said]
    assert told[0]["apart"] == [[1], []] and told[1]["apart"] == [[], [1]]
    assert told[0]["hooked"] == told[1]["hooked"] == [[1], []]
    assert told[0]["steps apart"] != told[1]["steps apart"]
    assert told[0]["steps hooked"] == told[1]["steps hooked"] == told[0]["steps apart"]


def _path() -> str:
    return f"{sglang_env.environment()['PYTHONPATH']}:{ROOT}"
