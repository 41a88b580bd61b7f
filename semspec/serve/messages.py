"""The messages of a chat request, and its prediction."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from semspec.serve.calls.base import Call
from semspec.serve.strict import Strict
from semspec.serve.tools import CallMade


class TextPart(Strict):
    type: Literal["text"]
    text: str


class Prediction(Strict):
    """Text that the client expects the answer to repeat."""

    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def texts(self) -> tuple[str, ...]:
        """The text or its parts, without empty ones."""
        if isinstance(self.content, str):
            return (self.content,) if self.content else ()
        return tuple(part.text for part in self.content if part.text)


class Message(Strict):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    # thinking in earlier turns; it reaches the prompt only in turns with tool calls, if the template uses it
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: None = None
    name: str | None = None
    audio: None = None
    annotations: list[Any] | None = Field(default=None, max_length=0)
    tool_calls: list[CallMade] | None = None
    tool_call_id: str | None = None
    function_call: None = None

    @property
    def text(self) -> str:
        parts = self.content if isinstance(self.content, list) else []
        text = "".join(part.text for part in parts) if parts else self.content or ""
        assert isinstance(text, str)
        return text

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(one.call for one in self.tool_calls or ())

    @field_validator("name")
    @classmethod
    def _nameless(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("role") != "tool":
            raise ValueError("chat templates ignore names: leave it out")
        return value

    @model_validator(mode="after")
    def _goes_together(self) -> Message:
        if self.role != "assistant" and self.content is None:
            raise ValueError(f"a {self.role} message needs content")
        thought = self.reasoning_content is not None or self.reasoning is not None
        if thought and self.role != "assistant":
            raise ValueError(f"a {self.role} message cannot have reasoning_content or reasoning")
        if None not in (both := {self.reasoning_content, self.reasoning}) and len(both) > 1:
            raise ValueError("reasoning_content and reasoning differ: give one of them")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"a {self.role} message cannot have tool_calls")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("messages of role tool need tool_call_id, and no others may have it")
        return self
