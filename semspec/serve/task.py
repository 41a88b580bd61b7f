"""What one choice of a request is asked to write, and under which limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semspec.decoding.stopping import Stopping
from semspec.serve.calls.base import CallReader
from semspec.solver import Solver
from semspec.types import Grammar


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a choice is to be."""

    solver: Solver
    name: str  # its random numbers depend on it, and on the solver's seed
    prompt: str
    budget: int
    off: bool = False  # the target alone
    deprived: bool = False  # of drafts, which could not be had when it was asked for
    chat: bool = True
    stops: tuple[str, ...] = ()
    # what finds the end of the thinking before its own; None: nothing does
    stopping: Callable[[], Stopping] | None = None
    references: tuple[tuple[int, ...], ...] = ()  # texts that the answer is expected to repeat
    ignore_eos: bool = False
    logprobs: int | None = None
    grammar: Grammar | None = None  # the answer is held to it, the thinking is free
    held_by: str = "response_format"  # the field of the request that wants that
    calls: Callable[[], CallReader] | None = (
        None  # what finds calls in the answer; None: it has none
    )
    one_call: bool = False  # the answer ends behind its first call
    steps: bool = False
    live: bool = False  # somebody reads along
    slice: int = 16  # tokens written at a time
    tenant: str = ""  # under whom the answer is kept for drafts of later ones; "": it is not
