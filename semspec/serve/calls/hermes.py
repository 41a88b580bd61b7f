"""Tool calls of Hermes, QwQ and Qwen3: a JSON object between two tags."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semspec.registry import register
from semspec.serve.calls.base import (
    Call,
    CallReader,
    Offered,
    Tagged,
    Tool,
    call_of,
    held,
    structural,
)
from semspec.types import Grammar

OPENING, CLOSING = "<tool_call>", "</tool_call>"


@register("calls", "hermes")
@dataclass(frozen=True, kw_only=True)
class Hermes:
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>, as QwQ and Qwen3 write it."""

    def reader(self, offered: Offered) -> CallReader:
        return Tagged(OPENING, CLOSING, "{", lambda body: call_of(body, offered))

    def turn(self, text: str, calls: Sequence[Call]) -> dict[str, Any]:
        told = [call.told(json.loads(call.arguments)) for call in calls]
        return {"role": "assistant", "content": text, "tool_calls": told}

    def grammar(self, tools: Sequence[Tool], several: bool) -> Grammar:
        begin, end = f'{OPENING}\n{{"name": "{{}}", "arguments": ', f"}}\n{CLOSING}"
        return structural(held(tools, begin, end, "\n", several))
