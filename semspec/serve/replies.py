"""Responses in OpenAI's format, whole or as chunks of a stream."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from semspec.models.spelling import HALF, Spelling
from semspec.models.text import Text
from semspec.serve.calls.base import Call
from semspec.serve.choices import Choice
from semspec.serve.figures import Speculation, Usage
from semspec.serve.news import Logprob, News, Step
from semspec.serve.seeds import repeats

DONE = b"data: [DONE]\n\n"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dumps(content)


def event(body: object) -> bytes:
    """Return one event of a stream."""
    return b"data: " + dumps(body) + b"\n\n"


def dumps(body: object) -> bytes:
    """Return JSON in UTF-8; raise ValueError for NaN and infinity."""
    return _encode(body).encode()


def call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def finish_reason(choice: Choice) -> str:
    """Return OpenAI's ``finish_reason``."""
    return "tool_calls" if choice.calls and choice.finish == "stop" else choice.finish


def number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def shown(text: Text, token: int) -> str:
    """Return a token as completions show it: its text, or its bytes if they are a part of a character."""
    if HALF not in (piece := text.piece(token)):
        return piece
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text.bytes_of(token))


def step_told(step: Step) -> dict[str, Any]:
    """Return a step as JSON, for a delta's ``semspec``."""
    told: dict[str, Any] = {
        "author": step.author,
        "accepted": step.accepted,
        "score": number(step.score),
        "tokens": step.tokens,
    }
    if step.drafted is not None:
        told["drafted"] = step.drafted
    return {**told, "text": step.text} if step.text else told


@dataclass
class Reply:
    """The answer to one request, in its endpoint's format."""

    choices: Sequence[Choice]
    prompts: Sequence[Choice]  # the first choice of each prompt
    model: str
    chat: bool
    wants_steps: bool
    wants_sglext: bool
    wants_usage: tuple[bool, bool] = (False, False)  # at the end; in each chunk
    seeded: bool = False
    by_seed: bool = True  # the engine samples with the seed
    fingerprint: str = ""
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = ("chatcmpl-" if self.chat else "cmpl-") + uuid.uuid4().hex
        # of log-probabilities in completions: the next one's place in the text, and the text so far
        self._offsets = [0] * len(self.choices)
        self._spellings: dict[int, Spelling] = {}
        self._called = [0] * len(self.choices)  # tool calls sent so far

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint if self.repeats else None,
        }

    @property
    def repeats(self) -> bool:
        """True if the same seed would give the same texts again."""
        return all(repeats(choice, self.by_seed) for choice in self.choices)

    # ---- figures --------------------------------------------------------------------------------

    def speculation(self, choice: Choice) -> Speculation:
        solver = choice.task.solver
        length = solver.draft_length if solver.config.split == "token" else 0
        return Speculation.of(choice.rounds, length)

    def _extras(self) -> dict[str, Any]:
        """Return the speculation metrics, if there is one choice and drafts were wanted, and whether the seed repeats."""
        ours = {"semspec": {"seed_repeats": self.repeats}} if self.seeded else {}
        only = self.choices[0] if len(self.choices) == 1 else None
        if only is None or only.task.off:
            return {"metrics": {"speculative_decoding": None}, **ours}
        return {"metrics": {"speculative_decoding": self.speculation(only).metrics()}, **ours}

    def _sglext(self) -> dict[str, Any]:
        """Return SGLang's figures if the request wants them: an object, or a list for several choices."""
        if not self.wants_sglext:
            return {}
        found = [self.speculation(choice).sglext() for choice in self.choices]
        return {"sglext": {"spec_tokens_details": found if len(found) > 1 else found[0]}}

    @property
    def usage(self) -> Usage:
        return Usage.of(self.prompts, self.choices)

    # ---- whole ----------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """Return the whole response."""
        head = self._head("chat.completion" if self.chat else "text_completion")
        choices = [self._choice(number, one) for number, one in enumerate(self.choices)]
        usage = self.usage.told()
        return {**head, "choices": choices, "usage": usage, **self._extras(), **self._sglext()}

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        thought, content = "".join(choice.reasoning), "".join(choice.content)
        told: dict[str, Any] = {"index": index}
        if self.chat:
            reasoning = thought or None
            told["message"] = {
                "role": "assistant",
                "content": content or (None if choice.calls else ""),
                "reasoning_content": reasoning,
                "reasoning": reasoning,
                "refusal": None,
            }
            if choice.calls:
                calls = [call.told(call.arguments) | {"id": call_id()} for call in choice.calls]
                told["message"]["tool_calls"] = calls
        else:
            told["text"] = content
        told |= {
            "logprobs": self._logprobs(index, choice.logprobs),
            "finish_reason": finish_reason(choice),
        }
        if self.wants_steps:
            told["semspec"] = {"steps": [step_told(step) for step in choice.steps]}
        return told

    def _logprobs(self, index: int, entries: Sequence[Logprob]) -> dict[str, Any] | None:
        choice = self.choices[index]
        if choice.task.logprobs is None:
            return None
        text = choice.task.solver.text

        def entry(token: int, value: float) -> dict[str, Any]:
            return {
                "token": text.piece(token),
                "logprob": value if math.isfinite(value) else -9999.0,
                "bytes": list(text.bytes_of(token)),
            }

        if self.chat:
            content = [
                {**entry(e.token, e.value), "top_logprobs": [entry(*rival) for rival in e.top]}
                for e in entries
            ]
            return {"content": content, "refusal": None}
        spelling = self._spellings.setdefault(index, Spelling(text.decode))
        offsets = []
        for one in entries:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(spelling.feed([one.token]))
        return {
            "tokens": [shown(text, e.token) for e in entries],
            "token_logprobs": [e.value if math.isfinite(e.value) else -9999.0 for e in entries],
            "top_logprobs": [
                {shown(text, t): v for t, v in e.top if math.isfinite(v)} for e in entries
            ],
            "text_offset": offsets,
        }

    # ---- in chunks ------------------------------------------------------------------------------

    def first(self) -> Iterator[bytes]:
        """Yield the first events of a stream."""
        if self.chat:
            for index in range(len(self.choices)):
                yield self._chunk(index, {"role": "assistant", "content": ""})

    def chunks(self, index: int, news: News) -> Iterator[bytes]:
        """Yield the news of a choice as chunks; text of one author in one channel is one chunk."""
        deltas: list[dict[str, Any]] = []
        texts: list[list[str]] = []
        before: tuple[str, str] | None = None
        for item in news.items:
            if isinstance(item, Step):
                told = step_told(item)
                if item.accepted and before is not None and before[0] == item.author:
                    deltas[-1]["semspec"] = told
                else:
                    deltas.append({"semspec": told})
                    texts.append([])
                before = None
                continue
            author, said = item
            if isinstance(said, Call):
                for delta in self._call(index, said):
                    if self.wants_steps:
                        delta["semspec"] = {"author": author}
                    deltas.append(delta)
                    texts.append([])
                before = author, "call"
                continue
            channel, text = said
            if before != (author, channel):
                deltas.append({"channel": channel})
                if self.wants_steps:
                    deltas[-1]["semspec"] = {"author": author}
                texts.append([])
                before = author, channel
            texts[-1].append(text)
        logprobs = self._logprobs(index, news.logprobs) if news.logprobs else None
        for delta, parts in zip(deltas, texts, strict=True):
            channel, text = delta.pop("channel", None), "".join(parts)
            if channel == "reasoning":
                delta = {"reasoning_content": text, "reasoning": text, **delta}
            elif channel is not None:
                delta = {"content": text, **delta}
            yield self._chunk(index, delta, logprobs, tokens=news.tokens)
            logprobs = None
        if news.ended:
            choice = self.choices[index]
            yield self._chunk(index, {}, logprobs, finish_reason(choice), news.tokens)
        elif logprobs is not None:
            yield self._chunk(index, {}, logprobs, tokens=news.tokens)

    def _call(self, index: int, call: Call) -> Iterator[dict[str, Any]]:
        """Yield a tool call in two deltas: the name, then the arguments."""
        number = self._called[index]
        self._called[index] += 1
        first = {"index": number, **call.told("")} | {"id": call_id()}
        for told in (first, {"index": number, "function": {"arguments": call.arguments}}):
            yield {"tool_calls": [told]}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish: str | None = None,
        tokens: int = 0,
    ) -> bytes:
        told: dict[str, Any] = {"index": index}
        if self.chat:
            told["delta"] = delta
        else:
            told["text"] = delta.get("content", "")
            if "semspec" in delta:
                told["semspec"] = delta["semspec"]
        told |= {"logprobs": logprobs, "finish_reason": finish}
        body = {
            **self._head("chat.completion.chunk" if self.chat else "text_completion"),
            "choices": [told],
        }
        return event({**body, **self._usage_so_far()})

    def _usage_so_far(self) -> dict[str, Any]:
        """Return the field ``usage`` of chunks before the last one."""
        at_end, each = self.wants_usage
        if each:
            return {"usage": self.usage.told()}
        return {"usage": None} if at_end else {}

    def last(self) -> Iterator[bytes]:
        """Yield the last events of a stream."""
        head = self._head("chat.completion.chunk" if self.chat else "text_completion")
        if self.wants_sglext:  # in a separate chunk, as SGLang sends it
            yield event({**head, "choices": [], **self._usage_so_far(), **self._sglext()})
        if any(self.wants_usage):
            yield event({**head, "choices": [], "usage": self.usage.told(), **self._extras()})
        yield DONE
