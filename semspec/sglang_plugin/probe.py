"""Probes inside SGLang: states are pooled in the worker's own pass, and one float per step is returned.

A request's spans may lie in several prefill chunks, so partial pools are kept by request. Anything that must
wait for the device waits in ``copy``, which SGLang calls when it returns a result. Some probes read
log-probabilities; they are computed here from the pass's last states, because SGLang's own
(``return_logprob``) would travel as lists. Of the probe's perceptron, only the part of the first layer that
reads states runs on the device.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from semspec.artifacts.probe import Probe
from semspec.decoding.pooling import Pool
from semspec.errors import UserError
from semspec.models.location import read_facts
from semspec.models.text import Text
from semspec.sglang_plugin import compat_reading
from semspec.sglang_plugin.compat import Hook
from semspec.sglang_plugin.part import Part
from semspec.sglang_plugin.protocol import KEY, SCORE, Ask, pack

UNFINISHED = 64  # requests kept with partly read prompts: SGLang has one, others were aborted
MOST_NUMBERS = 2**23  # of pooled states in one request: 32 MB in float32
MOST_HELD = 2**26  # in all requests of a pass and all partly read ones


@dataclass(frozen=True, kw_only=True)
class Options:
    """``{"probe": {"artifacts": ["embedded/probe-tiny-target-paper"]}}``; pooling needs no artifact."""

    artifacts: tuple[str, ...] = ()  # folders, Hub repositories[@revision], embedded/NAME
    allow_mismatch: bool = False  # accept probes trained for another model of this shape

    def __post_init__(self) -> None:
        if isinstance(self.artifacts, str):
            object.__setattr__(self, "artifacts", (self.artifacts,))


def hooks(options: Options) -> list[Hook]:
    return compat_reading.Reading(Probes(options), KEY).hooks()


PART = Part(Options, hooks)


class Probes:
    """The probes of a worker, and the requests being read."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.probes: dict[str, Probe] = {}
        for name in options.artifacts:
            probe = Probe.load(name)
            if not probe.features.pooling:
                raise UserError(
                    f"probe {name} reads no states, so a server need not load it: leave it out"
                )
            self.probes[probe.digest] = probe
        self.model: compat_reading.Loaded | None = None
        self.begun: OrderedDict[str, Reader] = OrderedDict()

    def loaded(self, model: compat_reading.Loaded) -> None:
        """Raise UserError for probes of another model; only the first rank hashes the weights."""
        self.model = model
        if not self.probes or (torch.distributed.is_initialized() and torch.distributed.get_rank()):
            return
        known = read_facts(model.model, Text(str(model.model.fetch())).fingerprint)
        for probe in self.probes.values():
            probe.check(known, allow_mismatch=self.options.allow_mismatch)

    def needed_from(self, custom_params: Any, prompt: int) -> int | None:
        try:
            ask = Ask.of(custom_params)
        except ValueError:  # reported when the request is read
            return None
        return self._first(ask) if ask is not None else None

    def _first(self, ask: Ask) -> int:
        """Return the first position to read: a log-probability comes from the row before its token."""
        probe = self.probes.get(ask.probe)
        return max(ask.spans[0][0] - (probe is not None and probe.features.logprobs), 0)

    def begin(
        self, requests: int, rows: int, pieces: Sequence[compat_reading.Piece]
    ) -> Pass | None:
        readers: dict[int, Reading] = {}
        for piece in pieces:
            try:
                if (ask := Ask.of(piece.custom_params)) is not None:
                    readers[piece.index] = (piece, self._reader(ask, piece))
            except ValueError as error:
                readers[piece.index] = (piece, str(error))
        fresh = [(p, r) for p, r in readers.values() if isinstance(r, Reader) and not r.pools]
        # the smallest first, so that one large request does not take the room of many small ones
        for piece, reader in sorted(fresh, key=lambda one: one[1].numbers):
            if self._room(pieces, readers) >= reader.numbers:
                reader.open()
            else:
                trouble = "too many states are being read: ask again, or for fewer spans or layers"
                readers[piece.index] = (piece, trouble)
        return Pass(self, requests, rows, readers) if readers else None

    def verifying(self, loops: Sequence[Any], nodes: int) -> compat_reading.Pass | None:
        """Open the pools of loops that read states of their drafts, and return the pass's reads; None if none does."""
        assert self.model is not None
        top, width, device = self.model.layers, self.model.width, self.model.device
        reading = {i: loop for i, loop in enumerate(loops) if loop and loop.reads_states}
        for loop in reading.values():
            loop.open_pools(top, width, device)
        return Verifying(reading, len(loops), nodes) if reading else None

    def _room(self, pieces: Sequence[compat_reading.Piece], readers: Mapping[int, Reading]) -> int:
        """Return how many more numbers a pass may hold, after dropping aborted requests if needed."""
        running = {piece.request for piece in pieces}
        held = sum(r.held for _, r in readers.values() if isinstance(r, Reader))
        stale = {name: r.held for name, r in self.begun.items() if name not in running}
        for name in list(stale):
            if held + sum(stale.values()) <= MOST_HELD - MOST_NUMBERS:
                break
            del self.begun[name], stale[name]
        return MOST_HELD - held - sum(stale.values())

    def _reader(self, ask: Ask, piece: compat_reading.Piece) -> Reader:
        begun = self.begun.get(piece.request)
        if begun is not None and begun.ask == ask and begun.upto == piece.start:
            return begun
        assert self.model is not None
        probe = self.probes.get(ask.probe) if ask.want == SCORE else None
        if ask.want == SCORE and probe is None:
            held = ", ".join(f"{p.name} ({d})" for d, p in self.probes.items()) or "none"
            raise ValueError(
                f"probe {ask.probe or '(none named)'} is not loaded there; loaded: {held}."
                ' Start the server with SEMSPEC_SGLANG=\'{"probe": {"artifacts": ["FOLDER_OR_REPO"]}}\''
            )
        if ask.spans[-1][1] > (prompt := len(piece.ids)):
            raise ValueError(
                f"span {list(ask.spans[-1])} ends behind the prompt of {prompt} tokens: spans are"
                " positions of the prompt"
            )
        if probe is not None and probe.features.logprobs and not ask.spans[0][0]:
            raise ValueError(
                f"probe {probe.name} reads log-probabilities, and a prompt's first token has none: begin"
                " the first span behind it"
            )
        if piece.start > self._first(ask):
            raise ValueError(f"positions before {piece.start} were not computed: report this")
        return Reader(ask, probe, self.model)


class Reader:
    """What one request reads, over all its chunks."""

    def __init__(self, ask: Ask, probe: Probe | None, model: compat_reading.Loaded) -> None:
        self.ask, self.probe, self.upto = ask, probe, 0
        reductions = probe.features.pooling if probe is not None else ask.reduce
        chosen = probe.features.layers if probe is not None else ask.layers
        layers = chosen or tuple(range(model.layers + 1))
        if max(layers) > model.layers or min(layers) < 0:
            raise ValueError(f"layer {max(layers)}: the model has 0 (embeddings) to {model.layers}")
        self.numbers = len(ask.spans) * len(reductions) * len(layers) * model.width
        if self.numbers > MOST_NUMBERS:
            raise ValueError(
                f"{len(ask.spans)} spans of {len(layers)} layers are {self.numbers:,} numbers, and"
                f" {MOST_NUMBERS:,} is the limit of one request: ask for fewer"
            )
        self.reductions, self.layers, self.model = reductions, layers, model
        self.reads_logprobs = probe is not None and probe.features.logprobs
        self.pools: list[Pool] = []
        self.logprobs: list[Tensor] = []  # of the spans' tokens in order, by pass

    def open(self) -> None:
        """Allocate memory for the pooled states on the device."""
        self.pools = [
            Pool(r, self.ask.spans, self.layers, self.model.width, self.model.device)  # type: ignore[arg-type]
            for r in self.reductions
        ]

    @property
    def held(self) -> int:
        """Numbers held on the device."""
        return self.numbers if self.pools else 0

    def states(self, layer: int, x: Tensor, start: int) -> None:
        for pool in self.pools:
            pool.states((layer,), x[None], start)

    def followed(self, piece: compat_reading.Piece) -> list[tuple[int, int]]:
        """Return (row of the pass, token) for the spans' tokens whose log-probabilities this pass gives."""
        row = piece.row - piece.start - 1  # would predict position 0 if that were in this pass
        return [
            (row + p, piece.ids[p])
            for a, b in (self.ask.spans if self.reads_logprobs else ())
            for p in range(max(a, piece.start + 1), min(b, piece.end + 1))
        ]

    def reply(self) -> Any:
        states = [pool.value() for pool in self.pools]
        if self.probe is None:
            return Later([torch.stack(states, 1)], self._pooled)
        wanted = sum(b - a for a, b in self.ask.spans) if self.reads_logprobs else 0
        if sum(map(len, self.logprobs)) != wanted:
            return {"error": "log-probabilities of the spans were not seen: report this"}
        return Later([self.probe.begin(states), *self.logprobs], self._scores)

    def _pooled(self, parts: list[Tensor]) -> dict[str, Any]:
        return pack(parts[0], self.ask.precision)

    def _scores(self, parts: list[Tensor]) -> dict[str, Any]:
        assert self.probe is not None
        logprobs = iter([x for values in parts[1:] for x in values.tolist()])
        steps = [list(islice(logprobs, b - a)) for a, b in self.ask.spans] if self.logprobs else []
        return {"scores": self.probe.finish(parts[0], steps).tolist()}


Reading = tuple[compat_reading.Piece, Reader | str]  # a string is the reason why it cannot be read


@dataclass
class Pass:
    """What is read in one pass over prompts."""

    probes: Probes
    requests: int
    rows: int
    readers: dict[int, Reading]
    layers: frozenset[int] = field(init=False)
    followed: list[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        # pieces that contain tokens of the spans
        self.reading: list[tuple[compat_reading.Piece, Reader]] = []
        self.slices: dict[int, slice] = {}  # by request: its part of ``followed``
        self.followed = []
        for index, (piece, reader) in self.readers.items():
            if isinstance(reader, str):
                continue
            if any(a < piece.end and b > piece.start for a, b in reader.ask.spans):
                self.reading.append((piece, reader))
            if own := reader.followed(piece):
                count = len(self.followed)
                self.slices[index] = slice(count, count + len(own))
                self.followed += own
        self.layers = frozenset().union(*(reader.layers for _, reader in self.reading))

    def states(self, layer: int, x: Tensor) -> None:
        for piece, reader in self.reading:
            reader.states(layer, x[piece.row : piece.row + piece.end - piece.start], piece.start)

    def replies(self, logprobs: Tensor | None, trouble: str) -> dict[int, Any]:
        done: dict[int, Any] = {}
        begun = self.probes.begun
        for index, (piece, reader) in self.readers.items():
            begun.pop(piece.request, None)
            if isinstance(reader, str) or trouble:
                done[index] = {"error": reader if isinstance(reader, str) else trouble}
                continue
            reader.upto = piece.end
            if logprobs is not None and index in self.slices:
                reader.logprobs.append(logprobs[self.slices[index]])
            if piece.end < len(piece.ids):
                begun[piece.request] = reader
                while len(begun) > UNFINISHED:
                    begun.popitem(last=False)
            else:
                done[index] = reader.reply()
        return done


class Verifying:
    """What loops read in a pass over their drafts, of ``nodes`` rows each."""

    def __init__(self, loops: Mapping[int, Any], requests: int, nodes: int) -> None:
        self.followed: list[tuple[int, int]] = []
        self.loops, self.requests, self.nodes, self.rows = loops, requests, nodes, requests * nodes
        self.layers = frozenset().union(*(loop.layers for loop in loops.values()))

    def states(self, layer: int, x: Tensor) -> None:
        for i, loop in self.loops.items():  # the first row is the text's last token
            loop.states(layer, x[i * self.nodes + 1 : (i + 1) * self.nodes])

    def replies(self, logprobs: Tensor | None, trouble: str) -> dict[int, Any]:
        assert not trouble, trouble
        return {}


class Later:
    """A reply whose numbers are still being copied from the device."""

    def __init__(
        self, parts: Sequence[Tensor], build: Callable[[list[Tensor]], dict[str, Any]]
    ) -> None:
        self.build, self.parts = build, list(parts)
        self.event: torch.cuda.Event | None = None
        if any(part.is_cuda for part in parts):
            self.parts = [
                torch.empty(p.shape, dtype=p.dtype, pin_memory=True).copy_(p, non_blocking=True)
                for p in parts
            ]
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.event.record()

    def copy(self) -> dict[str, Any]:
        """Wait for the device copy and return the reply; SGLang calls this when it takes a value out of a batch."""
        if self.event is not None:
            self.event.synchronize()
        return self.build(self.parts)
