"""llama.cpp's server at its own route, ``/completion``: ids in, ids out, whatever samplers it was started with."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from semspec.certify.endpoints.base import Drafts
from semspec.certify.endpoints.http import Client
from semspec.certify.endpoints.openai import ENDS, Ids, tokenized
from semspec.certify.laws import END, Law, Token, Tokens, law_of_likeliest, with_end
from semspec.errors import UserError
from semspec.models.text import Text
from semspec.types import Sampling

CUTS = ["temperature", "top_k", "top_p", "min_p"]  # in the order of ``decoding.sampling``


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """Return all sampling fields of a request; without them the server applies its own top-k, top-p and min-p."""
    if sampling.greedy:
        return {"temperature": 0.0, "samplers": ["top_k"], "top_k": 1}
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "samplers": CUTS,
    }


class LlamaCpp(Ids):
    """A llama-server. Tokens that end a text are not ignored, because forbidding them would change the law."""

    cheap = False
    kind = "llamacpp"
    listed = 256

    def __init__(self, client: Client, model: str, text: Text | None = None) -> None:
        super().__init__(client, model, text)
        self.ends = self._ends()
        self._drafts, self._lock = Drafts(0, 0), threading.Lock()

    def encode(self, text: str) -> Tokens:
        if self.text is not None:
            return tuple(self.text.encode(text))
        asked = {"content": text, "add_special": True, "parse_special": True}
        return tokenized(self.client, asked)

    def write(self, prefixes: Sequence[Tokens], length: int, sampling: Sampling) -> list[Tokens]:
        def one(prefix: Tokens) -> Tokens:
            answer = self._complete(prefix, length, sampling_fields(sampling))
            ids = answer.get("tokens")
            if not isinstance(ids, list) or not all(isinstance(t, int) for t in ids):
                raise UserError(f"{self.client.url}/completion returned no tokens")
            self._count(answer.get("timings"))
            at = next((i for i, token in enumerate(ids[:length]) if token in self.ends), None)
            if at is not None:
                return (*ids[:at], END)
            if len(ids) < length:
                raise UserError(
                    f"{self.client.url}/completion stopped after {len(ids)} of {length}"
                    f" tokens for an unknown reason ({str(answer.get('stop_type'))[:20]}):"
                    " give it a larger context, or ask for fewer tokens"
                )
            return tuple(ids[:length])

        return self.client.map(one, prefixes)

    def drafts(self) -> Drafts:
        """Return how many tokens were drafted and kept since the last call, as the server reports."""
        with self._lock:
            told, self._drafts = self._drafts, Drafts(0, 0)
        return told

    def laws(self, prefixes: Sequence[Tokens], sampling: Sampling) -> list[Law]:
        found = self.logprobs(prefixes, [0] * len(prefixes))
        return [with_end(law_of_likeliest(one, sampling), frozenset({END})) for one in found]

    def logprobs(
        self, prefixes: Sequence[Tokens], also: Sequence[Token]
    ) -> list[Mapping[Token, float]]:
        """Request one token after each prefix, which leaves nothing to speculate about."""

        def one(prefix: Tokens) -> Mapping[Token, float]:
            fields = {**sampling_fields(Sampling(1.0)), "n_probs": self.listed}
            answer = self._complete(prefix, 1, fields)
            try:
                listed = answer["completion_probabilities"][0]["top_logprobs"]
                found: dict[Token, float] = {}
                for told in listed:
                    token = END if (number := int(told["id"])) in self.ends else number
                    found[token] = max(float(told["logprob"]), found.get(token, -float("inf")))
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise UserError(
                    f"{self.client.url}/completion returns no log-probabilities: give"
                    " reference=FOLDER"
                ) from error
            return found

        return self.client.map(one, prefixes)

    def _complete(
        self, prefix: Tokens, length: int, fields: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        asked = {"prompt": list(prefix), "n_predict": length, "return_tokens": True, **fields}
        answer = self.client.post("/completion", asked)
        if not isinstance(answer, Mapping):
            raise UserError(f"{self.client.url}/completion did not answer with JSON")
        return answer

    def _count(self, timings: Any) -> None:
        if isinstance(timings, Mapping):
            counts = (timings.get(name) for name in ("draft_n", "draft_n_accepted"))
            with self._lock:
                self._drafts = self._drafts.plus(
                    Drafts(*(n if isinstance(n, int) else 0 for n in counts))
                )

    def _ends(self) -> frozenset[Token]:
        """Ask the server which of the known end-of-text names are single tokens here."""
        ids = [tokenized(self.client, {"content": name, "parse_special": True}) for name in sorted(map(str, ENDS))]  # fmt: skip
        return frozenset(one[0] for one in ids if len(one) == 1)
