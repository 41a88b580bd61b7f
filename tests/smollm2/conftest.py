"""These tests run in .venv-smollm2 (``make test-smollm2``). Without the model's package they fail; none is skipped."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# the converted model stays in the environment; set before anything imports the Hub's client
os.environ["HF_HOME"] = str(Path(sys.prefix) / "cache")

from semspec.engines.pool import Engines


@pytest.fixture(scope="session")
def engines() -> Iterator[Engines]:
    """The model, loaded once for all tests."""
    with Engines() as loaded:
        yield loaded
