"""The protocol of the plugin: a request's question and its reply, defined once for both sides.

        sampling_params["custom_params"] = {"semspec": {...}}      one question per request, see ``Ask``
        meta_info["semspec"] = [{...}]                             one reply per request, see ``values``

sglang-router rebuilds requests and drops ``custom_params``. Behind a router the question travels as text in
a label, which the router forwards, and the plugin restores it (``as_label``, ``from_label``).

Everything that a client sends is parsed here, by ``check`` where a request arrives and by ``Ask.of`` and
``rule_options`` in the workers. Each accepts any value, returns one within the limits below, and raises
only a ValueError of one line in ASCII. A client insists on a reply, because a server without the plugin
silently ignores ``custom_params``.

A token's state exists only after the token has been read, so spans are positions of the *prompt*. To read
generated tokens, a second request has them in its prompt.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from semspec import registry
from semspec.deferred import Tensor, torch
from semspec.errors import UserError, first_line
from semspec.types import Read, What

KEY = "semspec"  # in custom_params and in meta_info
ROUNDS = "semspec_rounds"  # in meta_info: what became of each draft, if whole steps are judged
PASSES = "semspec_passes"  # in /server_info: numbers of passes with and without drafts
SCORE, POOLED = "score", "pooled"
REDUCTIONS = ("mean", "max", "last")
PRECISIONS = {"float16": 2, "float32": 4}  # bytes per number

# Limits of one request; a request that exceeds them is refused on arrival.
LONGEST_LABEL = 2**14  # characters
LONGEST_TEXT = 64  # characters
MOST_SPANS = 64  # each takes a row of states of every layer on the device
MOST_LAYERS = 512
LAST_POSITION = 2**31 - 1
LARGEST_NUMBER = 1e9
LARGEST_WHOLE = 4096

PROBE_OPTIONS = ("spans", "want", "probe", "reduce", "layers", "precision")
# for rules that judge whole steps: how much is drafted at a time, and what is never kept
LOOP_OPTIONS: Mapping[str, type] = {
    "draft_length": int,
    "step_cap": int,
    "nested_length": int,
    "max_repeats": int,
}
# for requests that stand for a whole problem: the prompt's last token, sent separately so that the loop begins right
# after the prompt, and whether rounds are reported whole
PROMPT_END, WHOLE = "prompt_end", "whole_rounds"
PROBLEM_OPTIONS: Mapping[str, type] = {PROMPT_END: int, WHOLE: bool}


@cache
def rule_kinds() -> Mapping[str, type]:
    """Return the types of options that a request may set besides ``accept``, as rules declare them (``Rule.in_server``)."""
    found: dict[str, type] = {}
    for rule in registry.plugins("accept").values():
        declared = rule.cls.in_server
        for name, kind in (declared.asked if declared is not None else {}).items():
            assert found.setdefault(name, kind) is kind, f"{name} has two types"
    return found


@cache
def options() -> tuple[str, ...]:
    """Return the names of all options that a request may give."""
    return (*PROBE_OPTIONS, "accept", *rule_kinds(), *LOOP_OPTIONS, *PROBLEM_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request's question."""

    spans: tuple[tuple[int, int], ...]  # [start, end) in positions of the prompt, ascending
    want: str = SCORE  # score: one float per span; pooled: the states, reduced over each span
    probe: str = ""  # score: the probe's digest, see ``Probe.digest``
    reduce: tuple[str, ...] = ("mean",)  # pooled
    layers: tuple[int, ...] = ()  # pooled: 0 (embeddings) to L (after the final norm); (): all
    precision: str = "float32"  # pooled: how the numbers are sent

    def params(self) -> dict[str, Any]:
        """Return the ``custom_params`` of a request."""
        return {KEY: asdict(self)}

    @classmethod
    def of(cls, custom_params: Any) -> Ask | None:
        """Parse a request's question; return None without one, raise ValueError if it is malformed."""
        given = _given(custom_params)
        if "spans" not in given:
            if stray := [name for name in PROBE_OPTIONS if name in given]:
                raise ValueError(f"{stray[0]} needs spans: give spans")
            return None
        return cls(
            spans=_spans(given["spans"]),
            want=_chosen("want", given.get("want", SCORE), (SCORE, POOLED)),
            probe=_text("probe", given.get("probe", "")),
            reduce=_reductions(given.get("reduce", ("mean",))),
            layers=_layers(given.get("layers", ())),
            precision=_chosen("precision", given.get("precision", "float32"), PRECISIONS),
        )


def check(custom_params: Any) -> None:
    """Raise a one-line ValueError if any part of the plugin would reject the request."""
    Ask.of(custom_params)
    rule_options(custom_params)
    problem_options(custom_params)


def rule_options(custom_params: Any) -> dict[str, Any]:
    """Return the rule named by ``accept`` and its options; null counts as not given."""
    given = {name: value for name, value in _given(custom_params).items() if value is not None}
    found = {"accept": _text("accept", given["accept"])} if "accept" in given else {}
    known = {**rule_kinds(), **LOOP_OPTIONS}
    kinds = {name: kind for name, kind in known.items() if name in given}
    return found | {name: number(name, given[name], kind) for name, kind in kinds.items()}


def problem_options(custom_params: Any) -> dict[str, Any]:
    """Return the options of a request that stands for a whole problem."""
    given = {name: value for name, value in _given(custom_params).items() if value is not None}
    found: dict[str, Any] = {}
    if PROMPT_END in given:
        found[PROMPT_END] = _index(PROMPT_END, given[PROMPT_END], LAST_POSITION)
    if WHOLE in given:
        found[WHOLE] = number(WHOLE, given[WHOLE], bool)
    return found


def number(name: str, value: Any, kind: type) -> Any:
    """Return an option's value as a bool, an int or a finite float; raise ValueError otherwise."""
    if kind is bool:
        valid, way_out = isinstance(value, bool), "true or false"
    elif kind is int:
        valid = type(value) is int and abs(value) <= LARGEST_WHOLE
        way_out = f"a whole number up to {LARGEST_WHOLE}"
    else:  # NaN fails the comparison
        valid = type(value) in (int, float) and abs(value) <= LARGEST_NUMBER
        way_out = f"a number up to {LARGEST_NUMBER:g}"
    if not valid:
        raise ValueError(f"{name}={_shown(value)}: give {way_out}")
    return kind(value)


def _given(custom_params: Any) -> dict[str, Any]:
    """Return a request's options for the plugin by name; the values are still unchecked."""
    if not isinstance(custom_params, dict) or custom_params.get(KEY) is None:
        return {}
    given = custom_params[KEY]
    if not isinstance(given, dict):
        raise ValueError(f"{KEY}={_shown(given)}: give an object of {', '.join(options())}")
    for name in given:
        if name not in options():
            raise ValueError(
                f"{KEY} has no option {_shown(name)}: there are {', '.join(options())}"
            )
    return given


def _spans(value: Any) -> tuple[tuple[int, int], ...]:
    pairs = _items("spans", value, MOST_SPANS)
    if not pairs:
        raise ValueError(f"0 spans: give 1 to {MOST_SPANS}")
    before, spans = 0, []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ValueError(f"spans are pairs of positions, not {_shown(pair)}")
        start, end = (_index("spans", position, LAST_POSITION) for position in pair)
        if not before <= start < end:
            raise ValueError(f"span [{start}, {end}): spans ascend, and none is empty")
        spans.append((start, end))
        before = end
    return tuple(spans)


def _layers(value: Any) -> tuple[int, ...]:
    items = _items("layers", value, MOST_LAYERS)
    layers = tuple(_index("layers", layer, MOST_LAYERS) for layer in items)
    if len(set(layers)) < len(layers):
        raise ValueError("layers: name each once")
    return layers


def _reductions(value: Any) -> tuple[str, ...]:
    names = _items("reduce", value, len(REDUCTIONS))
    chosen = tuple(_chosen("reduce", name, REDUCTIONS) for name in names)
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"reduce: give some of {', '.join(REDUCTIONS)}, each once")
    return chosen


def _items(name: str, value: Any, most: int) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name}={_shown(value)}: give a list")
    if len(value) > most:
        raise ValueError(f"{name} has {len(value)} entries: give {most} at most")
    return value


def _index(name: str, value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name}: {_shown(value)} is no whole number from 0 to {most}")
    return value


def _text(name: str, value: Any) -> str:
    plain = isinstance(value, str) and value.isascii() and value.isprintable()
    if not plain or len(value) > LONGEST_TEXT:
        raise ValueError(f"{name}={_shown(value)}: give {LONGEST_TEXT} ASCII characters at most")
    return str(value)


def _chosen(name: str, value: Any, among: Collection[str]) -> str:
    if not isinstance(value, str) or value not in among:
        raise ValueError(f"{name}={_shown(value)}: give {' or '.join(among)}")
    return value


def _shown(value: Any) -> str:
    """Describe a client's value for an error message, short and in ASCII; never raise."""
    if isinstance(value, str):
        return ascii(value[:32])
    if value is None or isinstance(value, int | float):
        many = isinstance(value, int) and abs(value) >= 2**63
        return "an integer of many digits" if many else repr(value)
    kinds: dict[type, str] = {dict: "an object", list: "a list"}
    return kinds.get(type(value), "a value of another kind")


def ask_for(
    reads: Sequence[Read], offset: int, spans: Sequence[tuple[int, int]] = ()
) -> Ask | None:
    """Build the question for a query's reads; return None if they need nothing from the plugin.

    A read's spans count from position ``offset`` (the context's length). ``spans``, the generated units,
    apply to reads that name none.
    """
    scores = [r for r in reads if r.what is What.SCORE]
    pools = [r for r in reads if r.what is What.POOLED]
    if not scores and not pools:
        return None
    first = (scores or pools)[0]
    alike = len({(r.spans, r.layers, r.probe) for r in pools}) <= 1
    assert not (scores and pools) and len(scores) <= 1 and alike, (
        "one request asks for one probe, or for pools over the same spans and layers"
    )
    placed = tuple((a + offset, b + offset) for a, b in first.spans or spans)
    if scores:
        return Ask(spans=placed, probe=first.probe)
    reduce = tuple(r.reduce for r in pools)
    return Ask(spans=placed, want=POOLED, reduce=reduce, layers=first.layers)


def as_label(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request with its ``custom_params`` moved into a label."""
    params = dict(payload["sampling_params"])
    asked = params.pop("custom_params", None)
    if asked is None:
        return dict(payload)
    label = {KEY: json.dumps(asked, separators=(",", ":"))}
    return {**payload, "sampling_params": params, "custom_labels": label}


def from_label(params: Any, labels: Any) -> dict[str, Any] | None:
    """Return ``sampling_params`` with the ``custom_params`` of a label; None without a label; may raise ValueError."""
    if not isinstance(labels, dict) or KEY not in labels:
        return None
    text = labels.pop(KEY)
    if not isinstance(text, str) or len(text) > LONGEST_LABEL:
        raise ValueError(f"the label {KEY} is no text of {LONGEST_LABEL} characters at most")
    if not isinstance(params, dict | None):
        raise ValueError(f"a label {KEY} needs sampling_params that are an object")
    try:
        asked = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the label {KEY} is not JSON ({first_line(error)!a})") from error
    if not isinstance(asked, dict) or set(asked) != {KEY}:
        raise ValueError(f'the label {KEY} is not {{"{KEY}": {{...}}}}: write it as custom_params')
    check(asked)
    return {**(params or {}), "custom_params": asked}


def reply(meta_info: Mapping[str, Any], server: str = "the server") -> dict[str, Any]:
    """Return the plugin's reply to a request; raise UserError if it is missing or an error."""
    entries = meta_info.get(KEY)
    match [one for one in entries if one is not None] if isinstance(entries, list) else []:
        case [{"error": error}]:
            raise UserError(f"semspec's plugin at {server}: {error}")
        case [dict(one)]:
            return one
    raise UserError(
        f"{server} answered without the probe's value: semspec's plugin is not loaded there."
        " Install semspec in the server's environment and start it with"
        " SEMSPEC_SGLANG='{\"probe\": {}}' (docs/sglang_plugin.md)"
    )


def values(
    reads: Sequence[Read], meta_info: Mapping[str, Any], server: str = "the server"
) -> dict[Read, Tensor]:
    """Return values by read, as an engine does; raise UserError if the reply has another shape."""
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
    """Encode pooled states [spans, reduces, layers, width] as JSON."""
    raw = states.to(getattr(torch, precision)).contiguous().numpy().tobytes()
    encoded = base64.b64encode(raw).decode("ascii")
    return {"pooled": encoded, "shape": list(states.shape), "precision": precision}


def unpack(one: Mapping[str, Any], server: str = "the server") -> Tensor:
    """Decode a reply made by ``pack`` to float32; raise UserError if it is malformed."""
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
