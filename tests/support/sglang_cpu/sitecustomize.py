"""Let SGLang 0.5.23 run on a CPU from the package index alone, by stand-ins for its GPU packages.

SGLang has a CPU engine, but imports three things on the way that have no CPU build on the index.
None of them is used by a forward pass with ``attention_backend="torch_native"``:

* **triton**, kernels that are only defined, never launched. SGLang brings a stand-in of its own for
  Apple machines, where there is no triton either; here it is installed on any machine without one.
* **sgl_kernel**, SGLang's kernels: the folder beside this file. What speculative decoding calls there is
  written out in torch, every other function raises.
* two **torchvision** operators. The index's torchvision is a CUDA build whose library does not load
  without CUDA, and its Python code then describes operators that do not exist.

One thing is missing that no package brings: tree attention on a CPU, ``tree_attention.py``.

And SGLang's processes are forked from the first one, which saves two thirds of the time that a server takes to start;
with SEMSPEC_SPAWN=1 they are spawned, as they are on a GPU. Some of the deep tests ask for that.

Nothing else here changes what is computed. Python imports a module of this name when it starts, in
SGLang's subprocesses too, once this folder is on PYTHONPATH; ``tests.support.sglang_env`` puts it
there, and ``tests/sglang/test_cpu_shim.py`` says which of the three broke when a new SGLang comes.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock


def stand_in_for_triton() -> None:
    """Runs SGLang's ``install_platform_stubs``, of which only what it does about triton is kept."""
    if importlib.util.find_spec("triton") is not None:
        return
    import torch

    package = importlib.util.find_spec("sglang")
    assert package is not None
    assert package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0]) / "_platform_stubs.py"
    spec = importlib.util.spec_from_file_location("sglang_platform_stubs", path)
    assert spec is not None
    assert spec.loader is not None
    stubs = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = stubs  # its dataclasses look themselves up
    spec.loader.exec_module(stubs)
    apple = SimpleNamespace(platform="darwin", modules=sys.modules, meta_path=sys.meta_path)
    with (
        mock.patch.object(stubs, "sys", apple),
        mock.patch.object(stubs, "platform", SimpleNamespace(machine=lambda: "arm64")),
        mock.patch.object(stubs, "_patch_non_blocking"),
        mock.patch.object(torch.backends.mps, "is_available", return_value=True),
        mock.patch.object(torch, "mps", SimpleNamespace()),
    ):
        stubs.install_platform_stubs()


_library: Any = None  # of torch: lives as long as its operators


def define_torchvision_operators() -> None:
    """Declares the operators that are missing once torchvision has tried to load its library."""
    import torch

    global _library
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def hook_tree_attention() -> None:
    """A process that imports the scheduler may run a model; SGLang applies its hooks after that."""
    import tree_attention

    tree_attention.install()


def fork_processes() -> None:
    """Has SGLang fork its processes, which it spawns because a GPU cannot be forked: no import of 7,000 modules each."""
    import multiprocessing

    own = multiprocessing.set_start_method

    def chosen(method: str | None, force: bool = False) -> None:
        own("fork" if method == "spawn" else method, force=force)

    multiprocessing.set_start_method = chosen  # type: ignore[assignment]


def import_scheduler() -> None:
    """Plugins are loaded in a server's first process alone, and have to hook what all of them will run."""
    importlib.import_module("sglang.srt.managers.scheduler")


def before_sglang() -> None:
    if FORKS:
        fork_processes()
    stand_in_for_triton()


class JustBefore(MetaPathFinder):
    """Finds nothing, but acts once before a module is first imported: a process without SGLang,
    such as multiprocessing's resource tracker, pays nothing."""

    def __init__(self, actions: dict[str, Callable[[], None]]) -> None:
        self.actions = actions

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if action := self.actions.pop(name, None):
            action()


FORKS = os.environ.get("SEMSPEC_SPAWN") != "1"

if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
    sys.meta_path.insert(
        0,
        JustBefore(
            {
                "sglang": before_sglang,
                "torchvision._meta_registrations": define_torchvision_operators,
                "sglang.srt.managers.scheduler": hook_tree_attention,
                **({"sglang.launch_server": import_scheduler} if FORKS else {}),
            }
        ),
    )
