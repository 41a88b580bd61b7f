"""A card's figures on right and wrong drafted steps, compared with truths and counts by hand."""

from __future__ import annotations

import math
import random
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from semspec import world
from semspec.training.probes.card import _drafted
from semspec.training.probes.contexts import Chain
from semspec.training.probes.judging import (
    held_out,
    section,
    together,
    told_apart,
    truths,
    wrong_among,
)
from semspec.training.probes.shards import Sample


def solved() -> tuple[world.Problem, list[str], list[str], int]:
    """A problem, its steps, the same with another value in one of them, and which."""
    rng = random.Random(3)
    domain = world.DOMAINS["residues"]
    problem = domain.make(rng)
    steps = world.split_steps(world.render_solution(problem, domain.solve(rng, problem)))
    at = next(i for i, s in enumerate(steps) if (world.meaning(problem, s) or ("",))[0] == "value")
    head, value, tail = re.fullmatch(r"(.*=)(\d+)(\D*)", steps[at], re.S).groups()  # type: ignore[union-attr]
    wrong = [*steps]
    wrong[at] = f"{head}{(int(value) + 1) % 100:02d}{tail}"
    return problem, steps, wrong, at


def sample(chain: str, cut: int, text: str) -> Sample:
    return Sample(chain, "residues", cut, "own", 0, text, [], [])


def test_the_oracle_says_what_is_right_and_nothing_behind_an_error() -> None:
    problem, steps, wrong, at = solved()
    chains = [
        Chain("true", "residues", "", [], [], steps, problem.question),
        Chain("false", "residues", "", [], [], wrong, problem.question),
        Chain("other", "residues", "", [], [], steps, "What is 2 + 2?"),
    ]
    samples = [
        *(sample("true", at, text) for text in (steps[at], wrong[at], steps[0], "mumble\n\n")),
        *(sample("false", at, text) for text in (steps[at], wrong[at])),
        sample("false", at + 1, steps[at + 1]),
        sample("other", at, steps[at]),
    ]
    found = truths(chains, samples)
    assert found[f"true/{at}"] == [1.0, 0.0, 0.0, 0.0], "what was said before does not come next"
    assert found[f"false/{at}"] == [1.0, 0.0], "the error comes later"
    assert math.isnan(found[f"false/{at + 1}"][0]) and math.isnan(found[f"other/{at}"][0])


def test_a_rule_keeps_steps_with_the_ratio_of_both_scores() -> None:
    target = np.array([0.9, 0.8, 0.4, 0.1])
    draft = np.array([0.9, 0.4, 0.8, 0.4])
    right = np.array([1.0, 1.0, 0.0, 0.0])
    groups = ["a", "b", "a", "b"]
    found = together(target, draft, right, groups)
    # the ratios are 1, 2, 0.5 and 0.25
    assert found["right_kept"]["kept"] == 1.0
    assert found["wrong_kept"]["kept"] == pytest.approx(0.375)
    assert (found["steps"], found["wrong"], found["auroc"]) == (4, 2, 1.0)
    low, high = found["wrong_kept"]["interval"]
    assert low == pytest.approx(0.25) and high == pytest.approx(0.5)  # one problem twice, or both
    # a probe of the draft that doubts the same steps undoes what the target's knows
    assert told_apart(target, right, groups)["auroc"] == 1.0
    undone = together(target, target, right, groups)
    assert undone["auroc"] == 0.5 and undone["wrong_kept"]["kept"] == 1.0
    silent = together(target, np.zeros(4), right, groups)
    assert silent["wrong_kept"]["kept"] == 1.0, "a score of 0 divides nothing"
    alone = together(target, draft, np.ones(4), groups)
    assert alone["auroc"] is None and alone["wrong_kept"]["kept"] is None


def rows(right: list[float] | None) -> Any:
    """Four own steps and four of the other model, the last two of them wrong or not known."""
    return SimpleNamespace(
        own=np.array([True] * 4 + [False] * 4),
        right=None if right is None else np.array(right, dtype=np.float32),
        target=torch.tensor([1.0, 1.0, 1.0, 0.0, 0.9, 0.5, 0.04, 0.0]),
        chains=list("aabbaabb"),
        lowest=np.array([-1.0] * 4 + [-1.0, -9.0, -2.0, -3.0]),
    )


def test_held_out_steps_are_those_of_the_draft() -> None:
    score = np.array([0.5] * 4 + [0.9, 0.8, 0.7, 0.1])
    known = rows([1, 1, 1, 0, 1, 1, 0, math.nan])
    of_target = held_out(score, known, range(8), "target", 0)
    assert of_target is not None
    assert (of_target["steps"], of_target["wrong"], of_target["truth"]) == (3, 1, "oracle")
    assert of_target["auroc"] == 1.0 and of_target["lowest"] == 0.5
    of_draft = held_out(score, known, range(8), "draft", 0)
    assert of_draft is not None
    assert (of_draft["steps"], of_draft["wrong"], of_draft["auroc"]) == (4, 1, 0.5)
    # without an oracle: what the target says now and then; what the draft says of itself is no truth
    said = held_out(score, rows(None), range(8), "target", 0)
    assert said is not None and "at least 0.05" in said["truth"]
    assert (said["steps"], said["wrong"], said["auroc"]) == (4, 2, 1.0)
    assert held_out(score, rows(None), range(8), "draft", 0) is None
    assert held_out(score, known, range(4), "target", 0) is None


def test_the_card_says_how_many_of_the_drafted_steps_that_it_learned_from_are_wrong() -> None:
    known = rows([1, 1, 1, 0, 1, 1, 0, math.nan])
    assert wrong_among(known, range(8), "target") == {"truth": "oracle", "steps": 3, "wrong": 1}
    assert wrong_among(known, [5, 6, 7], "target") == {"truth": "oracle", "steps": 2, "wrong": 1}
    assert wrong_among(known, range(8), "draft") == {"truth": "oracle", "steps": 4, "wrong": 1}
    assert wrong_among(known, range(4), "target") is None
    assert wrong_among(rows(None), range(8), "draft") is None
    line = _drafted({"truth": "oracle", "steps": 1200, "wrong": 150})
    assert "1,200 of the training rows can be judged, 12.5% of them are wrong" in line
    assert _drafted(None) == "", "a probe that was trained before this was counted"


def test_the_card_says_what_was_measured() -> None:
    assert section({}) == ""
    target, draft = np.array([0.9, 0.8, 0.4, 0.1]), np.array([0.9, 0.4, 0.8, 0.4])
    right, groups = np.array([1.0, 1.0, 0.0, 0.0]), ["a", "b", "a", "b"]
    fresh = told_apart(target, right, groups) | {"lowest": 0.75, "problems": 2, "seed": 7}
    fresh |= {"temperature": 0.6, "pairs": {"probe-x": together(target, draft, right, groups)}}
    test = {"truth": "oracle", **told_apart(target, right, groups), "lowest": None}
    text = section({"test": test, "fresh": fresh})
    assert "| held-out problems | 4 | 2 | 1.000 [1.000, 1.000] | - |" in text
    assert "| fresh problems | 4 | 2 | 1.000 [1.000, 1.000] | 0.750 |" in text
    assert "2 of the embedded world (seed 7), drafted at T = 0.6" in text
    assert "| `probe-x` | 1.000 [1.000, 1.000] | 1.000 [1.000, 1.000] | 0.375 [0.250, 0.500] |" in text  # fmt: skip
