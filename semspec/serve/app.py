"""The routes: what is answered under which path, to whom, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from semspec import __version__
from semspec.errors import UnusableError, UserError, describe_error
from semspec.models.location import canonical_name
from semspec.protocols import Standing
from semspec.serve.errors import ApiError
from semspec.serve.extension import HEADER
from semspec.serve.figures import positions
from semspec.serve.keys import Keys, same_machine
from semspec.serve.lookout import Lookout
from semspec.serve.metrics import Metrics
from semspec.serve.page import page
from semspec.serve.preparing import Desk
from semspec.serve.replies import Reply, dumps, event
from semspec.serve.requests import NAMELESS, ChatRequest, CompletionRequest, Request, parse
from semspec.serve.scheduling import Mailbox, Scheduler
from semspec.serve.settings import Settings
from semspec.serve.wire import FLUSH
from semspec.storage.screen import LOG, echo

OPEN_TO_ALL = ("/health", "/ready", "/")  # probes and the page have no keys
NO_TARGET = "no target"
STANDINGS: Mapping[Standing, str] = {
    "there": "ready",
    "away": NO_TARGET,
    "over": "the target's servers have ended",
}
RETRY = {"retry-after": "1"}
TURNS = 5  # of the event loop, in which it hears that a connection has ended
SHORT = 1 << 14  # bytes of a body that is prepared in less time than another thread needs to begin


class Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dumps(content)


class Service:
    """Everything that the routes share."""

    def __init__(self, scheduler: Scheduler, settings: Settings, keys: Keys) -> None:
        self.scheduler, self.settings, self.keys = scheduler, settings, keys
        self.desk = Desk(scheduler, settings)
        self.lookout = Lookout(scheduler)
        self.metrics = Metrics(
            settings.name,
            lambda: scheduler.running,
            lambda: scheduler.waiting,
            lambda: positions(scheduler.solver) if scheduler.solver else 0,
            scheduler.away,
        )
        self.began = int(time.time())
        self._preparing = asyncio.Lock()
        self.in_flight = 0  # requests whose answer is not complete
        self.reserved = 0  # places in the queue of choices that are about to begin

    # ---- what is asked of the models ------------------------------------------------------------

    async def chat(self, http: HttpRequest) -> Response:
        return await self._answer(http, ChatRequest)

    async def completion(self, http: HttpRequest) -> Response:
        return await self._answer(http, CompletionRequest)

    async def _answer(self, http: HttpRequest, kind: type[Request]) -> Response:
        began = time.perf_counter()
        self._check_open()
        body = await self._body(http)
        request = parse(kind, body, http.headers.get(HEADER))
        if request.model not in (None, NAMELESS, self.settings.name):
            raise ApiError(404, f"model: there is no {request.model} here, only {self.settings.name}", "model", "model_not_found")  # fmt: skip
        self._check_queue(min(request.n or 1, self.settings.most_choices))
        owner = self.keys.owner(http.headers.get("authorization"))
        async with self._preparing:
            if len(body) <= SHORT and self.desk.at_hand(request):
                groups = self.desk.prepare(request, owner)
            else:
                groups = await asyncio.to_thread(self.desk.prepare, request, owner)
        choices = [choice for group in groups for choice in group]
        self._check_open()
        self._check_queue(len(choices))
        reply = Reply(
            choices,
            [group[0] for group in groups],
            self.settings.name,
            isinstance(request, ChatRequest),
            bool(request.semspec.steps),
            bool(request.return_spec_tokens_details),
            request.usage,
            request.seed is not None,
            self.scheduler.repeats,
            self.scheduler.fingerprint,
        )
        work = _Work(self, http, request, reply, began)
        if request.stream:
            return Streamed(work)
        return await work.whole()

    def _check_open(self) -> None:
        state = self.scheduler.state
        if state != "ready":
            told = "is starting" if state == "starting" else "is about to end"
            raise ApiError(503, f"this server {told}: ask again", code=state, headers=RETRY)

    def _check_queue(self, more: int) -> None:
        free = self.scheduler.concurrency - self.scheduler.running
        coming = self.scheduler.waiting + self.reserved + more
        if coming > self.settings.queue + max(0, free):
            raise ApiError(
                429, "too many requests are waiting: ask again", code="queue_full", headers=RETRY
            )

    async def _body(self, http: HttpRequest) -> bytes:
        """Read a body within the limits of size and time."""
        kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, "the body has to be application/json")
        most = self.settings.most_body
        too_large = ApiError(413, f"the body is larger than {most} bytes", code="body_too_large")
        length = http.headers.get("content-length", "")
        if length.isdecimal() and int(length) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.settings.patience):
                async for part in http.stream():
                    body += part
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            raise ApiError(408, "the body did not come in time") from None
        return bytes(body)

    def refused(self, error: ApiError, **of: object) -> None:
        """Count a request that is refused, and write its line into the log."""
        self.metrics.ended(str(error.status))
        log({"event": "refusal", **of, "status": error.status, "param": error.param, "code": error.code, **_reason(error)})  # fmt: skip

    # ---- what is told about the server ----------------------------------------------------------

    async def health(self, http: HttpRequest) -> Response:
        """Tell whether this process is worth keeping: 503 also once its own servers of the target have ended."""
        state = await self._state()
        return Json({"status": state}, 200 if state in ("ready", NO_TARGET) else 503)

    async def ready(self, http: HttpRequest) -> Response:
        """Tell whether a request can be answered."""
        state = await self._state()
        return Json({"status": state}, 200 if state == "ready" else 503)

    async def _state(self) -> str:
        state = self.scheduler.state
        if state != "ready":
            return state
        return STANDINGS[await self.lookout.standing()]

    async def models(self, http: HttpRequest) -> Response:
        return Json({"object": "list", "data": [self._model()]})

    async def model(self, http: HttpRequest) -> Response:
        if http.path_params["name"] != self.settings.name:
            raise ApiError(
                404,
                f"there is no model {http.path_params['name']} here",
                "model",
                "model_not_found",
            )
        return Json(self._model())

    def _model(self) -> dict[str, Any]:
        solver = self.scheduler.solver
        return {
            "id": self.settings.name,
            "object": "model",
            "created": self.began,
            "owned_by": "semspec",
            "root": self.settings.name,  # vLLM's benchmark takes its model from there
            "parent": None,
            "max_model_len": solver.context_limit if solver else None,
        }

    async def server_info(self, http: HttpRequest) -> Response:
        """Tell what SGLang's benchmark asks a server for: how many tokens its verifications came to on average."""
        state = {"avg_spec_accept_length": self.metrics.mean_length}
        told: dict[str, Any] = {"version": __version__, "served_model_name": self.settings.name}
        told["seed_repeats"] = self.scheduler.repeats
        ready = self.scheduler.solver is not None
        told["system_fingerprint"] = self.scheduler.fingerprint if ready else None
        return Json({**told, **self._paths(), "internal_states": [state]})

    async def model_info(self, http: HttpRequest) -> Response:
        """Tell where the model lies: SGLang's benchmark takes its tokenizer from there."""
        return Json(self._paths())

    def _paths(self) -> dict[str, Any]:
        solver = self.scheduler.solver
        path = canonical_name(solver.config.model) if solver else None
        return {"model_path": path, "tokenizer_path": path, "is_generation": True}

    async def metrics_text(self, http: HttpRequest) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def page(self, http: HttpRequest) -> Response:
        text, policy = page(self.settings.name)
        headers = {"content-security-policy": policy, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}  # fmt: skip
        return Response(text, media_type="text/html; charset=utf-8", headers=headers)


class _Work:
    """One request under way: begun, followed, and given up if its client goes or its time is over."""

    def __init__(
        self, service: Service, http: HttpRequest, request: Request, reply: Reply, began: float
    ) -> None:
        self.service, self.http, self.request, self.reply, self.began = (
            service,
            http,
            request,
            reply,
            began,
        )
        self.first: float | None = None  # seconds until the first text
        self._reserved = len(reply.choices)  # nobody else may have their places meanwhile
        service.reserved += self._reserved
        self.mailbox = Mailbox(reply.choices, lambda: service.scheduler.busy)

    def begin(self) -> None:
        self._release()
        for choice in self.reply.choices:
            self.service.scheduler.submit(choice)

    def _release(self) -> None:
        self.service.reserved -= self._reserved
        self._reserved = 0

    def cancel(self) -> None:
        self._release()
        for choice in self.reply.choices:
            self.service.scheduler.cancel(choice)

    async def whole(self) -> Response:
        """Return the answer in one piece."""

        async def follow() -> None:
            async for _, news in self.mailbox.news():
                if news.ended:
                    self._raise_errors()

        try:
            await self.followed(follow(), self.http.receive)
        except ClientDisconnect:
            self.told("cancelled", 499)
            return Json({}, 499)
        finally:
            self.cancel()
        return Whole(self)

    async def followed(self, work: Awaitable[None], receive: Receive) -> None:
        """Begin, and wait for the work on what is told; raise ClientDisconnect if the client goes, ApiError if time runs out."""
        seconds = self.service.settings.timeout
        gone = asyncio.ensure_future(_disconnected(receive))
        gone.add_done_callback(lambda _: self.mailbox.stop(ClientDisconnect()))
        # once all here waits: from then on the models' thread wants the interpreter's lock
        begins = asyncio.get_running_loop().call_soon(self.begin)
        limit = asyncio.timeout(max(seconds - (time.perf_counter() - self.began), 0.0))
        try:
            async with limit:
                await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise ApiError(504, f"no answer within {seconds:g} seconds", code="timeout") from None
        finally:
            begins.cancel()
            gone.cancel()

    def _raise_errors(self) -> None:
        error = next((choice.error for choice in self.reply.choices if choice.error), None)
        if error is None:
            return
        if isinstance(error, ApiError):
            raise error
        if isinstance(error, UnusableError):
            raise ApiError(502, "the model's server gave no answer that can be used: the log says why", code="model_failed") from error  # fmt: skip
        if isinstance(error, UserError):  # a server of the target that is gone, for one
            raise ApiError(503, "the models cannot be asked at the moment: ask again", code="model_unavailable", headers=RETRY) from error  # fmt: skip
        LOG.error("a request failed", exc_info=error)
        raise ApiError(500, "the server has failed to answer", code="internal")

    async def events(self) -> AsyncIterator[tuple[bytes, bool]]:
        """Yield the events of a stream, those that are there in one piece, and whether more are to come."""
        part, left = b"".join(self.reply.first()), len(self.reply.choices)
        async for index, news in self.mailbox.news():
            self._raise_errors()
            if self.first is None and news.items:
                self.first = time.perf_counter() - self.began
            part += b"".join(self.reply.chunks(index, news))
            left -= news.ended
            if left:
                yield part, True
                part = b""
        yield part + b"".join(self.reply.last()), False

    def told(self, outcome: str, status: int, **more: str) -> None:
        """Count the request and write its line into the log, with ``more`` at its end."""
        service, reply, choices = self.service, self.reply, self.reply.choices
        seconds = time.perf_counter() - self.began
        service.metrics.ended(outcome)
        usage = reply.usage
        if outcome == "ok":
            for choice in choices:
                service.metrics.speculated(reply.speculation(choice))
            degraded = sum(choice.degraded for choice in choices)
            service.metrics.answered(usage, degraded, self.first, seconds)
        line: dict[str, Any] = {
            "event": "answer",
            "id": reply.id,
            "request": self.http.scope.get("request_id"),
            "path": self.http.url.path,
            "outcome": outcome,
            "status": status,
            "stream": bool(self.request.stream),
            "prompt_tokens": usage.prompt,
            "cached_tokens": usage.cached,
            "completion_tokens": usage.completion,
            "seconds": round(seconds, 4),
            "first": None if self.first is None else round(self.first, 4),
        }
        if service.settings.log_prompts:
            line["prompts"] = [choice.task.prompt for choice in reply.prompts]
        log({**line, **more})


class Whole(Json):
    """An answer in one piece; it is counted and logged once it is sent."""

    def __init__(self, work: _Work) -> None:
        super().__init__(work.reply.whole())
        self.work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.work.told("ok", 200)


class Streamed(Response):
    """An answer that is sent event by event, until it ends, its client goes, or its time is over."""

    def __init__(self, work: _Work) -> None:
        self.work = work
        self.background = None
        self.status_code = 200
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no", "content-type": "text/event-stream; charset=utf-8"}  # fmt: skip
        self.raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = self.work

        async def push() -> None:
            async for part, more in work.events():
                await send({"type": "http.response.body", "body": part, "more_body": more})

        outcome, status, reason = "cancelled", 499, dict[str, str]()
        try:
            if await _left(receive):
                return
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await work.followed(push(), receive)
            outcome, status = "ok", 200
        except ClientDisconnect:
            return
        except ApiError as error:  # the stream has begun: it can only be told in it
            outcome, status, reason = str(error.status), error.status, _reason(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    last = event(error.body)
                    await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            work.cancel()
            work.told(outcome, status, **reason)


async def _left(receive: Receive) -> bool:
    """Tell whether a client has gone before its answer begins, so that nothing of it is sent and cut off."""
    gone = asyncio.ensure_future(_disconnected(receive))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    gone.cancel()
    return gone.done() and not gone.cancelled()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _reason(error: ApiError) -> dict[str, str]:
    """Return what the log says of an error that is not the client's: what the models' servers said or did."""
    cause = error.__cause__
    ours = error.status >= 500 and isinstance(cause, UserError)  # below, it may quote the prompt
    return {"error": describe_error(cause)} if ours else {}


def log(line: dict[str, Any]) -> None:
    """Write one line of JSON into the log, which is standard error."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
    echo(json.dumps({"time": stamp, **line}, ensure_ascii=True), file=sys.stderr, flush=True)


def build(
    service: Service, lifespan: Callable[[Starlette], Any] | None = None
) -> Callable[..., Any]:
    """Return the application."""
    routes = [
        Route(
            "/v1/chat/completions", service.chat, methods=["POST"]
        ),  # these first: each is tried in turn
        Route("/v1/completions", service.completion, methods=["POST"]),
        Route("/", service.page),
        Route("/health", service.health),
        Route("/ready", service.ready),
        Route("/metrics", service.metrics_text),
        Route("/server_info", service.server_info),
        Route("/model_info", service.model_info),
        Route("/v1/models", service.models),
        Route("/v1/models/{name:path}", service.model),
    ]

    async def refuse(http: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        service.refused(error, request=http.scope.get("request_id"), path=http.url.path)
        return Json(error.body, error.status, headers=error.headers)

    async def no_such(http: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        wanted = f"{http.method} {http.url.path}"
        told = ApiError(error.status_code, f"{wanted}: {error.detail}", headers=error.headers)
        return await refuse(http, told)

    async def failed(http: HttpRequest, error: Exception) -> Response:
        return await refuse(http, ApiError(500, "the server has failed", code="internal"))

    async def gone(http: HttpRequest, error: Exception) -> Response:
        service.metrics.ended("cancelled")  # while its body was read
        log({"event": "answer", "request": http.scope.get("request_id"), "path": http.url.path, "outcome": "cancelled", "status": 499})  # fmt: skip
        return Json({}, 499)

    handlers: dict[Any, Any] = {
        ApiError: refuse,
        HTTPException: no_such,
        ClientDisconnect: gone,
        Exception: failed,
    }
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    app.router.redirect_slashes = False  # to where a Host header says
    return _Guard(app, service)


class _Guard:
    """Before every route: who asks, under which name, and a number for the logs."""

    def __init__(self, app: Callable[..., Any], service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get(b"x-request-id", "")
        plain = given.isascii() and given.isprintable() and 0 < len(given) <= 128
        name = scope["request_id"] = given if plain else uuid.uuid4().hex

        async def numbered(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)
            if message.get("more_body"):  # a part of a stream
                scope["state"][FLUSH]()

        error = self._refusal(scope["path"], headers)
        self.service.in_flight += 1
        try:
            if error is not None:
                self.service.refused(error, request=name, path=scope["path"])
                await Json(error.body, error.status, headers=error.headers)(
                    scope, receive, numbered
                )
                return
            await self.app(scope, receive, numbered)
        finally:
            self.service.in_flight -= 1

    def _refusal(self, path: str, headers: dict[bytes, str]) -> ApiError | None:
        service = self.service
        if service.settings.local_only and not same_machine(headers.get(b"host", "")):
            return ApiError(
                403,
                "this server has no keys and answers only under names of this machine (localhost)",
                code="host",
            )
        if path not in OPEN_TO_ALL and not service.keys.allow(headers.get(b"authorization")):
            told = {"www-authenticate": "Bearer"}
            return ApiError(
                401, "the API key is missing or not valid", code="invalid_api_key", headers=told
            )
        return None
