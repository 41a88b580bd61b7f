"""Choose how a matrix is stored on this machine's processor, for products with a few rows."""

from __future__ import annotations

import platform
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from semspec.deferred import Tensor, torch

CACHE = 1 << 20  # bytes of a core's L2 cache, where the system does not say


def by_inputs(matrix: Tensor) -> Tensor:
    """Return a matrix [out, in] stored input by input if that makes products with a few rows faster here, else as it is."""
    return input_by_input(matrix) if prefers_inputs(matrix) else matrix


def input_by_input(matrix: Tensor) -> Tensor:
    """Return the same matrix [out, in] with each input's numbers side by side."""
    return matrix.t().contiguous().t()


def prefers_inputs(matrix: Tensor) -> bool:
    """Return whether products of a few rows with this matrix [out, in] are fastest if it is stored input by input.

    They are with MKL on Intel processors, while the matrix fits in a core's L2 cache: eight rows then take little longer than
    one, and half as long as otherwise; a product with one row takes the same time. Larger matrices lose by it from two rows on,
    and on AMD processors oneDNN's own layout is faster than both (``engines/_lean/packed.py``).
    """
    if matrix.device.type != "cpu" or matrix.dtype != torch.float32:
        return False
    mkl: Any = torch.backends.mkl
    return mkl.is_available() and intel() and matrix.nbytes <= second_cache()


@lru_cache(maxsize=1)
def intel() -> bool:
    """Return whether the processor is Intel's."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return "GenuineIntel" in platform.processor()


@lru_cache(maxsize=1)
def second_cache() -> int:
    """Return the bytes of a core's L2 cache."""
    try:
        told = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text()
    except OSError:
        return CACHE
    found = re.fullmatch(r"(\d+)([KM])\s*", told)
    return int(found[1]) << {"K": 10, "M": 20}[found[2]] if found else CACHE
