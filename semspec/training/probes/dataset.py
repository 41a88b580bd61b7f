"""The rows that a probe is trained on: features from the shards, semantic probability as target.

Rows that fit into ``memory`` are loaded once, in fp16. More rows are streamed: as many shards at a time as fit, in
random order and shuffled together.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.probes.features import LOGPROB_NAMES, Features, assemble, of_logprobs
from semspec.training.probes.shards import Sample, read_states

Parts = ("train", "validation", "test")
PATTERN = ("train", "train", "test", "train", "train", "validation", "train")  # 5/7, 1/7, 1/7


@dataclass(frozen=True, slots=True)
class Batch:
    x: Tensor  # [rows, size] float32, as stored
    index: Tensor  # [rows] into the data set's arrays


class Rows:
    """All rows of a sampling, one array per property; states stay on disk until needed."""

    def __init__(
        self,
        folder: Path,
        samples: Iterable[Sample],
        semantic: Mapping[str, Sequence[float]],
        pooling: Sequence[str],
        features: Features,
        size: int,
        memory: float,
        right: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.folder, self.pooling, self.features, self.size = folder, pooling, features, size
        self.limit = int(memory * 2**30)
        self.chains, self.domains, self.contexts = list[str](), list[str](), list[str]()
        # typed arrays, since there may be many rows
        free, lowest, drafted, truth = array("f"), array("f"), array("f"), array("f")
        own, target = list[bool](), list[float]()
        self._by_file: dict[str, list[int]] = {}
        self._place: list[int] = []
        seen = Counter[str]()
        for sample in samples:
            at = seen[sample.context]  # samples of a context come in order
            seen[sample.context] += 1
            if sample.file is None and features.pooling:
                continue
            self._by_file.setdefault(sample.file or "", []).append(len(self._place))
            self._place.append(sample.row)
            free.extend(of_logprobs(sample.logprobs))
            lowest.append(min(sample.logprobs, default=0.0))
            drafted.append(min(sample.drafted or (), default=np.nan))
            self.chains.append(sample.chain)
            self.domains.append(sample.domain)
            self.contexts.append(sample.context)
            own.append(sample.writer == "own")
            target.append(semantic[sample.context][at])
            if right is not None:
                truth.append(right[sample.context][at])
        self.free = np.array(free, dtype=np.float32).reshape(-1, len(LOGPROB_NAMES))
        self.lowest = np.array(lowest, dtype=np.float32)  # the score of accept=logprob
        # the draft model's lowest log-probability of a step it wrote; NaN if it was not kept
        self.drafted = np.array(drafted, dtype=np.float32)
        self.own = np.array(own, dtype=bool)
        self.target = torch.tensor(target)
        # 1 for a right step, 0 for a wrong one, NaN if undecided; None: the truth is unknown
        self.right = None if right is None else np.array(truth, dtype=np.float32)
        # for a router: the advantages that the labels in ``target`` were made from
        self.advantage: Tensor | None = None

    def __len__(self) -> int:
        return len(self._place)

    @property
    def fits(self) -> bool:
        return len(self) * self.size * 2 <= self.limit

    @cached_property
    def whole(self) -> Tensor:
        """All rows [n, size], fp16."""
        return self._read(range(len(self)))

    def _load(self, file: str, rows: list[int]) -> Tensor:
        """Rows of one shard."""
        states = torch.empty(len(rows), 0)
        if self.features.pooling:
            states = read_states(self.folder, file)[[self._place[i] for i in rows]]
        return assemble(self.features, states, self.pooling, torch.from_numpy(self.free[rows]))

    def batches(
        self, rows: Sequence[int], size: int, rng: random.Random | None = None
    ) -> Iterator[Batch]:
        """Yield each of these rows once, in batches; shuffled if ``rng`` is given."""
        for held, values in self._held(rows, rng):
            order = list(range(len(held)))
            if rng is not None:
                rng.shuffle(order)
            for start in range(0, len(order), size):
                part = order[start : start + size]
                index = torch.tensor([held[i] for i in part])
                yield Batch(values(part).float(), index)

    def _held(
        self, rows: Sequence[int], rng: random.Random | None
    ) -> Iterator[tuple[list[int], Callable[[list[int]], Tensor]]]:
        """Yield as many row numbers at a time as fit in memory, and a function that returns some of their values."""
        if self.fits:
            whole, all_rows = self.whole, list(rows)
            yield all_rows, lambda part: whole[[all_rows[i] for i in part]]
            return
        wanted = set(rows)
        files = [[i for i in members if i in wanted] for members in self._by_file.values()]
        files = [members for members in files if members]
        if rng is not None:
            rng.shuffle(files)
        held: list[int] = []
        for number, members in enumerate(files):
            held += members
            following = len(files[number + 1]) if number + 1 < len(files) else 0
            full = (len(held) + following) * self.size * 2 > self.limit
            if full or not following:
                yield held, self._read(held).__getitem__
                held = []

    def _read(self, held: Sequence[int]) -> Tensor:
        values = torch.empty(len(held), self.size, dtype=torch.float16)
        where = {row: at for at, row in enumerate(held)}
        for file, members in self._by_file.items():
            inside = [i for i in members if i in where]
            if inside:
                values[[where[i] for i in inside]] = self._load(file, inside)
        return values


def split_chains(domains: Mapping[str, str], seed: int, turn: int = 0) -> dict[str, str]:
    """Assign each chain to train, validation or test, in the same shares for every domain.

    ``domains`` maps chains to domains. Over the turns 0 to ``len(PATTERN) - 1`` of a seed, each chain is in the test
    set once.

    Contexts of one chain share nearly all their text, so splitting by rows or by contexts would test on training
    data. All rows of a problem stay in one part.
    """
    if len(domains) < len(PATTERN):
        raise UserError(
            f"{len(domains)} chains of thought are too few for training, validation and"
            " test sets: give more problems="
        )
    names = sorted(domains)
    random.Random(f"{seed} split").shuffle(names)
    names.sort(key=lambda name: domains[name])
    return {name: PATTERN[(number + turn) % len(PATTERN)] for number, name in enumerate(names)}


def divided(rows: Rows, seed: int, turn: int = 0) -> dict[str, list[int]]:
    """Return the row numbers of each part; all rows of a problem are in one part."""
    sides = split_chains(dict(zip(rows.chains, rows.domains, strict=True)), seed, turn)
    parts = [sides[chain] for chain in rows.chains]
    check_split(rows.contexts, rows.chains, parts)
    return {part: [i for i, p in enumerate(parts) if p == part] for part in Parts}


def one_sided(rows: Rows, index: Mapping[str, Sequence[int]]) -> str | None:
    """Return the first part whose labels are all equal, or None."""
    return next((p for p in Parts if len(set(rows.target[list(index[p])].tolist())) < 2), None)


def check_split(contexts: Sequence[str], chains: Sequence[str], parts: Sequence[str]) -> None:
    """Raise AssertionError if a context or problem is in two parts."""
    sides: dict[tuple[str, str], str] = {}
    for context, chain, part in zip(contexts, chains, parts, strict=True):
        for key in (("context", context), ("problem", chain)):
            if sides.setdefault(key, part) != part:
                raise AssertionError(f"{key[0]} {key[1]} is in {sides[key]} and in {part}")
