"""Sampling for a probe through real servers stores what the hf engine reads from the same text."""

from __future__ import annotations

import io
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from semspec.artifacts.probe import Probe
from semspec.engines._sglang.server import Reply, Server
from semspec.engines.hf import Hf
from semspec.models.location import ModelConfig, read_facts
from semspec.models.text import Text
from semspec.report.progress import Steps
from semspec.report.terminal import Screen
from semspec.training.probes.compose import build
from semspec.training.probes.contexts import Chain, read_chains
from semspec.training.probes.pipeline import make
from semspec.training.probes.sample import FOLDER
from semspec.training.probes.shards import read_samples, read_states
from semspec.types import Context, Query, Read, Sampling, What
from tests.support.pair import TARGET
from tests.support.sglang_servers import WAIT, Pair

pytestmark = pytest.mark.deep

LOGPROBS = Read(What.LOGPROBS)
SAMPLES, DRAFTED = 4, 2


def options(folder: Path, servers: Pair, *more: str) -> list[str]:
    return [
        *servers.overrides,
        "draft=tiny",
        f"folder={folder}",
        "problems=14",
        "per_problem=1",
        "chains=world",
        f"samples={SAMPLES}",
        "keep=3",
        f"drafted={DRAFTED}",
        "batch=24",
        "cluster=oracle",
        "hidden=[16,8]",
        "pooling=[mean,max,last]",
        "epochs=3",
        *more,
    ]


def make_here(*arguments: str) -> str:
    console = Screen(file=io.StringIO(), width=100)
    make(build(arguments), Steps(console))
    told: str = console.file.getvalue()  # type: ignore[attr-defined]
    return told


class Watched:
    """Counts of what really went over to the servers."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.under_way = self.most = self.prompt = self.cached = 0
        generate = Server.generate

        async def counted(server: Server, payload: Mapping[str, Any], times: int = 1) -> Reply:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                told = await generate(server, payload, times)
            finally:
                self.under_way -= 1
            self.prompt += int(told["meta_info"]["prompt_tokens"])
            self.cached += int(told["meta_info"]["cached_tokens"])
            return told

        patch.setattr(Server, "generate", counted)


@pytest.fixture(scope="module")
def trained(servers: Pair, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Watched]:
    folder = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        watched = Watched(patch)
        told = make_here(*options(folder, servers))
    assert "14 contexts x (4 samples + 2 by the other model)" in told
    return folder, watched


def test_stored_states_are_those_of_the_hf_engine(trained: tuple[Path, Watched]) -> None:
    into = trained[0] / FOLDER
    chains: dict[str, Chain] = {
        chain.id: chain for chain in read_chains(trained[0] / "chains.jsonl")
    }
    engine = Hf(device="cpu").load(str(TARGET))
    compared = {"own": 0, "other": 0}
    for key, one in enumerate(list(read_samples(into))[:60]):
        if one.file is None:
            continue
        chain = chains[one.chain]
        ids = [*chain.ids, *(t for step in chain.steps[: one.cut] for t in step)]
        pools = [
            Read(What.POOLED, spans=((0, len(one.tokens)),), reduce=r)
            for r in ("mean", "max", "last")
        ]
        query = Query("target", Context(key, ids), Sampling(), random.Random(0), one.tokens)
        query.reads = (LOGPROBS, *pools)
        (answer,) = engine.answer([query])
        engine.forget(query.context)
        expected = torch.stack([answer[read][0] for read in pools])
        stored = read_states(into, one.file)[one.row].float()
        # stored in fp16, whose rounding is at most 2^-11 of a number; two engines' float32 sums
        # differ by what the largest number of a state (here up to 1,850) leaves of 24 bits
        engines = expected.abs().amax(-1, keepdim=True) * 2**-20 + 1e-4
        assert ((stored - expected).abs() <= engines + expected.abs() * 2**-11).all()
        assert one.logprobs == pytest.approx(answer[LOGPROBS].tolist(), abs=1e-3)
        compared[one.writer] += 1
    assert min(compared.values()) >= 10


def test_every_context_has_its_samples_and_a_probe_comes_out(
    trained: tuple[Path, Watched],
) -> None:
    folder, _ = trained
    numbers: dict[str, list[tuple[str, int, bool]]] = {}
    texts: dict[str, set[str]] = {}
    for one in read_samples(folder / FOLDER):
        numbers.setdefault(one.context, []).append((one.writer, one.number, one.file is not None))
        texts.setdefault(one.context, set()).add(one.text)
    expected = [("own", n, n < 3) for n in range(SAMPLES)]
    expected += [("other", n, True) for n in range(DRAFTED)]
    assert len(numbers) == 14
    assert all(found == expected for found in numbers.values())
    assert max(len(found) for found in texts.values()) > 1, "nothing was drawn"
    probe = Probe.load(str(folder / "probe"))
    model = read_facts(ModelConfig(path="embedded/tiny-target"), Text(str(TARGET)).fingerprint)
    assert probe.check(model, split="paragraph", temperature=0.6) == []


def test_many_requests_share_a_cached_prefix(trained: tuple[Path, Watched]) -> None:
    _, watched = trained
    assert SAMPLES + DRAFTED < watched.most <= 24
    assert watched.cached > 0.6 * watched.prompt


def test_a_killed_sampling_resumes(servers: Pair, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    given = options(folder, servers, "batch=5")
    process = subprocess.Popen(
        [sys.executable, "-m", "semspec.train_probe", *given], stdout=subprocess.DEVNULL
    )
    first = folder / FOLDER / "group-00000.jsonl"
    until = time.monotonic() + WAIT
    while not first.exists():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "sampled.json").exists(), "it was over before it was killed"
    before = {f: f.read_bytes() for f in folder.glob(f"{FOLDER}/group-00000.*")}
    make_here(*given, "engine.timeout=500")  # what a server's client may change
    assert {f: f.read_bytes() for f in before} == before
    found = [(s.context, s.writer, s.number) for s in read_samples(folder / FOLDER)]
    assert len(found) == len(set(found)) == 14 * (SAMPLES + DRAFTED)
    assert json.loads((folder / "probe" / "config.json").read_text())["data"]["contexts"] == 14
