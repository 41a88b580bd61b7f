"""Every engine on the embedded pair writes the target's own text from token ids, with or without drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rivals.base import Workload
from rivals.catalogue import OTHER_WEIGHTS, OURS, REFERENCE, RIVALS
from rivals.figures import lossless, workload_figures
from rivals.measure import PLAIN, measure, read_lines

ROUNDS = 1


@pytest.fixture(scope="module")
def lines(reasoning: Workload, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What all engines wrote, each in its own process."""
    file = measure(reasoning, list(RIVALS), ROUNDS, tmp_path_factory.mktemp("answers"), models)
    return list(read_lines(file))


@pytest.fixture(scope="module")
def rows(lines: Any) -> Any:
    return workload_figures(lines)["rows"]


def test_every_engine_runs_every_kind(lines: Any, rows: Any, reasoning: Workload) -> None:
    assert not [line["error"] for line in lines if "error" in line]
    assert {row["rival"] for row in rows} == set(RIVALS)
    assert all(row["problems"] == len(reasoning.problems) for row in rows)
    kinds = {name: {row["kind"] for row in rows if row["rival"] == name} for name in RIVALS}
    assert all(PLAIN in own for own in kinds.values())
    assert all(len(own) >= 4 for name, own in kinds.items() if name != "openvino stateful")


def test_the_same_weights_write_the_same_text(rows: Any) -> None:
    for row in rows:
        if row["rival"] not in OTHER_WEIGHTS:
            assert row["parity"]["reference"] in ("same", "rounding"), row


def test_drafts_leave_every_engine_its_text(rows: Any) -> None:
    assert not [row for row in rows if row["rival"] in (OURS, REFERENCE) and not lossless(row)]


def test_drafts_save_passes(rows: Any) -> None:
    for rival in (OURS, REFERENCE, "llama.cpp f32"):
        own = {row["kind"]: row["tokens_per_pass"] for row in rows if row["rival"] == rival}
        assert own[PLAIN] == pytest.approx(1, abs=0.01)
        assert max(own.values()) > 3


def test_a_second_start_asks_for_nothing_again(
    reasoning: Workload, models: Path, tmp_path: Path
) -> None:
    names = [OURS, REFERENCE]
    file = measure(reasoning, names, 1, tmp_path, models)
    whole = list(read_lines(file))
    text = file.read_text().splitlines()
    file.write_text("\n".join(text[: len(text) // 2]) + '\n{"rival": "sem')  # a kill
    again = list(read_lines(measure(reasoning, names, 1, tmp_path, models)))
    answered = [json.dumps(line, sort_keys=True) for line in again if "wall" in line]
    known = [json.dumps(line, sort_keys=True) for line in whole if "wall" in line]
    kept = len([line for line in text[: len(text) // 2] if "wall" in line])
    assert answered[:kept] == known[:kept] and len(answered) == len(known)
