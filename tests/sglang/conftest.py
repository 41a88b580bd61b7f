"""These tests run in .venv-sglang (``make test-sglang``). Without SGLang they fail; none is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tests.support import sglang_env

sglang_env.activate()

from tests.support.sglang_servers import Pair, pair  # noqa: E402 (what imports SGLang comes after)
from tests.support.verifying import (  # noqa: E402
    target_only,
    top_k_renormalised,
    top_p_renormalised,
)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Target and draft on servers of their own, with the probes of SemanticSpec inside."""
    with pair(tmp_path_factory.mktemp("servers"), "accept=semantic") as started:
        yield started


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The server arguments that ``eagle_sample`` asks for: no server is there to publish them."""
    from sglang.srt.speculative import eagle_utils

    said = SimpleNamespace(
        speculative_use_rejection_sampling=False,
        speculative_accept_threshold_single=1.0,
        speculative_accept_threshold_acc=1.0,
        speculative_use_block_verification=False,
    )
    monkeypatch.setattr(eagle_utils, "get_spec", lambda: said)
    return eagle_utils


@pytest.fixture
def draws(spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The branch that a GPU takes above temperature 0, with the kernels' rules written out."""
    import sgl_kernel
    from sglang.srt import distributed, runtime_context

    alone = SimpleNamespace(tp_group=SimpleNamespace(world_size=1))
    monkeypatch.setattr(runtime_context, "get_parallel", lambda: alone)
    monkeypatch.setattr(distributed, "get_tp_group", lambda: alone.tp_group)
    theirs = spec.verify_tree_greedy_func

    def on_this_machine(*args: Any, **kw: Any) -> Any:
        """Greedy requests have a kernel of their own, which up to 0.5.22 is chosen by the same name."""
        with mock.patch.object(spec, "_is_cpu", True):
            return theirs(*args, **kw)

    monkeypatch.setattr(spec, "verify_tree_greedy_func", on_this_machine)
    monkeypatch.setattr(spec, "_is_cpu", False)
    for name, function in (
        ("tree_speculative_sampling_target_only", target_only),
        ("top_k_renorm_prob", top_k_renormalised),
        ("top_p_renorm_prob", top_p_renormalised),
    ):
        for where in (
            spec,
            sgl_kernel,
        ):  # older SGLangs take them from the kernels as they need them
            monkeypatch.setattr(where, name, function, raising=False)


def pytest_configure(config: pytest.Config) -> None:
    for known in (
        "ignore:Only CUDA:UserWarning",
        "ignore:Triton is not supported:UserWarning",
        "ignore:.torch.jit.script_method:DeprecationWarning",
    ):
        config.addinivalue_line("filterwarnings", known)
