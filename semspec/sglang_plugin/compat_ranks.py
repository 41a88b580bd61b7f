"""``compat`` for ranks, the processes that run a batch together: SGLang's private names for their groups.

Looked up in the wheels of 0.5.20 to 0.5.23.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor


def agreed(tensor: Tensor) -> Tensor:
    """Return, on every rank of the tensor-parallel group, the first rank's tensor.

    Ranks sum in different orders. If rounding made only one of them accept a token, they would continue with
    sequences of different lengths and wait for each other forever.
    """
    if (group := _group()) is None:
        return tensor
    tensor = tensor.contiguous()
    received = group.broadcast(tensor, src=0)
    return tensor if received is None else received


def agreed_object(found: Any) -> Any:
    """Return, on every rank, the first rank's object: ``agreed`` for Python objects."""
    group = _group()
    return found if group is None else group.broadcast_object(found, src=0)


def leads() -> bool:
    """Return whether this process decides for its batch: it is the first rank, or the only one."""
    group = _group()
    return group is None or group.rank_in_group == 0


def _group() -> Any:
    """Return the group of ranks that run this batch; None if this process runs it alone."""
    state = sys.modules.get("sglang.srt.distributed.parallel_state")
    if state is None or state._TP is None:
        return None
    from sglang.srt.layers.dp_attention import is_dp_attention_enabled
    from sglang.srt.runtime_context import get_parallel

    ranks = get_parallel()
    group = ranks.attn_tp_group if is_dp_attention_enabled() else ranks.tp_group
    return None if group.world_size == 1 else group


def shares_passes(runner: Any) -> bool:
    """Return whether several processes run each pass together."""
    return int(runner.server_args.tp_size) > 1


def splits_batches(runner: Any) -> bool:
    """Return whether each rank has its own requests (``--enable-dp-attention``)."""
    return bool(getattr(runner.server_args, "enable_dp_attention", False))
