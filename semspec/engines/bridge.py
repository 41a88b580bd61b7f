"""Translate token ids between a target and a draft whose special tokens differ.

QwQ-32B and the R1-Distill-Qwen models share 151,643 ordinary tokens, but not their special tokens
(``<think>`` has a different id in each) and not the padding of their vocabularies. Rules compare draft and
target by id, so the whole loop uses the target's ids, and ``BridgedEngine`` wraps the draft's engine in a
one-to-one map:

* tokens with the same content are the same token. So are the two end-of-text tokens, whatever their names,
  and the two beginning-of-text tokens;
* the draft reads a target token that it lacks as a filler, so that positions line up (further end-of-text
  tokens of the target are read as the draft's end of text). The draft cannot produce such a token: its
  columns are 0 (probabilities) or -inf (logits, log-probabilities);
* a draft token that the target lacks (padding included) is never proposed: the draft ends before it
  (finish "limit"). Its mass is removed from the rows, and the rows are renormalised.

Why the last rule is lossless. The draft model draws from q. With probability q(forbidden) the draft ends
there; otherwise the token is distributed as q restricted to the allowed tokens and renormalised, which is
exactly the row that is reported. Where a draft ends may depend on earlier draws, never on the current token
or the target's verdict on it, and token-by-token verification is proven for drafts of any such length: the
target itself draws the position after the last token. Nothing is lost either, because the target gives such
a token no probability. Masking before the draw would have to happen inside every engine.

The prompt. By default the draft reads the target's prompt through the bridge, with fillers for special tokens
that it lacks. With ``own_prompt`` it reads ``Context.draft_prompt`` instead (its own chat template, as in
SpecReason and SemanticSpec). The two models then count positions differently. That is harmless, because the
draft reads a mirror of each context; only reads of the prompt become meaningless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.models.text import Text
from semspec.protocols import Concurrent, Engine, OnServers
from semspec.types import Answer, Boundary, Context, Generate, Query, Read, Stops, What, stops_of

NONE = -1  # in ``Bridge.to_target``: no counterpart
_SPARE = 8  # TOP_K entries requested beyond k: in practice no row has more forbidden entries
_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Bridge:
    """The two id maps; they also cover the padding beyond the tokenizers."""

    to_draft: list[int]  # by target id: the filler where the draft has no such token
    to_target: list[int]  # by draft id: NONE where the target has no such token
    stop: int  # the target's end of text
    filler: int  # draft id


def build_bridge(
    target: Text,
    draft: Text,
    *,
    target_vocabulary: int | None = None,
    draft_vocabulary: int | None = None,
    filler: int | None = None,
) -> Bridge | None:
    """Return the bridge between two tokenizers, or None if there is nothing to translate.

    The vocabularies are the sizes of the models, which may be padded beyond the tokenizer. Two models with
    the same tokenizer but different padding need a bridge too, because their rows differ in width.
    ``filler`` is the draft id that stands for tokens the draft lacks; by default a newline. Raise
    UserError if the ordinary tokens differ, the target has no end of text, or ``filler`` is out of range.
    """
    target_size = max(target.size, target_vocabulary or 0)
    draft_size = max(draft.size, draft_vocabulary or 0)
    ours, theirs = target.vocabulary | target.added, draft.vocabulary | draft.added
    if ours == theirs and target_size == draft_size:
        return None
    if target.eos is None:
        raise UserError(f"the tokenizer of '{target.name}' has no end-of-text token: set eos_token")
    _check_ordinary(target, draft, ours, theirs)

    to_target = [NONE] * draft_size
    paired = [NONE] * target_size

    def pair(t: int | None, d: int | None) -> None:
        if t is not None and d is not None and paired[t] == NONE and to_target[d] == NONE:
            paired[t], to_target[d] = d, t

    for content, t in ours.items():
        pair(t, theirs.get(content))
    pair(target.eos, draft.eos)
    pair(target.bos, draft.bos)

    if filler is None:
        filler = _filler(draft) if ours.keys() - theirs else 0  # padding never occurs in a text
    elif not 0 <= filler < draft_size:
        raise UserError(
            f"filler {filler} is not a token of '{draft.name}': choose 0..{draft_size - 1}"
        )
    to_draft = [filler if d == NONE else d for d in paired]
    if draft.eos is not None:
        for t in target.stop_ids:
            if t < target_size and paired[t] == NONE:
                to_draft[t] = draft.eos
    return Bridge(to_draft, to_target, target.eos, filler)


def _check_ordinary(
    target: Text, draft: Text, ours: Mapping[str, int], theirs: Mapping[str, int]
) -> None:
    """Raise UserError unless both tokenizers have the same ordinary tokens; their ids may differ.

    Merges and pre-tokenizer may differ as well: ids cross the bridge, not text.
    """
    found = []
    for text, others in ((target, theirs), (draft, ours)):
        if only := [c for c in text.vocabulary if c not in others and c not in text.added]:
            some = ", ".join(repr(c) for c in only[:_EXAMPLES])
            dots = ", ..." if len(only) > _EXAMPLES else ""
            found.append(f"only '{text.name}' has {len(only)} ({some}{dots})")
    if found:
        raise UserError(
            f"the ordinary tokens of '{target.name}' and '{draft.name}' differ:"
            f" {'; '.join(found)}: choose a draft model of the target's family"
        )


def _filler(draft: Text) -> int:
    """Return the id of a neutral token, a newline or a space; raise UserError if there is none."""
    for ids in map(draft.encode, ("\n", " ")):
        if len(ids) == 1:
            return ids[0]
    raise UserError(
        f"'{draft.name}' has no token for a newline or a space: give the bridge a filler token"
    )


class _TranslatedBoundary:
    """A boundary that reads target ids, wrapped so that the draft's engine can feed it draft ids."""

    def __init__(self, to_target: Sequence[int], boundary: Boundary | None) -> None:
        self._to_target, self._boundary, self._blocked = to_target, boundary, False

    @property
    def stops(self) -> Stops:
        return stops_of(self._boundary)

    def feed(self, token: int) -> int | None:
        translated = self._to_target[token] if token < len(self._to_target) else NONE
        if translated == NONE or self._blocked:
            # the rest is discarded: report an end after every token, so that generation stops soon
            self._blocked = True
            return 0
        return None if self._boundary is None else self._boundary.feed(translated)


class BridgedEngine:
    """Wraps an engine that uses draft ids so that it takes and returns target ids. See the module docstring."""

    def __init__(self, engine: Engine, bridge: Bridge, own_prompt: bool = False) -> None:
        """Wrap ``engine``; with ``own_prompt`` it reads ``Context.draft_prompt`` as its prompt.

        If that prompt is longer than the target's, the caller must leave room for it in the context limit.
        """
        self.engine, self.bridge, self.own_prompt = engine, bridge, own_prompt
        self.vocabulary, self.context_limit = len(bridge.to_draft), engine.context_limit
        self.layers, self.width = engine.layers, engine.width
        ends = (bridge.to_target[d] for d in engine.stop_ids if d < len(bridge.to_target))
        self.stop_ids = frozenset(t for t in ends if t != NONE)
        # attention weights have one column per position, and with ``own_prompt`` positions differ
        self.offers = engine.offers - ({What.ATTENTION} if own_prompt else set())
        known = bridge.to_target[: engine.vocabulary]
        if any(t != NONE for t in bridge.to_target[engine.vocabulary :]):
            raise ValueError(
                f"the engine has {engine.vocabulary} tokens, fewer than the draft's tokenizer"
            )
        self._to_target = known + [NONE] * (engine.vocabulary - len(known))
        columns = {t: d for d, t in enumerate(self._to_target)}
        # by target id: the draft's column, or NONE
        self._columns = [columns.get(t, NONE) for t in range(self.vocabulary)]
        self._forbidden = [d for d, t in enumerate(self._to_target) if t == NONE]
        # by context key: the draft's mirror of the context, and how many tokens it has mirrored
        self._mirrors: dict[int, tuple[Context, int]] = {}
        self._tables: dict[torch.device, _Tables] = {}

    @property
    def away(self) -> int:
        """How many of the engine's servers are lost; 0 without servers."""
        return self.engine.away if isinstance(self.engine, OnServers) else 0

    @property
    def ended(self) -> bool:
        """True while this process has started all of the engine's servers and all have ended."""
        return isinstance(self.engine, OnServers) and self.engine.ended

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        answers = self.engine.answer([self._inward(q) for q in queries])
        return [self._outward(q, a) for q, a in zip(queries, answers, strict=True)]

    def forget(self, context: Context) -> None:
        kept = self._mirrors.pop(context.key, None)
        if kept is not None:
            self.engine.forget(kept[0])

    def close(self) -> None:
        self._mirrors.clear()
        self.engine.close()

    def _mirror(self, context: Context) -> Context:
        """Append a context's new tokens to its mirror in draft ids, and return the mirror."""
        if context.key in self._mirrors:
            mirror, seen = self._mirrors[context.key]
        else:
            seen = context.prompt_length
            translated = self._draft_ids(context.tokens[:seen])
            prompt = context.draft_prompt if self.own_prompt else translated
            assert prompt is not None, "the context lacks the draft's own prompt"
            mirror = Context(context.key, prompt)
        mirror.extend(self._draft_ids(context.tokens[seen:]))
        self._mirrors[context.key] = mirror, len(context)
        return mirror

    def _draft_ids(self, tokens: Sequence[int]) -> list[int]:
        to_draft = self.bridge.to_draft
        return [to_draft[t] for t in tokens]

    def _inward(self, query: Query) -> Query:
        mirror = self._mirror(query.context)
        row = query.rows_from
        if row is not None:
            if self.own_prompt and row < query.context.prompt_length - 1:
                raise ValueError("rows of the prompt: the draft reads a prompt of its own")
            row += len(mirror) - len(query.context)
        reads = tuple(dict.fromkeys(map(self._read, query.reads)))
        ids, ask = self._draft_ids(query.tokens), self._generate(query.generate)
        return replace(query, context=mirror, tokens=ids, reads=reads, generate=ask, rows_from=row)

    def _read(self, read: Read) -> Read:
        """Translate a read for the inner engine, whose answer files the value under the translated read."""
        if read.what is not What.TOP_K:
            return read
        spare = min(_SPARE, len(self._forbidden))
        return replace(read, k=min(read.k + spare, self.engine.vocabulary))

    def _generate(self, generate: Generate | None) -> Generate | None:
        if generate is None or (generate.boundary is None and not self._forbidden):
            return generate
        units = generate.units if generate.boundary is not None else 1
        boundary = _TranslatedBoundary(self._to_target, generate.boundary)
        return Generate(generate.limit, boundary, units, pause=generate.pause)

    def _outward(self, query: Query, answer: Answer) -> Answer:
        translated = [self._to_target[d] for d in answer.tokens]
        tokens = list(takewhile(lambda t: t != NONE, translated))
        cut = len(answer.tokens) - len(tokens)
        ends = [end for end in answer.ends if end <= len(tokens)]
        finish = answer.finish
        if cut:
            ask = query.generate
            complete = ask is not None and ask.boundary is not None and len(ends) >= ask.units
            finish = "units" if complete else "limit"
        outward = replace(answer, tokens=tokens, ends=ends, finish=finish)
        # a unit that was cut keeps its pooled states, which include the tokens that were cut off
        units = len(outward.unit_ends())
        outward.values = {
            read: self._value(query, read, answer.values[self._read(read)], cut, units)
            for read in query.reads
        }
        return outward

    def _value(self, query: Query, read: Read, value: Any, cut: int, units: int) -> Any:
        """Return a value in the target's columns, without the last ``cut`` tokens."""
        if read.what in (What.POOLED, What.SCORE):
            return value if read.spans or not cut else value[:units]
        if read.what is What.ATTENTION:
            return value[:, : value.shape[1] - cut]
        if read.what is What.TOP_K:
            ids, logprobs = (part[: len(part) - cut] for part in value)
            return self._top_k(ids, logprobs, read.k)
        value = value[: len(value) - cut]
        if read.what is What.PROBS:
            return self._probs(value)
        if read.what is What.LOGITS:
            return self._columns_of(value, -torch.inf)
        if read.what is What.LOGPROBS:
            return self._logprobs(query, value)
        return value

    def _on(self, device: torch.device) -> _Tables:
        if device not in self._tables:
            self._tables[device] = _Tables.of(self._columns, self._to_target, device)
        return self._tables[device]

    def _columns_of(self, rows: Tensor, missing: float) -> Tensor:
        """Return rows in the target's columns, filled with ``missing`` where the draft has no such token."""
        tables = self._on(rows.device)
        out = rows.index_select(-1, tables.gather)
        out[..., tables.missing] = missing
        return out

    def _probs(self, rows: Tensor) -> Tensor:
        out = self._columns_of(rows, 0.0)
        lost = rows.index_select(-1, self._on(rows.device).forbidden).sum(-1, keepdim=True) > 0
        total = out.sum(-1, keepdim=True)
        # rows that lose nothing stay bit-identical
        out = torch.where(lost & (total > 0), out / total, out)
        # no allowed token is left (greedy): treat it as end of text
        out[..., self.bridge.stop] = torch.where(total[..., 0] > 0, out[..., self.bridge.stop], 1.0)
        return out

    def _logprobs(self, query: Query, value: Tensor) -> Tensor:
        """Return raw log-probabilities, with -inf for scored tokens that the draft lacks."""
        unsayable = [i for i, t in enumerate(query.tokens) if self._columns[t] == NONE]
        if query.generate is not None or not unsayable:
            return value  # generated tokens always have a column
        value = value.clone()
        value[unsayable] = -torch.inf
        return value

    def _top_k(self, ids: Tensor, logprobs: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Translate entries and drop those the target lacks; -inf marks a missing entry."""
        translated = self._on(ids.device).to_target[ids]
        none = translated == NONE
        order = none.long().argsort(dim=-1, stable=True)[..., :k]
        translated, none, logprobs = (x.gather(-1, order) for x in (translated, none, logprobs))
        ids = translated.masked_fill(none, self.bridge.stop)
        return ids, logprobs.masked_fill(none, -torch.inf)


class BridgedServer(BridgedEngine):
    """A BridgedEngine for an engine that takes queries at any time (``protocols.Concurrent``)."""

    engine: Concurrent

    def submit(self, query: Query) -> Future[Answer]:
        outer: Future[Answer] = Future()

        def hand_over(inner: Future[Answer]) -> None:
            try:
                outer.set_result(self._outward(query, inner.result()))
            except BaseException as error:
                outer.set_exception(error)

        self.engine.submit(self._inward(query)).add_done_callback(hand_over)
        return outer


def bridged(
    engine: Engine, text: Text, target: Engine, target_text: Text, own_prompt: bool
) -> Engine:
    """Return an engine that uses the target's ids: ``engine`` itself, or a wrapper if ids need translation."""
    sizes = {"target_vocabulary": target.vocabulary, "draft_vocabulary": engine.vocabulary}
    bridge = build_bridge(target_text, text, **sizes)
    if bridge is None:
        return engine
    kind = BridgedServer if isinstance(engine, Concurrent) else BridgedEngine
    return kind(engine, bridge, own_prompt)


@dataclass(frozen=True, slots=True)
class _Tables:
    """The maps as index tensors on one device."""

    gather: Tensor  # by target id: the draft's column, 0 where there is none
    missing: Tensor  # target ids that the draft lacks
    forbidden: Tensor  # draft ids that the target lacks
    to_target: Tensor  # by draft id

    @classmethod
    def of(cls, columns: list[int], to_target: list[int], device: torch.device) -> _Tables:
        gather, back = (torch.tensor(ids, device=device) for ids in (columns, to_target))
        missing, forbidden = ((ids == NONE).nonzero().flatten() for ids in (gather, back))
        return cls(gather.clamp(min=0), missing, forbidden, back)
