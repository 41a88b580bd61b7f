"""Reduce the states of token spans, in all or some layers, while the pass runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from semspec.deferred import Tensor, torch

Span = tuple[int, int | None]  # start and end index; None: still growing


class Pool:
    """Keeps one float32 [layers, width] per span, whatever its length."""

    def __init__(
        self,
        reduce: Literal["mean", "max", "last"],
        spans: Sequence[Span],
        layers: Sequence[int],
        width: int,
        device: torch.device,
    ) -> None:
        self.reduce, self.layers, self.width, self.device = reduce, tuple(layers), width, device
        self._row = {layer: row for row, layer in enumerate(layers)}
        self.spans: list[Span] = []
        self.sums: list[Tensor] = []
        for span in spans:
            self._begin(span)

    def _begin(self, span: Span) -> None:
        fill = -torch.inf if self.reduce == "max" else 0.0
        self.spans.append(span)
        self.sums.append(torch.full((len(self.layers), self.width), fill, device=self.device))

    def states(self, layers: tuple[int, ...], x: Tensor, start: int) -> None:
        """Add states [layers, tokens, width] of these layers, for the tokens from ``start``."""
        rows: Any = slice(None)
        if layers != self.layers:
            own = [i for i, layer in enumerate(layers) if layer in self._row]
            if not own:
                return
            if len(layers) == 1:  # layer by layer: a view, no gather
                rows = slice(self._row[layers[0]], self._row[layers[0]] + 1)
            else:
                rows, x = [self._row[layers[i]] for i in own], x[own]
        for (a, b), into in zip(self.spans, self.sums, strict=True):
            if b is None:
                continue
            part = x[:, max(a - start, 0) : max(b - start, 0)]
            if not part.shape[1]:
                continue
            if self.reduce == "mean":
                into[rows] += part.sum(1, dtype=torch.float32)
            elif self.reduce == "max":
                into[rows] = torch.maximum(into[rows], part.amax(1).float())
            else:
                into[rows] = part[:, -1].float()

    def token(self, states: Tensor) -> None:
        """Add the states [layers, width] of one more token of the growing span."""
        into = self.sums[-1]
        if self.reduce == "mean":
            into += states
        elif self.reduce == "max":
            torch.maximum(into, states.float(), out=into)
        else:
            into.copy_(states)

    def close(self, end: int) -> None:
        """End the growing span before index ``end``, where the next one begins."""
        start, _ = self.spans[-1]
        self.spans[-1] = (start, end)
        self._begin((end, None))

    def value(self) -> Tensor:
        """Return the reduced states [closed spans, layers, width]."""
        done = [
            total / (b - a) if self.reduce == "mean" else total
            for (a, b), total in zip(self.spans, self.sums, strict=True)
            if b is not None
        ]
        empty = torch.empty(0, len(self.layers), self.width, device=self.device)
        return torch.stack(done) if done else empty
