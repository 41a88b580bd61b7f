"""JSON over HTTP to any model server: keep-alive, many requests at a time, one-line errors."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from semspec.engines.address import Address
from semspec.errors import UserError, first_line

T = TypeVar("T")
R = TypeVar("R")

KEY = "OPENAI_API_KEY"  # the environment variable with a server's key
PATIENCE = 300.0  # seconds for one answer
LARGEST = 64 << 20  # the most bytes of an answer
TRIES = 3
PAUSE = 0.5  # seconds before the first retry; doubled each time


class RefusedError(UserError):
    """A server answered with an error status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """One server; each thread has its own connection."""

    def __init__(self, url: str, concurrency: int = 8, patience: float = PATIENCE) -> None:
        self._at = Address.read(url)
        self.url, self.path = self._at.url, self._at.path.removesuffix("/v1")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        key = os.environ.get(KEY)
        if signed := self._at.signed or (f"Bearer {key}" if key else ""):
            self._headers["Authorization"] = signed
        self.concurrency, self.patience = concurrency, patience
        self._own = threading.local()
        self._pool: ThreadPoolExecutor | None = None

    def map(self, function: Callable[[T], R], jobs: Iterable[T]) -> list[R]:
        """Run ``function`` on the jobs, ``concurrency`` at a time, and return the results in order."""
        asked: Sequence[T] = list(jobs)
        if self.concurrency == 1 or len(asked) < 2:
            return [function(job) for job in asked]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.concurrency, "certify")
        waiting = [self._pool.submit(function, job) for job in asked]
        try:
            return [one.result() for one in waiting]
        finally:
            for one in waiting:
                one.cancel()

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None)

    def post(self, path: str, payload: Any) -> Any:
        return self._ask("POST", path, payload)

    def _ask(self, method: str, path: str, payload: Any) -> Any:
        body = None if payload is None else json.dumps(payload).encode()
        for again in range(TRIES):
            try:
                status, answer = self._exchange(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                if again == TRIES - 1:
                    raise UserError(
                        f"{self.url} does not answer ({type(error).__name__}: {first_line(error)}):"
                        " start the server, or give another url="
                    ) from error
            else:
                if status != 503 or again == TRIES - 1:
                    return self._read(path, status, answer)
            time.sleep(PAUSE * 2**again)
        raise AssertionError

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        connection = getattr(self._own, "connection", None)
        if connection is None:
            kind: Any = http.client.HTTPSConnection if self._at.tls else http.client.HTTPConnection
            options = {"context": ssl.create_default_context()} if self._at.tls else {}
            connection = kind(self._at.host, self._at.port, timeout=self.patience, **options)
            self._own.connection = connection
        connection.request(method, f"{self.path}{path}", body, self._headers)
        answer = connection.getresponse()
        content = answer.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise UserError(f"{self.url} sent more than {LARGEST >> 20} MiB")
        return answer.status, content

    def _drop(self) -> None:
        connection = getattr(self._own, "connection", None)
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()
            self._own.connection = None

    def _read(self, path: str, status: int, answer: bytes) -> Any:
        text = answer.decode("utf-8", "replace")
        if status >= 400:
            way = f"; give its key in {KEY}" if status in (401, 403) else ""
            said = first_line(ValueError(_message(text) or "no reason given"))[:200]
            raise RefusedError(
                f"{self.url}{path} rejected the request ({status}: {said}){way}", status
            )
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{self.url}{path} did not answer with JSON: give the URL of a model server"
            ) from error

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        self._drop()


def _message(text: str) -> str:
    """Return the message of an error, in the format of OpenAI or FastAPI, or as plain text."""
    with contextlib.suppress(ValueError, RecursionError):
        said = json.loads(text)
        if isinstance(said, dict):
            inner = said.get("error") or said.get("message") or said.get("detail") or said
            inner = inner.get("message", inner) if isinstance(inner, dict) else inner
            return str(inner)
    return text.strip()
