"""These tests run in .venv-sglang (``make test-sglang``). Without SGLang they fail; none skips."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import sglang_env

sglang_env.activate()

from tests.support.sglang_servers import Pair, pair  # noqa: E402 (what imports SGLang comes after)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Target and draft on servers of their own, with the probes of SemanticSpec inside."""
    with pair(tmp_path_factory.mktemp("servers"), "accept=semantic") as started:
        yield started


def pytest_configure(config: pytest.Config) -> None:
    for known in (
        "ignore:Only CUDA:UserWarning",
        "ignore:Triton is not supported:UserWarning",
        "ignore:.torch.jit.script_method:DeprecationWarning",
    ):
        config.addinivalue_line("filterwarnings", known)
