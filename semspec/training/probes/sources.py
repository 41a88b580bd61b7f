"""Read questions and chains of thought from the embedded world, the Hub, or a local file."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from semspec import world
from semspec.errors import UserError
from semspec.models.hub import locate
from semspec.models.wanted import DATASET
from semspec.storage import dataset_rows as rows
from semspec.training.probes.settings import ProbeConfig

THINKING = ("thinking", "deepseek_thinking_trajectory", "thinking_trajectories")
"""Columns that hold a chain: ours, and those of simplescaling/s1K and s1K-1.1."""

ASKED = ("question", "prompt", "instruction", "text")
"""Columns that hold a question, where the model is to answer it (``chains=answers``)."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and its chain of thought if the source has one."""

    id: str  # also the key by which train and test are split
    domain: str
    question: str
    thinking: str | None = None


def questions(config: ProbeConfig, fits: Callable[[str], bool] | None = None) -> Iterator[Question]:
    """Yield ``config.problems`` questions of the source, in an order given by the seed.

    From a data set, only those that ``fits`` accepts.
    """
    if config.source == "embedded":
        yield from _embedded(config)
        return
    found = list(_rows(config))
    order = list(range(len(found)))
    random.Random(f"{config.seed} questions").shuffle(order)
    chosen = (found[n] for n in order if fits is None or fits(found[n].question))
    first = next(chosen, None)
    if first is None:
        raise UserError(f"no prompt of {config.data} has a length within lengths=: widen it")
    yield from islice(chain([first], chosen), config.problems)


def _embedded(config: ProbeConfig) -> Iterator[Question]:
    for number in range(config.problems):
        known = world.DOMAINS[config.domains[number % len(config.domains)]]
        domain = type(known)(*config.definitions)
        # benchmarks seed with "SEED DOMAIN NUMBER"; "probe" makes other problems, whatever the seeds
        rng = random.Random(f"probe {config.seed} {domain.name} {number}")
        problem = domain.make(rng)
        thinking = None
        if config.chains == "world":
            turn = world.render_solution(problem, domain.solve(rng, problem))
            thinking = turn.removeprefix(world.THINK_OPEN)
        yield Question(f"{domain.name}-{number:05d}", domain.name, problem.question, thinking)


def _rows(config: ProbeConfig) -> Iterator[Question]:
    path = Path(config.data).expanduser()
    if config.source == "hub":
        path = locate(config.data, config.revision, DATASET)
    files = rows.tables(path, DATASET.patterns) if config.source == "hub" else [path]
    found = [row for file in files for row in rows.read(file)]
    if not found and config.source == "hub":
        raise UserError(f"{config.data} holds no parquet, JSONL or JSON rows: use source=jsonl")
    read = _asked if config.chains == "answers" else _questions
    yield from read(found, config.data)


def commit_of(config: ProbeConfig) -> str | None:
    """Return the commit of a data set on the Hub (fetching it if it is not cached); None for a folder."""
    if Path(config.data).expanduser().is_dir():
        return None
    return locate(config.data, config.revision, DATASET).name


def first_text(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the text in the first of these columns that has one; "" if none has."""
    values = (row.get(name) for name in names)
    return next((v for v in values if isinstance(v, str) and v.strip()), "")


def _asked(numbered: Sequence[tuple[str, Any]], source: str) -> Iterator[Question]:
    """Yield questions without chains; of conversations (OASST1's columns) only English first turns."""
    found = 0
    for number, (_, row) in enumerate(numbered):
        if not isinstance(row, Mapping):
            continue
        opens = row.get("role", "prompter") == "prompter" and row.get("parent_id") is None
        text = first_text(row, ASKED)
        if text and opens and row.get("lang", "en") == "en":
            found += 1
            yield Question(f"q-{number:05d}", str(row.get("domain") or "all"), text)
    if not found:
        raise UserError(f"no row of {source} has a question: looked for {', '.join(ASKED)}")


def _questions(numbered: Sequence[tuple[str, Any]], source: str) -> Iterator[Question]:
    found = 0
    for number, (where, row) in enumerate(numbered):
        question = first_text(row, ["question"]) if isinstance(row, Mapping) else ""
        if not question:
            wrong = "has no question" if isinstance(row, Mapping) else "is no object"
            example = '{"question": "...", "thinking": "..."}'
            raise UserError(f"{where} {wrong}: lines look like {example}")
        if chain := _chain(row):  # some rows of s1K have none
            found += 1
            # s1K's cot_type is math, science or crossword; its source_type names the collection
            domain = row.get("domain") or row.get("cot_type") or row.get("source_type") or "all"
            yield Question(f"q-{number:05d}", str(domain), question, chain)
    if not found:
        raise UserError(
            f"no row of {source} has a chain of thought: looked for {', '.join(THINKING)}"
        )


def _chain(row: Mapping[str, Any]) -> str:
    columns = (row.get(name) for name in THINKING)
    listed = (value if isinstance(value, list) else [value] for value in columns)
    return next((v for values in listed for v in values if isinstance(v, str) and v.strip()), "")
