"""Listing plugins, printing help and refusing mistakes import nothing heavy.

``scripts/bench_startup.py`` measures the seconds.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "scipy", "sklearn", "sglang", "datasets", "pyarrow", "starlette")
COMMANDS = [
    *("run", "audit", "build_datastore", "calibrate", "calibrate_risk", "compare", "convert_head"),
    *("convert_nli", "launch", "publish", "pull", "train_probe", "artifacts", "report", "serve"),
]
PROGRAM = """
import runpy, sys
module, *arguments = sys.argv[1:]
sys.argv = [module, *arguments]
try:
    runpy.run_module(f"semspec.{module}", run_name="__main__")
except SystemExit as end:
    code = end.code
else:
    code = 0
print("HEAVY", [name for name in %r if name in sys.modules], code)
"""


def imported(*arguments: str) -> tuple[str, str]:
    """Return the last line of a command and what it printed before."""
    program = PROGRAM % (HEAVY,)
    run = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    *shown, last = run.stdout.splitlines()
    return last, "\n".join(shown) + run.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_nothing_heavy(command: str) -> None:
    last, shown = imported(command, "--help")
    assert last == "HEAVY [] 0"
    assert f"semspec.{command}" in shown


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("drafft=lm", "unknown option 'drafft'; did you mean 'draft'?"),
        ("accept=logprop", "did you mean 'logprob'?"),
        ("model=qwq32", "did you mean 'qwq32b'?"),
        ("split=paragraf", "did you mean split=paragraph?"),
    ],
)
def test_a_mistake_is_refused_before_anything_heavy_is_imported(mistake: str, message: str) -> None:
    last, shown = imported("run", mistake)
    assert last == "HEAVY [] 2"
    assert message in shown


def test_a_list_of_all_plugins_imports_nothing_heavy() -> None:
    last, shown = imported("artifacts", "kinds")
    assert last.startswith("HEAVY []")
    assert "probe" in shown and "bigram" not in shown
