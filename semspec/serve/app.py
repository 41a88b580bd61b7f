"""The ASGI application: routes, access checks, and errors as JSON."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from semspec.serve.errors import ApiError
from semspec.serve.extension import HEADER
from semspec.serve.keys import same_machine
from semspec.serve.log import log
from semspec.serve.paths import unknown_path, wrong_method
from semspec.serve.replies import Json
from semspec.serve.service import Service
from semspec.serve.wire import FLUSH

ONCE = (b"authorization", HEADER.encode())
OPEN_TO_ALL = ("/health", "/ready", "/")  # needs no API key: probes and the page


def build(
    service: Service, lifespan: Callable[[Starlette], Any] | None = None
) -> Callable[..., Any]:
    """Return the application: the routes of a service behind its access checks."""
    routes = [
        # these two first: routes are tried in turn
        Route("/v1/chat/completions", service.chat, methods=["POST"]),
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

    methods = {
        route.path: "POST" if "POST" in (route.methods or ()) else "GET"
        for route in routes
        if route.path != "/" and "{" not in route.path
    }

    async def misdirected(http: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        method, path = http.method, http.url.path
        if error.status_code == 404:
            return await refuse(http, unknown_path(method, path, methods))
        if error.status_code == 405:
            return await refuse(http, wrong_method(method, path, error.headers or {}))
        told = f"{method} {path}: {error.detail}"
        return await refuse(http, ApiError(error.status_code, told, headers=error.headers))

    async def failed(http: HttpRequest, error: Exception) -> Response:
        return await refuse(http, ApiError(500, "the server failed: see its log", code="internal"))

    async def gone(http: HttpRequest, error: Exception) -> Response:
        service.metrics.ended("cancelled")  # the client disconnected while its body was read
        log({"event": "answer", "request": http.scope.get("request_id"), "path": http.url.path, "outcome": "cancelled", "status": 499})  # fmt: skip
        return Json({}, 499)

    handlers: dict[Any, Any] = {
        ApiError: refuse,
        HTTPException: misdirected,
        ClientDisconnect: gone,
        Exception: failed,
    }
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    # a redirect would go to whatever host the request's header names
    app.router.redirect_slashes = False
    return _Guard(app, service)


def _repeated(names: Sequence[bytes]) -> ApiError | None:
    """Return the error for a header that may come only once: whichever was taken, somebody may have meant the other."""
    for name in ONCE:
        if names.count(name) > 1:
            return ApiError(400, f"the header {name.decode()} is given more than once", code="invalid_value")  # fmt: skip
    return None


class _Guard:
    """Checks host and API key before every route, and gives each request an id for the logs."""

    def __init__(self, app: Callable[..., Any], service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        told = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = dict(told)
        given = headers.get(b"x-request-id", "")
        plain = given.isascii() and given.isprintable() and 0 < len(given) <= 128
        name = scope["request_id"] = given if plain else uuid.uuid4().hex

        async def with_id(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)
            if message.get("more_body"):  # of a stream: send it at once
                scope["state"][FLUSH]()

        error = _repeated([name for name, _ in told]) or self._refusal(scope["path"], headers)
        self.service.in_flight += 1
        try:
            if error is not None:
                self.service.refused(error, request=name, path=scope["path"])
                await Json(error.body, error.status, headers=error.headers)(scope, receive, with_id)
                return
            await self.app(scope, receive, with_id)
        finally:
            self.service.in_flight -= 1

    def _refusal(self, path: str, headers: dict[bytes, str]) -> ApiError | None:
        service = self.service
        if service.settings.local_only and not same_machine(headers.get(b"host", "")):
            return ApiError(
                403,
                "this server has no API keys and answers only requests to names of this machine, such as localhost",
                code="host",
            )
        if path not in OPEN_TO_ALL and not service.keys.allow(headers.get(b"authorization")):
            told = {"www-authenticate": "Bearer"}
            return ApiError(
                401, "the API key is missing or not valid", code="invalid_api_key", headers=told
            )
        return None
