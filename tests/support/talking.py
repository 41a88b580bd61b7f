"""Listeners that talk like SGLang's servers, as far as tests need it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from semspec.engines._sglang import identity
from semspec.engines._sglang.engine import SglangEngine
from semspec.engines._sglang.server import Server

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Draw = Callable[[Sequence[int], random.Random], int]


async def speaking(talk: Talk, then: Callable[[str], Awaitable[Any]]) -> Any:
    """Run ``then`` with the URL of a listener that talks like this; return its result."""
    listener = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        return await then(f"http://127.0.0.1:{port}")
    finally:
        listener.close()


async def heard(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return await reader.readexactly(length)


def at_once(value: Any) -> Callable[[], Awaitable[Any]]:
    async def told() -> Any:
        return value

    return told


@contextmanager
def engine_at(url: str) -> Iterator[SglangEngine]:
    """Run an engine for a model with 99 tokens whose server is at ``url``."""
    place = Server(url, timeout=5, patience=0.5)
    place.info = at_once({"model_path": "right", "skip_tokenizer_init": True})  # type: ignore[method-assign]
    expected = identity.Expected("right", (), 99, 99, 1, 1, ())
    engine = SglangEngine([place], expected, frozenset({0}), "target", False, 5.0)
    try:
        yield engine
    finally:
        engine.close()


def scored(ids: Sequence[int]) -> dict[str, Any]:
    """Return the reply of a pass that gives all these tokens the same log-probability."""
    meta = {"prompt_tokens": len(ids), "input_token_logprobs": [[-1.0, one, None] for one in ids]}
    return {"output_ids": [], "meta_info": meta}


@dataclass
class Writer:
    """A server that draws one token after the other until the request is aborted or finished."""

    draw: Draw
    pause: float = 0.0  # seconds per token
    breaks: int = 0  # number of streams that break off after their third token
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    asked: list[dict[str, Any]] = field(default_factory=list)  # requests to write
    aborted: list[str] = field(default_factory=list)  # ids of aborted requests
    drawn: int = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked = json.loads(await heard(reader))
                if "sampling_params" not in asked:
                    self.aborted.append(asked["rid"])
                    self._whole(writer, {})
                    continue
                if not asked["sampling_params"]["max_new_tokens"]:
                    self._whole(writer, scored(asked["input_ids"]))
                    continue
                self.asked.append(asked)
                if not asked.get("stream"):
                    *_, last = [told async for told in self._written(asked)]
                    self._whole(writer, last)
                elif await self._stream(writer, asked):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _stream(self, writer: asyncio.StreamWriter, asked: dict[str, Any]) -> bool:
        """Stream token after token; return True if the stream breaks off."""
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        async for told in self._written(asked):
            part = b"data: %s\n\n" % json.dumps(told).encode()
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
            if self.breaks and len(told["output_ids"]) == 3:
                self.breaks -= 1
                return True
        part = b"data: [DONE]\n\n"
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(part), part))
        return False

    async def _written(self, asked: dict[str, Any]) -> Any:
        ids, before = list(asked["input_ids"]), len(asked["input_ids"])
        params, ended = asked["sampling_params"], False
        every = params.get("stream_interval", 1)
        while not ended and asked["rid"] not in self.aborted:
            await asyncio.sleep(self.pause)
            ids.append(self.draw(ids, self.rng))
            self.drawn += 1
            written = len(ids) - before
            ended = written == params["max_new_tokens"] or ids[-1] in params["stop_token_ids"]
            if ended or written % every == 0 or written == 1:
                finish = {"type": "stop"} if ended else None
                meta = {"prompt_tokens": before, "finish_reason": finish}
                yield {"output_ids": ids[before:], "meta_info": meta}

    def _whole(self, writer: asyncio.StreamWriter, told: dict[str, Any]) -> None:
        body = json.dumps(told).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
