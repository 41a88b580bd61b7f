"""Let SGLang 0.5.23 run on a CPU with packages from the index only, by stand-ins for its GPU packages.

SGLang has a CPU engine, but imports three things that have no CPU build on the index. A forward pass
with ``attention_backend="torch_native"`` uses none of them:

* **triton**: its kernels are only defined, never launched. SGLang has its own stand-in for Apple
  machines, which lack triton too; here it is installed on any machine without triton.
* **sgl_kernel**, SGLang's kernels: the folder beside this file. The functions that speculative decoding
  calls are implemented in torch; every other function raises.
* two **torchvision** operators. The index's torchvision is a CUDA build whose library does not load
  without CUDA, and its Python code then refers to operators that do not exist.

One more thing comes with no package: tree attention on a CPU (``tree_attention.py``).

SGLang's processes are forked from the first one, which cuts a server's start time by two thirds; with
SEMSPEC_SPAWN=1 they are spawned, as on a GPU. Some deep tests set that.

Nothing else here changes what is computed. Python imports a module of this name when it starts, also in
SGLang's subprocesses, if this folder is on PYTHONPATH. ``tests.support.sglang_env`` puts it there, and
``tests/sglang/test_cpu_shim.py`` shows which of the three breaks with a new SGLang.
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
    """Run SGLang's ``install_platform_stubs``, but keep only its changes to triton."""
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
    sys.modules[spec.name] = stubs  # its dataclasses look up their module
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


_library: Any = None  # a torch library: its operators exist as long as it does


def define_torchvision_operators() -> None:
    """Declare the operators that are missing after torchvision has tried to load its library."""
    import torch

    global _library
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def hook_tree_attention() -> None:
    """Install tree attention in a process that imports the scheduler and so may run a model."""
    import tree_attention

    tree_attention.install()


def fork_processes() -> None:
    """Make SGLang fork its processes, so that each need not import 7,000 modules; it spawns them because of GPUs."""
    import multiprocessing

    own = multiprocessing.set_start_method

    def chosen(method: str | None, force: bool = False) -> None:
        own("fork" if method == "spawn" else method, force=force)

    multiprocessing.set_start_method = chosen  # type: ignore[assignment]


def import_scheduler() -> None:
    """Import the scheduler early: plugins load only in a server's first process, and must hook what its forks run."""
    importlib.import_module("sglang.srt.managers.scheduler")


def before_sglang() -> None:
    if FORKS:
        fork_processes()
    stand_in_for_triton()


class JustBefore(MetaPathFinder):
    """Finds no modules, but runs an action before a module's first import.

    So a process that does not import SGLang, such as multiprocessing's resource tracker, loses no time.
    """

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
