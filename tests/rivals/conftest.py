"""These tests run in .venv-rivals (``make test-rivals``). Without the engines they fail; none is skipped."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
# the converted model stays in the environment; set before anything imports the Hub's client
os.environ["HF_HOME"] = str(Path(sys.prefix) / "cache")

from rivals.base import Workload  # noqa: E402
from rivals.workloads import workload  # noqa: E402

from semspec import config  # noqa: E402

LIMIT = 40


@pytest.fixture(scope="session")
def reasoning() -> Workload:
    """One problem of the embedded pair, with a short answer."""
    config.register_configs()
    return workload("reasoning", 1, LIMIT)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where converted models lie, each written once."""
    return tmp_path_factory.mktemp("models")
