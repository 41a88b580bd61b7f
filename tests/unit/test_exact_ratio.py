"""`scripts/exact_ratio.py`: SemanticSpec's rule with counted probabilities, compared with counts by hand."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

import pytest

from semspec import world
from semspec.training.probes.shards import Sample

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import exact_ratio


def sample(text: str, writer: str) -> Sample:
    return Sample("c", "residues", 1, writer, 0, text, [], [])


def test_shares_of_meanings_decide_what_is_kept() -> None:
    rng = random.Random(3)
    domain = world.DOMAINS["residues"]
    problem = domain.make(rng)
    steps = [step + "\n\n" for step in domain.solve(rng, problem)]
    at = next(i for i, s in enumerate(steps) if (world.meaning(problem, s) or ("",))[0] == "value")
    right = steps[at]
    # the value at the end of the step, one higher
    head, value, tail = re.fullmatch(r"(.*=)(\d+)(\D*)", right, re.S).groups()  # type: ignore[union-attr]
    wrong = f"{head}{(int(value) + 1) % 100:02d}{tail}"
    assert not world.is_true(problem, world.meaning(problem, wrong))
    own = [sample(right, "own")] * 3 + [sample(wrong, "own")]
    drafted = [sample(right, "other")] + [sample(wrong, "other")] * 3
    found = exact_ratio.judged([*own, *drafted], problem, steps[:at], 0.0)
    assert [one.right for one in found] == [True, False, False, False]
    assert [one.target for one in found] == [0.75, 0.25, 0.25, 0.25]
    assert [one.draft for one in found] == [0.25, 0.75, 0.75, 0.75]
    assert [one.kept for one in found] == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3])
    smooth = exact_ratio.judged([*own, *drafted], problem, steps[:at], 0.5)
    assert smooth[0].target == pytest.approx(3.5 / 5)


def test_behind_a_mistake_it_is_right_to_take_it_back() -> None:
    rng = random.Random(5)
    domain = world.DOMAINS["residues"]
    problem = domain.make(rng)
    steps = domain.solve(rng, problem, world.Style(mistake=1.0, late=0.0, recap=0.0))
    kinds = [(world.meaning(problem, step) or ("",))[0] for step in steps[:5]]
    assert kinds == ["goal", "start", "value", "doubt", "value"]
    wrong, doubt, mended = (world.meaning(problem, step) for step in steps[2:5])
    assert exact_ratio.right_steps(problem, steps[:2], [wrong, doubt, mended]) == [False, False, True]  # fmt: skip
    assert exact_ratio.right_steps(problem, steps[:3], [doubt, mended]) == [True, False]
    assert exact_ratio.right_steps(problem, steps[:4], [doubt, mended]) == [False, True]
    # a step of the text that says nothing is passed over
    assert exact_ratio.right_steps(problem, [*steps[:4], "Hmm."], [mended]) == [True]
