"""What each path answers: chats and completions, health, models, metrics, the page."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from semspec import __version__
from semspec.models.location import canonical_name
from semspec.protocols import Standing
from semspec.serve.answering import Streamed, Work
from semspec.serve.errors import RETRY, ApiError, refused
from semspec.serve.extension import HEADER
from semspec.serve.figures import positions
from semspec.serve.keys import Keys
from semspec.serve.log import log, reason_of
from semspec.serve.lookout import Lookout
from semspec.serve.metrics import Metrics
from semspec.serve.page import page
from semspec.serve.preparing import Desk
from semspec.serve.replies import Json, Reply
from semspec.serve.requests import NAMELESS, ChatRequest, CompletionRequest, Request, parse
from semspec.serve.scheduling import Scheduler
from semspec.serve.settings import Settings

NO_TARGET = "no target"
STANDINGS: Mapping[Standing, str] = {
    "there": "ready",
    "away": NO_TARGET,
    "over": "the target's servers have ended",
}
NAME = re.compile(r"[\w.:-]{1,64}", re.ASCII)  # of a field
SHORT = 1 << 14  # bytes of a body: shorter ones are prepared faster than another thread starts


class Service:
    """The handlers of all routes, and what they share."""

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
        self.in_flight = 0  # requests that are not answered completely

    # ---- chats and completions ------------------------------------------------------------------

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
            raise ApiError(404, f"model: this server has no {request.model}, only {self.settings.name}", "model", "model_not_found")  # fmt: skip
        self._check_queue(min(request.n or 1, self.settings.most_choices), request)
        owner = self.keys.owner(http.headers.get("authorization"))
        async with self._preparing:
            if len(body) <= SHORT and self.desk.at_hand(request):
                groups = self.desk.prepare(request, owner)
            else:
                groups = await asyncio.to_thread(self.desk.prepare, request, owner)
        choices = [choice for group in groups for choice in group]
        self._check_open()
        self._check_queue(len(choices), request)
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
        work = Work(self.scheduler, self.metrics, self.settings, http, request, reply, began)
        if request.stream:
            return Streamed(work)
        return await work.whole()

    def _check_open(self) -> None:
        state = self.scheduler.state
        if state != "ready":
            told = "is starting" if state == "starting" else "is shutting down"
            raise ApiError(503, f"this server {told}: try again later", code=state, headers=RETRY)

    def _check_queue(self, more: int, request: Request) -> None:
        """Raise ApiError if there is no room for ``more`` choices, now or ever."""
        most = self.scheduler.concurrency + self.settings.queue
        if more > most:
            which = "n" if (request.n or 1) > 1 else "prompt"
            raise refused(which, f"asks for {more} choices, but this server runs and queues {most} at most")  # fmt: skip
        free = self.scheduler.concurrency - self.scheduler.running
        coming = self.scheduler.waiting + self.scheduler.reserved + more
        if coming > self.settings.queue + max(0, free):
            raise ApiError(
                429,
                "too many requests are waiting: try again later",
                code="queue_full",
                headers=RETRY,
            )

    async def _body(self, http: HttpRequest) -> bytes:
        """Read a body; raise ApiError if it is too large or too slow."""
        kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, "the body must be application/json")
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
            raise ApiError(408, "the body did not arrive in time") from None
        return bytes(body)

    def refused(self, error: ApiError, **of: object) -> None:
        """Count a refused request and write its line into the log, with the fields ``of``."""
        self.metrics.ended(str(error.status))
        # the name of an unknown field is the client's own text
        param = error.param if NAME.fullmatch(error.param or "") else None
        log({"event": "refusal", **of, "status": error.status, "param": param, "code": error.code, **reason_of(error)})  # fmt: skip

    # ---- about the server -----------------------------------------------------------------------

    async def health(self, http: HttpRequest) -> Response:
        """Tell whether to keep this process: 503 while it starts or ends, or once its own servers of the target have ended."""
        state = await self._state()
        return Json({"status": state}, 200 if state in ("ready", NO_TARGET) else 503)

    async def ready(self, http: HttpRequest) -> Response:
        """Tell whether this server can answer a request now."""
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
                f"this server has no model {http.path_params['name']}",
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
            "root": self.settings.name,  # vLLM's benchmark reads the model's name here
            "parent": None,
            "max_model_len": solver.context_limit if solver else None,
        }

    async def server_info(self, http: HttpRequest) -> Response:
        """Return what SGLang's benchmark reads, among it the mean tokens per verification, and ``seed_repeats``."""
        state = {"avg_spec_accept_length": self.metrics.mean_length}
        told: dict[str, Any] = {"version": __version__, "served_model_name": self.settings.name}
        told["seed_repeats"] = self.scheduler.repeats
        ready = self.scheduler.solver is not None
        told["system_fingerprint"] = self.scheduler.fingerprint if ready else None
        return Json({**told, **self._paths(), "internal_states": [state]})

    async def model_info(self, http: HttpRequest) -> Response:
        """Return the model's path, from which SGLang's benchmark loads the tokenizer."""
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
