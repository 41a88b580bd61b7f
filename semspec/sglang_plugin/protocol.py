"""What a request asks of the plugin, and what comes back: the one place that both sides go by.

    sampling_params["custom_params"] = {"semspec": {...}}      one question a request, see ``Ask``
    meta_info["semspec"] = [{...}]                             one reply a request, see ``values``

sglang-router takes requests apart and drops ``custom_params``; behind one the same question travels as
text in a label, which it hands on, and the plugin puts it back (``as_label``, ``from_label``).

Needs neither SGLang nor a model. A client builds the question from a query's reads and insists on the
reply; a server without the plugin ignores ``custom_params``, and that must never pass unnoticed.

A state is there once its token was read, so spans are positions of the *prompt*. Of tokens that the
server generates nothing is read: a second request, with these tokens in its prompt, reads them.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from semspec.errors import UserError
from semspec.types import Read, What

if TYPE_CHECKING:
    from torch import Tensor

KEY = "semspec"  # of custom_params and of meta_info
SCORE, POOLED = "score", "pooled"
REDUCTIONS = ("mean", "max", "last")
PRECISIONS = {"float16": 2, "float32": 4}  # bytes a number
MOST_SPANS = 64  # in one request: each is a row of states of every layer on the device


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request's question."""

    spans: tuple[tuple[int, int], ...]  # [start, end) in positions of the prompt, ascending
    want: str = SCORE  # score: one float a span; pooled: the states, reduced over each span
    probe: str = ""  # score: the probe's digest, see ``Probe.digest``
    reduce: tuple[str, ...] = ("mean",)  # pooled
    layers: tuple[int, ...] = ()  # pooled: 0 (embeddings) to L (after the final norm); (): all
    precision: str = "float32"  # pooled: how the numbers are sent

    def params(self) -> dict[str, Any]:
        """``custom_params`` of a request."""
        return {KEY: asdict(self)}

    @classmethod
    def of(cls, custom_params: Any) -> Ask | None:
        """The question of a request, if it has one; ValueError where it makes no sense."""
        told = custom_params.get(KEY) if isinstance(custom_params, dict) else None
        if not isinstance(told, dict) or "spans" not in told:
            return None  # parts of the plugin other than the probe have words of their own
        try:
            spans = tuple((int(a), int(b)) for a, b in told["spans"])
            reduce = tuple(str(r) for r in told.get("reduce", ("mean",)))
            layers = tuple(int(i) for i in told.get("layers", ()))
        except (TypeError, ValueError) as error:
            raise ValueError("spans are pairs of positions, layers are numbers") from error
        ask = cls(
            spans=spans,
            want=str(told.get("want", SCORE)),
            probe=str(told.get("probe", "")),
            reduce=reduce,
            layers=layers,
            precision=str(told.get("precision", "float32")),
        )
        ask._check()
        return ask

    def _check(self) -> None:
        if not 0 < len(self.spans) <= MOST_SPANS:
            raise ValueError(f"{len(self.spans)} spans: give 1 to {MOST_SPANS}")
        before = 0
        for start, end in self.spans:
            if not before <= start < end:
                raise ValueError(f"span [{start}, {end}): spans ascend, and none is empty")
            before = end
        if self.want not in (SCORE, POOLED):
            raise ValueError(f"want={self.want!r}: give score or pooled")
        if not self.reduce or not set(self.reduce) <= set(REDUCTIONS):
            raise ValueError(f"reduce={list(self.reduce)}: give some of {', '.join(REDUCTIONS)}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision={self.precision!r}: give {' or '.join(PRECISIONS)}")


def ask_for(
    reads: Sequence[Read], offset: int, spans: Sequence[tuple[int, int]] = ()
) -> Ask | None:
    """What a query's reads ask of the plugin; None where they ask nothing.

    ``offset`` is the position of the token that a read's spans count from (the context's length);
    ``spans`` are those of the reads that name none: the units that were generated.
    """
    scores = [r for r in reads if r.what is What.SCORE]
    pools = [r for r in reads if r.what is What.POOLED]
    if not scores and not pools:
        return None
    first = (scores or pools)[0]
    alike = all(
        (r.spans, r.layers, r.probe) == (first.spans, first.layers, first.probe) for r in pools
    )
    assert not (scores and pools) and len(scores) <= 1 and alike, (
        "one request asks for one probe, or for pools over the same spans and layers"
    )
    placed = tuple((a + offset, b + offset) for a, b in first.spans or spans)
    if scores:
        return Ask(spans=placed, probe=first.probe)
    return Ask(
        spans=placed,
        want=POOLED,
        reduce=tuple(r.reduce for r in pools),
        layers=first.layers,
    )


def as_label(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A request whose ``custom_params`` are in a label."""
    params = dict(payload["sampling_params"])
    asked = params.pop("custom_params", None)
    if asked is None:
        return dict(payload)
    label = {KEY: json.dumps(asked, separators=(",", ":"))}
    return {**payload, "sampling_params": params, "custom_labels": label}


def from_label(
    params: Mapping[str, Any] | None, labels: dict[str, str] | None
) -> dict[str, Any] | None:
    """``sampling_params`` with the ``custom_params`` of a label, which is taken out; None: no label."""
    if not labels or KEY not in labels:
        return None
    try:
        asked = json.loads(labels.pop(KEY))
    except ValueError as error:
        raise ValueError(f"the label {KEY} is not JSON ({error})") from error
    return {**(params or {}), "custom_params": asked}


def reply(meta_info: Mapping[str, Any], server: str = "the server") -> dict[str, Any]:
    """The plugin's reply to a request that asked for one."""
    told = meta_info.get(KEY)
    found = [one for one in told if one is not None] if isinstance(told, list) else []
    if len(found) != 1 or not isinstance(found[0], dict):
        raise UserError(
            f"{server} answered without the probe's value: semspec's plugin is not loaded there."
            " Install semspec in the server's environment and start it with"
            " SEMSPEC_SGLANG='{\"probe\": {}}' (docs/sglang_plugin.md)"
        )
    one: dict[str, Any] = found[0]
    if "error" in one:
        raise UserError(f"semspec's plugin at {server}: {one['error']}")
    return one


def values(
    reads: Sequence[Read], meta_info: Mapping[str, Any], server: str = "the server"
) -> dict[Read, Tensor]:
    """Read -> value, as an engine's answer holds it: SCORE [spans], POOLED [spans, layers, width]."""
    import torch

    wanted = [r for r in reads if r.what in (What.SCORE, What.POOLED)]
    if not wanted:
        return {}
    one = reply(meta_info, server)
    if wanted[0].what is What.SCORE:
        scores = one.get("scores")
        if not isinstance(scores, list) or not all(isinstance(x, float) for x in scores):
            raise UserError(_strange(server, "scores"))
        return {wanted[0]: torch.tensor(scores, dtype=torch.float32)}
    states = unpack(one, server)
    if states.shape[1] != len(wanted):
        raise UserError(_strange(server, "pooled"))
    return {read: states[:, column] for column, read in enumerate(wanted)}


def pack(states: Tensor, precision: str) -> dict[str, Any]:
    """Pooled states [spans, reduces, layers, width] as JSON."""
    import torch

    raw = states.to(getattr(torch, precision)).contiguous().numpy().tobytes()
    return {
        "pooled": base64.b64encode(raw).decode("ascii"),
        "shape": list(states.shape),
        "precision": precision,
    }


def unpack(one: Mapping[str, Any], server: str = "the server") -> Tensor:
    """The inverse of ``pack``, float32; what a server sends is not trusted to fit."""
    import torch

    try:
        shape = [int(n) for n in one["shape"]]
        size = PRECISIONS[one["precision"]]
        raw = base64.b64decode(one["pooled"], validate=True)
        if len(shape) != 4 or min(shape) < 0 or math.prod(shape) * size != len(raw):
            raise ValueError
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise UserError(_strange(server, "pooled")) from error
    states = torch.frombuffer(bytearray(raw), dtype=getattr(torch, one["precision"]))
    return states.float().view(shape)


def _strange(server: str, field: str) -> str:
    return (
        f"{server} sent {field} that semspec's plugin does not send: use the same version of semspec"
        " here and there"
    )
