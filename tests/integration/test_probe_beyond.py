"""The shipped probe on chains shorter and longer than the benchmark's still rejects wrong steps."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from semspec import world
from semspec.artifacts.probe import Probe
from semspec.choices.settle import expand_shorthands
from semspec.config import build, compose
from semspec.rules.semantic_plus import SemanticPlus
from semspec.solver import Solver
from semspec.types import Context, Query, Sampling

pytestmark = pytest.mark.deep

VALUE = re.compile(r"=(\d\d|[A-Z][a-z]+day)")
PROBLEMS = 5  # of each domain and length


@pytest.fixture(scope="module")
def solver() -> Solver:
    return Solver(build(compose(expand_shorthands(["accept=semantic_plus"]))))


@pytest.mark.parametrize("definitions", [1, 2, 9])
def test_a_wrong_value_is_never_kept(solver: Solver, definitions: int) -> None:
    """Every step of a true solution, and the same step with another value at its end."""
    probe, threshold = Probe.load("embedded/probe-tiny-target-plus"), SemanticPlus().threshold
    engine, text = solver.engines["target"], solver.text
    seen: Counter[str] = Counter()
    key = 10**6
    for number in range(PROBLEMS):
        for known in world.DOMAINS.values():
            domain, rng = type(known)(definitions, definitions), random.Random(f"beyond {number}")
            problem = domain.make(rng)
            prompt, ids = text.prompt(problem.question)
            opened = "" if prompt.rstrip().endswith("<think>") else world.THINK_OPEN
            turn = world.render_solution(problem, domain.solve(rng, problem))
            steps = [f"{s}\n\n" for s in turn.removeprefix(world.THINK_OPEN).split("\n\n") if s]
            for at, step in enumerate(steps):
                found = list(VALUE.finditer(step))
                if not found or "</think>" in step:
                    continue
                start, end = found[-1].span(1)
                wrong = step[:start] + domain.draw_value(rng) + step[end:]
                for label, said in (("right", step), ("wrong", wrong)):
                    if label == "wrong" and wrong == step:
                        continue
                    key += 1
                    context = Context(key, ids + text.encode(opened + "".join(steps[:at])))
                    tokens = text.encode(said)
                    spans = ((0, len(tokens)),)
                    reads = probe.reads(spans)
                    query = Query("target", context, Sampling(0.6), rng, tokens=tokens, reads=reads)
                    values = engine.answer([query])[0].values
                    engine.forget(context)
                    seen[label] += 1
                    seen[f"{label} kept"] += bool(probe.score(values, reads, spans)[0] >= threshold)
    assert seen["wrong"] >= 15
    assert seen["wrong kept"] == 0, seen
    if definitions < 9:  # beyond eight definitions the target itself hardly knows its way
        assert seen["right kept"] >= 0.5 * seen["right"], seen
