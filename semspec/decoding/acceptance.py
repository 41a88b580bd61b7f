"""The arithmetic of the token rules: pure, vectorised tensor functions on chains and trees.

The loop and a serving engine's verification use the same functions. A chain is a tree in which every node
has one child, and costs no extra operations. Rows are those of ``types.What``: row 0 is the root, row i + 1
is node i, so the row of its parent judges node i.

    shape    <- shape_of(parents, count, device)
        accepted <- lossless_nodes(p, tokens, shape, q, uniforms)     one flag per node, for all at once
        path     <- walk(accepted, shape)                             from the root, siblings in order
        row      <- remaining(p, tokens, shape, q, path)              the distribution after it
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from numpy.typing import NDArray

from semspec.deferred import Tensor, torch


@dataclass(frozen=True)
class Shape:
    """The structure of a draft's tree; tensors are made on first use, since many verdicts need none."""

    parents: tuple[int, ...]
    children: list[list[int]]  # by row: its child nodes, in the order in which they are tried
    device: torch.device

    @cached_property
    def rows(self) -> Tensor:
        """Return [nodes]: the row of each node's parent, which judges it."""
        return self._indices([parent + 1 for parent in self.parents])

    @cached_property
    def nodes(self) -> Tensor:
        """Return [nodes]: 0, 1, ..."""
        return self._indices(range(len(self.parents)))

    @cached_property
    def ranks(self) -> list[tuple[Tensor, Tensor]]:
        """Return the first children, the second children, ..., each with their elder siblings' positions in the list before.

        The first entry's positions have no meaning.
        """
        ranks = []
        before = families = [family for family in self.children if family]
        for rank in range(max(map(len, families), default=0)):
            now = [family for family in before if len(family) > rank]
            places = [i for i, family in enumerate(before) if len(family) > rank]
            ranks.append((self._indices([f[rank] for f in now]), self._indices(places)))
            before = now
        return ranks

    @cached_property
    def elder(self) -> Tensor | None:
        """Return [nodes, nodes] bool: whether the column is an elder sibling of the row; None without siblings."""
        if all(len(family) < 2 for family in self.children):
            return None
        return (self.rows[:, None] == self.rows[None, :]).tril(-1)

    def _indices(self, of: Sequence[int]) -> Tensor:
        return torch.tensor(of, dtype=torch.long, device=self.device)


def shape_of(parents: Sequence[int] | None, count: int, device: torch.device) -> Shape:
    """Return the shape of a draft of ``count`` tokens; ``parents`` is None for a chain."""
    return _shape(count if parents is None else tuple(parents), device)


@lru_cache(maxsize=256)
def _shape(parents: int | tuple[int, ...], device: torch.device) -> Shape:
    if isinstance(parents, int):
        parents = tuple(range(-1, parents - 1))
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        assert -1 <= parent < node, f"node {node} of a tree has parent {parent}: parents come first"
        children[parent + 1].append(node)
    return Shape(parents, children, device)


def walk(
    accepted: Tensor, shape: Shape, tokens: Sequence[int] = (), stop_ids: Collection[int] = ()
) -> list[int]:
    """Return the path of accepted nodes from the root, up to and including an end of text."""
    flags = accepted.tolist()  # one copy from the device, and no further operations there
    path: list[int] = []
    row = 0
    while kept := [child for child in shape.children[row] if flags[child]]:
        path.append(kept[0])
        row = kept[0] + 1
        if stop_ids and tokens[kept[0]] in stop_ids:
            break
    return path


def lossless_nodes(
    p: Tensor, tokens: Tensor, shape: Shape, q: Tensor | None, uniforms: Tensor
) -> Tensor:
    """Return which nodes speculative sampling accepts if it reaches them: bool [nodes].

    ``p`` [nodes + 1, V]: the target's rows. ``q`` [nodes, V]: for every node the drafter's row at its parent,
    from which siblings were sampled one after another without replacement; None for nodes that were not
    sampled (each is a point mass).

    Sampled: x is kept with probability min(1, p(x)/q(x)) (Leviathan et al. 2023, algorithm 1; Chen et
    al. 2023); if not, the next sibling is judged by the residual of p (SpecInfer, Miao et al. 2024,
    algorithm 2) and by q without x (recursive rejection sampling, Jeon et al. 2024).
    Not sampled: q is one at x, so x is kept with probability p(x) and otherwise taken out of p. Of
    siblings x1, x2, ... that leaves xi the chance p(xi) / (1 - p(x1) - ... - p(xi-1)).
    """
    px = p[shape.rows, tokens]
    if q is None:
        return point_mass_nodes(px, tokens, shape.elder, uniforms)
    if shape.elder is None:
        return uniforms * _chance(q[shape.nodes, tokens]) < px  # min(1, p(x)/q(x)) > u
    accepted = torch.empty_like(tokens, dtype=torch.bool)
    (nodes, _), *younger = shape.ranks
    ps, qs = p[shape.rows[nodes]], q[nodes]
    accepted[nodes] = _held(ps, qs, tokens[nodes], uniforms[nodes])
    for siblings, places in younger:
        ps, qs = _after_rejection(ps[places], qs[places], tokens[nodes[places]])
        nodes = siblings
        accepted[nodes] = _held(ps, qs, tokens[nodes], uniforms[nodes])
    return accepted


def point_mass_nodes(px: Tensor, tokens: Tensor, elder: Tensor | None, uniforms: Tensor) -> Tensor:
    """Return what ``lossless_nodes`` does for nodes that were not sampled, for one or many trees.

    ``px``, ``tokens`` and ``uniforms`` are [..., nodes]; ``px`` is p(x) in the row that judges the node.
    ``elder`` [..., nodes, nodes] marks elder siblings; None if no node has any.
    """
    if elder is None:
        return uniforms < px
    again = (elder & (tokens[..., :, None] == tokens[..., None, :])).any(-1)  # already rejected
    px = px.masked_fill(again, 0.0)
    left = 1.0 - (elder.to(px.dtype) @ px[..., None])[..., 0]
    return uniforms * left.clamp_min(0.0) < px


def lossless_path(
    p: Tensor,
    tokens: Sequence[int],
    shape: Shape,
    q: Tensor | None,
    uniforms: Sequence[float],
    stop_ids: Collection[int] = (),
    loose: Sequence[bool] | None = None,
) -> list[int]:
    """Return ``walk`` over ``lossless_nodes``, but judge only the nodes that the walk reaches.

    For rows in main memory: single numbers are cheap there, and a path needs fewer than all nodes.
    ``loose``: nodes that are kept whatever the lossless rule says.
    """
    free = loose or [False] * len(tokens)
    rows, path, row = p.numpy(), list[int](), 0
    while family := shape.children[row]:
        if q is None:
            child = _point_mass_child(rows[row], tokens, family, uniforms, free)
        else:
            child = _sampled_child(p, q, tokens, shape, row, uniforms, free)
        if child < 0:
            break
        path.append(child)
        row = child + 1
        if tokens[child] in stop_ids:
            break
    return path


def _point_mass_child(
    row: NDArray[Any],
    tokens: Sequence[int],
    family: Sequence[int],
    uniforms: Sequence[float],
    loose: Sequence[bool],
) -> int:
    """Return which of the nodes that a row judges is kept, or -1; see ``point_mass_nodes``."""
    left, rejected = 1.0, set[int]()
    for child in family:
        token = tokens[child]
        px = 0.0 if token in rejected else row.item(token)
        if loose[child] or uniforms[child] * max(left, 0.0) < px:
            return child
        rejected.add(token)
        left -= px
    return -1


def _sampled_child(
    p: Tensor,
    q: Tensor,
    tokens: Sequence[int],
    shape: Shape,
    row: int,
    uniforms: Sequence[float],
    loose: Sequence[bool],
) -> int:
    """Return the child of a row that is kept, or -1; see ``lossless_nodes``."""
    elder, *younger = shape.children[row]
    token = tokens[elder]
    px, qx = float(p.numpy()[row, token]), float(q.numpy()[elder, token])
    if loose[elder] or _is_held(px, qx, uniforms[elder]):
        return elder
    ps, qs = p[row : row + 1], q[elder : elder + 1]
    for child in younger:
        ps, qs = _after_rejection(ps, qs, torch.tensor([tokens[elder]]))
        token = tokens[child]
        px, qx = float(ps[0, token]), float(qs[0, token])
        if loose[child] or _is_held(px, qx, uniforms[child]):
            return child
        elder = child
    return -1


def _is_held(px: float, qx: float, uniform: float) -> bool:
    """Return min(1, p(x)/q(x)) > u for one token: see ``_held``."""
    return uniform * (qx if qx > 0 else 1.0) < px


def without_gaps(flags: Tensor, parents: Tensor) -> Tensor:
    """Return the flagged nodes whose ancestors are all flagged: [..., nodes]; parent -1 is the root."""
    for _ in range(flags.shape[-1].bit_length()):  # each step doubles the ancestors covered
        root, above = parents < 0, parents.clamp_min(0)
        flags = flags & (root | flags.gather(-1, above))
        parents = torch.where(root, parents, parents.gather(-1, above))
    return flags


def _held(p: Tensor, q: Tensor, tokens: Tensor, uniforms: Tensor) -> Tensor:
    """Return min(1, p(x)/q(x)) > u for one token of each row, without dividing."""
    px, qx = (rows.gather(-1, tokens[:, None])[:, 0] for rows in (p, q))
    return uniforms * _chance(qx) < px


def _chance(qx: Tensor) -> Tensor:
    """Return q(x), or 1 for a token that was not sampled: it is a point mass."""
    return torch.where(qx > 0, qx, 1.0)


def _after_rejection(p: Tensor, q: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return p and q [k, V] for the next sibling, after ``tokens`` [k] were rejected.

    p becomes normalise(max(p - q, 0)) and q loses the token. After a point mass, p only loses the token.
    """
    at = torch.arange(len(tokens), device=p.device)
    drawn = (q[at, tokens] > 0)[:, None]
    rest = torch.where(drawn, (p - q).clamp_min(0.0), p)
    rest[at, tokens] = 0.0
    q = q.clone()
    q[at, tokens] = 0.0
    # only rounding can reject with nothing left: p and q were equal
    return _normalised(rest, p), _normalised(q, q)


def _normalised(rows: Tensor, otherwise: Tensor) -> Tensor:
    total = rows.sum(-1, keepdim=True)
    return torch.where(total > 0, rows / total, otherwise)


def remaining(
    p: Tensor, tokens: Sequence[int], shape: Shape, q: Tensor | None, path: Sequence[int]
) -> Tensor:
    """Return the distribution of the token after ``path``: p without the share of its rejected children."""
    row = path[-1] + 1 if path else 0
    left = shape.children[row]
    if not left:
        return p[row]
    if q is None:
        return _without(p[row], [tokens[child] for child in left])
    if len(left) == 1:
        return residual(p[row], tokens[left[0]], q[left[0]])
    ps, qs = p[row : row + 1], q[left[0] : left[0] + 1]
    for child in left:
        ps, qs = _after_rejection(ps, qs, torch.tensor([tokens[child]], device=p.device))
    return ps[0]


def residual(p: Tensor, token: int, q: Tensor | None) -> Tensor:
    """Return the distribution after a rejection: normalise(max(p - q, 0)), or p without the point mass."""
    if q is None or not q[token] > 0:
        return _without(p, token)
    return _normalised((p - q).clamp_min(0.0), p)


def _without(p: Tensor, tokens: int | list[int]) -> Tensor:
    if p.is_cpu:  # numpy's calls are cheaper
        own = p.numpy().copy()
        own[tokens] = 0.0
        total = own.sum()
        return torch.from_numpy(own / total) if total > 0 else p
    rest = p.clone()
    rest[tokens] = 0.0
    return _normalised(rest, p)


def lossless_chain(
    p: Tensor, tokens: Tensor, q: Tensor | None, uniforms: Tensor
) -> tuple[int, Tensor]:
    """Return how many tokens of a chain are kept, and the next token's distribution."""
    shape = shape_of(None, len(tokens), p.device)
    path = walk(lossless_nodes(p, tokens, shape, q, uniforms), shape)
    return len(path), remaining(p, tokens.tolist(), shape, q, path)


def matching_nodes(best: Tensor, tokens: Tensor, shape: Shape) -> Tensor:
    """Return which nodes are the target's greedy choice; ``best`` is [nodes + 1]."""
    return best[shape.rows] == tokens
