"""What a chat template knows of tools, found out by rendering it, and conversations in which tools are called.

A form of calls is the model's if it reads what the model's own template makes of a call in an earlier turn.
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

# what templates are tried with: words that no template has of itself
_TOOL = Tool(
    "semspec_trial_tool",
    "semspec-trial-purpose",
    {"type": "object", "properties": {"semspec_trial": {"type": "string"}}},
)
_CALL = Call(_TOOL.name, '{"semspec_trial": "semspec-trial-value"}', "call_0")
_QUESTION, _WORDS, _RESULT = "semspec-trial-question", "semspec-trial-words", "semspec-trial-result"


@dataclass(frozen=True, slots=True)
class Known:
    """What a chat template knows of tools."""

    offers: bool = False  # it shows a model the tools
    form: Form | None = (
        None  # in which it writes calls of earlier turns, and the model those to come
    )
    beside: bool = False  # also of turns that have text, too
    results: bool = False  # it shows what calls came to

    @classmethod
    def of(cls, text: Text) -> Known:
        """Try a model's template."""
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
    except UserError:  # the template refuses them, so it does not know them
        return None


def _reads(form: Form, begun: str, shown: str) -> bool:
    """Return whether a form finds the trial's call in what the template has made of it."""
    answer = shown[shared(begun, shown) :]
    for where in (answer, shown):  # what the two have in common may end within a tag
        reader = form.reader({_TOOL.name: lambda _: True})
        for piece in [*reader.feed(where), *reader.flush()]:
            if isinstance(piece, Call) and json.loads(piece.arguments) == json.loads(
                _CALL.arguments
            ):
                return True
    return False


def told(call: str, content: str, name: str | None = None) -> Turn:
    """Return the turn that tells what a call came to."""
    made = {"role": "tool", "tool_call_id": call, "content": content}
    return made if name is None else {**made, "name": name}


class Offering:
    """Puts requests with tools into the words of models, each of which is tried once."""

    def __init__(self) -> None:
        self._known: dict[Text, Known] = {}

    def known(self, text: Text) -> Known:
        if text not in self._known:
            self._known[text] = Known.of(text)
        return self._known[text]

    def form(self, text: Text, request: ChatRequest) -> Form | None:
        """Return the form of the calls to be looked for, if any; raise ApiError if the model knows no tools."""
        if not request.offered:
            return None
        known = self.known(text)
        if not known.offers:
            raise refused("tools", "the model's chat template shows no tools")
        if known.form is None:
            forms = ", ".join(registry.plugins("calls"))
            raise refused("tools", f"the model writes calls in none of the forms that are known here ({forms})")  # fmt: skip
        return known.form

    def turns(self, text: Text, messages: Sequence[Message]) -> list[Turn]:
        """Return the messages as the target's template takes them; raise ApiError for what it would leave out."""
        found: list[Turn] = []
        for at, message in enumerate(messages):
            if message.calls:
                found.append(self._calling(text, at, message))
            elif message.tool_call_id is not None:
                if not self.known(text).results:
                    raise refused(f"messages.{at}", "the model's chat template shows no results of tools")  # fmt: skip
                found.append(told(message.tool_call_id, message.text, message.name))
            else:
                found.append(_plain(message))
        return list(_in_order(found))

    def _calling(self, text: Text, at: int, message: Message) -> Turn:
        known = self.known(text)
        which = f"messages.{at}.tool_calls"
        if known.form is None:
            raise refused(which, "the model's chat template shows no calls of tools")
        if message.text and not known.beside:
            raise refused(which, "the model's chat template shows calls or content: leave the content out")  # fmt: skip
        made = known.form.turn(message.text, message.calls)
        # templates that keep the thinking between calls say so by using it
        thought = message.reasoning_content or message.reasoning
        return {**made, "reasoning_content": thought} if thought else made

    def drafts(self, text: Text, request: ChatRequest) -> tuple[list[Turn], list[Mapping[str, Any]]]:  # fmt: skip
        """Return messages and tools for a draft model, which may know no tools: then it reads calls as text."""
        known = self.known(text) if request.offered or any(m.role == "tool" for m in request.messages) else Known()  # fmt: skip
        if known.offers and known.form is not None and known.beside and known.results:
            return self.turns(text, request.messages), shown(request)
        return [_as_text(message) for message in request.messages], []


def shown(request: ChatRequest) -> list[Mapping[str, Any]]:
    """Return the tools that the model is told of, as templates take them."""
    return [one.tool.shown for one in request.offered]


def _plain(message: Message) -> Turn:
    return turn("system" if message.role == "developer" else message.role, message.text)


def _as_text(message: Message) -> Turn:
    if message.tool_call_id is not None:
        return turn("user", message.text)
    lines = [f'{{"name": "{call.name}", "arguments": {call.arguments}}}' for call in message.calls]
    return turn(_plain(message)["role"], "\n".join([*filter(None, [message.text]), *lines]))


def _in_order(turns: Sequence[Turn]) -> Iterator[Turn]:
    """Yield results in the order of their calls: templates leave the ids out."""
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
