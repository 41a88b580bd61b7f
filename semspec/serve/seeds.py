"""Whether one seed has one text: what ``system_fingerprint`` promises, and where it is left out."""

from __future__ import annotations

import hashlib

import torch

from semspec import __version__
from semspec.errors import without_passwords
from semspec.serve.choices import Choice
from semspec.solver import Solver


def fingerprint(solver: Solver) -> str:
    """Return a name of all that the text of a seed depends on beside the request: version, models and options."""
    config = solver.config
    parts = [__version__, torch.__version__, *sorted(set(solver.files.values()))]
    parts += [f"{role} {served}" for role, served in sorted(solver.served.items())]
    plugins = config.engine, config.draft, config.accept, config.nested, config.nested_accept, config.stop  # fmt: skip
    parts += [without_passwords(repr(plugin)) for plugin in plugins]
    parts += [config.split, str(config.longest_unit), repr(config.sampling), str(solver.draft_length)]  # fmt: skip
    parts += [str(config.max_new_tokens), repr(solver.rule.measured())]
    return f"semspec-{__version__}-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:12]}"


def repeats(choice: Choice, by_seed: bool) -> bool:
    """Return whether asking again with the same seed gives this text again, rounding apart.

    ``by_seed``: the engine draws by the seed. SGLang draws by itself, so there only greedy texts repeat. Drafts from a tenant's earlier
    answers are others the next time, and so are those of a drafter that was lost.
    """
    task = choice.task
    changes = task.tenant or task.deprived or choice.degraded
    return not changes and (by_seed or task.solver.config.sampling.greedy)
