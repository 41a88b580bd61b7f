"""Build the command that trains a probe which is missing for a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from semspec import config
from semspec.models.location import EMBEDDED, ModelConfig
from semspec.probes import index
from semspec.types import Role

DATA = "simplescaling/s1K"  # chains of thought that the paper trains on
PROBLEMS = 1000  # all of them
# enough steps for a probe (the embedded ones have fewer), and states of tens of gigabytes, not terabytes
BOUNDS = ("contexts=4000", "keep=4")


def arguments(
    models: Mapping[Role, ModelConfig], role: Role, features: str, split: str, routes: bool = False
) -> list[str]:
    """Return the arguments of ``python -m semspec.train_probe`` for these models; ``routes``: for a router."""
    given = [*config.naming("model", models["target"])]
    if "draft" in models:
        given += config.naming("draft", models["draft"])
    given += [f"role={role}"] if role != "target" else []
    given += ["label=advantage"] if routes else []
    given += [f"split={split}"] if split != index.SPLIT else []
    given += [f"features={features}"] if features != "paper" else []
    if models["target"].path.startswith(EMBEDDED):
        given += ["chains=mixed"] if "draft" in models else []
    else:
        given += ["engine=auto", "source=hub", f"data={DATA}", f"problems={PROBLEMS}", *BOUNDS]
    return [*given, f"out={place(models, role, features, split, routes)}"]


def place(
    models: Mapping[Role, ModelConfig], role: Role, features: str, split: str, routes: bool = False
) -> str:
    """Return the folder that this command makes."""
    parts = [Path(models[role].path).name, "router" if routes else role, features]
    return "probes/" + "-".join(parts + ([split] if split != index.SPLIT else []))


def training(
    models: Mapping[Role, ModelConfig], role: Role, features: str, split: str, routes: bool = False
) -> str:
    """Return the whole command."""
    given = arguments(models, role, features, split, routes)
    return " ".join(["python -m semspec.train_probe", *given])
