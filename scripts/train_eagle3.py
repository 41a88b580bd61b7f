"""Train the embedded EAGLE-3 head in ``hub_artifacts/eagle3-tiny``, on a CPU, seeded.

    python scripts/train_eagle3.py --work /tmp/heads [--out hub_artifacts/eagle3-tiny]

It uses the training-time test (Li et al. 2025, section 3.2): the head is unrolled over its own output as
often as when it drafts, and every step is compared with the target's own distribution.
Both stages resume after a kill: the target's states in shards, the training from its last state.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from tiny_head_data import Batch, Row, collect, common_tokens
from tiny_head_training import HELD_OUT, TINY, begin, layers_of, learn, write_head
from torch import Tensor
from training_kit import narrow

from semspec.heads._files import from_target
from semspec.heads.eagle3 import EMBEDDING, LAST, Attend, Eagle3, Shape, config_of
from semspec.models.folder import read_json
from semspec.models.spec import Spec

DECAY = 0.8  # weight of a step relative to the one before it
INNER = 384
OPTIONS = {
    "steps": 850,
    "batch": 8,
    "unroll": (5, "tokens of a draft that are learned"),
    "vocabulary": (224, "tokens that can be drafted"),
}


def unrolled(steps_keys: list[Tensor], steps_values: list[Tensor]) -> Attend:
    """Return the attention of unrolled step k at position j, over what a draft of k tokens would have there.

    That is true pairs up to j - k, then one drafted pair of each step before: of step m at j - k + m.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[-3] // k.shape[-3]
        k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
        steps_keys.append(k)
        steps_values.append(v)
        step, n = len(steps_keys) - 1, q.shape[-2]
        scale = q.shape[-1] ** -0.5
        seen = torch.ones(n, n, dtype=torch.bool).tril(-step)
        scores = [(q @ steps_keys[0].mT * scale).masked_fill(~seen, -1e9)]
        for m in range(1, step + 1):
            own = steps_keys[m].roll(step - m, -2)  # wrapped positions are not learned
            scores.append((q * own).sum(-1, keepdim=True) * scale)
        weights = torch.cat(scores, -1).softmax(-1)
        out = weights[..., :n] @ steps_values[0]
        for m in range(1, step + 1):
            out = out + weights[..., n + m - 1, None] * steps_values[m].roll(step - m, -2)
        return out

    return attend


def steps_of(head: Eagle3, tokens: Tensor, features: Tensor, steps: int) -> Iterator[Tensor]:
    """Yield a [.., n, width] of every unrolled step: at j of step k what is drafted after k drafted tokens.

    ``tokens`` [.., n] are those of the pairs, ``features`` [.., n, 3 * target width]. Positions below
    k are meaningless.
    """
    attend = unrolled([], [])
    n = tokens.shape[-1]
    turns = head.turns(n)[:n]
    hidden = head.fused(features)
    for _ in range(steps):
        hidden = head.layer(tokens, hidden, turns, attend)
        yield hidden
        hidden = hidden.roll(1, -2)


def loss_of(
    head: Eagle3, teacher: Tensor, sizes: Tensor, steps: int, batch: Batch
) -> tuple[Tensor, list[float]]:
    """Return every step's cross-entropy with the target's distribution over the draft vocabulary.

    Step k is weighted DECAY^k, as a mean over the learned places with k tokens drafted before. Also
    return, for every step, how often the head's top token is the target's.
    Pair j is (feature of j, token j + 1) and predicts token j + 2: the target's row j + 1.
    """
    assert head.ids is not None
    tokens, learned, states = batch
    n = tokens.shape[1] - 2
    features, last = states[..., :-1, :] / sizes, states[..., -1, :]
    with torch.no_grad():
        raw = F.linear(last[:, 1:-1], teacher)
        goal = raw[..., head.ids].softmax(-1)
        best = raw.argmax(-1)
    counts = learned[:, 2:]
    total, right = torch.zeros(()), []
    passes = steps_of(head, tokens[:, 1:-1], features[:, :n].flatten(2), steps)
    for step, hidden in enumerate(passes):
        mask = counts.clone()
        mask[:, :step] = False
        logits = head.logits(hidden)[mask]
        total = total - DECAY**step * (goal[mask] * logits.log_softmax(-1)).sum(-1).mean()
        hits = head.ids[logits.argmax(-1)] == best[mask]
        right.append(hits.float().mean().item())
    return total, right


def shape_of(spec: Spec, vocabulary: int, inner: int = 0, layers: tuple[int, ...] = ()) -> Shape:
    """Return the shape of the head that is trained for a target."""
    alike = ("width", "heads", "kv_heads", "head_dim", "eps", "vocabulary", "frequencies")
    return Shape(
        target_width=spec.width,
        inner=inner or INNER,
        draft_vocabulary=vocabulary,
        layers=layers or layers_of(spec),
        **{name: getattr(spec, name) for name in (*alike, "rope_scale")},
    )


def train(
    a: Namespace,
    script: str,
    words: Mapping[str, str],
    target: Path,
    spec: Spec,
    rows: Sequence[Row],
    fresh: Callable[[], Sequence[Row]],
) -> None:
    """Train a head on rows whose states are those of ``a.layers`` and the last one, and write it.

    ``a`` has what ``learn`` takes, and ``vocabulary``, ``inner``, ``unroll``, ``out``.
    """
    ids = torch.tensor(common_tokens(rows, a.vocabulary, sorted(spec.stop_ids)))
    shape = shape_of(spec, len(ids), a.inner, a.layers)
    size = (spec.vocabulary, spec.width)
    embedding = from_target(target, f"model.{EMBEDDING}", size).float()
    teacher = embedding if spec.tied else from_target(target, "lm_head.weight", size).float()
    torch.manual_seed(a.seed)
    parameters: dict[str, Tensor] = {}
    for name, (wanted, types) in shape.layout({LAST}).items():
        if torch.int64 in types:
            continue
        parameters[name] = torch.ones(wanted)
        if len(wanted) == 2:
            parameters[name] = torch.randn(wanted) * wanted[1] ** -0.5
    parameters["lm_head.weight"] = teacher[ids].clone()
    # a few numbers of a high layer are a thousand times larger than others: training divides by these
    # sizes, and the written weights include the division
    sizes = torch.stack([r.states[:, :-1].float().pow(2).mean(0) for r in rows]).mean(0).sqrt()
    maps = {"d2t": ids - torch.arange(len(ids)), "t2d": torch.zeros(spec.vocabulary).bool()}
    maps["t2d"][ids] = True

    def loss(own: dict[str, Tensor], batch: Batch) -> tuple[Tensor, list[float]]:
        with narrow():
            head = Eagle3(shape, own | maps | {EMBEDDING: embedding})
            return loss_of(head, teacher, sizes, a.unroll, batch)

    training = learn(a, script, words, rows, fresh, parameters, loss, {"lm_head.weight"})
    parameters["fc.weight"] = parameters["fc.weight"] / sizes.flatten()
    write_head(
        a.out, parameters | maps, config_of(shape, read_json(target / "config.json")), training
    )


def main() -> None:
    a, target, spec, layers = begin(__doc__, "eagle3", inner=INNER, **OPTIONS)
    a.layers, read = layers, (*layers, -1)
    rows = collect(target, read, a.solutions, a.seed, a.work)

    def fresh() -> list[Row]:
        return collect(target, read, HELD_OUT, a.seed + 1, a.work)

    train(a, "train_eagle3", TINY | {"what": "An EAGLE-3 head"}, target, spec, rows, fresh)


if __name__ == "__main__":
    main()
