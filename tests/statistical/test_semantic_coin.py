"""The paper's acceptance: a step is accepted with probability exactly min(1, f_T / f_D)."""

from __future__ import annotations

from pathlib import Path

import pytest

from semspec.artifacts.probe import Probe
from semspec.drafters.lm import LanguageModel
from semspec.engines.toy import Toy, ToyEngine
from semspec.models.location import ModelFacts
from semspec.rules.semantic import Semantic
from semspec.types import Sampling
from tests.support.binding import run_of
from tests.support.deep import samples
from tests.support.law import PROMPT, p_value, speculative_plan
from tests.support.probes import random_probe

SURE = 1e-4
pytestmark = pytest.mark.deep(quick=True)
TOY = Toy(vocabulary=4, seed=3)
FACTS = ModelFacts("toy", None, "f", ToyEngine.layers, ToyEngine.width, "t")


def prepared(folder: Path, target: Probe, draft: Probe) -> Semantic:
    target.save(folder / "target")
    draft.save(folder / "draft")
    rule = Semantic(target_probe=str(folder / "target"), draft_probe=str(folder / "draft"))
    return rule.bind(run_of({"target": FACTS, "draft": FACTS}, "token", 1.0))


def constant(probe: Probe, logit: float) -> Probe:
    probe.tensors["layers.2.weight"].zero_()
    probe.tensors["layers.2.bias"].fill_(logit)
    return Probe(probe.config, probe.tensors)


def test_the_coin_has_the_papers_law(tmp_path: Path) -> None:
    target, draft = (toy_probe(role, seed) for role, seed in (("target", 1), ("draft", 2)))
    rule = prepared(tmp_path, target, draft)
    models = TOY.models()
    q, p = (models[m].law(PROMPT, 1, Sampling(1.0)) for m in ("draft", "target"))

    def f(probe: Probe, engine: ToyEngine, token: int) -> float:
        states = engine.features[PROMPT[-1], token][None]  # one token: its mean is itself
        reads = probe.draft_reads()
        return float(probe.score({reads[0]: states}, reads, ((0, 1),))[0])

    ratio = {
        x: min(1.0, f(target, models["target"], x[0]) / f(draft, models["draft"], x[0])) for x in q
    }
    assert min(ratio.values()) < 0.8, "a coin that always falls on one side shows nothing"
    rejected = 1 - sum(q[x] * ratio[x] for x in q)
    law = {x: q[x] * ratio[x] + rejected * p[x] for x in p}
    plan = speculative_plan(LanguageModel(), rule)
    options = {"samples": samples(quick=8_000, deep=12_000), "length": 1, "draft_length": 1}
    assert p_value(TOY, plan, rule, Sampling(1.0), law=law, **options) > SURE  # type: ignore[arg-type]


@pytest.mark.parametrize(("logit", "writer"), [(30.0, "draft"), (-30.0, "target")])
def test_constant_probes_give_the_expected_acceptance(
    tmp_path: Path, logit: float, writer: str
) -> None:
    """f_T = 1: the text is the draft's; f_T = 0: the target's. The other's law is found out."""
    target = constant(toy_probe("target", 1), logit)
    draft = constant(toy_probe("draft", 2), 30.0)
    rule = prepared(tmp_path, target, draft)
    plan = speculative_plan(LanguageModel(), rule)
    found = {}
    for model, engine in TOY.models().items():
        law = engine.law(PROMPT, 3, Sampling(1.0))
        found[model] = p_value(
            TOY, plan, rule, Sampling(1.0), samples=samples(quick=1_500, deep=3_000), law=law
        )
    assert found.pop(writer) > SURE
    assert all(other < 1e-12 for other in found.values())


def toy_probe(role: str, seed: int) -> Probe:
    return random_probe(facts=FACTS, seed=seed, role=role, split="token")
