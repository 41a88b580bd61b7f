"""Two small Markov models with a known exact law: the oracle of the statistical tests.

The next token depends on the last two, so a rule that is off by one position is caught.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from semspec.decoding.sampling import draw_next, log_probabilities, probabilities
from semspec.deferred import Tensor, torch
from semspec.engines._base import EngineBase, take
from semspec.errors import UserError
from semspec.registry import register
from semspec.types import Answer, Context, Query, Read, Role, Sampling, What


class ToyEngine:
    """An order-2 Markov model as an engine, with fixed random features as hidden states."""

    layers, width = 2, 4

    def __init__(self, logits: Tensor, stop_ids: frozenset[int] = frozenset()) -> None:
        self.vocabulary = vocabulary = logits.shape[0]
        assert logits.shape == (vocabulary, vocabulary, vocabulary), logits.shape
        self.logits, self.stop_ids = logits.float(), stop_ids
        self.context_limit, self.offers = 1 << 20, Toy.offers
        generator = torch.Generator().manual_seed(1)
        shape = (vocabulary, vocabulary, self.layers + 1, self.width)
        self.features = torch.randn(shape, generator=generator)
        self._rows = lru_cache(maxsize=64)(self._table)
        self._places = lru_cache(maxsize=4096)(self._placed)

    def _table(self, sampling: Sampling) -> Tensor:
        rows = probabilities(self.logits.reshape(-1, self.vocabulary), sampling)
        return rows.reshape(self.logits.shape)

    def _placed(self, states: tuple[tuple[int, int], ...]) -> Tensor:
        """Return the row index of each state in a table whose first two axes are flattened into one."""
        return torch.tensor([first * self.vocabulary + second for first, second in states])

    def law(
        self, prompt: Sequence[int], length: int, sampling: Sampling
    ) -> dict[tuple[int, ...], float]:
        """Return the exact probability of each output of ``length`` tokens (fewer after a stop)."""
        table, law = self._rows(sampling), {}
        for output in itertools.product(range(self.vocabulary), repeat=length):
            stop = next((i for i, t in enumerate(output) if t in self.stop_ids), length - 1)
            if any(output[stop + 1 :]):  # of outputs that agree up to the stop, keep only one
                continue
            probability = 1.0
            for i, token in enumerate(output[: stop + 1]):
                probability *= float(table[(*self._state([*prompt, *output[:i]]), token)])
            law[output[: stop + 1]] = probability
        return law

    def _state(self, tokens: Sequence[int]) -> tuple[int, int]:
        return (tokens[-2] if len(tokens) > 1 else 0), tokens[-1]

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        return [self._answer(query) for query in queries]

    def forget(self, context: Context) -> None:
        """Do nothing: no state is kept between queries."""

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _answer(self, query: Query) -> Answer:
        started = time.perf_counter()
        states = self._states(query)
        answer = Answer(fed=len(query.tokens))
        if query.generate is not None:
            self._generate(query, states, answer)
        answer.values = {read: self._read(read, query, answer, states) for read in query.reads}
        answer.seconds = time.perf_counter() - started
        return answer

    def _states(self, query: Query) -> list[tuple[int, int]]:
        """Return the states after the context and after each of the query's tokens."""
        states = [self._state(query.context.tokens)]
        for i, token in enumerate(query.tokens):
            parent = i - 1 if query.parents is None else query.parents[i]
            states.append((states[parent + 1][1], token))
        return states

    def _rows_asked(self, query: Query, row_states: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the rows from ``rows_from`` on, which may lie before or after the context's end."""
        if query.rows_from is None:
            return row_states
        tokens, last = query.context.tokens, len(query.context) - 1
        if query.generate is not None:
            tokens, last = [*tokens, *query.tokens], last + len(query.tokens)
        before = [self._state(tokens[: i + 1]) for i in range(query.rows_from, last)]
        return [*before, *row_states[max(query.rows_from - last, 0) :]]

    def _generate(self, query: Query, states: list[tuple[int, int]], answer: Answer) -> None:
        ask = query.generate
        assert ask is not None and query.parents is None
        table = self._rows(query.sampling)
        answer.finish = "limit" if ask.limit < 1 else "scored"
        while answer.finish == "scored":
            token = draw_next(table[states[-1]], query.sampling, query.rng)
            take(token, answer, ask, ask.limit, self.stop_ids)
            states.append((states[-1][1], token))
        answer.fed += len(answer.tokens)

    def _read(
        self, read: Read, query: Query, answer: Answer, states: list[tuple[int, int]]
    ) -> Tensor | tuple[Tensor, Tensor]:
        what, tokens, row_states = read.what, list(query.tokens), states
        if query.generate is not None:
            tokens, row_states = answer.tokens, states[len(query.tokens) : -1]
        if what is not What.LOGPROBS:
            row_states = self._rows_asked(query, row_states)
        places = self._places(tuple(row_states))
        if what is What.PROBS:
            return self._rows(query.sampling).flatten(0, 1)[places]
        if what is What.HIDDEN:
            return self.features.flatten(0, 1)[places][:, list(read.layers or (-1,))]
        logits = self.logits.flatten(0, 1)[places]
        if what is What.LOGITS:
            return logits
        if what is What.TOP_K:
            best = logits.log_softmax(-1).topk(min(read.k, self.vocabulary), -1)
            return best.indices, best.values
        if what is What.LOGPROBS:
            parents = query.parents
            at = range(len(tokens)) if parents is None else [p + 1 for p in parents]
            rows = log_probabilities(logits, read.temperature)[
                torch.tensor(list(at), dtype=torch.long)
            ]
            return rows.gather(-1, torch.tensor(tokens, dtype=torch.long)[:, None])[:, 0]
        if what is What.EMBEDDINGS:
            return self.features[0, torch.tensor(tokens, dtype=torch.long), 0]
        assert what is What.POOLED, what
        spans = read.spans
        if query.generate is not None:
            spans = tuple(itertools.pairwise([0, *answer.unit_ends()]))
        own = states[len(states) - len(tokens) :]
        layers = list(read.layers or range(self.layers + 1))
        pooled = torch.empty(len(spans), len(layers), self.width)
        for into, (start, end) in zip(pooled, spans, strict=True):
            over = self.features.flatten(0, 1)[self._places(tuple(own[start:end]))][:, layers]
            into[:] = {"mean": over.mean(0), "max": over.amax(0), "last": over[-1]}[read.reduce]
        return pooled


@register("engine", "toy")
@dataclass(frozen=True, kw_only=True)
class Toy(EngineBase):
    """Two small Markov models with a known law: for tests and for trying out rules."""

    vocabulary: int = 5
    seed: int = 0
    likeness: float = 0.6  # of draft and target: 0 unrelated, 1 the same
    stop: bool = False  # the last token ends the text

    offers: ClassVar[frozenset[What]] = frozenset(What) - {What.ATTENTION, What.SCORE}

    def load(
        self,
        folder_or_repo: str,
        revision: str | None = None,
        role: Role = "target",
        probes: Sequence[str] = (),
    ) -> ToyEngine:
        raise UserError("engine=toy is only for tests and has no text or weights: use engine=hf")

    def models(self) -> Mapping[str, ToyEngine]:
        """Return a target and a draft."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.vocabulary,) * 3
        target = 1.5 * torch.randn(shape, generator=generator)
        other = 1.5 * torch.randn(shape, generator=generator)
        draft = self.likeness * target + (1 - self.likeness) * other
        stop_ids = frozenset({self.vocabulary - 1}) if self.stop else frozenset[int]()
        return {"target": ToyEngine(target, stop_ids), "draft": ToyEngine(draft, stop_ids)}
