"""The server's own settings; models and methods are configured as for a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits and behaviour of the server; ``semspec.cli.serve`` documents the options."""

    name: str  # the model's name for clients
    queue: int = 64
    most_choices: int = 8
    most_body: int = 1 << 20
    most_prompt: int = 0  # tokens; 0: up to the context length
    most_tokens: int = 0  # of an answer; 0: up to the context length
    timeout: float = 600.0
    patience: float = 30.0  # seconds to wait for a request's body
    slice: int = 16
    local_only: bool = True  # refuse Host headers that do not name this machine
    log_prompts: bool = False
