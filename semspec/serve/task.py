"""What one choice of a request has to write, and under which limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semspec.decoding.stopping import Stopping
from semspec.serve.calls.base import CallReader
from semspec.solver import Solver
from semspec.types import Grammar


@dataclass(frozen=True, kw_only=True)
class Task:
    """The settings of one choice."""

    solver: Solver
    name: str  # seeds its random numbers, together with the solver's seed
    prompt: str
    budget: int
    off: bool = False  # no drafts: the target writes alone
    deprived: bool = False  # drafts were wanted, but the drafter was lost when the request came
    chat: bool = True
    stops: tuple[str, ...] = ()
    # makes the object that ends the thinking early; None: the thinking ends by itself
    stopping: Callable[[], Stopping] | None = None
    references: tuple[tuple[int, ...], ...] = ()  # predicted texts, to draft from
    ignore_eos: bool = False
    logprobs: int | None = None
    grammar: Grammar | None = None  # constrains the answer, not the thinking
    held_by: str = "response_format"  # the request field that asks for the grammar
    # makes the parser of tool calls; None: the answer may have none
    calls: Callable[[], CallReader] | None = None
    one_call: bool = False  # the answer ends after its first tool call
    steps: bool = False  # report each step
    live: bool = False  # the answer is streamed
    slice: int = 16  # tokens to write before other choices get their turn
    # keep the answer, to draft this tenant's later answers from; "": do not keep it
    tenant: str = ""
