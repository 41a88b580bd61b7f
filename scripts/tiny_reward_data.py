"""Steps for the embedded reward model: true, corrupted and sampled from the draft, labelled by the oracle."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from train_tiny_pair import solved

from semspec import world
from semspec.config import build, compose
from semspec.models.text import Text
from semspec.solver import Solution, Solver

ROWS = 16  # a batch
WITHIN = 0.1  # what a token inside a step counts, against 1 for a step's end
BALANCE = 7.0  # ... and a wrong step's end, as 1 in 8 is: a reward of 0.5 is then even odds
SAMPLED_SHARE = 0.6  # of a batch's rows


@dataclass(frozen=True)
class Row:
    """A question, the steps of a solution, and whether each is right; only the last may be wrong."""

    question: str
    steps: tuple[str, ...]
    labels: tuple[bool, ...]
    place: int | None = None  # where in a wrong last step the error begins, if that is known


def labelled(problem: world.Problem, steps: list[str]) -> Row:
    """Return a row up to the first step that the oracle rejects; steps after an error have no label."""
    before: list[world.Meaning] = []
    labels: list[bool] = []
    for step in steps:
        said = world.meaning(problem, step)
        labels.append(world.is_next(problem, before, said))
        if not labels[-1] or said is None:
            break
        before.append(said)
    return Row(problem.question, tuple(steps[: len(labels)]), tuple(labels))


def alone(
    model: Path, temperature: float, count: int, seed: int, at_once: int = 50
) -> Iterator[tuple[Solver, Solution, world.Problem]]:
    """Yield the solutions of fresh problems that a model writes by itself."""
    options = ["draft=none", "accept=logprob", f"model.path={model}", f"benchmark.seed={seed}"]
    options += [f"temperature={temperature}", f"problems={count}", f"concurrency={at_once}"]
    with Solver(build(compose(options))) as solver:
        problems = list(islice(solver.config.benchmark.problems(), count))
        for done in solver.solve(problems, "plain"):
            problem = world.find_problem(done.problem.question)
            assert problem is not None
            yield solver, done, problem


def sample(draft: Path, temperature: float, count: int, seed: int) -> list[Row]:
    """Return solutions that the draft model writes by itself."""
    rows = []
    for _, done, problem in alone(draft, temperature, count, seed):
        rows.append(labelled(problem, world.split_steps(done.text)))
        if len(rows) % 250 == 0:
            print(f"sampled {len(rows):4d}/{count} at T = {temperature}", flush=True)
    return rows


def made(rng: random.Random) -> Row:
    """Return a true solution, or one with a changed step."""
    domain = rng.choice(list(world.DOMAINS.values()))
    problem, steps = solved(rng, domain)
    if rng.random() < 0.25:
        return labelled(problem, steps)
    at = rng.randrange(len(steps))
    step, place = corrupt(rng, domain, problem, steps, at)
    return replace(labelled(problem, [*steps[:at], step]), place=place)


def corrupt(
    rng: random.Random, domain: world.Domain, problem: world.Problem, steps: list[str], at: int
) -> tuple[str, int | None]:
    """Return a step with another value somewhere, and where; or a step from elsewhere."""
    step = steps[at]
    values = sorted(v for v in set(problem.values.values()) if v in step)
    if not values or rng.random() < 0.1:
        return rng.choice(steps), None
    value = rng.choice(values)
    # mostly a value of another name, as the draft mistakes them
    others = [v for v in problem.values.values() if v != value]
    new = rng.choice(others) if others and rng.random() < 0.6 else domain.draw_value(rng)
    place = rng.choice([i for i in range(len(step)) if step.startswith(value, i)])
    alike = next((i for i, (a, b) in enumerate(zip(value, new, strict=False)) if a != b), 0)
    return step[:place] + new + step[place + len(value) :], place + alike


class Batches:
    """Batch n is drawn from its own seed, so that training can resume anywhere."""

    def __init__(self, text: Text, sampled: list[Row], seed: int) -> None:
        self.text, self.sampled, self.seed = text, sampled, seed

    def ids(self, row: Row) -> tuple[list[int], list[int]]:
        """Return token ids, and the last token of each step."""
        ids, ends = list(self.text.prompt(row.question)[1]), []
        for step in row.steps:
            ids += self.text.encode(step)
            if not step.endswith(world.STEP_END):
                ids.append(self.text.eos or 0)  # the last step ends the turn
            ends.append(len(ids) - 1)
        return ids, ends

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return ids, whether all is right so far, and the weights, which are highest at the ends of steps."""
        rng = random.Random(f"{self.seed} batch {number}")
        rows = [
            rng.choice(self.sampled) if rng.random() < SAMPLED_SHARE else made(rng)
            for _ in range(ROWS)
        ]
        encoded = [self.ids(row) for row in rows]
        shape = ROWS, max(len(ids) for ids, _ in encoded)
        inputs = torch.full(shape, self.text.tokenizer.pad_token_id)
        labels, weights = torch.ones(shape), torch.zeros(shape)
        for i, (row, (ids, ends)) in enumerate(zip(rows, encoded, strict=True)):
            inputs[i, : len(ids)] = torch.tensor(ids)
            first = ends[0] - len(self.text.encode(row.steps[0])) + 1
            weights[i, first : len(ids)] = WITHIN
            if not row.labels[-1]:
                start = ends[-2] + 1 if len(ends) > 1 else first
                weights[i, start : len(ids)] = 0.0
                if row.place is not None:
                    start += len(self.text.encode(row.steps[-1][: row.place]))
                    weights[i, start : len(ids)] = 3 * WITHIN
                    labels[i, start:] = 0.0
            weights[i, ends] = 1.0
            if not row.labels[-1]:
                weights[i, ends[-1]] = BALANCE
            labels[i, ends] = torch.tensor(row.labels, dtype=torch.float32)
        return inputs, labels, weights
