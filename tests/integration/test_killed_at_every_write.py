"""A run that is killed at any of its writes goes on to what an unbroken one leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semspec.results.records import Mode, RunFolder
from tests.support.kill_at import Command, survives_kills

OPTIONS = (
    *("problems=1", "max_new_tokens=16", "accept=logprob", "transcript=false"),
    *("benchmark.domains=[residues]", "seed=3", "adaptive=false"),
)
# what every start would import again
LOADED = (
    *("torch", "hydra", "transformers.configuration_utils", "semspec.solver", "semspec.runner"),
    *("semspec.engines._lean.engine", "semspec.models.text", "semspec.cli.reproduce"),
)

pytestmark = pytest.mark.deep(quick=True)


@pytest.fixture(scope="module")
def command() -> Iterator[Command]:
    with Command("semspec.run", *LOADED) as running:
        yield running


def left(folder: Path) -> Any:
    """Everything that a run leaves but its times: texts, answers, rounds."""
    run = RunFolder(folder)
    assert run.status["state"] == "finished" and (folder / "report.html").exists()
    lines = {
        line["id"]: (line["text"], line["answer"], line["plain"]["text"])
        for line in run.problem_lines()
    }
    modes: tuple[Mode, ...] = ("plain", "speculative")
    rounds = [
        (r["drafted"], r["kept"], r["written"], r["handed"], r["scores"])
        for name in lines
        for mode in modes
        for r in run.round_lines(name, mode)
    ]
    return lines, rounds, run.config, (folder / "weights.json").read_bytes()


def test_a_run_ends_the_same_wherever_it_was_killed(command: Command, tmp_path: Path) -> None:
    survives_kills(command, lambda folder: [*OPTIONS, f"hydra.run.dir={folder}"], left, tmp_path)
