"""Samples on disk: pooled states in safetensors shards, everything else in JSON lines.

    samples/group-00003.00.safetensors    states [rows, poolings, layers + 1, width], fp16
    samples/group-00003.jsonl             one line per sample; this file commits the group

A group is sampled as a whole. If a kill leaves shards without the lines, the group is sampled again and overwrites
them. Equal batches give equal numbers, so a resumed run ends with the same bytes as an unbroken one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from semspec.deferred import Tensor, tensor_files, torch
from semspec.errors import UserError
from semspec.storage import foreign
from semspec.storage.files import dumps, parse, replacing, whole_lines, write_all

LARGEST = 65504.0  # torch.finfo(torch.float16).max
MARGIN = 1.1  # disk space that states need, as a multiple of their bytes
SHARD = 64 * 2**20  # bytes of states held in memory before they are written


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled step of one context."""

    chain: str
    domain: str
    cut: int  # number of the chain's steps in the context
    writer: str  # own: the probed model; other: the other model
    number: int
    text: str
    tokens: list[int]
    logprobs: list[float]  # the probed model's, raw
    file: str | None = None  # where its states are, if they were kept
    row: int = 0
    drafted: list[float] | None = None  # the other model's log-probabilities of its own step, raw

    @property
    def context(self) -> str:
        return f"{self.chain}/{self.cut}"


class GroupWriter:
    """Collects one group; writes states whenever a shard is full, and the lines at the end."""

    def __init__(self, folder: Path, number: int, shard: int = SHARD) -> None:
        self.folder, self.name, self.shard = folder, f"group-{number:05d}", shard
        self._rows, self._lines = list[Tensor](), list[Sample]()
        self._bytes = self._files = 0

    def add(self, sample: Sample, states: Tensor | None) -> None:
        """Add a sample with its ``states`` [poolings, layers + 1, width]; None keeps only text and figures."""
        if states is not None:
            sample = replace(sample, file=self._file(), row=len(self._rows))
            # in large models a few dimensions exceed the range of fp16
            self._rows.append(states.clamp(-LARGEST, LARGEST).to(torch.float16).cpu())
            self._bytes += self._rows[-1].nbytes
        self._lines.append(sample)
        if self._bytes >= self.shard:
            self._flush()

    def _file(self) -> str:
        return f"{self.name}.{self._files:02d}.safetensors"

    def _flush(self) -> None:
        if self._rows:
            with replacing(self.folder / self._file()) as fd:
                write_all(fd, tensor_files.save({"states": torch.stack(self._rows)}))
            self._rows, self._bytes = [], 0
            self._files += 1

    def commit(self) -> None:
        self._flush()
        # a context's samples are adjacent, the probed model's own first
        ordered = sorted(self._lines, key=lambda s: (s.chain, s.cut, s.writer != "own", s.number))
        with replacing(self.folder / f"{self.name}.jsonl") as fd:
            for line in ordered:
                kept = {k: v for k, v in asdict(line).items() if (k, v) != ("drafted", None)}
                write_all(fd, (dumps(kept) + "\n").encode())


def is_done(folder: Path, number: int) -> bool:
    return (folder / f"group-{number:05d}.jsonl").exists()


def read_samples(folder: Path) -> Iterator[Sample]:
    """Yield every committed sample, in order."""
    for path in sorted(folder.glob("group-*.jsonl")):
        yield from (Sample(**value) for line in whole_lines(path) if (value := parse(line)))


def read_states(folder: Path, file: str) -> Tensor:
    """Return a shard's states [rows, poolings, layers + 1, width]."""
    with foreign.open_tensors(folder / file) as opened:
        states: Tensor = opened.get_tensor("states")
        return states


def state_bytes(rows: int, poolings: int, layers: int, width: int) -> int:
    """Return the bytes of ``rows`` rows on disk, at two bytes a number."""
    return rows * poolings * (layers + 1) * width * 2


def check_room(folder: Path, needed: int, margin: float = MARGIN) -> str:
    """Return the free disk space in words; raise UserError if it is too little."""
    free = shutil.disk_usage(folder).free
    if needed * margin > free:
        raise UserError(
            f"the states need {gigabytes(needed)}, but {folder} has {gigabytes(free)} free:"
            " keep fewer with keep=, contexts= or features with fewer pools, or choose"
            " another folder="
        )
    return gigabytes(free)


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work, which is printed before it starts."""

    contexts: int
    own: int  # the probed model's samples per context
    kept: int  # those of them whose states are saved
    drafted: int  # the other model's steps per context
    poolings: int
    layers: int
    width: int

    @property
    def rows(self) -> int:
        return self.contexts * (self.kept + self.drafted)

    @property
    def samples(self) -> int:
        return self.contexts * (self.own + self.drafted)

    @property
    def bytes(self) -> int:
        return state_bytes(self.rows, self.poolings, self.layers, self.width)

    def fitting(self, free: int) -> str:
        """Return the option that makes the states fit into ``free`` bytes: the largest ``keep=``, or ``contexts=``."""
        row = state_bytes(1, self.poolings, self.layers, self.width) * MARGIN
        keep = int(free / (row * self.contexts)) - self.drafted
        if keep >= 1:
            return f"keep={keep}"
        return f"contexts={int(free / (row * (self.kept + self.drafted)))}"

    def line(self, free: str) -> str:
        written = f" + {self.drafted} by the other model" if self.drafted else ""
        return (
            f"{self.contexts} contexts x ({self.own} samples{written}); states kept: {self.rows:,}"
            f" rows x {self.poolings} pools x {self.layers + 1} layers x {self.width} x 2 bytes ="
            f" {gigabytes(self.bytes)} ({free} free)"
        )
