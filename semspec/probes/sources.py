"""Where questions and chains of thought come from: the embedded world, the Hub, or a local file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semspec import world
from semspec.errors import UserError, first_line
from semspec.hub import DATASET, locate
from semspec.probes.settings import ProbeConfig

THINKING = ("thinking", "deepseek_thinking_trajectory", "thinking_trajectories")
"""Columns that hold a chain: ours, and those of simplescaling/s1K and s1K-1.1."""

ASKED = ("question", "prompt", "instruction", "text")
"""Columns that hold a question, where the model is to answer it (``chains=answers``)."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and its chain of thought where the source has one."""

    id: str  # also what the split into training and test goes by
    domain: str
    question: str
    thinking: str | None = None


def questions(config: ProbeConfig) -> Iterator[Question]:
    """``config.problems`` questions of the source, in an order that its seed decides."""
    if config.source == "embedded":
        yield from _embedded(config)
        return
    rows = list(_jsonl(config) if config.source == "jsonl" else _hub(config))
    order = list(range(len(rows)))
    random.Random(f"{config.seed} questions").shuffle(order)
    for number in order[: config.problems]:
        yield rows[number]


def _embedded(config: ProbeConfig) -> Iterator[Question]:
    for number in range(config.problems):
        known = world.DOMAINS[config.domains[number % len(config.domains)]]
        domain = type(known)(*config.definitions)
        # benchmarks draw from "SEED DOMAIN NUMBER": "probe" keeps the two apart, whatever the seeds
        rng = random.Random(f"probe {config.seed} {domain.name} {number}")
        problem = domain.make(rng)
        thinking = None
        if config.chains == "world":
            turn = world.render_solution(problem, domain.solve(rng, problem))
            thinking = turn.removeprefix(world.THINK_OPEN)
        yield Question(f"{domain.name}-{number:05d}", domain.name, problem.question, thinking)


def _jsonl(config: ProbeConfig) -> Iterator[Question]:
    path = Path(config.data)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} ({first_line(error)}): give a JSONL file") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number} is not JSON: {first_line(error)}") from error
        rows.append((f"{path}, line {number}", row))
    yield from _read(rows, str(path), config)


def _hub(config: ProbeConfig) -> Iterator[Question]:
    folder = locate(config.data, config.revision, DATASET)
    files = sorted(f for f in folder.rglob("*") if f.suffix in (".parquet", ".jsonl", ".json"))
    parquet = [f for f in files if f.suffix == ".parquet"]
    rows: list[tuple[str, Any]] = []
    for file in parquet or files:
        if file.name.startswith((".", "dataset_info")):
            continue
        found = _read_parquet(file) if parquet else _read_json(file)
        rows += [(f"{file.name}, row {number}", row) for number, row in enumerate(found, 1)]
    if not rows:
        raise UserError(f"{config.data} holds no parquet, JSONL or JSON rows: use source=jsonl")
    yield from _read(rows, config.data, config)


def commit_of(config: ProbeConfig) -> str | None:
    """The commit of a data set from the Hub, fetched where it is not yet; None for a folder."""
    if Path(config.data).expanduser().is_dir():
        return None
    return locate(config.data, config.revision, DATASET).name


def _read_parquet(file: Path) -> Sequence[Any]:
    try:
        import pyarrow.parquet as parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise UserError(
            f"{file.name} is parquet, which needs pyarrow: run 'pip install pyarrow', or convert it"
            " to lines of question and thinking and give source=jsonl data=FILE"
        ) from error
    return list(parquet.read_table(file).to_pylist())


def _read_json(file: Path) -> Sequence[Any]:
    text = file.read_text(encoding="utf-8")
    try:
        if file.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        whole = json.loads(text)
    except ValueError as error:
        raise UserError(f"{file.name} is not JSON: {first_line(error)}") from error
    return whole if isinstance(whole, list) else []


def _read(rows: Sequence[tuple[str, Any]], source: str, config: ProbeConfig) -> Iterator[Question]:
    return _asked(rows, source) if config.chains == "answers" else _questions(rows, source)


def _asked(rows: Sequence[tuple[str, Any]], source: str) -> Iterator[Question]:
    """Questions alone. Of conversations (OASST1's columns) the first turns, and the English ones."""
    found = 0
    for number, (_, row) in enumerate(rows):
        if not isinstance(row, Mapping):
            continue
        opens = row.get("role", "prompter") == "prompter" and row.get("parent_id") is None
        text = next((row[n] for n in ASKED if isinstance(row.get(n), str) and row[n].strip()), None)
        if text is not None and opens and row.get("lang", "en") == "en":
            found += 1
            yield Question(f"q-{number:05d}", str(row.get("domain") or "all"), text)
    if not found:
        raise UserError(f"no row of {source} has a question: looked for {', '.join(ASKED)}")


def _questions(rows: Sequence[tuple[str, Any]], source: str) -> Iterator[Question]:
    found = 0
    for number, (where, row) in enumerate(rows):
        if not isinstance(row, Mapping):
            raise UserError(f"{where} is no object: lines look like "
                            '{"question": "...", "thinking": "..."}')  # fmt: skip
        question, chain = row.get("question"), _chain(row)
        if not isinstance(question, str) or not question.strip():
            raise UserError(f"{where} has no question: lines look like "
                            '{"question": "...", "thinking": "..."}')  # fmt: skip
        if chain:  # some rows of s1K have none
            found += 1
            domain = row.get("domain") or row.get("source_type") or "all"
            yield Question(f"q-{number:05d}", str(domain), question, chain)
    if not found:
        raise UserError(
            f"no row of {source} has a chain of thought: looked for {', '.join(THINKING)}"
        )


def _chain(row: Mapping[str, Any]) -> str:
    for name in THINKING:
        value = row.get(name)
        if isinstance(value, list):
            value = next((v for v in value if isinstance(v, str) and v.strip()), None)
        if isinstance(value, str) and value.strip():
            return value
    return ""
