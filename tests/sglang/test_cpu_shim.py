"""The stand-ins of tests/support/sglang_cpu fit the installed SGLang.

After an update of SGLang read these failures first: each test names what to change.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import sglang_env

ROOT = Path(__file__).parents[2]
SHIM = "tests/support/sglang_cpu/sitecustomize.py"


def pinned() -> dict[str, str]:
    lines = [
        line
        for name in ("sglang-cpu.txt", "sglang-cpu-nodeps.txt")
        for line in (ROOT / "constraints" / name).read_text().splitlines()
        if line and not line.startswith("#")
    ]
    return dict(line.split("==") for line in lines)


def test_the_environment_is_the_pinned_one() -> None:
    found = {name: importlib.metadata.version(name).split("+")[0] for name in pinned()}
    assert found == pinned(), "run `make env-sglang`; a new SGLang also needs a new list of pins"


def test_sglang_has_the_triton_stand_in_that_the_shim_borrows() -> None:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations, "SGLang is not installed: make env-sglang"
    path = Path(spec.submodule_search_locations[0]) / "_platform_stubs.py"
    assert path.exists(), f"SGLang has moved its triton stand-in: find it again for {SHIM}"
    text = path.read_text()
    for borrowed in (
        'if sys.platform != "darwin" or platform.machine() != "arm64":',
        "def install_platform_stubs() -> None:",
        "def _patch_non_blocking() -> None:",
        "class _MockModule",
    ):
        assert borrowed in text, (
            f"SGLang has changed its triton stand-in: {SHIM} relies on {borrowed}"
        )


def test_sglang_imports_with_a_triton_stand_in() -> None:
    import sglang

    triton = sys.modules.get("triton")
    assert triton is not None, f"nothing installed a triton before sglang was imported: {SHIM}"
    assert triton.cdiv(7, 2) == 4
    assert sglang.__version__ == pinned()["sglang"]


def test_torch_is_not_changed_by_the_stand_in() -> None:
    import sglang  # noqa: F401
    import torch

    assert not torch.backends.mps.is_available()
    assert torch.Tensor.to.__qualname__ != "_patch_non_blocking.<locals>._patched_to"
    assert not hasattr(torch.mps, "Stream")


def test_torchvision_imports_with_its_operators() -> None:
    import torch
    import torchvision

    assert torchvision.__version__.split("+")[0] == pinned()["torchvision"]
    for name in ("nms", "qnms"):
        assert hasattr(torch.ops.torchvision, name), f"torchvision's operators changed: {SHIM}"


def test_kernels_import_and_say_that_they_are_missing() -> None:
    import sgl_kernel

    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.any_kernel has no CPU"):
        sgl_kernel.any_kernel(1, key=2)


def test_subprocesses_find_the_shim_and_pay_only_for_sglang() -> None:
    code = "import sys, sitecustomize as s; print(s.__file__, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=sglang_env.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(ROOT / SHIM), "False"]


def test_activation_is_idempotent() -> None:
    before = list(sys.path), dict(os.environ), list(sys.meta_path)
    sglang_env.activate()
    assert before == (list(sys.path), dict(os.environ), list(sys.meta_path))
