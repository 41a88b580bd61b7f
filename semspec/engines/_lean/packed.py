"""Matrices in oneDNN's own order, for passes over more than a few tokens in float32 on a CPU.

There torch multiplies by MKL, which takes two to three times as long on processors of AMD. The packed matrices are a second copy of
the weights, so they are made for small models alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from semspec.models import memory

# A model's packed matrices may take at most MOST bytes, and at most 1 / SHARE of the machine's memory.
MOST = 768 << 20
SHARE = 8
# Multiplications from which the packed product is faster: it takes some ten microseconds to begin.
WORTH = 1 << 20
STEPS = 2  # there are 2 ** STEPS numbers of rows for each doubling


def padded_count(count: int) -> int:
    """Return the next of few numbers of rows: four for each doubling, so that less than a quarter is filler.

    oneDNN compiles code for each number of rows that it meets, a millisecond or two and half a megabyte for each matrix, and
    keeps it. A row's product is the same to the last bit, however many others there are.
    """
    step = 1 << max(count.bit_length() - 1 - STEPS, 0)
    return -(-count // step) * step


def padded(rows: Tensor, count: int) -> Tensor:
    """Return so many rows, the last ones zeros where there are fewer."""
    return rows if len(rows) == count else F.pad(rows, (0, 0, 0, count - len(rows)))


class Product:
    """A matrix [out, in] that rows of states are multiplied by."""

    __slots__ = ("bias", "matrix", "packed", "wide")

    def __init__(self, matrix: Tensor, bias: Tensor | None, packing: bool) -> None:
        self.matrix, self.bias = matrix, bias
        self.packed: Any = None
        self.wide = sys.maxsize  # number of rows from which the packed product is used
        if packing:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(matrix.contiguous())
            self.wide = max(2, -(-WORTH // matrix.numel()))

    def __call__(self, rows: Tensor) -> Tensor:
        if len(rows) < self.wide:
            return F.linear(rows, self.matrix, self.bias)
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self.packed, self.bias, "none", [], ""
        )
        return found


def packing(matrices: Sequence[Tensor]) -> bool:
    """Tell whether a second copy of these matrices is of use here, and small enough."""
    first, size = matrices[0], sum(matrix.nbytes for matrix in matrices)
    if first.device.type != "cpu" or first.dtype != torch.float32:
        return False
    onednn: Any = torch.backends.mkldnn
    if not onednn.is_available():
        return False
    return size <= min(MOST, memory.machine_memory() // SHARE)
