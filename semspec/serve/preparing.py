"""Turn a request into choices: prompt, solver, budget, seed, grammar, tool calls."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from semspec import registry
from semspec.decoding.stopping import Stopping, room_to_think
from semspec.errors import UserError
from semspec.models.text import CLOSE, Text, Turn, opening
from semspec.protocols import Constraining
from semspec.serve.calls.base import CallReader, Form
from semspec.serve.calls.strict import Strict
from semspec.serve.choices import Choice
from semspec.serve.errors import ApiError, refused
from semspec.serve.offering import Offering, shown
from semspec.serve.requests import ENGINE_LACKS, ChatRequest, CompletionRequest, Request
from semspec.serve.scheduling import Scheduler
from semspec.serve.settings import Settings
from semspec.serve.task import Task
from semspec.serve.variants import Variants
from semspec.solver import Solver
from semspec.types import PROBS, Grammar

WAYS_OUT = {
    "response_format": "leave it out, or give {type: text}",
    "tool_choice": "give auto or none",
}
NAME = "prompt"  # the problem's name in ``semspec.run prompt=``, so that the same seed gives the same text


class Desk:
    """Prepares requests, one at a time; in another thread if that may take long (long texts, new rules, tools)."""

    def __init__(self, scheduler: Scheduler, settings: Settings) -> None:
        self._scheduler, self._settings = scheduler, settings
        self._offering = Offering()
        self._variants = Variants()

    def at_hand(self, request: Request) -> bool:
        """Tell whether no rule has to be bound and no call form found; raise ApiError as ``prepare`` does."""
        base = self._scheduler.solver
        assert base is not None
        known = self._variants.at_hand(base, request)
        return known and not (isinstance(request, ChatRequest) and request.offered)

    def prepare(self, request: Request, owner: str = "") -> list[list[Choice]]:
        """Return the choices of each prompt; raise ApiError for an invalid request.

        ``owner`` stands for the API key's owner; tenants of different owners are different.
        """
        base = self._scheduler.solver
        assert base is not None
        tenant = self._tenant(base, request, owner)
        count = request.n or 1
        asked = len(request.prompts) if isinstance(request, CompletionRequest) else 1
        if count * asked > self._settings.most_choices:  # before tokenizing any prompt
            which = "n" if count > 1 else "prompt"
            raise refused(
                which, f"asks for more than {self._settings.most_choices} choices at a time"
            )
        form = self._form(base, request)
        prompts = self._prompts(base, request)
        constraining = isinstance(base.engines["target"], Constraining)
        if request.held_by is not None and not constraining:
            raise refused(request.held_by, f"{ENGINE_LACKS}: {WAYS_OUT[request.held_by]}")
        solver = self._variants.of(base, request)
        # without a seed, answers differ
        seed = secrets.randbits(63) if request.seed is None else request.seed
        solver = solver.variant(seed=seed)
        if request.seed is not None:
            solver = solver.steady()
        deprived = self._scheduler.drafts_lost and not request.semspec.off
        references = self._references(solver, request)
        grammar, calls = self._grammar(request, form), self._calls(request, form)
        groups = []
        for at, (prompt, ids, draft_ids) in enumerate(prompts):
            budget = self._budget(solver, request, len(ids), len(draft_ids or ()))
            names = [
                NAME if not at and not number else f"{NAME} {at}, choice {number}"
                for number in range(count)
            ]
            tasks = [
                Task(
                    solver=solver,
                    name=name,
                    prompt=prompt,
                    budget=budget,
                    off=bool(request.semspec.off) or deprived,
                    deprived=deprived,
                    chat=isinstance(request, ChatRequest),
                    stops=request.stops,
                    stopping=self._stopping(solver, request, name, prompt, budget),
                    references=references,
                    ignore_eos=bool(request.ignore_eos),
                    logprobs=request.top,
                    grammar=grammar,
                    held_by=request.held_by or "",
                    calls=calls,
                    one_call=form is not None and _only_one(request),
                    steps=bool(request.semspec.steps),
                    live=bool(request.stream),
                    slice=self._settings.slice,
                    tenant=tenant,
                )
                for name in names
            ]
            scheduler = self._scheduler
            groups.append(
                [
                    Choice(
                        task,
                        solver.context(ids, draft_ids),
                        scheduler.adopt,
                        scheduler.lose_drafts,
                        scheduler.alone,
                    )
                    for task in tasks
                ]
            )
        return groups

    # ---- prompts --------------------------------------------------------------------------------

    def _prompts(
        self, solver: Solver, request: Request
    ) -> list[tuple[str, Sequence[int], Sequence[int] | None]]:
        """Return each prompt as text, as ids, and as the draft's ids if it has its own chat template."""
        if isinstance(request, ChatRequest):
            texts = [message.text.strip() for message in request.messages]
            self._check_length(solver, "messages", "".join(texts))
            turns, tools = self._offering.turns(solver.text, request.messages), shown(request)
            self._check_length(solver, "tools", json.dumps(tools, ensure_ascii=False))
            told = request.chat_template_kwargs
            try:
                unread = sorted(set(told or ()) - solver.text.variables)
            except UserError as error:  # the template cannot be read
                raise refused("messages", str(error)) from error
            if unread:
                why = "the model's chat template does not read it: leave it out"
                raise refused(f"chat_template_kwargs.{unread[0]}", why)
            prompt, ids = _conversation(solver.text, turns, told, tools)
            draft_ids = None
            if own := solver.own_prompt_text:
                turns, tools = self._offering.drafts(own, request)
                draft_ids = _conversation(own, turns, told, tools)[1]
            if not ids:
                raise refused("messages", "the chat template turns them into an empty prompt")
            return [(prompt, ids, draft_ids)]
        assert isinstance(request, CompletionRequest)
        found: list[tuple[str, Sequence[int], Sequence[int] | None]] = []
        for given in request.prompts:
            if isinstance(given, str):
                self._check_length(solver, "prompt", given.strip())
            ids = solver.text.encode_whole(given) if isinstance(given, str) else list(given)
            if not ids:
                raise refused("prompt", "is empty")
            size = min(solver.text.size, solver.engines["target"].vocabulary)
            if not all(0 <= token < size for token in ids):
                raise refused("prompt", f"has ids beyond the vocabulary of {size}")
            own = solver.own_prompt_text
            prompt = given if isinstance(given, str) else solver.text.decode(ids)
            found.append((prompt, ids, own.encode_whole(prompt) if own else None))
        return found

    # ---- tools ----------------------------------------------------------------------------------

    def _form(self, solver: Solver, request: Request) -> Form | None:
        """Return the form of the answer's tool calls; None if it may have none."""
        if not isinstance(request, ChatRequest):
            return None
        return self._offering.form(solver.text, request)

    def _grammar(self, request: Request, form: Form | None) -> Grammar | None:
        """Return the grammar that constrains the answer; None if it is free."""
        if request.held_to is None and request.held_by is not None:
            assert isinstance(request, ChatRequest) and form is not None
            return form.grammar(request.callable, not _only_one(request))
        return request.held_to

    def _calls(self, request: Request, form: Form | None) -> Callable[[], CallReader] | None:
        """Return a function that makes a parser of the answer's tool calls; None if it may have none."""
        if form is None:
            return None
        assert isinstance(request, ChatRequest)
        offered: dict[str, Callable[[Any], bool]] = {}
        names = {tool.name for tool in request.callable}
        for at, tool in enumerate(one.tool for one in request.offered):
            if tool.name not in names:
                continue
            try:
                offered[tool.name] = Strict(tool.schema) if tool.strict else _taken
            except ValueError as error:
                way = "leave strict out, or require the call"
                raise refused(f"tools.{at}.function.strict", f"{error}: {way}") from error
        return lambda: form.reader(offered)

    def _check_length(self, solver: Solver, which: str, text: str) -> None:
        """Raise ApiError for a text that is certainly too long, before tokenizing it, which makes other requests wait."""
        room = solver.context_limit - 1
        most = min(room, self._settings.most_prompt or room)
        if (least := solver.text.least(text)) > most:
            message = f"{which}: at least {least} tokens, but the limit is {most}"
            raise ApiError(400, message, which, "context_length_exceeded")

    def _budget(self, solver: Solver, request: Request, prompt: int, draft_prompt: int) -> int:
        limits = self._settings
        which = "messages" if isinstance(request, ChatRequest) else "prompt"
        room = solver.context_limit - max(prompt, draft_prompt)
        if limits.most_prompt and prompt > limits.most_prompt:
            raise ApiError(
                400,
                f"{which}: {prompt} tokens, but this server takes at most {limits.most_prompt}",
                which,
                "context_length_exceeded",
            )
        if room < 1:
            raise ApiError(
                400,
                f"{which}: {prompt} tokens, but the models' context length is {solver.context_limit}",
                which,
                "context_length_exceeded",
            )
        field, asked = request.limit
        most = min(room, limits.most_tokens or room)
        if asked is None:
            usual = 16 if isinstance(request, CompletionRequest) else solver.config.max_new_tokens
            return min(usual, most)
        if asked > most:
            why = (
                "the models' context leaves room for"
                if most == room
                else "this server writes at most"
            )
            raise ApiError(
                400, f"{field}: {asked} tokens, but {why} {most}", field, "context_length_exceeded"
            )
        return asked

    def _stopping(
        self, solver: Solver, request: Request, name: str, prompt: str, budget: int
    ) -> Callable[[], Stopping] | None:
        """Return a function that makes the object that ends the thinking early and leaves room for an answer.

        Return None if nothing limits the thinking. Raise ApiError if a request wants to limit it and there is none, or
        there is no room for an answer.
        """
        if not isinstance(request, ChatRequest):
            for name in request.semspec.thinking:
                raise refused(f"semspec.{name}", "completions have no thinking: send a chat")  # fmt: skip
            return None
        if not (opening(prompt) or CLOSE in solver.text.added):
            for name in request.thinking_asked:
                raise refused(name, "this model does not think before it answers: leave it out")
            return None
        asked, stop = request.thinks(budget), solver.stop
        if asked is None and stop.plain:
            return None
        least = 1 if stop.plain else None
        room = room_to_think(stop.closing, solver.text.encode, budget, least)
        if asked is None:
            if room < 1:
                if request.semspec.thinking_stop is None:
                    return None  # only the server's default stopper: do without it
                why = f"{request.limit[0]}={budget} leaves no room for an answer: give at least {budget - room + 1}"
                raise refused("semspec.thinking_stop", why)
            return lambda: solver.stopping(name, prompt, budget, room)
        if room < 0:
            effort = request.thinking_token_budget is None
            raise refused(
                "reasoning_effort" if effort else "thinking_token_budget",
                f"{request.limit[0]}={budget} leaves no room for an answer: give at least {budget - room}",
            )
        return lambda: solver.stopping(name, prompt, budget, min(asked, room))

    def _references(self, solver: Solver, request: Request) -> tuple[tuple[int, ...], ...]:
        """Return the request's predictions as ids; raise ApiError if its rule cannot judge copied text."""
        if request.prediction is None:
            return ()
        # a copy has no draft distributions; rules for tokens do without them
        if {*solver.rule.evidence()} - {PROBS} or solver.rule.gate():
            rule = registry.name_of(solver.config.accept)
            raise refused(
                "prediction",
                f"the rule {rule} needs the draft model's values, and copied text has none: choose another rule"
                " with semspec.rule",
            )
        return tuple(tuple(solver.text.encode(text)) for text in request.prediction.texts)

    def _tenant(self, solver: Solver, request: Request, owner: str) -> str:
        """Return the name under which to keep the answers, "" for none; raise ApiError if the server keeps no answers."""
        tenant = request.semspec.tenant
        if tenant is None:
            return ""
        if solver.earlier is None:
            raise refused(
                "semspec.tenant",
                "this server keeps no answers: leave it out, or start it with draft=suffix remember=64",
            )
        return f"{owner} {tenant}"


def _conversation(
    text: Text,
    turns: Sequence[Turn],
    told: Mapping[str, Any] | None,
    tools: Sequence[Mapping[str, Any]],
) -> tuple[str, list[int]]:
    """Return a chat in the model's format, as text and ids; raise ApiError if the template refuses it."""
    try:
        return text.conversation(turns, told=told, tools=tools)
    except UserError as error:
        which = "messages"
        if told:
            with contextlib.suppress(UserError):  # without them the template would do
                text.conversation(turns, tools=tools)
                which = "chat_template_kwargs"
        raise refused(which, str(error)) from error


def _taken(arguments: object) -> bool:
    """Accept any arguments, of tools that are not strict."""
    return True


def _only_one(request: Request) -> bool:
    """Tell whether the answer may make one call at most."""
    return isinstance(request, ChatRequest) and (
        request.parallel_tool_calls is False or request.named is not None
    )
