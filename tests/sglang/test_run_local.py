"""``python -m semspec.run engine=sglang`` without servers: both models, and the rule's probes, in its own processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support import sglang_env
from tests.support.processes import finished

COMMON = ("temperature=0", "problems=2", "concurrency=2", "max_new_tokens=50", "quiet=true")


def outcomes(folder: Path, *overrides: str) -> list[tuple[str, str, int, int]]:
    done = finished(
        [sys.executable, "-m", "semspec.run", *COMMON, *overrides, f"hydra.run.dir={folder}"],
        more={"PYTHONPATH": os.environ["PYTHONPATH"]},  # with the CPU's stand-ins, see sglang_env
    )
    assert "Traceback" not in done.stderr
    lines = (folder / "problems.jsonl").read_text(encoding="utf-8").splitlines()
    told = map(json.loads, lines)
    return sorted((one["id"], one["text"], one["rounds"], one["kept_units"]) for one in told)


@pytest.mark.parametrize(
    "rule", [pytest.param("semantic", marks=pytest.mark.deep), "semantic_plus"]
)
def test_a_run_with_probes_inside_writes_what_the_hf_engine_writes(
    rule: str, tmp_path: Path
) -> None:
    """``semantic`` has a probe in each engine, and ``semantic_plus`` one that reads log-probabilities."""
    given = ",".join(f"{k}: {json.dumps(v)}" for k, v in sglang_env.ENGINE_ARGUMENTS.items())
    inside = outcomes(
        tmp_path / "inside",
        *("engine=sglang", f"engine.server_args={{{given}}}", f"accept={rule}", "plain=false"),
    )
    assert inside == outcomes(tmp_path / "hf", f"accept={rule}", "plain=false")
    assert sum(kept for *_, kept in inside) > 0
    result = json.loads((tmp_path / "inside" / "result.json").read_text())
    assert result["prefix_reuse"]["target"] > 0.3
