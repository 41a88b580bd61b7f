"""Handmade run folders with chosen texts, grades and times."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from semspec import world
from semspec.models.text import Text
from semspec.protocols import Grade
from semspec.results import metrics
from semspec.results.figures import Solve, problem_line
from semspec.storage.files import LineFile, write_json
from semspec.types import Outcome, Round
from tests.support.pair import TARGET

CONFIG: dict[str, Any] = {
    "model": {"path": "embedded/tiny-target", "revision": None},
    "draft": {"model": {"path": "embedded/tiny-draft", "revision": None}},
    "accept": {"threshold": -4.0},
    "engine": {"dtype": "auto", "device": "auto"},
    "benchmark": {"domains": ["residues"], "seed": 2026},
    "plugins": {
        "draft": "lm",
        "accept": "logprob",
        "nested": "none",
        "nested_accept": "lossless",
        "engine": "hf",
        "benchmark": "synthetic",
    },
    "split": "paragraph",
    "salvage": True,
    "temperature": 0.6,
    "concurrency": 1,
    "seed": 0,
    "max_new_tokens": 512,
    "top_k": 0,
    "top_p": 1.0,
    "plain": True,
}
PROVENANCE: dict[str, Any] = {
    "started": "2026-01-31T12:00:00Z",
    "command": ["/home/jane/venv/bin/python", "-m", "semspec.run", "hydra.run.dir=/home/jane/runs/x"],
    "seed": 0,
    "git": {"revision": "0123456789abcdef0123456789abcdef01234567", "dirty": False},
    "packages": {"semspec": "0.1.0", "torch": "2.13.0"},
    "python": "3.11.7",
    "platform": "Linux",
    "machine": {
        "cpu": "A processor", "cores": 8, "cores_allowed": 4, "threads": 1, "memory_gib": 31.2,
        "gpus": [], "load": [0.5, 0.4, 0.3],
    },
}  # fmt: skip
FALSE = "To find nothing we take y=99 and obtain z=98.\n\n"


@cache
def text() -> Text:
    return Text(str(TARGET))


def solution(number: int) -> tuple[world.Problem, list[str]]:
    """Return a problem of the embedded world and its true steps, each with its end of step."""
    rng = random.Random(f"run {number}")
    domain = world.DOMAINS["residues"]
    problem = domain.make(rng)
    return problem, world.split_steps(world.render_solution(problem, domain.solve(rng, problem)))


def rounds_of(steps: Sequence[str], false: str = FALSE) -> list[Round]:
    """Return rounds in which every third step is drafted wrongly and rewritten by the target; the others are kept."""
    encode, rounds = text().encode, []
    for number, step in enumerate(steps):
        own = encode(step)
        if number % 3 == 2:
            saved = 2 if number % 2 else 0  # salvaged tokens, followed by one of the target's own
            wrong = [*own[:saved], *encode(false)]
            written = own[: saved + 1] if saved else []
            rounds.append(
                Round(
                    drafted=wrong,
                    ends=[len(wrong)],
                    written=written,
                    handed=own[len(written) :],
                    nested_kept=3,
                    scores=[0.1],
                    note="0.10 < 0.50",
                )
            )
        else:
            rounds.append(
                Round(drafted=own, ends=[len(own)], kept=own, units_kept=1, scores=[0.9], ahead=number % 3 == 1)
            )  # fmt: skip
    return rounds


def solve(rounds: Sequence[Round], seconds: float, correct: bool | None, said: str = "") -> Solve:
    tokens = [t for r in rounds for t in (*r.kept, *r.written, *r.handed)]
    share = seconds / max(1, len(rounds))
    for r in rounds:
        r.seconds, r.passes = {"draft": share / 2, "verify": share / 2}, {"draft": 1, "target": 1}
    return Solve.from_outcome(
        Outcome(tokens, "eos", list(rounds), seconds),
        said or text().decode(tokens),
        Grade(correct, "12", {"steps": 3, "steps_true": 3}),
    )


def make_run(
    folder: Path,
    problems: int = 6,
    *,
    plain: bool = True,
    seconds: Callable[[int], tuple[float, float]] = lambda i: (2.0, 1.0 + 0.05 * (i % 4)),
    correct: Callable[[int], tuple[bool | None, bool | None]] = lambda i: (True, True),
    config: Mapping[str, Any] | None = None,
    finished: bool = True,
    false: str = FALSE,
    question: str | None = None,
    name: Callable[[int], str] = "residues-{:04d}".format,
    repeat: int = 1,
) -> Path:
    """Write a run's folder; ``seconds`` and ``correct`` give each problem's (target alone, speculative) values."""
    folder.mkdir(parents=True)
    whole = {**CONFIG, "problems": problems, "plain": plain, **(config or {})}
    write_json(folder / "config.json", {"digest": "0", "config": whole})
    lines = []
    with (
        LineFile(folder / "rounds.jsonl") as rounds_file,
        LineFile(folder / "problems.jsonl") as file,
    ):
        for number in range(problems):
            posed, steps = solution(number % 20)
            rounds = rounds_of(steps * repeat, false)
            alone, took = seconds(number)
            right = correct(number)
            line = problem_line(
                name(number),
                solve(rounds, took, right[1]),
                solve([Round(handed=text().encode("".join(steps)))], alone, right[0])
                if plain
                else None,
                posed.answer,
                question or posed.question,
            )
            for count, r in enumerate(rounds):
                tag = {"id": line["id"], "mode": "speculative", "round": count}
                rounds_file.append({**tag, **asdict(r)})
            file.append(line)
            lines.append(line)
    if finished:
        result = metrics.summarise(lines) | {"provenance": PROVENANCE, "concurrency": 1}
        write_json(folder / "result.json", result)
    status = {"state": "finished" if finished else "running", "done": problems, "total": problems}
    write_json(folder / "status.json", status)
    return folder
