"""SGLang at its own route, ``/generate``: ids in, ids out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semspec.certify.endpoints.openai import Ids, sampling_fields
from semspec.certify.laws import Law, Token, Tokens, law_of_likeliest
from semspec.errors import UserError
from semspec.types import Sampling


class Sglang(Ids):
    cheap = False
    kind = "sglang"
    listed = 64

    def write(self, prefixes: Sequence[Tokens], length: int, sampling: Sampling) -> list[Tokens]:
        def one(prefix: Tokens) -> Tokens:
            fields = {**sampling_fields(sampling), "max_new_tokens": length, "ignore_eos": True}
            answer = self.client.post(
                "/generate", {"input_ids": list(prefix), "sampling_params": fields}
            )
            ids = answer.get("output_ids") if isinstance(answer, Mapping) else None
            if not isinstance(ids, list) or not all(isinstance(t, int) for t in ids):
                raise UserError(f"{self.client.url}/generate returned no output_ids")
            return tuple(ids[:length])

        return self.client.map(one, prefixes)

    def laws(self, prefixes: Sequence[Tokens], sampling: Sampling) -> list[Law]:
        found = self.logprobs(prefixes, [0] * len(prefixes))
        return [law_of_likeliest(one, sampling) for one in found]

    def logprobs(
        self, prefixes: Sequence[Tokens], also: Sequence[Token]
    ) -> list[Mapping[Token, float]]:
        """Request one token after each prefix, which leaves nothing to speculate about."""

        def one(job: tuple[Tokens, Token]) -> Mapping[Token, float]:
            prefix, token = job
            payload: dict[str, Any] = {
                "input_ids": list(prefix),
                "sampling_params": {"temperature": 1.0, "max_new_tokens": 1, "ignore_eos": True},
                "return_logprob": True,
                "top_logprobs_num": self.listed,
                "token_ids_logprob": [token],
            }
            answer = self.client.post("/generate", payload)
            try:
                meta = answer["meta_info"]
                listed = [*meta["output_top_logprobs"][0]]
                more = meta.get("output_token_ids_logprobs") or [[]]
                listed += more[0] or []
                return {int(number): float(value) for value, number, *_ in listed}
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise UserError(
                    f"{self.client.url}/generate returns no log-probabilities: give"
                    " reference=FOLDER"
                ) from error

        return self.client.map(one, zip(prefixes, also, strict=True))
