"""Run real SGLang engines on a CPU, or on a GPU: environment variables and engine arguments that work.

``SEMSPEC_SGLANG_DEVICE=cuda`` runs the same tests on a GPU, with CUDA graphs, where SGLang is installed with its own requirements.

In this process::

    sglang_env.activate()  # before anything imports sglang
    import sglang
    with sglang_env.engine(folder) as engine:
        engine.generate(input_ids=[...], sampling_params={"temperature": 0, "max_new_tokens": 8})

In another process: ``subprocess.Popen([...], env=sglang_env.environment())``.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any
from unittest import mock

SHIM = Path(__file__).parent / "sglang_cpu"

ON_GPU = os.environ.get("SEMSPEC_SGLANG_DEVICE", "cpu") == "cuda"

VARIABLES = {
    "OMP_NUM_THREADS": "1",  # three to five times as fast as two threads on two busy cores
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    **(
        {  # float32 as on a CPU: tf32 changes greedy tokens, and SGLang's own kernels know half precision only
            "TRITON_F32_DEFAULT": "ieee",
            "SGLANG_FORCE_FUSED_OP_BACKEND": "torch",
        }
        if ON_GPU
        else {"SGLANG_USE_CPU_ENGINE": "1"}
    ),
}

# makes a server spawn its processes, as on a GPU, which takes three times as long
SPAWNED = {"SEMSPEC_SPAWN": "1"}

ENGINE_ARGUMENTS: dict[str, Any] = {
    **(
        {
            "device": "cuda",
            "attention_backend": "triton",
            "sampling_backend": "pytorch",
            "cuda_graph_max_bs_prefill": 256,  # tokens; more sizes only make the start longer
        }
        if ON_GPU
        else {"device": "cpu", "attention_backend": "torch_native"}
    ),
    "dtype": "float32",  # greedy output then equals transformers', token for token
    "random_seed": 0,
    "mem_fraction_static": 0.2,
    "max_total_tokens": 4096,
    "max_running_requests": 8,
    "context_length": 1024,
    "sleep_on_idle": True,  # otherwise an idle scheduler uses a full core
    "log_level": "error",
}

# on a GPU, states are read only from passes that are no CUDA graphs
READ_VERIFICATION: dict[str, Any] = {"disable_cuda_graph": True} if ON_GPU else {}


def server_arguments(**changes: Any) -> str:
    """Return the engine arguments, with these changes, as a server's command-line arguments."""
    words = []
    for name, value in {**ENGINE_ARGUMENTS, **changes}.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return " ".join(words)


def environment() -> dict[str, str]:
    """Return this process's environment with the variables that a process needs to run SGLang."""
    if ON_GPU:
        return {**os.environ, **VARIABLES}
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([str(SHIM), *(p for p in before if p and p != str(SHIM))])
    return {**os.environ, **VARIABLES, "PYTHONPATH": path}


def activate() -> None:
    """Prepare this process, and those that SGLang starts from it, to import SGLang."""
    if ON_GPU:
        os.environ.update(VARIABLES)
        return
    if str(SHIM) in sys.path:
        return
    if "sglang" in sys.modules:
        raise RuntimeError("sglang was imported before sglang_env.activate()")
    os.environ.update(environment())
    sys.path.insert(0, str(SHIM))
    spec = importlib.util.spec_from_file_location("sglang_cpu_shim", SHIM / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@contextmanager
def engine(model: Path | str, **arguments: Any) -> Iterator[Any]:
    """Run a real ``sglang.Engine`` on the CPU; ``arguments`` override ``ENGINE_ARGUMENTS``."""
    import sglang

    opened = sglang.Engine(model_path=str(model), **{**ENGINE_ARGUMENTS, **arguments})
    try:
        yield opened
    finally:
        _shut_down(opened)


def engine_inside(
    model: Path | str, asked: Mapping[str, Any], width: int, **arguments: Any
) -> AbstractContextManager[Any]:
    """Run an engine in which a small model drafts up to ``width`` tokens; ``asked`` are the plugin's settings."""
    return engine_with(model, asked, "SEMSPEC_LM", 1 + width, **{**READ_VERIFICATION, **arguments})


@contextmanager
def engine_with(
    model: Path | str, asked: Mapping[str, Any], drafter: str, nodes: int, **arguments: Any
) -> Iterator[Any]:
    """Run an engine with these plugin settings and this drafter."""
    from semspec.sglang_plugin import drafting
    from semspec.sglang_plugin.settings import VARIABLE

    drafting.prepare(drafting.Options(**asked["drafting"]))
    with (
        mock.patch.dict(os.environ, {VARIABLE: json.dumps(asked)}),
        engine(
            model,
            speculative_algorithm=drafter,
            speculative_num_draft_tokens=nodes,
            **arguments,
        ) as opened,
    ):
        yield opened


def _shut_down(engine: Any) -> None:
    """Shut an engine down, but spare multiprocessing's tracker: ``Engine.shutdown`` kills every child process.

    Without the tracker the next engine warns, and at its end the process prints a traceback for each
    semaphore that the tracker knew.
    """
    import psutil

    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)  # type: ignore[attr-defined]
    children = psutil.Process.children

    def others(process: Any, recursive: bool = False) -> list[Any]:
        return [child for child in children(process, recursive) if child.pid != tracker]

    with mock.patch.object(psutil.Process, "children", others):
        engine.shutdown()
    atexit.unregister(engine.shutdown)  # otherwise it runs again at exit
