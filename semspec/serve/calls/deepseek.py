"""Tool calls of DeepSeek-R1 and its distilled models: a block of JSON between special tokens."""

from __future__ import annotations

import re
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
    call,
    held,
    loaded,
    structural,
)
from semspec.types import Grammar

FIRST, LAST = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
OPENING, CLOSING = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
KIND = "function<｜tool▁sep｜>"
_BODY = re.compile(rf"\s*{KIND}([^\n]*)\n```json\n(.*)\n```\s*", re.DOTALL)


@register("calls", "deepseek")
@dataclass(frozen=True, kw_only=True)
class DeepSeek:
    """<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME and a block of JSON, as DeepSeek-R1 writes it."""

    def reader(self, offered: Offered) -> CallReader:
        def read(body: str) -> Call | None:
            found = _BODY.fullmatch(body)
            return None if found is None else call(found[1].strip(), loaded(found[2]), offered)

        return Tagged(OPENING, CLOSING, KIND, read, fillers=(FIRST, LAST))

    def turn(self, text: str, calls: Sequence[Call]) -> dict[str, Any]:
        # the template appends the arguments to text, and renders calls only if the content is None
        told = [call.told(call.arguments) for call in calls]
        return {"role": "assistant", "content": text or None, "tool_calls": told}

    def grammar(self, tools: Sequence[Tool], several: bool) -> Grammar:
        begin, end = f"{OPENING}{KIND}{{}}\n```json\n", f"\n```{CLOSING}"
        calls = held(tools, begin, end, "\n", several)
        around = [{"type": "const_string", "value": one} for one in (FIRST, LAST)]
        return structural({"type": "sequence", "elements": [around[0], calls, around[1]]})
