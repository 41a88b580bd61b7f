"""Find out which protocol a server speaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semspec.certify.endpoints.http import Client, RefusedError
from semspec.certify.endpoints.llamacpp import LlamaCpp
from semspec.certify.endpoints.openai import OpenAI, Vllm
from semspec.certify.endpoints.sglang import Sglang
from semspec.errors import UserError
from semspec.models.text import Text

KINDS = ("auto", "sglang", "vllm", "llamacpp", "openai")
OWNERS = {"vllm": "vllm", "llamacpp": "llamacpp"}  # kinds by ``owned_by`` at /v1/models
Server = OpenAI | Vllm | Sglang | LlamaCpp


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def connect(
    url: str, model: str = "", tokenizer: str = "", *, kind: str = "auto", concurrency: int = 8
) -> Server:
    """Return the endpoint for a server, detecting its kind; raise UserError if nothing answers."""
    client = Client(url, concurrency)
    info = _ask(client, "/get_model_info") if kind in ("auto", "sglang") else None
    sglang = isinstance(info, Mapping) and "model_path" in info
    listed = _ask(client, "/v1/models")
    names = _models(listed)
    if model and names and model not in names:
        raise UserError(f"{client.url} serves {', '.join(names)}, not model={model}")
    name = model or (names[0] if names else "")
    if kind == "auto":
        kind = "sglang" if sglang else OWNERS.get(_owned_by(listed), "openai")
    if not name and not sglang:
        raise UserError(f"{client.url} lists no model at /v1/models: give model=NAME")
    text = Text(tokenizer) if tokenizer and kind != "openai" else None
    if kind == "sglang":
        return Sglang(client, name or str((info or {}).get("model_path", "model")), text=text)
    if kind == "llamacpp":
        return LlamaCpp(client, name, text=text)
    return Vllm(client, name, text=text) if kind == "vllm" else OpenAI(client, name)


def _ask(client: Client, path: str) -> Any:
    """Return the answer at a path; None if the server does not know the path."""
    try:
        return client.get(path)
    except RefusedError as error:
        if error.status in (404, 405):
            return None
        raise


def _models(listed: Any) -> list[str]:
    data = listed.get("data") if isinstance(listed, Mapping) else None
    if not isinstance(data, list):
        return []
    return [str(one["id"]) for one in data if isinstance(one, Mapping) and one.get("id")]


def _owned_by(listed: Any) -> str:
    data = listed.get("data") if isinstance(listed, Mapping) else None
    first = data[0] if isinstance(data, list) and data else None
    return str(first.get("owned_by", "")) if isinstance(first, Mapping) else ""
