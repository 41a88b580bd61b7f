"""The bodies of requests, field by field: which fields are supported, and which are refused by name.

Nothing is ignored silently. An unsupported field may have the value that asks for nothing (``frequency_penalty: 0``); any
other value is an error that names the field, and so is an unknown field.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from semspec.serve.calls.base import Tool
from semspec.serve.errors import ApiError, explained, refused
from semspec.serve.extension import HEADER, Semspec, of_header
from semspec.serve.messages import Message, Prediction
from semspec.serve.strict import Strict
from semspec.serve.tools import Choosing, ToolOffered, names_one, read_choice
from semspec.types import Grammar

NAMELESS = "unknown"  # the model that sglang-router fills in if a request names none
NEUTRAL: Mapping[str, Sequence[Any]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "modalities": (["text"],),
    "audio": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "functions": ([],),
    "function_call": ("none",),
    "tools": ([],),  # this field and the next one: of completions only
    "tool_choice": ("none", "auto"),
    "suffix": ("",),
    "echo": (False,),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "include_reasoning": (True,),
    "priority": (0,),
    # sglang-router sends the following fields with every request
    "no_stop_trim": (False,),
    "continue_final_message": (False,),
    "return_hidden_states": (False,),
}
"""Unsupported fields, with the values (besides null) that ask for nothing."""
WITHOUT_EFFECT = (
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "parallel_tool_calls",
    "request_id",
)
"""Fields that never change an answer; any value is accepted."""
MOST_TOOLS = 128  # OpenAI's limit
ENGINE_LACKS = "this server's engine cannot constrain what a model writes"

M = TypeVar("M", bound="Request")


class StreamOptions(Strict):
    """What a stream contains besides its text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class NamedSchema(Strict):
    """A JSON schema in OpenAI's format."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None  # the answer follows the schema in either case


class ResponseFormat(Strict):
    """The format that the answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("type json_schema and the field json_schema go together")
        return self

    @property
    def asked(self) -> Grammar | None:
        """The schema; None if the answer is free."""
        if self.json_schema is not None:
            return Grammar("json_schema", json.dumps(self.json_schema.schema_))
        return Grammar("json_schema", '{"type": "object"}') if self.type == "json_object" else None


class Request(Strict):
    """The fields that chats and completions share."""

    elsewhere: ClassVar[Mapping[str, str]]  # fields of the other endpoint, with its path

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    return_spec_tokens_details: bool | None = None
    semspec: Semspec = Semspec()

    @field_validator("temperature")
    @classmethod
    def _not_too_small(cls, value: float | None) -> float | None:
        if value is not None and 0 < value < 1e-3:
            raise ValueError("give 0 (greedy) or at least 0.001")
        return value

    @field_validator("stop")
    @classmethod
    def _few(cls, value: str | list[str] | None) -> str | list[str] | None:
        listed = [value] if isinstance(value, str) else value or []
        if len(listed) > 4 or not all(listed) or any(len(one) > 256 for one in listed):
            raise ValueError("give up to 4 texts of 1 to 256 characters")
        return value

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def held_to(self) -> Grammar | None:
        """The schema that ``response_format`` asks for; None if there is none."""
        return None if self.response_format is None else self.response_format.asked

    @property
    def limit(self) -> tuple[str, int | None]:
        """The field that limits the answer's tokens, and its value."""
        return "max_tokens", self.max_tokens

    @property
    def top(self) -> int | None:
        """How many alternatives to return with each log-probability; None if none are wanted."""
        raise NotImplementedError

    @property
    def usage(self) -> tuple[bool, bool]:
        """Whether a stream reports its usage at the end, and in every chunk."""
        options = self.stream_options or StreamOptions()
        each = bool(options.continuous_usage_stats)
        return bool(options.include_usage), each

    def check(self) -> None:
        """Raise ApiError for fields that do not fit together."""
        if self.stream_options is not None and not self.stream:
            raise refused("stream_options", "needs stream=true")
        if self.semspec.off:
            for name in self.semspec.drafting:
                raise refused(f"semspec.{name}", "cannot be combined with semspec.off")
            if self.prediction is not None:
                raise refused("prediction", "cannot be combined with semspec.off")
        if (held_by := self.held_by) is not None:
            if self.ignore_eos:
                raise refused("ignore_eos", f"cannot be combined with {held_by}")
            if self.prediction is not None:
                raise refused("prediction", f"cannot be combined with {held_by}")
        if self.semspec.off and self.return_spec_tokens_details:
            why = "counts drafts, and semspec.off makes none: give one of them"
            raise refused("return_spec_tokens_details", why)

    @property
    def held_by(self) -> str | None:
        """The field that asks for a constrained answer; None if it is free."""
        return None if self.held_to is None else "response_format"


class ChatRequest(Request):
    """The body of /v1/chat/completions."""

    elsewhere: ClassVar[Mapping[str, str]] = {"prompt": "/v1/completions"}

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    thinking_token_budget: Annotated[int, Field(ge=0)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[ToolOffered], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None

    @field_validator("tool_choice")
    @classmethod
    def _is_a_choice(cls, value: Any) -> Any:
        if value is not None:
            read_choice(value)
        return value

    @field_validator("tools")
    @classmethod
    def _told_apart(cls, value: list[ToolOffered] | None) -> list[ToolOffered] | None:
        names = Counter(tool.function.name for tool in value or ())
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"{twice[0]} is given twice")
        return value

    @property
    def choosing(self) -> Choosing:
        if self.tool_choice is not None:
            return read_choice(self.tool_choice)
        return Choosing("auto" if self.tools else "none")

    @property
    def named(self) -> str | None:
        """The one function that the model has to call; None if it chooses."""
        choice = self.tool_choice
        return next(iter(self.choosing.names or ())) if names_one(choice) else None

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The offered tools that ``tool_choice`` allows."""
        names = self.choosing.names
        tools = tuple(one.tool for one in self.offered)
        return tools if names is None else tuple(tool for tool in tools if tool.name in names)

    @property
    def offered(self) -> Sequence[ToolOffered]:
        """The tools that the model sees; none with tool_choice=none."""
        return () if self.choosing.mode == "none" else self.tools or ()

    @property
    def held_by(self) -> str | None:
        return "tool_choice" if self.choosing.mode == "required" else super().held_by

    @property
    def limit(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    @property
    def top(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise refused("top_logprobs", "needs logprobs=true")
        if self.thinking_token_budget is not None and self.reasoning_effort is not None:
            raise refused(
                "reasoning_effort", "sets the same limit as thinking_token_budget: give one of them"
            )
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise refused("max_tokens", "differs from max_completion_tokens: give one of them")
        self._check_tools()
        told = self.chat_template_kwargs or {}
        if own := sorted({"messages", "add_generation_prompt", "tools", "documents"} & set(told)):
            raise refused(
                f"chat_template_kwargs.{own[0]}",
                "is set from the request's other fields: leave it out",
            )

    def _check_tools(self) -> None:
        choosing = self.choosing
        if choosing.mode == "required" and not self.tools:
            raise refused("tool_choice", "needs tools")
        known = {one.function.name for one in self.tools or ()}
        if unknown := sorted((choosing.names or set()) - known):
            raise refused("tool_choice", f"no tool is called {unknown[0]}")
        if self.held_to is not None and self.offered:
            raise refused("response_format", "cannot be combined with tools: give tool_choice=none")
        made: set[str] = set()
        for at, message in enumerate(self.messages):
            made |= {call.id for call in message.calls}
            if message.tool_call_id is not None and message.tool_call_id not in made:
                which = f"messages.{at}.tool_call_id"
                raise refused(which, "no earlier turn has made this call")

    @property
    def thinking_asked(self) -> tuple[str, ...]:
        """The fields that limit the thinking; an effort of none does not count, as models without thinking satisfy it."""
        budget = () if self.thinking_token_budget is None else ("thinking_token_budget",)
        effort = () if self.reasoning_effort in (None, "none") else ("reasoning_effort",)
        return (*budget, *effort, *(f"semspec.{name}" for name in self.semspec.thinking))

    def thinks(self, most: int) -> int | None:
        """Return how many of ``most`` tokens the thinking may take; None if the request does not limit it."""
        if self.thinking_token_budget is not None:
            return self.thinking_token_budget
        shares = {"none": 0.0, "minimal": 0.125, "low": 0.25, "medium": 0.5, "high": 0.75}
        if self.reasoning_effort is None:
            return None
        return math.floor(most * shares.get(self.reasoning_effort, 1.0))


class CompletionRequest(Request):
    """The body of /v1/completions: text or ids to continue."""

    elsewhere: ClassVar[Mapping[str, str]] = {"messages": "/v1/chat/completions"}

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: int | None = None

    @property
    def top(self) -> int | None:
        return self.logprobs

    def check(self) -> None:
        super().check()
        if self.best_of not in (None, 1, self.n):
            raise refused("best_of", "is not supported: leave it out")
        if not self.prompt or any(one == [] for one in self.prompt):
            raise refused("prompt", "is empty")

    @property
    def prompts(self) -> Sequence[str | Sequence[int]]:
        """The prompts as a sequence, even if there is only one."""
        given = self.prompt
        if isinstance(given, str) or isinstance(given[0], int):
            return [given]
        return given


def parse(kind: type[M], body: bytes, header: str | None = None) -> M:
    """Parse and check a body and the header x-semspec; raise ApiError, which names the wrong field."""
    try:
        found = _Any.model_validate_json(body)
    except ValidationError as error:
        why = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise ApiError(400, f"the body is not a JSON object: {why}", code="invalid_json") from None
    given = dict(found.__pydantic_extra__ or {})
    for name, path in kind.elsewhere.items():
        if name in given:
            raise refused(
                name, f"is a field of {path}: send the request there, or leave the field out"
            )
    for name, values in NEUTRAL.items():
        if name not in given or name in kind.model_fields:
            continue
        value = given.pop(name)
        if value is not None and not any(value == v and type(value) in _alike(v) for v in values):
            raise refused(name, "is not supported: leave it out")
    for name in WITHOUT_EFFECT:
        if name in given and name not in kind.model_fields:
            del given[name]
    if given.get("semspec", ()) is None:
        del given["semspec"]
    if header is not None:
        if "semspec" in given:
            raise refused(
                "semspec", f"is both in the body and in the header {HEADER}: give one of them"
            )
        given["semspec"] = of_header(header)
    try:
        made = kind.model_validate(given)
    except ValidationError as error:
        raise explained(error, kind, NEUTRAL) from None
    made.check()
    return made


class _Any(BaseModel):
    """Any JSON object."""

    model_config = ConfigDict(extra="allow")


def _alike(value: object) -> tuple[type, ...]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (int, float) if number else (type(value),)
