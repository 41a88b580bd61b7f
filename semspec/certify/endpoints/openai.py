"""Servers with OpenAI's completions: vLLM's dialect with token ids, and the plain API, which has only texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semspec.certify.endpoints.http import Client
from semspec.certify.laws import END, Law, Token, Tokens, law_of_likeliest, with_end
from semspec.errors import UserError
from semspec.models.text import Text
from semspec.types import Sampling

ENDS = frozenset[Token](
    "<|im_end|> <|endoftext|> </s> <|eot_id|> <|end_of_text|> <|end|> <end_of_turn> <eos> <|return|>".split()
)  # names of end-of-text tokens, as servers report them
MARK = "token_id:"  # vLLM's prefix for a token id in place of a text


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """Return the sampling fields of a request; those that OpenAI's API lacks only if they are used."""
    fields: dict[str, Any] = {"temperature": sampling.temperature}
    if sampling.greedy:
        return fields
    if sampling.top_p < 1.0:
        fields["top_p"] = sampling.top_p
    if sampling.top_k:
        fields["top_k"] = sampling.top_k
    if sampling.min_p:
        fields["min_p"] = sampling.min_p
    return fields


class OpenAI:
    """A server with ``/v1/completions``; prompts and tokens are texts."""

    cheap = False
    kind = "openai"
    listed = 5
    ends = ENDS

    def __init__(self, client: Client, model: str) -> None:
        self.client, self.model = client, model

    @property
    def name(self) -> str:
        return f"{self.model} at {self.client.url} ({self.kind})"

    def encode(self, text: str) -> Tokens:
        return (text,)

    def show(self, tokens: Tokens) -> str:
        return "".join("" if token == END else str(token) for token in tokens)

    def write(self, prefixes: Sequence[Tokens], length: int, sampling: Sampling) -> list[Tokens]:
        def one(prefix: Tokens) -> Tokens:
            choice = self._complete(prefix, length, sampling_fields(sampling), 1)
            tokens = self.tokens_of(choice)
            tokens = next((tokens[:i] for i, t in enumerate(tokens) if t in self.ends), tokens)
            return tokens[:length] if len(tokens) >= length else (*tokens, END)

        return self.client.map(one, prefixes)

    def laws(self, prefixes: Sequence[Tokens], sampling: Sampling) -> list[Law]:
        found = self.logprobs(prefixes, [""] * len(prefixes))
        return [with_end(law_of_likeliest(one, sampling), frozenset({END})) for one in found]

    def logprobs(
        self, prefixes: Sequence[Tokens], also: Sequence[Token]
    ) -> list[Mapping[Token, float]]:
        """Request one token after each prefix, which leaves nothing to speculate about."""

        def one(prefix: Tokens) -> Mapping[Token, float]:
            return self.likeliest(self._complete(prefix, 1, {"temperature": 1.0}, self.listed))

        return self.client.map(one, prefixes)

    def prompt(self, prefix: Tokens) -> Any:
        return self.show(prefix)

    def further(self) -> dict[str, Any]:
        """Return request fields that only this kind of server knows."""
        return {}

    def tokens_of(self, choice: Mapping[str, Any]) -> Tokens:
        listed = choice.get("logprobs")
        if isinstance(listed, Mapping) and isinstance(listed.get("tokens"), list):
            return tuple(str(token) for token in listed["tokens"])
        if choice.get("finish_reason") == "length":
            return tuple(str(choice["text"]))  # no tokens reported: use characters instead
        return (*str(choice["text"]), END)

    def likeliest(self, choice: Mapping[str, Any]) -> dict[Token, float]:
        """Return the log-probabilities for a choice's first token, with all end-of-text tokens as one."""
        listed = choice.get("logprobs")
        top = listed.get("top_logprobs") if isinstance(listed, Mapping) else None
        if not isinstance(top, list) or not top or not isinstance(top[0], Mapping):
            raise UserError(
                f"{self.client.url} returns no log-probabilities: give reference=FOLDER"
                " (the model itself) or reference=URL (the same model on a server without"
                " speculation)"
            )
        found: dict[Token, float] = {}
        for token, value in top[0].items():
            name = END if (read := self.token(token)) in self.ends else read
            found[name] = max(float(value), found.get(name, -float("inf")))
        return found

    def token(self, text: str) -> Token:
        return text

    def _complete(
        self, prefix: Tokens, length: int, fields: Mapping[str, Any], listed: int
    ) -> Mapping[str, Any]:
        payload = {
            "model": self.model,
            "prompt": self.prompt(prefix),
            "max_tokens": length,
            "logprobs": listed,
            **fields,
            **self.further(),
        }
        answer = self.client.post("/v1/completions", payload)
        try:
            (choice, *_) = answer["choices"]
            if not isinstance(choice["text"], str):
                raise TypeError
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.client.url}/v1/completions returned no choice with a text"
            ) from error
        return choice  # type: ignore[no-any-return]

    def close(self) -> None:
        self.client.close()


class Ids:
    """A server whose tokens are ids; ``text`` tokenizes prompts, or else the server does."""

    kind: str
    listed: int  # how many top tokens to request
    ends = frozenset[Token]()  # tokens that end a text; none if requests ignore the end

    def __init__(self, client: Client, model: str, text: Text | None = None) -> None:
        self.client, self.model, self.text = client, model, text

    @property
    def name(self) -> str:
        return f"{self.model} at {self.client.url} ({self.kind})"

    def encode(self, text: str) -> Tokens:
        if self.text is not None:
            return tuple(self.text.encode(text))
        return tokenized(self.client, {"model": self.model, "prompt": text})

    def show(self, tokens: Tokens) -> str:
        if self.text is not None:
            return self.text.decode([t for t in tokens if isinstance(t, int)])
        return " ".join(str(token) for token in tokens)

    def close(self) -> None:
        self.client.close()


class Vllm(Ids, OpenAI):
    """vLLM and servers with its dialect: prompts and tokens are ids, and the end of a text can be ignored."""

    kind = "vllm"
    listed = 20

    def prompt(self, prefix: Tokens) -> Any:
        return list(prefix)

    def further(self) -> dict[str, Any]:
        fields = ("ignore_eos", "return_token_ids", "return_tokens_as_token_ids")
        return dict.fromkeys(fields, True)

    def tokens_of(self, choice: Mapping[str, Any]) -> Tokens:
        ids = choice.get("token_ids")
        if isinstance(ids, list) and all(isinstance(t, int) for t in ids):
            return tuple(ids)
        listed = choice.get("logprobs")
        named = listed.get("tokens") if isinstance(listed, Mapping) else None
        if not isinstance(named, list):
            raise UserError(f"{self.client.url} returns no token ids: give kind=openai")
        return tuple(self.token(str(token)) for token in named)

    def token(self, text: str) -> Token:
        number = text.removeprefix(MARK)
        if not text.startswith(MARK) or not number.isdigit():
            raise UserError(
                f"{self.client.url} returns tokens as text, not as ids: give kind=openai"
            )
        return int(number)


def tokenized(client: Client, payload: Mapping[str, Any]) -> Tokens:
    """Return a text's ids from a server's ``/tokenize``."""
    way = "give tokenizer=FOLDER"
    try:
        answer = client.post("/tokenize", payload)
    except UserError as error:
        raise UserError(f"{client.url} cannot tokenize text ({error}): {way}") from error
    ids = answer.get("tokens") if isinstance(answer, Mapping) else None
    if not isinstance(ids, list) or not ids or not all(isinstance(t, int) for t in ids):
        raise UserError(f"{client.url}/tokenize returns no list of tokens: {way}")
    return tuple(ids)
