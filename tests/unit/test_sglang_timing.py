"""The plugin's part that reports how long models take; ``tests/sglang/test_inside.py`` tests it in a server."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from semspec.sglang_plugin import timing
from semspec.sglang_plugin.timing import KEY, Clock


def runner(device: str, graphs: bool = True, draft: bool = False) -> Any:
    return SimpleNamespace(
        model=torch.nn.Linear(2, 2, device=device),
        server_args=SimpleNamespace(disable_cuda_graph=not graphs),
        is_draft_worker=draft,
    )


def test_passes_are_counted_and_waited_for() -> None:
    clock, waits = Clock(), []

    def one_pass(seconds: float) -> str:
        time.sleep(seconds)
        return "logits"

    target = clock.timed("target", one_pass, lambda: waits.append(None))
    assert [target(0.01), target(seconds=0.02)] == ["logits", "logits"]
    state = SimpleNamespace(internal_state={})
    clock.tell(state)
    told = state.internal_state[KEY]["target"]
    assert told["passes"] == 2 and 0.03 <= told["seconds"] < 1.0
    assert len(waits) == 4  # before and behind each


def test_the_target_is_timed_and_no_drafter_of_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "CLOCK", clock := Clock())
    served, drafting = runner("cpu"), runner("cpu", draft=True)
    timing._loaded(None, drafting)
    assert not clock.models
    timing._loaded(None, served)
    served.model.forward(torch.zeros(1, 2))
    assert clock.models["target"].passes == 1


def test_cuda_graphs_are_refused() -> None:
    with pytest.raises(SystemExit, match="--disable-cuda-graph"):
        timing._loaded(None, runner("meta"))
    timing._loaded(None, runner("meta", graphs=False))
