"""Probes inside SGLang: states are pooled in the worker's own pass, and one float a step comes back.

A request's spans may lie in several prefill chunks, so what is pooled so far is kept by request.
Everything that waits for the device waits in ``copy``, which SGLang calls when it hands a result
out: no pass waits for this one. Log-probabilities, which some probes read beside the states, are those
that the request asks of SGLang anyway (``return_logprob``); the states' part of the perceptron's
first layer is computed on the device, the small rest when the result is handed out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from semspec.artifacts.probe import Probe
from semspec.engines._lean.pool import Pool
from semspec.errors import UserError
from semspec.models import facts
from semspec.sglang_plugin import compat
from semspec.sglang_plugin.protocol import KEY, SCORE, Ask, pack

UNFINISHED = 64  # requests whose prompt is read in part: SGLang has one, what is more was aborted


@dataclass(frozen=True, kw_only=True)
class Options:
    """``{"probe": {"artifacts": ["embedded/probe-tiny-target-paper"]}}``; pools need no artifact."""

    artifacts: tuple[str, ...] = ()  # folders, Hub repositories[@revision], embedded/NAME
    allow_mismatch: bool = False  # take probes that were trained for another model of this shape

    def __post_init__(self) -> None:
        if isinstance(self.artifacts, str):
            object.__setattr__(self, "artifacts", (self.artifacts,))


def prepare(options: Options) -> None:
    """Nothing is named in SGLang's arguments."""


def hooks(options: Options) -> list[compat.Hook]:
    return compat.Reading(Probes(options), KEY).hooks()


class Probes:
    """The probes of a worker, and the requests that they read."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.probes: dict[str, Probe] = {}
        for name in options.artifacts:
            probe = Probe.load(name)
            if not probe.features.pooling:
                raise UserError(f"probe {name} reads no states: it needs no place in a server")
            self.probes[probe.digest] = probe
        self.model: compat.Loaded | None = None
        self.begun: OrderedDict[str, Reader] = OrderedDict()

    def loaded(self, model: compat.Loaded) -> None:
        """Refuses probes of other models. Weights are hashed once, not by every rank."""
        self.model = model
        if not self.probes or (torch.distributed.is_initialized() and torch.distributed.get_rank()):
            return
        from semspec.text import Text

        known = facts(model.model, Text(str(model.model.fetch())).fingerprint)
        for probe in self.probes.values():
            probe.check(known, allow_mismatch=self.options.allow_mismatch)

    def needed_from(self, custom_params: Any, prompt: int) -> int | None:
        try:
            ask = Ask.of(custom_params)
        except ValueError:  # is said when the request is read
            return None
        return ask.spans[0][0] if ask is not None else None

    def begin(self, requests: int, rows: int, pieces: Sequence[compat.Piece]) -> Pass | None:
        readers: dict[int, tuple[compat.Piece, Reader | str]] = {}
        for piece in pieces:
            try:
                ask = Ask.of(piece.custom_params)
                if ask is not None:
                    readers[piece.index] = (piece, self._reader(ask, piece))
            except ValueError as error:
                readers[piece.index] = (piece, str(error))
        return Pass(self, requests, rows, readers) if readers else None

    def _reader(self, ask: Ask, piece: compat.Piece) -> Reader:
        begun = self.begun.get(piece.request)
        if begun is not None and begun.ask == ask and begun.upto == piece.start:
            return begun  # also where no state was read yet: a log-probability may have been
        assert self.model is not None
        probe = self.probes.get(ask.probe) if ask.want == SCORE else None
        if ask.want == SCORE and probe is None:
            held = ", ".join(f"{p.name} ({d})" for d, p in self.probes.items()) or "none"
            raise ValueError(
                f"probe {ask.probe or '(none named)'} is not loaded there; loaded: {held}."
                ' Start the server with SEMSPEC_SGLANG=\'{"probe": {"artifacts": ["FOLDER_OR_REPO"]}}\''
            )
        if ask.spans[-1][1] > piece.prompt:
            raise ValueError(
                f"span {list(ask.spans[-1])} ends behind the prompt of {piece.prompt} tokens: spans are"
                " positions of the prompt"
            )
        if piece.start > ask.spans[0][0]:
            raise ValueError(f"positions before {piece.start} were not computed: report this")
        return Reader(ask, probe, self.model)


class Reader:
    """What is read of one request, over all its chunks."""

    def __init__(self, ask: Ask, probe: Probe | None, model: compat.Loaded) -> None:
        self.ask, self.probe, self.upto = ask, probe, 0
        reductions = probe.features.pooling if probe is not None else ask.reduce
        chosen = probe.features.layers if probe is not None else ask.layers
        layers = chosen or tuple(range(model.layers + 1))
        if max(layers) > model.layers or min(layers) < 0:
            raise ValueError(
                f"layers {list(layers)}: the model has 0 (embeddings) to {model.layers}"
            )
        self.pools = [
            Pool(r, ask.spans, layers, model.width, model.device)  # type: ignore[arg-type]
            for r in reductions
        ]
        self.layers = frozenset(layers)
        self.logprobs: list[tuple[int, Tensor]] = []  # position of the first, and some of them

    @property
    def reads_logprobs(self) -> bool:
        return self.probe is not None and self.probe.features.logprobs

    def wants(self, piece: compat.Piece) -> bool:
        """Whether a piece has tokens of the spans."""
        return any(a < piece.end and b > piece.start for a, b in self.ask.spans)

    def states(self, layer: int, x: Tensor, start: int) -> None:
        for pool in self.pools:
            if layer in self.layers:
                pool.states((layer,), x[None], start)

    def keep(self, piece: compat.Piece, logprobs: Tensor | None) -> None:
        """Notes what a pass has given of the prompt up to the end of this piece."""
        self.upto = piece.end
        if self.reads_logprobs and logprobs is not None and piece.logprobs:
            rows = slice(piece.logprob_row, piece.logprob_row + piece.logprobs)
            self.logprobs.append((piece.predicted, logprobs[rows]))

    def reply(self) -> Any:
        states = [pool.value() for pool in self.pools]
        if self.probe is None:
            return Later([torch.stack(states, 1)], self._pooled)
        if self.reads_logprobs and not self._told():
            first = max(self.ask.spans[0][0] - 1, 0)
            return {
                "error": f"probe {self.probe.name} reads log-probabilities, too: ask with"
                f" return_logprob=true and logprob_start_len={first}"
            }
        return Later([self.probe.begin(states), *(x for _, x in self.logprobs)], self._scores)

    def _told(self) -> bool:
        """Whether every token of the spans has a log-probability."""
        known = {p for start, x in self.logprobs for p in range(start, start + len(x))}
        return all(p in known for a, b in self.ask.spans for p in range(a, b))

    def _pooled(self, parts: list[Tensor]) -> dict[str, Any]:
        return pack(parts[0], self.ask.precision)

    def _scores(self, parts: list[Tensor]) -> dict[str, Any]:
        assert self.probe is not None
        known: dict[int, float] = {}
        for (start, _), values in zip(self.logprobs, parts[1:], strict=True):
            known |= dict(enumerate(values.tolist(), start))
        steps = [[known[p] for p in range(a, b)] for a, b in self.ask.spans if known]
        return {"scores": self.probe.finish(parts[0], steps).tolist()}


@dataclass
class Pass:
    """What is read in one pass; a text in place of a reader says why one cannot be."""

    probes: Probes
    requests: int
    rows: int
    readers: dict[int, tuple[compat.Piece, Reader | str]]
    layers: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.reading = [
            (piece, reader)
            for piece, reader in self.readers.values()
            if isinstance(reader, Reader) and reader.wants(piece)
        ]
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
            reader.keep(piece, logprobs)
            if piece.end < piece.prompt:
                begun[piece.request] = reader
                while len(begun) > UNFINISHED:
                    begun.popitem(last=False)
            else:
                done[index] = reader.reply()
        return done


class Later:
    """A reply whose numbers are still on their way from the device."""

    def __init__(
        self, parts: Sequence[Tensor], told: Callable[[list[Tensor]], dict[str, Any]]
    ) -> None:
        self.told = told
        self.event: torch.cuda.Event | None = None
        self.parts = list(parts)
        if any(part.is_cuda for part in parts):
            self.parts = [
                torch.empty(p.shape, dtype=p.dtype, pin_memory=True).copy_(p, non_blocking=True)
                for p in parts
            ]
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.event.record()

    def copy(self) -> dict[str, Any]:
        """SGLang's word for taking a request's value out of a batch's."""
        if self.event is not None:
            self.event.synchronize()
        return self.told(self.parts)
