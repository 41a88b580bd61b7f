"""Render chat templates, which are programs shipped with models, within limits of time and memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semspec.storage.worker import Worker


class TemplateRefusedError(Exception):
    """The template raised an error or exceeded its limits."""


_worker = Worker(Path(__file__).with_name("_template_worker.py"))


def variables_of(template: str) -> frozenset[str]:
    """Return the names of the variables that a chat template reads; raises as ``render`` does."""
    return frozenset(_asked([template, None])["names"])


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Render a chat template.

    Raise TemplateRefusedError with the template's own error, or if it needs more than one second, 256 MiB or
    4 Mi characters.
    """
    return str(_asked([template, dict(variables)])["text"])


def _asked(question: list[Any]) -> dict[str, Any]:
    answer = _worker.ask(question)
    if not answer:
        raise TemplateRefusedError("it needs more than a second, or more than 256 MiB")
    reply: dict[str, Any] = json.loads(answer)
    if "error" in reply:
        raise TemplateRefusedError(reply["error"])
    return reply
