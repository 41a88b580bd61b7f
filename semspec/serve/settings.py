"""The options of the server itself; all others are those of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How requests are taken; ``semspec.cli.serve`` has the options with their help."""

    name: str  # of the model, as clients call it
    queue: int = 64
    most_choices: int = 8
    most_body: int = 1 << 20
    most_prompt: int = 0  # tokens; 0: as many as the context has
    most_tokens: int = 0  # of an answer; 0: as many as the context has
    timeout: float = 600.0
    patience: float = 30.0  # seconds that a body may take to come
    slice: int = 16
    local_only: bool = True  # answer only to names of this machine
    log_prompts: bool = False
