"""A stand-in for the SGLang tree kernel that speculative decoding calls on a CPU (see the package)."""

from __future__ import annotations

from torch import Tensor


def reconstruct_indices_from_tree_mask(
    mask: Tensor,
    lengths: Tensor,
    positions: Tensor,
    index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    requests: int,
    n: int,
) -> None:
    """Compute positions and links of trees from ``mask`` [requests, n, n], which marks each node's ancestors."""
    sees = mask.view(requests, n, n).tolist()
    for request, length in enumerate(lengths.tolist()):
        above = [[a for a in range(node) if sees[request][node][a]] for node in range(n)]
        parents = [max(own, default=-1) for own in above]
        for node in range(n):
            later = range(node + 1, n)
            child = next((k for k in later if parents[k] == node), -1)
            like = (k for k in later if parents[node] >= 0 and parents[k] == parents[node])
            positions.view(requests, n)[request, node] = length + len(above[node])
            index.view(requests, n)[request, node] = request * n + node
            next_token.view(requests, n)[request, node] = child
            next_sibling.view(requests, n)[request, node] = next(like, -1)
