"""Matrices in oneDNN's own layout, for passes over more than a few tokens in float32 on a CPU.

Otherwise torch multiplies with MKL, which takes two to three times as long on AMD processors, and on Intel's with matrices too
large for a core's L2 cache. The packed matrices are a second copy of the weights, so only small models get them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from semspec.models import memory
from semspec.models.processor import prefers_inputs

# A model's packed matrices may take at most MOST bytes, and at most 1 / SHARE of the machine's memory.
MOST = 768 << 20
SHARE = 8
# From so many multiplications on the packed product is faster: each call costs some ten microseconds.
WORTH = 1 << 20
STEPS = 2  # 2 ** STEPS row counts are in use for each doubling


def padded_count(count: int) -> int:
    """Round a row count up so that few distinct counts occur: four for each doubling, so less than a quarter is padding.

    oneDNN compiles and keeps code for each row count it meets: a millisecond or two and half a megabyte per matrix. A row's
    product is bit-identical whatever the number of rows.
    """
    step = 1 << max(count.bit_length() - 1 - STEPS, 0)
    return -(-count // step) * step


def padded(rows: Tensor, count: int) -> Tensor:
    """Pad rows with zeros to ``count``."""
    return rows if len(rows) == count else F.pad(rows, (0, 0, 0, count - len(rows)))


class Product:
    """A matrix [out, in], packed for oneDNN if asked, to multiply rows of states by."""

    __slots__ = ("bias", "matrix", "packed", "wide")

    def __init__(self, matrix: Tensor, bias: Tensor | None, packing: bool) -> None:
        self.matrix, self.bias = matrix, bias
        self.packed: Any = None
        self.wide = sys.maxsize  # the packed product is used from so many rows on
        if packing and not prefers_inputs(matrix):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(matrix.contiguous())
            self.wide = max(2, -(-WORTH // matrix.numel()))

    def __call__(self, rows: Tensor) -> Tensor:
        if rows.shape[0] < self.wide:
            return F.linear(rows, self.matrix, self.bias)
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self.packed, self.bias, "none", [], ""
        )
        return found


def packing(matrices: Sequence[Tensor]) -> bool:
    """Return whether packed copies of those matrices that ``Product`` packs are of use on this machine and small enough."""
    first = matrices[0]
    if first.device.type != "cpu" or first.dtype != torch.float32:
        return False
    onednn: Any = torch.backends.mkldnn
    if not onednn.is_available():
        return False
    size = sum(matrix.nbytes for matrix in matrices if not prefers_inputs(matrix))
    return size <= min(MOST, memory.machine_memory() // SHARE)
