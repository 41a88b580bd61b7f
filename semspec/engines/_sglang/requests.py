"""Translate queries to requests of SGLang's ``/generate``, and its replies to values. No I/O.

For a request with ``logprob_start_len`` s, entry j of the input's log-probabilities belongs to the token at
s + j, and thus to the row at s + j - 1 (entry 0 has none). With ``max_new_tokens`` 0, the row of the last
token is among the output's. Input log-probabilities are always raw; temperature 0 makes the output's raw, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from semspec.decoding.sampling import at_temperature
from semspec.engines._base import take
from semspec.engines._sglang.identity import same_ids
from semspec.errors import UnusableError, UserError, describe_error
from semspec.sglang_plugin import protocol, rounds
from semspec.types import (
    Answer,
    Generate,
    Grammar,
    Query,
    Read,
    Round,
    Sampling,
    Stops,
    What,
    stops_of,
)

Payload = dict[str, Any]

OFF = {protocol.KEY: {"accept": "off"}}  # ``custom_params``: the server drafts nothing
VERIFIED = "verified by the server, token by token"  # the note of such a round
LOOK = 64  # tokens generated at a time if nothing hints where a unit may end
EVENTS = 256  # the most events in a whole problem's stream, because each repeats all text so far
LEAST = 4  # the fewest tokens between two events of such a stream
LIKELIEST = 32  # top tokens of a row from which a log-probability is converted to a temperature


def write(
    ids: Sequence[int],
    sampling: Sampling,
    limit: int,
    stop_ids: frozenset[int],
    stops: Stops,
    grammar: Grammar | None = None,
) -> Payload:
    """Return a request for up to ``limit`` tokens after ``ids``, held to a grammar if one is given."""
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or -1,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        # override the server's default preferences
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "max_new_tokens": limit,
        "stop_token_ids": sorted(stop_ids),
        "no_stop_trim": True,
    }
    if stops.texts:
        params["stop"] = list(stops.texts)
    if stops.patterns:
        params["stop_regex"] = list(stops.patterns)
    if grammar is not None:
        params[grammar.kind] = grammar.text
    return {"input_ids": list(ids), "sampling_params": params}


def inside(
    ids: Sequence[int],
    sampling: Sampling,
    limit: int,
    stop_ids: frozenset[int],
    asked: Mapping[str, Any],
    seed: int,
) -> Payload:
    """Return a request for a whole problem, which the server's own loop writes.

    The prompt's last token is sent separately, so that the loop begins right after the prompt. If it is a stop token or
    the only token, it stays in the prompt, and SGLang writes the first token. If only ``accept`` is asked, the server
    verifies token drafts as in any other request.
    """
    payload = write(ids, sampling, limit, stop_ids, Stops())
    params = payload["sampling_params"]
    if by_tokens(asked):
        params["custom_params"] = {protocol.KEY: dict(asked)}
        return payload
    told = {**asked, protocol.WHOLE: True}
    if len(ids) > 1 and ids[-1] not in stop_ids:
        told[protocol.PROMPT_END] = ids[-1]
        payload["input_ids"] = list(ids[:-1])
        params["max_new_tokens"] = limit + 1
    params |= {"sampling_seed": seed, "custom_params": {protocol.KEY: told}}
    return payload


def by_tokens(asked: Mapping[str, Any]) -> bool:
    """Return whether a server is only asked to verify token drafts, as in any other request."""
    return set(asked) == {"accept"}


def streamed(payload: Payload, interval: int | None = None) -> Payload:
    """Return a request whose reply is streamed with an event every ``interval`` tokens; None: as a whole problem needs."""
    params = payload["sampling_params"]
    interval = interval or max(LEAST, params["max_new_tokens"] // EVENTS)
    return {**payload, "sampling_params": {**params, "stream_interval": interval}}


@dataclass(slots=True)
class Taken:
    """How much of the output of a server's own loop has been put into answers."""

    rounds: int = 0  # as the server counts them
    tokens: int = 0


def ended(reply: Mapping[str, Any]) -> bool:
    """Return whether this is the last reply of a stream."""
    return reply["meta_info"].get("finish_reason") is not None


def nothing_written(server: str) -> UnusableError:
    """Return the error for a reply without tokens."""
    return UnusableError(f"{server} returned no tokens where some were requested: look at its log")


def take_inside(
    payload: Payload,
    reply: Mapping[str, Any],
    answer: Answer,
    server: str,
    taken: Taken | None = None,
) -> None:
    """Put the tokens and rounds of the server's own loop into an answer.

    From a reply that still grows, only rounds that are complete and not yet ``taken``; the answer may stay empty.
    """
    asked = payload["sampling_params"]["custom_params"][protocol.KEY]
    meta, tokens = reply["meta_info"], list(reply["output_ids"])
    over = taken is None or ended(reply)
    taken = taken or Taken()
    if (last := asked.get(protocol.PROMPT_END)) is not None:
        if tokens[:1] != [last] and (tokens or over):
            raise UnusableError(
                f"{server} did not start writing right after the prompt: its plugin is from"
                " another version of semspec"
            )
        tokens = tokens[1:]
    if over and not tokens:
        raise nothing_written(server)
    if by_tokens(asked):
        _take_verified(meta, tokens, answer, taken, over)
        return
    if over and last is None and len(tokens) == 1:
        found = [Round(handed=tokens)]  # SGLang's own token, with nothing to judge
    else:
        found = rounds.read(meta, tokens, server, taken.rounds, taken.tokens, over)
    if not found:
        return
    answer.rounds = found
    answer.tokens = [token for done in found for token in done.tokens]
    if not taken.tokens:
        _count_prompt(found[0], meta)
    taken.rounds = len(meta.get(protocol.ROUNDS) or ())
    taken.tokens += len(answer.tokens)


def _take_verified(
    meta: Mapping[str, Any], tokens: list[int], answer: Answer, taken: Taken, over: bool
) -> None:
    """Put the tokens since the last reply into an answer; what SGLang drafted for all of them, it tells at the end."""
    if not (fresh := tokens[taken.tokens :]):
        return
    done = Round(handed=fresh, note=VERIFIED)
    if over:
        done.passes["target"] = int(meta.get("spec_verify_ct") or len(tokens) - 1)
        done.accepted_inside = list(meta.get("spec_correct_drafts_histogram") or ())
        done.drafted_inside = int(meta.get("spec_num_proposed_drafts") or 0)
    if not taken.tokens:
        _count_prompt(done, meta)
    taken.tokens = len(tokens)
    answer.tokens, answer.rounds = fresh, [done]


def account(meta: Mapping[str, Any], answer: Answer, seconds: float) -> None:
    """Add a request's tokens and time to its answer: the time that the server reports, else ``seconds``."""
    account_prompt(meta, answer)
    answer.fed += int(meta.get("completion_tokens") or 0)
    answer.seconds += float(meta.get("e2e_latency") or seconds)  # transport is not model time


def account_prompt(meta: Mapping[str, Any], answer: Answer) -> None:
    """Add a request's prompt tokens, cached and fed, to its answer."""
    cached = int(meta.get("cached_tokens") or 0)
    answer.cached += cached
    answer.fed += int(meta["prompt_tokens"]) - cached


def _count_prompt(first: Round, meta: Mapping[str, Any]) -> None:
    """Count the pass over the prompt in the first round."""
    first.passes["target"] = first.passes.get("target", 0) + 1
    cached = int(meta.get("cached_tokens") or 0)
    first.cached["target"] = first.cached.get("target", 0) + cached
    first.fed["target"] = first.fed.get("target", 0) + int(meta["prompt_tokens"]) - cached


class Writing:
    """An answer in progress.

    A server stops where a unit may end; the boundary decides, and tokens beyond an end are discarded.
    That does not change the distribution: a token depends only on those before it.
    """

    def __init__(self, ask: Generate, room: int, stop_ids: frozenset[int], answer: Answer) -> None:
        self.ask, self.stop_ids, self.answer = ask, stop_ids, answer
        self.limit, self.room = min(ask.limit, room), room
        self.stops = stops_of(ask.boundary)
        answer.finish = "limit" if self.limit < 1 else "scored"

    @property
    def done(self) -> bool:
        return self.answer.finish != "scored"

    def next_limit(self) -> int:
        """Return how many tokens the next request may generate."""
        left = self.limit - len(self.answer.tokens)
        if self.ask.boundary is None or self.stops.never or self.ask.grammar is not None:
            return left  # a grammar must get its text in one request: it starts anew with each
        if self.stops.cap is not None:
            left = min(left, self.stops.cap * (self.ask.units - len(self.answer.ends)))
        return left if self.stops.texts or self.stops.cap is not None else min(left, LOOK)

    def next_onward(self) -> int:
        """Return how many tokens a request may generate that continues beyond this answer."""
        return max(self.limit, min(self.ask.onward, self.room)) - len(self.answer.tokens)

    def next_stops(self) -> Stops:
        return Stops() if self.next_limit() == 1 else self.stops

    def take(self, written: Iterable[int]) -> None:
        """Append tokens up to the one that completes the answer."""
        for token in written:
            take(token, self.answer, self.ask, self.limit, self.stop_ids)
            if self.done:
                return


@dataclass(slots=True)
class Scoring:
    """One pass over tokens after a context, and its reads."""

    ids: list[int]
    base: int  # index of the first scored token: the context's length
    row: int  # index of row 0
    reads: tuple[Read, ...]
    spans: tuple[tuple[int, int], ...] = ()  # of the generated units
    last_row: bool = True  # read the row of the last token, too

    @classmethod
    def of(cls, query: Query, tokens: Sequence[int] | None = None) -> Scoring:
        """Score a query's chain, or with ``tokens`` one path of its tree."""
        base = len(query.context)
        row = base - 1 if query.rows_from is None else query.rows_from
        if tokens is not None:
            query, row = replace(query, tokens=tokens), min(row, base - 1)
        return cls([*query.context.tokens, *query.tokens], base, row, query.reads)

    @classmethod
    def of_written(cls, query: Query, written: Sequence[int], ends: Sequence[int]) -> Scoring:
        """Score tokens that were just generated."""
        before = [*query.context.tokens, *query.tokens]
        row = len(before) - 1 if query.rows_from is None else query.rows_from
        spans = tuple(zip([0, *ends], ends, strict=False))
        return cls([*before, *written], len(before), row, query.reads, spans, last_row=False)

    @property
    def start(self) -> int | None:
        """``logprob_start_len``; None if no log-probabilities are read."""
        at = [self.row for read in self.reads if read.what is What.TOP_K]
        at += [self.base - 1 for read in self.reads if read.what is What.LOGPROBS]
        return min(at, default=None)

    def payload(self) -> Payload:
        params: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 0}
        if (ask := protocol.ask_for(self.reads, self.base, self.spans)) is not None:
            params["custom_params"] = ask.params()
        payload: Payload = {"input_ids": self.ids, "sampling_params": params}
        if (start := self.start) is not None:
            k = max(map(_likeliest, self.reads))
            payload |= {"return_logprob": True, "logprob_start_len": start, "top_logprobs_num": k}
        return payload

    def values(self, reply: Mapping[str, Any], server: str, vocabulary: int) -> dict[Read, Any]:
        """Return the value of every read; raise UserError if the reply has another shape.

        ``vocabulary``: the model's number of tokens.
        """
        meta = reply["meta_info"]
        values: dict[Read, Any] = dict(protocol.values(self.reads, meta, server))
        try:
            values |= {r: self._top_k(meta, r.k) for r in self.reads if r.what is What.TOP_K}
            values |= {
                r: self._logprobs(meta, r.temperature, vocabulary)
                for r in self.reads
                if r.what is What.LOGPROBS
            }
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise UnusableError(
                f"{server} sent log-probabilities in another shape than SGLang's"
                f" ({describe_error(error)}): does a proxy in between change them?"
            ) from error
        return values

    def _logprobs(self, meta: Mapping[str, Any], temperature: float, vocabulary: int) -> Tensor:
        entries, count = meta["input_token_logprobs"], len(self.ids) - self.base
        own = entries[len(entries) - count :]
        if not same_ids([entry[1] for entry in own], self.ids[self.base :], vocabulary):
            raise ValueError("other tokens")
        raw = torch.tensor([entry[0] for entry in own], dtype=torch.float32)
        if temperature == 1.0 or not count:
            return raw
        rows = meta["input_top_logprobs"][-count:]
        best = torch.tensor([[entry[0] for entry in row] for row in rows], dtype=torch.float32)
        return at_temperature(raw, best, temperature)

    def _top_k(self, meta: Mapping[str, Any], k: int) -> tuple[Tensor, Tensor]:
        assert self.start is not None
        rows = [*meta["input_top_logprobs"][1:], *meta["output_top_logprobs"]]
        rows = rows[self.row - self.start : None if self.last_row else -1]
        wanted = len(self.ids) - self.row - (not self.last_row)
        if len(rows) != wanted:
            raise ValueError("other rows")
        ids = [[entry[1] for entry in row[:k]] for row in rows]
        values = [[entry[0] for entry in row[:k]] for row in rows]
        shaped = torch.tensor(values, dtype=torch.float32).reshape(wanted, k)
        return torch.tensor(ids, dtype=torch.long).reshape(wanted, k), shaped


def _likeliest(read: Read) -> int:
    """Return how many top tokens of a row a server must report for a read."""
    tempered = read.what is What.LOGPROBS and read.temperature != 1.0
    return LIKELIEST if tempered else read.k


@dataclass(slots=True)
class Paths:
    """A tree as the paths from its root to its leaves, because a server reads only chains."""

    parents: Sequence[int]
    paths: list[list[int]] = field(init=False)  # nodes

    def __post_init__(self) -> None:
        inner = set(self.parents)
        ways: list[list[int]] = []  # to every node
        for node, parent in enumerate(self.parents):
            ways.append([*(ways[parent] if parent >= 0 else ()), node])
        self.paths = [way for node, way in enumerate(ways) if node not in inner]

    def gather(self, query: Query, parts: Sequence[Mapping[Read, Any]]) -> dict[Read, Any]:
        """Merge the values of the paths; each node takes those of the first path that contains it."""
        context = len(query.context)
        row = context - 1 if query.rows_from is None else query.rows_from
        # by node: (path, index among the path's tokens)
        place: dict[int, tuple[int, int]] = {}
        for p, path in enumerate(self.paths):
            for depth, node in enumerate(path):
                place.setdefault(node, (p, depth))
        values: dict[Read, Any] = {}
        for read in query.reads:
            if read.what is What.LOGPROBS:
                found = [place[node] for node in range(len(self.parents))]
                values[read] = torch.stack([parts[p][read][depth] for p, depth in found])
            elif read.what is What.TOP_K:
                # rows from ``row`` on: the context's, which every path has, then the nodes'
                at = [(0, i - row) for i in range(row, context)]
                first = min(row, context - 1)  # row 0 of every path
                nodes = range(max(row - context, 0), len(self.parents))
                at += [(place[n][0], context - first + place[n][1]) for n in nodes]
                both = ([parts[p][read][half][i] for p, i in at] for half in (0, 1))
                values[read] = tuple(map(torch.stack, both))
            else:
                raise UserError("engine=sglang cannot read pooled states of a tree: use engine=hf")
        return values
