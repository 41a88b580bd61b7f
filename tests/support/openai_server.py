"""A small real server over the toy models: OpenAI's completions, vLLM's variant, SGLang's and llama.cpp's routes."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from semspec.certify.laws import END, Tokens
from semspec.engines.toy import Toy
from semspec.types import Sampling
from tests.support.faulty_speculation import Speculating, ToyReference

LETTERS = "abcdefgh"  # the text of token 0 is a, and so on
END_TEXT, END_ID = "</s>", 99


class ToyServer(ThreadingHTTPServer):
    """``kind`` is openai, vllm, sglang or llamacpp; ``logprobs=False`` returns none; ``key``, if given, is required."""

    daemon_threads = True

    def __init__(
        self, toy: Toy, fault: str = "", kind: str = "vllm", logprobs: bool = True, key: str = ""
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.writer, self.reference = Speculating(toy, fault), ToyReference(toy)
        self.kind, self.logprobs, self.key = kind, logprobs, key
        self.lock = threading.Lock()  # the toy models are not thread-safe
        self.requests = 0
        self.fails_after = math.inf  # number of requests after which every one gets a 500
        self.garbage = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def ids(self, prompt: Any) -> Tokens:
        if isinstance(prompt, str):
            return tuple(LETTERS.index(c) for c in prompt if c in LETTERS) or (0,)
        return tuple(prompt)

    def answer(self, path: str, asked: Mapping[str, Any]) -> Any:
        if path == "/get_model_info" and self.kind == "sglang":
            return {"model_path": "toy", "is_generation": True}
        if path == "/v1/models":
            return {"data": [{"id": "toy", "owned_by": self.kind}]}
        if self.kind == "llamacpp":
            return self.as_llamacpp(path, asked)
        if path == "/tokenize" and self.kind != "openai":
            return {"tokens": list(self.ids(asked["prompt"]))}
        if path == "/v1/completions" and self.kind != "sglang":
            return {"choices": [self.completion(asked)]}
        if path == "/generate" and self.kind == "sglang":
            return self.generated(asked)
        return None

    def as_llamacpp(self, path: str, asked: Mapping[str, Any]) -> Any:
        """Answer as llama.cpp's server, which returns the end of a text as a token."""
        if path == "/tokenize":
            special = asked["content"].startswith("<")
            ids = [END_ID] if asked["content"] == END_TEXT else [0, 0] if special else None
            return {"tokens": ids or list(self.ids(asked["content"]))}
        if path != "/completion":
            return None
        prompt = self.ids(asked["prompt"])
        tokens = self.sampled(prompt, asked, asked["n_predict"])
        found: dict[str, Any] = {
            "tokens": [END_ID if t == END else t for t in tokens],
            "stop_type": "eos" if END in tokens else "limit",
            "timings": {"draft_n": 3, "draft_n_accepted": 2},
        }
        if self.logprobs and asked.get("n_probs"):
            (known,) = self.reference.logprobs([prompt], [0])
            best = sorted(known.items(), key=lambda one: -one[1])[: asked["n_probs"]]
            top = [{"id": END_ID if t == END else t, "logprob": value} for t, value in best]
            found["completion_probabilities"] = [{"top_logprobs": top}]
        return found

    def sampled(self, prompt: Tokens, asked: Mapping[str, Any], length: int) -> Tokens:
        sampling = Sampling(
            asked.get("temperature", 1.0),
            max(0, asked.get("top_k", 0)),
            asked.get("top_p", 1.0),
            asked.get("min_p", 0.0),
        )
        with self.lock:
            return self.writer.write([prompt], length, sampling)[0]

    def completion(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        prompt = self.ids(asked["prompt"])
        tokens = self.sampled(prompt, asked, asked["max_tokens"])
        ended = tokens[-1:] == (END,)
        own = [t for t in tokens if t != END]
        choice: dict[str, Any] = {
            "text": "".join(LETTERS[int(t)] for t in own),
            "finish_reason": "stop" if ended else "length",
        }
        if asked.get("return_token_ids") and self.kind == "vllm":
            choice["token_ids"] = own
        if self.logprobs and asked.get("logprobs"):
            top = [self.top((*prompt, *own[:i]), asked["logprobs"]) for i in range(len(own) or 1)]
            choice["logprobs"] = {"tokens": [self.shown(t) for t in own], "top_logprobs": top}
        return choice

    def shown(self, token: Any) -> str:
        if self.kind == "vllm":
            return f"token_id:{token}"
        return END_TEXT if token == END else LETTERS[token]

    def top(self, prefix: Tokens, count: int) -> dict[str, float]:
        (known,) = self.reference.logprobs([prefix], [0])
        best = sorted(known.items(), key=lambda one: -one[1])[:count]
        return {self.shown(token): value for token, value in best}

    def generated(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        prompt, params = self.ids(asked["input_ids"]), asked["sampling_params"]
        tokens = self.sampled(prompt, params, params["max_new_tokens"])
        meta: dict[str, Any] = {}
        if self.logprobs and asked.get("return_logprob"):
            (known,) = self.reference.logprobs([prompt], [0])
            best = sorted(known.items(), key=lambda one: -one[1])[: asked["top_logprobs_num"]]
            meta["output_top_logprobs"] = [[[value, token, None] for token, value in best]]
        return {"output_ids": list(tokens), "meta_info": meta}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # send an answer in one packet
    disable_nagle_algorithm = True
    server: ToyServer

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self.reply({})

    def do_POST(self) -> None:
        self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def reply(self, asked: Mapping[str, Any]) -> None:
        self.server.requests += 1
        status, body = 200, b""
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            status, body = 401, b'{"error": {"message": "no such key"}}'
        elif self.server.requests > self.server.fails_after:
            status, body = 500, b'{"detail": "out of\\nmemory"}'
        elif self.server.garbage:
            body = b"<html>hello</html>"
        else:
            found = self.server.answer(self.path, asked)
            status = 404 if found is None else 200
            body = json.dumps(found or {"detail": "Not Found"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(toy: Toy, fault: str = "", **how: Any) -> Iterator[ToyServer]:
    server = ToyServer(toy, fault, **how)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
