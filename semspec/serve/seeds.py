"""Whether the same seed gives the same text again: the value of ``system_fingerprint``."""

from __future__ import annotations

import hashlib

import torch

from semspec import __version__
from semspec.errors import without_passwords
from semspec.serve.choices import Choice
from semspec.solver import Solver


def fingerprint(solver: Solver) -> str:
    """Return a digest of what a seed's text depends on apart from the request: version, models and options."""
    config = solver.config
    parts = [__version__, torch.__version__, *sorted(set(solver.files.values()))]
    parts += [f"{role} {served}" for role, served in sorted(solver.served.items())]
    plugins = config.engine, config.draft, config.accept, config.nested, config.nested_accept, config.stop  # fmt: skip
    parts += [without_passwords(repr(plugin)) for plugin in plugins]
    parts += [config.split, str(config.longest_unit), repr(config.sampling), str(solver.draft_length)]  # fmt: skip
    parts += [str(config.max_new_tokens), repr(solver.rule.measured())]
    return f"semspec-{__version__}-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:12]}"


def repeats(choice: Choice, by_seed: bool) -> bool:
    """Return whether the same request with the same seed gives this text again, apart from rounding.

    ``by_seed``: the engine samples with the seed. SGLang samples by itself, so over SGLang only greedy texts repeat.
    A text may not repeat if the drafts differ the next time: drafts from a tenant's earlier answers do, and drafts may be
    back that were missing because the drafter's server was lost.
    """
    task = choice.task
    drafts_differ = task.tenant or task.deprived or choice.degraded
    return not drafts_differ and (by_seed or task.solver.config.sampling.greedy)
