"""Drafts by heads leave the target's law as it is, whatever the heads are: random ones do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semspec.drafters.eagle3 import Eagle3Drafter
from semspec.drafters.medusa import MedusaDrafter
from semspec.engines.toy import Toy
from semspec.models import ModelConfig
from semspec.rules.lossless import Lossless
from semspec.types import Sampling
from tests.support.heads import target_folder, toy_eagle3, toy_medusa
from tests.support.law import p_value, speculative_plan

SURE = 1e-4
TOY = Toy(vocabulary=4, seed=3)
STOPPING = Toy(vocabulary=4, seed=3, stop=True)
SAMPLINGS = {"T=1": Sampling(1.0), "top-k, top-p": Sampling(0.8, top_k=3, top_p=0.9)}


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Heads with random weights; that of EAGLE-3 can draft three of the four tokens."""
    home: Path = tmp_path_factory.mktemp("heads")
    target = target_folder(home / "target", TOY.vocabulary)
    eagle3 = ModelConfig(path=str(toy_eagle3(home / "eagle3", TOY.vocabulary, [0, 2, 3])))
    medusa = ModelConfig(path=str(toy_medusa(home / "medusa", TOY.vocabulary)))
    return {
        "eagle3": Eagle3Drafter(head=eagle3).prepare(target),
        "medusa": MedusaDrafter(head=medusa).prepare(target),
    }


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("name", ["eagle3", "medusa"])
def test_sampled_chain_is_lossless(drafters: Any, name: str, sampling: Sampling) -> None:
    rule = Lossless()
    plan = speculative_plan(drafters[name], rule)
    assert p_value(TOY, plan, rule, sampling, samples=8_000) > SURE
