"""Find out by trial renderings what a chat template supports of tools, and turn messages with tool calls into prompts.

A call form (``serve.calls``) is the model's if it can read back an earlier turn's call as the model's template renders it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semspec import registry
from semspec.decoding.trim import shared
from semspec.errors import UserError
from semspec.models.text import Text, Turn, turn
from semspec.serve.calls.base import Call, Form, Tool
from semspec.serve.errors import refused
from semspec.serve.messages import Message
from semspec.serve.requests import ChatRequest

# trial contents: words that no template contains
_TOOL = Tool(
    "semspec_trial_tool",
    "semspec-trial-purpose",
    {"type": "object", "properties": {"semspec_trial": {"type": "string"}}},
)
_CALL = Call(_TOOL.name, '{"semspec_trial": "semspec-trial-value"}', "call_0")
_QUESTION, _WORDS, _RESULT = "semspec-trial-question", "semspec-trial-words", "semspec-trial-result"


@dataclass(frozen=True, slots=True)
class Known:
    """What a chat template supports of tools."""

    offers: bool = False  # it shows the tools to the model
    form: Form | None = None  # how it renders earlier calls, and so how the model writes calls
    beside: bool = False  # it renders calls and text of the same turn
    results: bool = False  # it renders the results of calls

    @classmethod
    def of(cls, text: Text) -> Known:
        """Find out what a model's template supports."""
        question = turn("user", _QUESTION)
        begun = _rendered(text, [question]) or ""
        offers = _TOOL.name in (_rendered(text, [question], [_TOOL.shown]) or "")
        result = told(_CALL.id, _RESULT, _CALL.name)
        for plugin in registry.plugins("calls").values():
            form: Form = plugin.cls()
            alone = _rendered(text, [question, form.turn("", [_CALL])])
            if alone is None or not _reads(form, begun, alone):
                continue
            both = _rendered(text, [question, form.turn(_WORDS, [_CALL])]) or ""
            answered = _rendered(text, [question, form.turn("", [_CALL]), result]) or ""
            beside = _WORDS in both and _CALL.name in both
            return cls(offers, form, beside, _RESULT in answered and _CALL.name in answered)
        return cls(offers)


def _rendered(text: Text, turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]] = ()) -> str | None:  # fmt: skip
    try:
        return text.rendered(turns, "", tools=tools)
    except UserError:  # the template raised an error: not supported
        return None


def _reads(form: Form, begun: str, shown: str) -> bool:
    """Tell whether a form reads the trial call back from the rendered prompt."""
    answer = shown[shared(begun, shown) :]
    for where in (answer, shown):  # the common prefix may end inside a tag
        reader = form.reader({_TOOL.name: lambda _: True})
        for piece in [*reader.feed(where), *reader.flush()]:
            if isinstance(piece, Call) and json.loads(piece.arguments) == json.loads(
                _CALL.arguments
            ):
                return True
    return False


def told(call: str, content: str, name: str | None = None) -> Turn:
    """Return the turn with the result of a call."""
    made = {"role": "tool", "tool_call_id": call, "content": content}
    return made if name is None else {**made, "name": name}


class Offering:
    """Turns requests with tools into turns for a model's template; tries each template once."""

    def __init__(self) -> None:
        self._known: dict[Text, Known] = {}

    def known(self, text: Text) -> Known:
        if text not in self._known:
            self._known[text] = Known.of(text)
        return self._known[text]

    def form(self, text: Text, request: ChatRequest) -> Form | None:
        """Return the form of the answer's calls, None without tools; raise ApiError if the model supports none."""
        if not request.offered:
            return None
        known = self.known(text)
        if not known.offers:
            raise refused("tools", "the model's chat template does not support tools")
        if known.form is None:
            forms = ", ".join(registry.plugins("calls"))
            raise refused("tools", f"the model's format of calls is none of the known ones ({forms})")  # fmt: skip
        return known.form

    def turns(self, text: Text, messages: Sequence[Message]) -> list[Turn]:
        """Return the messages for the target's template; raise ApiError for parts that it would leave out."""
        found: list[Turn] = []
        for at, message in enumerate(messages):
            if message.calls:
                found.append(self._calling(text, at, message))
            elif message.tool_call_id is not None:
                if not self.known(text).results:
                    raise refused(f"messages.{at}", "the model's chat template does not support tool results")  # fmt: skip
                found.append(told(message.tool_call_id, message.text, message.name))
            else:
                found.append(_plain(message))
        return list(_in_order(found))

    def _calling(self, text: Text, at: int, message: Message) -> Turn:
        known = self.known(text)
        which = f"messages.{at}.tool_calls"
        if known.form is None:
            raise refused(which, "the model's chat template does not support tool calls")
        if message.text and not known.beside:
            raise refused(which, "the model's chat template shows either calls or content: leave the content out")  # fmt: skip
        made = known.form.turn(message.text, message.calls)
        # some templates keep the thinking between calls; the others ignore it
        thought = message.reasoning_content or message.reasoning
        return {**made, "reasoning_content": thought} if thought else made

    def drafts(self, text: Text, request: ChatRequest) -> tuple[list[Turn], list[Mapping[str, Any]]]:  # fmt: skip
        """Return messages and tools for a draft model; if it does not support tools, it gets the calls as text."""
        known = self.known(text) if request.offered or any(m.role == "tool" for m in request.messages) else Known()  # fmt: skip
        if known.offers and known.form is not None and known.beside and known.results:
            return self.turns(text, request.messages), shown(request)
        return [_as_text(message) for message in request.messages], []


def shown(request: ChatRequest) -> list[Mapping[str, Any]]:
    """Return the offered tools, as templates take them."""
    return [one.tool.shown for one in request.offered]


def _plain(message: Message) -> Turn:
    return turn("system" if message.role == "developer" else message.role, message.text)


def _as_text(message: Message) -> Turn:
    if message.tool_call_id is not None:
        return turn("user", message.text)
    lines = [f'{{"name": "{call.name}", "arguments": {call.arguments}}}' for call in message.calls]
    return turn(_plain(message)["role"], "\n".join([*filter(None, [message.text]), *lines]))


def _in_order(turns: Sequence[Turn]) -> Iterator[Turn]:
    """Yield the turns with results in the order of their calls, because templates leave out the ids."""
    order: dict[str, int] = {}
    results: list[Turn] = []
    for one in turns:
        if one["role"] == "tool":
            results.append(one)
            continue
        yield from sorted(results, key=lambda result: order.get(result["tool_call_id"], -1))
        results = []
        for call in one.get("tool_calls", ()):
            order[call["id"]] = len(order)
        yield one
    yield from sorted(results, key=lambda result: order.get(result["tool_call_id"], -1))
