"""Measure how long the passes of a server's models take, apart from all other work; not for production.

    SEMSPEC_SGLANG='{"timing": {}}' sglang serve --model-path MODEL --disable-cuda-graph

/server_info then reports for each scheduler ``"semspec_seconds": {"target": {"passes": 812, "seconds": 9.4}, "draft": {...}}``:
the server's own model, and that of SEMSPEC_LM. Each pass is waited for, so a GPU loses its overlap with the CPU.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ParamSpec, TypeVar

import torch

from semspec.sglang_plugin import compat_speculative as compat
from semspec.sglang_plugin.compat import Hook
from semspec.sglang_plugin.part import Part
from semspec.storage.screen import last_line

KEY = "semspec_seconds"  # in /server_info

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Options:
    """No options yet."""


@dataclass
class Spent:
    passes: int = 0
    seconds: float = 0.0


class Clock:
    """Counts the passes of each model in one process, and their seconds."""

    def __init__(self) -> None:
        self.models: dict[str, Spent] = {}

    def timed(
        self, model: str, function: Callable[P, R], done: Callable[[], None] = lambda: None
    ) -> Callable[P, R]:
        """Wrap a function so that each call counts as a pass of that model; ``done`` waits for the device."""
        spent = self.models.setdefault(model, Spent())

        @functools.wraps(function)
        def counted(*args: P.args, **kwargs: P.kwargs) -> R:
            done()
            began = time.perf_counter()
            result = function(*args, **kwargs)
            done()
            spent.passes += 1
            spent.seconds += time.perf_counter() - began
            return result

        return counted

    def tell(self, state: Any, *_: Any, **__: Any) -> None:
        """Add the counts to what /server_info reports about a scheduler."""
        compat.tell_server_info(state, KEY, {name: asdict(own) for name, own in self.models.items()})  # fmt: skip


CLOCK = Clock()


def _loaded(result: Any, runner: Any, *_: Any, **__: Any) -> None:
    if not compat.is_target(runner):
        return
    if not compat.eager(runner):
        raise last_line(
            "semspec's SGLang plugin: timing does not see passes that are CUDA graphs: start the server with --disable-cuda-graph"
        )
    on_gpu = compat.device(runner).type == "cuda"
    done = torch.cuda.synchronize if on_gpu else lambda: None
    runner.model.forward = CLOCK.timed("target", runner.model.forward, done)


def hooks(options: Options) -> list[Hook]:
    return [Hook(compat.LOADED, _loaded, "AFTER"), Hook(compat.ASKED, CLOCK.tell, "AFTER")]


PART = Part(Options, hooks)
