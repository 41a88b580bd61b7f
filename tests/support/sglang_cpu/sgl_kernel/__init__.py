"""A stand-in for SGLang's kernels, which have no CPU build on the index.

It implements the functions that speculative decoding calls on a CPU, in plain torch, one request after
another, written from their purpose. Every other name can be imported but raises when called: SGLang
then took a path that the CPU does not have (see sitecustomize.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NoReturn

from torch import Tensor


def assign_req_to_token_pool_cpu(
    rows: Tensor, table: Tensor, starts: Tensor, ends: Tensor, locations: Tensor, width: int
) -> None:
    """Set table[row, start:end] to the next locations, request after request."""
    at = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = locations[at : at + end - start].to(table.dtype)
        at += end - start


def assign_extend_cache_locs_cpu(
    rows: Tensor, table: Tensor, starts: Tensor, ends: Tensor, out: Tensor, width: int
) -> None:
    """Write table[row, start:end] of every request to ``out``, one after another."""
    at = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        out[at : at + end - start] = table[row, start:end].to(out.dtype)
        at += end - start


def fill_accept_out_cache_loc_cpu(accepted: Tensor, locations: Tensor, out: Tensor) -> None:
    """Write the cache locations of the accepted nodes to ``out`` without gaps; -1 means no node."""
    nodes = accepted.flatten()
    nodes = nodes[nodes >= 0].long()
    out[: len(nodes)] = locations[nodes]


def copy_all_layer_kv_cache_cpu(
    addresses: Tensor, strides: Tensor, targets: Tensor, sources: Tensor
) -> None:
    """Move rows within each buffer, given by address and bytes per row; read all rows before writing any."""
    for address, stride in zip(addresses.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(address + row * stride, stride) for row in sources.tolist()]
        for row, held in zip(targets.tolist(), rows, strict=True):
            ctypes.memmove(address + row * stride, held, stride)


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree along the target's own tokens, and write the path and the token after its end."""
    said, out = target_predict.flatten().tolist(), predicts.view(-1)
    parts = (candidates, retrive_index, retrive_next_token, retrive_next_sibling)
    for request, (tokens, index, child, sibling) in enumerate(
        zip(*(part.tolist() for part in parts), strict=True)
    ):
        node, way = 0, [index[0]]
        while len(way) < accept_index.shape[1]:
            node = child[node]
            while node >= 0 and tokens[node] != said[way[-1]]:
                node = sibling[node]
            if node < 0:
                break
            way.append(index[node])
        for place, at in enumerate(way):
            accept_index[request, place] = at
            out[at] = said[at]
        accept_token_num[request] = len(way) - 1


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(
            f"sgl_kernel.{name} has no CPU build; this is tests/support's stand-in"
        )

    return missing
