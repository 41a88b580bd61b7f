"""Paths and methods that the server does not have: a JSON error names what the client probably meant."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from semspec.cli.serve import loading, read
from semspec.serve.app import build
from semspec.serve.keys import Keys
from semspec.serve.paths import nearest
from semspec.serve.scheduling import Scheduler
from semspec.serve.service import Service
from semspec.serve.settings import Settings

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
KNOWN = (CHAT, TEXT, "/health", "/ready", "/metrics", "/server_info", "/model_info", "/v1/models")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/chat/completion", CHAT),
        ("/chat/completions", CHAT),
        ("/v1/v1/chat/completions", CHAT),
        ("/api/v1/chat/completions", CHAT),
        (f"{CHAT}/", CHAT),
        ("/V1/Chat/Completions", CHAT),
        ("//v1//chat/completions", CHAT),
        ("/v1/chat", CHAT),
        ("/completions", TEXT),
        ("/v1/completion", TEXT),
        ("/models", "/v1/models"),
        ("/v1/model", "/v1/models"),
        ("/healthz", "/health"),
        ("/v1/metrics", "/metrics"),
        ("/get_server_info", "/server_info"),
        ("/v1", None),
        ("/v1/responses", None),
        ("/v1/embeddings", None),
        ("/generate", None),
        ("/favicon.ico", None),
        ("/chat/completions" + "s" * 1000, None),
    ],
)
def test_the_nearest_path(path: str, meant: str | None) -> None:
    assert nearest(path, KNOWN) == meant


@pytest.fixture(scope="module")
def app() -> Any:
    """Return the application of a server that never loads a model."""

    def nothing() -> Any:
        raise AssertionError

    return build(Service(Scheduler(nothing, 1), Settings(name="pair"), Keys()))


def refused(app: Any, method: str, path: str) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Return status, headers and error of a request."""
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "state": {},
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    start, *parts = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert headers["content-type"] == "application/json"
    error = json.loads(b"".join(part["body"] for part in parts))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return start["status"], headers, error


def unknown(app: Any, method: str, path: str) -> str:
    """Return the message about a path that does not exist."""
    status, _, error = refused(app, method, path)
    assert (status, error["type"], error["code"]) == (404, "not_found_error", "unknown_url")
    return str(error["message"])


def test_an_unknown_path_is_told_the_nearest_one(app: Any) -> None:
    for path in ("/v1/chat/completion", "/chat/completions", f"{CHAT}/"):
        for method in ("POST", "GET"):
            message = unknown(app, method, path)
            assert message == f"{method} {path}: no such path; did you mean POST {CHAT}?"
    message = unknown(app, "GET", "/models")
    assert message == "GET /models: no such path; did you mean GET /v1/models?"


def test_a_path_that_is_near_to_nothing_is_told_all(app: Any) -> None:
    assert unknown(app, "POST", "/v1/embeddings") == (
        f"POST /v1/embeddings: no such path; this server has POST {CHAT}, POST {TEXT}, GET /health, GET /ready,"
        " GET /metrics, GET /server_info, GET /model_info, GET /v1/models"
    )
    message = unknown(app, "GET", "/x" * 2000)
    assert len(message) <= 500 and message.endswith("GET /v1/models")


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("GET", CHAT, "POST"),
        ("PUT", TEXT, "POST"),
        ("POST", "/health", "GET"),
        ("DELETE", "/v1/models/pair", "GET"),
    ],
)
def test_a_wrong_method_is_told_the_right_one(app: Any, method: str, path: str, right: str) -> None:
    status, headers, error = refused(app, method, path)
    assert (status, error["code"]) == (405, "method_not_supported")
    assert error["message"] == f"{method} {path}: wrong method; did you mean {right} {path}?"
    assert right in headers["allow"].split(", ")


@pytest.mark.parametrize(
    ("options", "models"),
    [
        ([], "embedded/tiny-target with drafts by embedded/tiny-draft"),
        (["draft=none"], "embedded/tiny-target without drafts"),
        (
            ["draft=suffix", "accept=lossless", "split=token"],
            "embedded/tiny-target with drafts by suffix",
        ),
    ],
)
def test_the_line_about_loading_names_the_models(options: list[str], models: str) -> None:
    line = loading(read(["engine=hf", *options])[0])
    assert line == f"loading {models}; the address follows when the server is ready"
