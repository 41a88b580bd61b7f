"""Tree attention for SGLang's ``torch_native`` backend, which has none, so that a CPU can verify drafts.

``sitecustomize`` wraps ``around_extend`` around the backend's forward pass in every process that runs a
model. A pass that verifies no draft is unchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

BACKEND = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend"


def install() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(BACKEND, around_extend, HookType.AROUND)


def around_extend(
    original: Any,
    backend: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layer: Any,
    forward_batch: Any,
    save_kv_cache: bool = True,
    **rest: Any,
) -> Any:
    """Let every node of a tree attend to the text before the tree, to its ancestors and to itself."""
    if not forward_batch.forward_mode.is_target_verify():
        return original(backend, query, key, value, layer, forward_batch, save_kv_cache, **rest)
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    pool, table = backend.token_to_kv_pool, backend.req_to_token_pool.req_to_token
    pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), key, value)
    keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
    n = forward_batch.spec_info.draft_token_num
    ancestors = forward_batch.spec_info.custom_mask.view(-1, n, n).bool()
    queries = query.view(-1, n, layer.tp_q_head_num, layer.qk_head_dim)
    lengths, rows = forward_batch.seq_lens.tolist(), forward_batch.req_pool_indices.tolist()
    out = []
    for own, tree, length, row in zip(queries, ancestors, lengths, rows, strict=True):
        places = table[row, : length + n].long()
        sees = torch.cat([tree.new_ones(n, length), tree], 1)
        attended = scaled_dot_product_attention(
            own.transpose(0, 1)[None],
            keys[places].transpose(0, 1)[None],
            values[places].transpose(0, 1)[None],
            attn_mask=sees,
            scale=layer.scaling,
            enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
        )
        out.append(attended[0].transpose(0, 1).reshape(n, -1))
    return torch.cat(out)
