"""Make the training data of heads on the tiny target: solutions, and the target's states over them.

The embedded world renders the solutions, in the wordings that the target itself writes. Shards of a
hundred are saved in ``--work``, so that a kill costs one at most; both scripts read the same shards.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor
from train_tiny_pair import solution_row

from semspec.engines.hf import Hf
from semspec.models.text import Text
from semspec.storage.files import replacing, write_all
from semspec.types import Context, Query, Read, Sampling, What

Batch = tuple[Tensor, Tensor, Tensor]
"""Tokens [b, n], which of them are learned [b, n], the target's states [b, n, layers, width]."""
SHARD = 100  # solutions
BATCH = 10  # solutions that go through the target at a time
WEEKDAYS = 0.4


@dataclass(frozen=True, slots=True)
class Row:
    """A solution; the state at a position is the target's after reading the token there."""

    tokens: Tensor  # [n] int64
    given: int  # tokens of the prompt
    states: Tensor  # [n, layers, width] bfloat16, of the layers given to ``collect``


def collect(
    target: Path, layers: Sequence[int], solutions: int, seed: int, work: Path
) -> list[Row]:
    """Return solutions with the target's states of these layers (as in ``Read.layers``)."""
    work.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    engine, text = Hf(device="cpu").load(str(target)), Text(str(target))
    read = Read(What.HIDDEN, layers=tuple(layers))
    names = "_".join(map(str, layers))
    for shard in range(-(-solutions // SHARD)):
        path = work / f"states-{names}-{seed}-{shard:03d}.safetensors"
        if not path.exists():
            rng = random.Random(f"heads {seed} {shard}")
            made: dict[str, Tensor] = {}
            for batch in range(0, SHARD, BATCH):
                pairs = [solution_row(rng, WEEKDAYS) for _ in range(BATCH)]
                asked = []
                for i, (given, learned) in enumerate(pairs, start=batch):
                    prompt = text.encode(given)
                    context = Context(i, [*prompt, *text.encode(learned)])
                    made[f"{i}.tokens"] = torch.tensor(context.tokens)
                    made[f"{i}.given"] = torch.tensor(len(prompt))
                    asked.append(
                        Query("target", context, Sampling(0.0), rng, reads=(read,), rows_from=0)
                    )
                for query, answer in zip(asked, engine.answer(asked), strict=True):
                    made[f"{query.context.key}.states"] = answer[read].bfloat16()
                    engine.forget(query.context)
            with replacing(path) as fd:
                write_all(fd, save(made))
            print(f"states {shard + 1}/{-(-solutions // SHARD)}", flush=True)
        shown = load(path.read_bytes())
        rows += [
            Row(shown[f"{i}.tokens"], int(shown[f"{i}.given"]), shown[f"{i}.states"])
            for i in range(SHARD)
        ]
    return rows[:solutions]


def common_tokens(rows: Sequence[Row], count: int, always: Sequence[int]) -> list[int]:
    """Return the tokens that solutions use most, in ascending order, including ``always``."""
    seen: Counter[int] = Counter()
    for row in rows:
        seen.update(row.tokens[row.given :].tolist())
    chosen = [t for t, _ in seen.most_common() if t not in always][: count - len(always)]
    return sorted([*always, *chosen])


def batches(rows: Sequence[Row], size: int, seed: int, first: int = 0) -> Iterator[Batch]:
    """Yield batches without end.

    Rows of similar length share a batch; ``first`` batches are skipped, to resume after a kill.
    """
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].tokens))
    groups = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
    number = 0
    while True:
        epoch = number // len(groups)
        turns = list(range(len(groups)))
        random.Random(f"{seed} {epoch}").shuffle(turns)
        for turn in turns[number % len(groups) :]:
            number += 1
            if number > first:
                yield _collated([rows[i] for i in groups[turn]])


def _collated(rows: Sequence[Row]) -> Batch:
    longest = max(len(row.tokens) for row in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)
    learned = torch.zeros(len(rows), longest, dtype=torch.bool)
    states = torch.zeros(len(rows), longest, *rows[0].states.shape[1:])
    for i, row in enumerate(rows):
        n = len(row.tokens)
        tokens[i, :n], states[i, :n] = row.tokens, row.states.float()
        learned[i, row.given : n] = True
    return tokens, learned, states
