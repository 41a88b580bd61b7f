"""Tools in a request: the offered functions, which of them may be called, and earlier calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from semspec.serve.calls.base import Call, Tool, loaded
from semspec.serve.strict import Strict


class Function(Strict):
    """A function that a request offers."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolOffered(Strict):
    type: Literal["function"]
    function: Function

    @property
    def tool(self) -> Tool:
        told = self.function
        return Tool(told.name, told.description, told.parameters, bool(told.strict))


class FunctionCalled(Strict):
    name: Annotated[str, Field(min_length=1)]
    arguments: str


class CallMade(Strict):
    """A call in an earlier turn."""

    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"] = "function"
    function: FunctionCalled

    @field_validator("function")
    @classmethod
    def _has_arguments(cls, value: FunctionCalled) -> FunctionCalled:
        if not isinstance(loaded(value.arguments or "{}"), dict):
            raise ValueError("arguments: give a JSON object, as text")
        return value

    @property
    def call(self) -> Call:
        return Call(self.function.name, self.function.arguments or "{}", self.id)


@dataclass(frozen=True, slots=True)
class Choosing:
    """Which tools the model may call, and whether it has to call one."""

    mode: Literal["none", "auto", "required"]
    names: frozenset[str] | None = None  # None: all of them


class _Named(Strict):
    name: str


class _OneTool(Strict):
    type: Literal["function"]
    function: _Named


class _SomeTools(Strict):
    mode: Literal["auto", "required"]
    tools: Annotated[list[_OneTool], Field(min_length=1)]


class _Allowed(Strict):
    type: Literal["allowed_tools"]
    allowed_tools: _SomeTools


def names_one(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "function"


def read_choice(value: Any) -> Choosing:
    """Parse OpenAI's ``tool_choice``; raise ValueError if it is malformed."""
    if value in ("none", "auto", "required"):
        return Choosing(value)
    kind = value.get("type") if isinstance(value, dict) else None
    try:
        if names_one(value):
            one = _OneTool.model_validate(value)
            return Choosing("required", frozenset((one.function.name,)))
        if kind == "allowed_tools":
            some = _Allowed.model_validate(value).allowed_tools
            return Choosing(some.mode, frozenset(tool.function.name for tool in some.tools))
    except ValidationError:
        pass  # reported below
    raise ValueError(
        'give none, auto, required, or a function: {"type": "function", "function": {"name": ...}}'
    )
