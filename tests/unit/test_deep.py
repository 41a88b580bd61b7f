"""A quick run skips the tests marked deep, and ``-m deep`` runs exactly what it skipped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest
from tests.support.deep import samples
COUNT = samples(quick=2, deep=5)

def test_always(): pass

@pytest.mark.deep
def test_deep_only(): pass

@pytest.mark.deep(quick=True)
def test_in_both(): print(f"tried {COUNT}")

@pytest.mark.parametrize("case", ["one", pytest.param("other", marks=pytest.mark.deep)])
def test_a_case(case): pass
"""


@pytest.mark.parametrize(
    ("deep", "chosen", "ran", "tried"),
    [
        (False, (), {"always", "in_both", "a_case[one]"}, 2),
        (True, ("-m", "deep"), {"deep_only", "in_both", "a_case[other]"}, 5),
        (True, (), {"always", "deep_only", "in_both", "a_case[one]", "a_case[other]"}, 5),
    ],
)
def test_the_quick_and_the_deep_run_have_their_own_tests_and_samples(
    deep: bool, chosen: tuple[str, ...], ran: set[str], tried: int, tmp_path: Path
) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_collection_modifyitems\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "SEMSPEC_DEEP"}
    environment |= {"PYTHONPATH": str(ROOT)} | ({"SEMSPEC_DEEP": "1"} if deep else {})
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml")]
    command += ["--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-v", "-s", *chosen]
    done = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, env=environment, check=True
    )
    assert set(re.findall(r"::test_(\S+)", done.stdout)) == ran
    assert f"tried {tried}" in done.stdout
    assert "skipped" not in done.stdout


def test_tests_that_grow_in_the_deep_run_are_marked_for_it() -> None:
    """Else ``make test-deep`` would not run it again."""
    for file in (ROOT / "tests").rglob("test_*.py"):
        text = file.read_text(encoding="utf-8")
        if "from tests.support.deep import" in text:
            assert "mark.deep(quick=True)" in text, file
