"""Arbitrage: a router's labels and training, the rule's decisions, and what it refuses."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from semspec.artifacts.probe import Probe
from semspec.artifacts.router import Router, named
from semspec.drafters.prompt_lookup import PromptLookup
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.models.location import EXAMPLE, ModelConfig
from semspec.protocols import Run, Setup
from semspec.report.progress import Steps
from semspec.report.terminal import Screen
from semspec.rules.arbitrage import Arbitrage
from semspec.solver import Solver
from semspec.storage.files import dumps, parse, whole_lines
from semspec.storage.packaged import beside_package
from semspec.training.probes.advantage import advantage, advantages
from semspec.training.probes.compose import build
from semspec.training.probes.pipeline import labelled_rows, make, sampled
from semspec.training.probes.sample import FOLDER
from semspec.training.probes.semantic import path_of
from semspec.training.probes.settings import ProbeConfig
from semspec.training.probes.shards import Sample, read_samples
from semspec.training.probes.stages import facts_of
from semspec.types import Sampling
from tests.support.pair import configuration
from tests.support.probes import random_probe
from tests.support.words import Words, finish


def slowly(clusters: Sequence[int], own: Sequence[bool]) -> list[float]:
    """Score every step by comparing it with each of the target's steps but itself."""
    theirs = [i for i, mine in enumerate(own) if not mine]

    def score(i: int) -> float:
        others = [j for j in theirs if j != i]
        return sum(clusters[i] == clusters[j] for j in others) / len(others)

    mean = sum(map(score, theirs)) / len(theirs)
    return [mean - score(i) for i, mine in enumerate(own) if mine]


def test_advantages_are_those_of_a_slow_count() -> None:
    rng = random.Random(4)
    for _ in range(300):
        own = [True] * rng.randint(1, 5) + [False] * rng.randint(2, 6)
        clusters = [rng.randrange(3) for _ in own]
        assert advantage(clusters, own) == pytest.approx(slowly(clusters, own))
    # the target is sure, and the draft says something else; it says many things: nothing is gained
    assert advantage([0, 1, 1, 1, 1], [True, False, False, False, False]) == [1.0]
    assert advantage([0, 1, 2, 3, 4], [True, False, False, False, False]) == [0.0]
    assert advantage([1, 1, 1, 2, 2], [True, *[False] * 4]) == pytest.approx([-1 / 6])


def test_advantages_are_read_by_context_of_whole_lines(tmp_path: Path) -> None:
    def of(cut: int, writer: str, number: int) -> Sample:
        return Sample("c", "d", cut, writer, number, "x", [1], [0.0])

    file = tmp_path / "clusters.jsonl"
    lines = [{"context": f"c/{cut}", "clusters": [0, 1, 1, cut], "semantic": []} for cut in (1, 0)]
    file.write_text("".join(dumps(line) + "\n" for line in lines) + '{"context": "c/9"')
    samples = [of(cut, *which) for cut in (0, 1) for which in (("own", 0), ("own", 1), ("other", 0), ("other", 1))]  # fmt: skip
    assert advantages(file, samples) == {"c/0": [-0.5, -0.5], "c/1": [1.0, 0.0]}


def asked(folder: Path, *more: str) -> ProbeConfig:
    """A quick training; the draft stands for both models, which then differ by what they sample."""
    tiny = "embedded/tiny-draft"
    common = [f"folder={folder}", "chains=world", "problems=21", "per_problem=2", "batch=42"]
    common += ["cluster=oracle", "samples=3", "drafted=3", "step_cap=48", "temperature=2"]
    common += ["hidden=[16,8]", "epochs=3"]
    pair = [f"model.path={tiny}", "draft=lm", f"draft.model.path={tiny}"]
    return build([*pair, *common, "role=draft", "label=advantage", *more])


def test_a_router_is_trained_on_drafted_steps_by_their_labels(tmp_path: Path) -> None:
    config = asked(tmp_path / "work", "margin=0.2")
    steps = Steps(Screen(file=io.StringIO()), quiet=True)
    made, out = make(config, steps)
    chains, model = sampled(config, tmp_path / "work", steps)
    rows = labelled_rows(config, tmp_path / "work", chains, model, steps)
    samples = list(read_samples(tmp_path / "work" / FOLDER))
    assert {s.writer for s in samples} == {"own", "other"} and rows.own.all()
    stored = (parse(line) or {} for line in whole_lines(path_of(config, tmp_path / "work")))
    clusters = {line["context"]: line["clusters"] for line in stored}
    wanted: list[float] = []
    for context in dict.fromkeys(s.context for s in samples):
        wanted += slowly(clusters[context], [s.writer == "own" for s in samples if s.context == context])  # fmt: skip
    assert rows.advantage is not None
    assert rows.advantage.tolist() == pytest.approx(wanted, abs=1e-6)
    assert rows.target.tolist() == [float(x > 0.2) for x in wanted]
    loaded = Router.load(out)
    assert isinstance(made, Router) and loaded.digest == made.digest
    assert loaded.guard == -torch.inf and loaded.config["advantage"] == {"margin": 0.2}
    measured = loaded.config["metrics"]["advantage"]
    assert measured["better"] == pytest.approx(float(rows.target.mean()))
    assert loaded.config["target"]["id"] == "embedded/tiny-draft"
    assert "better by more than 0.2" in loaded.texts["README.md"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["role=target"], "give role=draft and a draft model"),
        (["drafted=1"], "a context has 1 of them: give writers=both drafted=2"),
        (["writers=own"], "a context has 0 of them"),
        (["margin=1"], "give an advantage from -1 to 1"),
        (["label=better"], "unknown label 'better'"),
    ],
)
def test_labels_that_cannot_be_are_refused(options: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=told) as error:
        asked(tmp_path, *options)
    assert "\n" not in str(error.value)


def test_labels_that_are_all_alike_are_refused(tmp_path: Path) -> None:
    config = asked(tmp_path, "margin=0.99", "problems=8", "per_problem=1", "temperature=0.01")
    with pytest.raises(
        UserError, match=r"better by more than margin=0\.99 in all cases or in none"
    ):
        make(config, Steps(Screen(file=io.StringIO()), quiet=True))


def drafted_with(router: Router, rows: int) -> tuple[Words, Any, list[float]]:
    """A draft of steps with states, and what a slow forward pass says of them."""
    words = Words()
    draft = words.draft(*[f" Step {n}.\n\n" for n in range(rows)])
    (read,) = router.draft_reads()
    draft.evidence = {read: 3 * torch.randn(rows, EXAMPLE.layers + 1, EXAMPLE.width)}
    t = router.tensors
    x = (draft.evidence[read].flatten(1) - t["mean"]) / t["std"]
    for layer in range(3):
        x = x @ t[f"layers.{layer}.weight"].T + t[f"layers.{layer}.bias"]
        x = x.relu() if layer < 2 else x.sigmoid()
    return words, draft, x.flatten().tolist()


def test_a_step_stays_up_to_the_first_that_the_target_would_better() -> None:
    torch.manual_seed(1)
    router = Router.example()
    words, draft, better = drafted_with(router, 6)
    starts = [a for a, _ in pairwise([0, *draft.ends])]
    for threshold in [0.0, *sorted(better), 1.0]:
        rule = Arbitrage(threshold=threshold).bound(judge=router)
        assert rule.evidence() == router.draft_reads()
        # nothing is asked of the target
        verdict = finish(rule.open(words.kit()).judge(words.context(), draft))
        first = next((i for i, x in enumerate(better) if x > threshold + 1e-6), None)
        assert verdict.keep == (len(draft.tokens) if first is None else starts[first])
        assert (verdict.handover is None) == (first is None)
        judged = better if first is None else better[: first + 1]
        assert verdict.scores == pytest.approx([1 - x for x in judged], abs=1e-5)
    assert len({round(x, 3) for x in better}) > 3, "the steps differ"


def test_what_was_copied_is_the_targets() -> None:
    words, rule = Words(), Arbitrage(threshold=1).bound(judge=Router.example())
    verdict = finish(rule.open(words.kit()).judge(words.context(), words.draft(" One.\n\n")))
    assert verdict.keep == 0 and verdict.handover is not None


@cache
def facts(name: str) -> Any:
    return facts_of(ModelConfig(path=f"embedded/{name}"))


def of_the_pair(folder: Path) -> str:
    """Save an untrained router of the embedded pair."""
    probe = random_probe(facts=facts("tiny-draft"), role="draft")
    config = probe.config | {"kind": Router.kind, "target": named(facts("tiny-target"))}
    Router(config | {"advantage": {"margin": 0.0}}, probe.tensors).save(folder)
    return str(folder)


def told(*options: str) -> tuple[str, int, int]:
    """Text, target passes and kept units of a short greedy run."""
    config = configuration("engine=hf", "temperature=0", "max_new_tokens=60", "problems=1", *options)  # fmt: skip
    problem = next(iter(config.benchmark.problems()))
    with Solver(config) as solver:
        (solved,) = solver.solve([problem], "speculative")
    rounds = solved.outcome.rounds
    passes = sum(r.passes.get("target", 0) for r in rounds)
    return solved.text, passes, sum(r.units_kept for r in rounds)


def test_thresholds_0_and_1_are_the_target_alone_and_the_draft_alone(tmp_path: Path) -> None:
    router = of_the_pair(tmp_path / "router")
    rule = ("accept=arbitrage", f"accept.router={router}", "draft_length=1", "adaptive=false")
    text, _, kept = told(*rule, "accept.threshold=0")
    assert (text, kept) == (told("draft=none")[0], 0)
    text, passes, kept = told(*rule, "accept.threshold=1")
    assert text == told("draft=none", "accept=logprob", "model.path=embedded/tiny-draft")[0]
    assert kept > 1 and passes == 0, "the target reads nothing that it does not go on from"


def run_of(**changes: Any) -> Run:
    models = {"target": facts("tiny-target"), "draft": facts("tiny-draft")}
    return replace(Run(models=models, split="paragraph", sampling=Sampling(0.6), rule="arbitrage", drafts="d"), **changes)  # fmt: skip


def test_a_router_of_other_models_is_refused_with_the_command(tmp_path: Path) -> None:
    own = Arbitrage(router=of_the_pair(tmp_path / "own"))
    assert own.bind(run_of()).judge is not None
    swapped = {"target": facts("tiny-draft"), "draft": facts("tiny-draft")}
    Probe.example("draft").save(tmp_path / "probe")
    Router.example().save(tmp_path / "example")
    command = r"make one with python -m semspec\.train_probe .*role=draft label=advantage"
    for rule, changes, says in (
        (own, {"models": swapped}, f"trained for embedded/tiny-target, .*{command}"),
        (own, {"models": {r: facts("tiny-target") for r in swapped}}, "it reads layers="),
        (own, {"split": "sentence"}, f"not split=sentence.*{command}"),
        (own, {"sampling": Sampling(1.5)}, "it was trained at temperature"),
        (Arbitrage(router=str(tmp_path / "probe")), {}, "'probe', not a router"),
        (Arbitrage(router=str(tmp_path / "example")), {}, f"it reads width=4.*{command}"),
    ):
        with pytest.raises(UserError, match=says) as error:
            rule.bind(run_of(**changes))
        assert "\n" not in str(error.value)
    alone = run_of(models={"target": facts("tiny-target")}, drafts=None)
    assert own.bind(alone).evidence() == () and not own.loads(alone)


def test_other_drafts_and_thresholds_are_refused() -> None:
    common: Any = {"engine": Toy(), "split": "paragraph", "sampling": Sampling()}
    with pytest.raises(UserError, match="use draft=lm"):
        Arbitrage().check_setup(Setup(drafter=PromptLookup(), rule=Arbitrage(), **common))
    with pytest.raises(UserError, match="give a probability from 0 to 1"):
        Arbitrage(threshold=1.1)


def test_the_shipped_router_is_small_and_of_the_shipped_pair() -> None:
    bound = Arbitrage().bind(run_of())
    assert bound.judge is not None and bound.judge.features.logprobs
    found = bound.judge.config["metrics"]
    assert found["advantage"]["spearman"] > 0.3 and found["test"]["all"]["auroc"] > 0.75
    folder = beside_package("hub_artifacts") / "router-tiny-draft"
    assert sum(file.stat().st_size for file in folder.iterdir()) < 150_000
