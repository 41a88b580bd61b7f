"""Speculative sampling with two toy models, correct or with one of the faults seen in public code.

It is small plain Python, so that a certificate can be tested a thousand times. ``Speculating`` is a writer in this
process, ``ToyReference`` gives the exact distribution, and ``tests/support/openai_server.py`` serves both over HTTP.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from semspec.certify.laws import END, Law, Token, Tokens, law_of_row
from semspec.decoding.sampling import probabilities
from semspec.engines.toy import Toy, ToyEngine
from semspec.types import Sampling

FAULTS = {
    "p over q": "p/q for drafts that were never sampled from q",
    "raw q": "q before temperature",
    "bonus row": "the bonus token from the row before",
    "residual": "a residual that is not renormalised",
    "top-p": "top-p for the draft only",
    "cache": "a cache that keeps a rejected token",
    "shared seed": "one seed for all requests",
    "batch seed": "one seed for the requests that are under way together",
    "typical": "typical acceptance, called lossless",
}
DRAFT_LENGTH = 3
BATCH = 4  # requests that share a seed

Rows = dict[tuple[int, int], list[float]]


def _rows(engine: ToyEngine, sampling: Sampling) -> Rows:
    table = probabilities(engine.logits.reshape(-1, engine.vocabulary), sampling).tolist()
    n = engine.vocabulary
    return {(a, b): table[a * n + b] for a in range(n) for b in range(n)}


def _draw(row: Sequence[float], uniform: float, whole: bool = True) -> int:
    summed = list(accumulate(row))
    at = bisect_right(summed, uniform * (summed[-1] if whole else 1.0))
    if at < len(row) and row[at] > 0:
        return at
    return max(i for i, p in enumerate(row) if p > 0)


class Speculating:
    """A writer over the toy pair; ``fault`` is one of ``FAULTS``, or "" for none."""

    def __init__(
        self, toy: Toy, fault: str = "", seed: int = 0, sampled: bool = True, plain: bool = False
    ) -> None:
        assert not fault or fault in FAULTS, fault
        self.models, self.fault, self.plain = toy.models(), fault, plain
        self.sampled = sampled and fault != "p over q"  # the draft model samples its tokens
        self.rng, self.seed = random.Random(seed), seed
        self.drafted = self.kept = 0
        self._known: dict[Sampling, tuple[Rows, Rows, Rows]] = {}

    @property
    def name(self) -> str:
        return f"toy, {self.fault or 'honest'}"

    def encode(self, text: str) -> Tokens:
        vocabulary = self.models["target"].vocabulary
        return tuple(ord(c) % vocabulary for c in text) or (0,)

    def show(self, tokens: Tokens) -> str:
        return " ".join(map(str, tokens))

    def close(self) -> None:
        """Do nothing."""

    def write(self, prefixes: Sequence[Tokens], length: int, sampling: Sampling) -> list[Tokens]:
        return [
            self.one(prefix, length, sampling, self._rng(i)) for i, prefix in enumerate(prefixes)
        ]

    def _rng(self, request: int) -> random.Random:
        if self.fault == "shared seed":
            return random.Random(self.seed)
        if self.fault == "batch seed":
            if request % BATCH == 0:
                self._shared = self.rng.random()
            return random.Random(self._shared)
        return self.rng

    def rows(self, sampling: Sampling) -> tuple[Rows, Rows, Rows]:
        """Return p, the q from which drafts are drawn, and the q by which they are judged."""
        if sampling not in self._known:
            target, draft = self.models["target"], self.models["draft"]
            whole = Sampling(sampling.temperature)
            p = _rows(target, whole if self.fault == "top-p" else sampling)
            q = _rows(draft, sampling)
            judged = _rows(draft, Sampling(1.0)) if self.fault == "raw q" else q
            self._known[sampling] = p, q, judged
        return self._known[sampling]

    def one(self, prefix: Tokens, length: int, sampling: Sampling, rng: random.Random) -> Tokens:
        p, q, judged = self.rows(sampling)
        stops = self.models["target"].stop_ids
        text = [0, *(int(t) for t in prefix)]
        begun = len(text)
        # the second-last token according to the cache: wrong if the cache is not rolled back
        cached: int | None = None
        while len(text) - begun < length and not (len(text) > begun and text[-1] in stops):
            before, last = text[-2] if cached is None else cached, text[-1]
            if self.plain:
                text.append(self._next(p[before, last], sampling, rng))
                continue
            drafts = self._drafts(q, (text[-2], last), sampling, rng)
            self.drafted += len(drafts)
            a, b = before, last
            cached, kept = None, 0
            for token in drafts:
                row, own = p[a, b], judged[a, b]
                if not self._accepts(row, own, token, rng):
                    text.append(self._residual(row, own, token, sampling, rng))
                    if self.fault == "cache":
                        cached = token
                    break
                text.append(token)
                kept += 1
                if token in stops:
                    break
                a, b = b, token
            else:
                if self.fault == "bonus row" and len(drafts) > 1:
                    a, b = text[-3], text[-2]
                text.append(self._next(p[a, b], sampling, rng))
            self.kept += kept
        made = text[begun:]
        if (at := next((i for i, t in enumerate(made) if t in stops), length)) < length:
            return (*made[:at], END)
        return tuple(made[:length])

    def _next(self, row: Sequence[float], sampling: Sampling, rng: random.Random) -> int:
        return row.index(max(row)) if sampling.greedy else _draw(row, rng.random())

    def _drafts(
        self, q: Rows, state: tuple[int, int], sampling: Sampling, rng: random.Random
    ) -> list[int]:
        drafts: list[int] = []
        for _ in range(DRAFT_LENGTH):
            row = q[state]
            token = _draw(row, rng.random()) if self.sampled else row.index(max(row))
            drafts.append(token)
            state = state[1], token
        return drafts

    def _accepts(
        self, p: Sequence[float], q: Sequence[float], token: int, rng: random.Random
    ) -> bool:
        if self.fault == "typical":
            entropy = -sum(x * math.log(x) for x in p if x > 0)
            return p[token] > min(0.1, 0.3 * math.exp(-entropy))
        if not self.sampled and self.fault != "p over q":
            return rng.random() < p[token]
        return rng.random() * q[token] < p[token]

    def _residual(
        self,
        p: Sequence[float],
        q: Sequence[float],
        token: int,
        sampling: Sampling,
        rng: random.Random,
    ) -> int:
        if not self.sampled and self.fault != "p over q":
            rest = [0.0 if t == token else x for t, x in enumerate(p)]
        else:
            rest = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
        if self.fault == "typical" or not sum(rest) > 0:
            rest = list(p)
        if sampling.greedy:
            return rest.index(max(rest))
        return _draw(rest, rng.random(), whole=self.fault != "residual")


class ToyReference:
    """The toy target's own distributions."""

    cheap = True

    def __init__(self, toy: Toy) -> None:
        self.engine = toy.models()["target"]
        self._known: dict[tuple[Any, ...], Law] = {}

    @property
    def name(self) -> str:
        return "the toy's exact law"

    def laws(self, prefixes: Sequence[Tokens], sampling: Sampling) -> list[Law]:
        return [self._law((0, *prefix)[-2:], sampling) for prefix in prefixes]

    def _law(self, state: Tokens, sampling: Sampling) -> Law:
        key = (*state, sampling)
        if key not in self._known:
            from semspec.certify.laws import with_end

            row = law_of_row(self.engine.logits[int(state[0]), int(state[1])], sampling)
            self._known[key] = with_end(row, frozenset(self.engine.stop_ids))
        return self._known[key]

    def logprobs(
        self, prefixes: Sequence[Tokens], also: Sequence[Token]
    ) -> list[Mapping[Token, float]]:
        out: list[Mapping[Token, float]] = []
        for prefix in prefixes:
            a, b = (0, *prefix)[-2:]
            row = self.engine.logits[int(a), int(b)].log_softmax(-1).tolist()
            ends = self.engine.stop_ids
            out.append({END if t in ends else t: value for t, value in enumerate(row)})
        return out
