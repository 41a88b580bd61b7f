"""These tests run in .venv-sglang (``make test-sglang``). Without SGLang they fail; none skips."""

from __future__ import annotations

import pytest

from tests.support import sglang_env

sglang_env.activate()


def pytest_configure(config: pytest.Config) -> None:
    for known in (
        "ignore:Only CUDA:UserWarning",
        "ignore:Triton is not supported:UserWarning",
        "ignore:.torch.jit.script_method:DeprecationWarning",
    ):
        config.addinivalue_line("filterwarnings", known)
