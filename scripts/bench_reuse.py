"""Drafting from the context where texts come back: editing and quoting, every drafter in one run.

    python scripts/bench_reuse.py editing --temperature 0 [--problems 100] [--few 40] [--out ...]
    python scripts/bench_reuse.py grounded --temperature 1

The target is the embedded copier (train_tiny_copier.py), which has no draft model. ``--show FILE...``
prints tables of what is there and writes docs/reuse-TASK.json; see survey.py. Beside quality and speed
stand AdaPLD's tables 10 to 12: how matches were found, where the kept tokens came from, how many.
"""

from __future__ import annotations

from pathlib import Path

from survey import LENGTHS, QUALITY_AND_SPEED, Column, Line, Survey, choose

SEED = 20261215  # of the problems: no training has seen them
TASKS = ("editing", "grounded")
NAMES = ("prompt_lookup", "suffix", "pld_plus", "adapld", "token_recycling", "logitspec", "hybrid")


def shares(part: str) -> Column:
    """Shares of one part of ``reuse.figures``, in its order."""

    def told(row: Line) -> str:
        found = (row["reuse"] or {}).get(part)
        return "" if not found else " / ".join(f"{share:.2f}" for share in found.values())

    return part, told


def figure(heading: str, name: str) -> Column:
    def told(row: Line) -> str:
        value = (row["reuse"] or {}).get(name)
        return "" if value is None else f"{value:.2f}"

    return heading, told


def survey(task: str) -> Survey:
    return Survey(
        main={"plain": ("draft=none",), **{name: (f"draft={name}",) for name in NAMES}},
        few={},
        columns=(
            *QUALITY_AND_SPEED,
            *LENGTHS,
            shares("found"),
            shares("origin"),
            figure("reuse rate", "rate"),
            figure("length", "length"),
        ),
        seed=SEED,
        json=Path(f"docs/reuse-{task}.json"),
        common=("model=tiny-copier", f"benchmark={task}", "split=token", "accept=lossless"),
    )


if __name__ == "__main__":
    choose(TASKS, "task", survey, __doc__)
