"""Figures are measured with the package beside the script, and never with another checkout's."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.support.processes import finished


@pytest.mark.parametrize("beside", [True, False])
def test_a_script_of_another_checkout_is_refused(tmp_path: Path, beside: bool) -> None:
    root = Path(__file__).resolve().parents[2]
    script = root / "scripts/script_kit.py"
    if not beside:
        script = tmp_path / "scripts/script_kit.py"
        script.parent.mkdir()
        shutil.copy(root / "scripts/script_kit.py", script)
    done = finished([sys.executable, str(script)], code=0 if beside else 1)
    refused = f"script_kit.py would run the package in {root}, not the one beside it"
    assert (refused in done.stderr) is not beside
    assert (f"set PYTHONPATH={tmp_path}," in done.stderr) is not beside
