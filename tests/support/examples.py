"""The registered plugins' own examples, bound to the toy engine's models."""

from __future__ import annotations

import atexit
import dataclasses
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from semspec import registry, world
from semspec.engines.toy import Toy, ToyEngine
from semspec.models.location import EXAMPLE, EXAMPLE_VOCABULARY
from semspec.protocols import Run
from semspec.types import Sampling
from tests.support.heads import target_folder
from tests.support.law import toy_kit

DRAFTERS = registry.plugins("drafter")
RULES = registry.plugins("accept")
SPLITTERS = registry.plugins("split")
QUESTION = world.DOMAINS["residues"].make(random.Random(0)).question
TOY = Toy(vocabulary=EXAMPLE_VOCABULARY, stop=True)  # with a token for each digit


def kit_for(rule: Any, seed: int, **options: Any) -> Any:
    sampling = options.pop("sampling", Sampling(1.0))
    split = options.pop("split")
    kit = toy_kit(rule, TOY.models()["target"], sampling, seed, split=split, **options)
    return dataclasses.replace(kit, prompt=QUESTION)  # some rules know the embedded world only


def new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="semspec-example-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


TARGET = target_folder(new_folder(), TOY.vocabulary)


def examples(kind: registry.Kind) -> dict[str, Any]:
    """Return the examples of every plugin of a kind, by name and number."""
    return {
        f"{name}-{number}": made
        for name, plugin in registry.plugins(kind).items()
        for number, made in enumerate(plugin.cls.example(new_folder()))
    }


RULE_EXAMPLES = examples("accept")


def bound(made: Any, split: str, temperature: float) -> Any:
    """Return the plugin bound as the solver binds it."""
    brought = made.models() if hasattr(made, "models") else {}
    folders = {role: model.fetch() for role, model in brought.items()}
    run = Run(
        models={"target": EXAMPLE, "draft": EXAMPLE},
        split=split,
        sampling=Sampling(temperature),
        folders={**folders, "target": TARGET},
        offers=TOY.offers,
        drafts="draft",
    )
    return made.bind(run)


@cache  # plugins are frozen; only sessions have state
def bound_rule(name: str, split: str, temperature: float) -> Any:
    return bound(RULE_EXAMPLES[name], split, temperature)


def engines(*plugins: Any) -> dict[Any, ToyEngine]:
    """Return the pair's engines, and the draft's again for each role of a plugin's own models."""
    models = dict(TOY.models())
    own = {role for plugin in plugins for role in plugin.models()}
    return dict.fromkeys(own, models["draft"]) | models


def splits_of(rule: Any) -> list[str]:
    return [s for s in sorted(SPLITTERS) if rule.splits is None or s in rule.splits]
