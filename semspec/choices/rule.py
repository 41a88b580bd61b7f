"""Choose the rule if none is named: rules rate themselves for a target and a split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf

from semspec import registry
from semspec.choices.choice import Choice
from semspec.choices.presets import given_options
from semspec.config import CONF, RunConfig, defaults


def choose_rule(arguments: Sequence[str]) -> Choice | None:
    """Return the rule that suits target and split best; None if one is named.

    Rules rate themselves (``Rule.default_for``). If the default of conf/config.yaml does not rate itself, it stays.
    """
    given = given_options(arguments)
    rules: dict[str, Any] = {n: rule.cls for n, rule in registry.plugins("accept").items()}
    default = defaults()["accept"]
    splits = given.get("split", RunConfig.split).split(",")
    models = [given["model.path"]] if "model.path" in given else _targets(given.get("model"))
    asked = {name.removeprefix("accept.") for name in given}

    def rated(name: str) -> tuple[int, str]:
        """Return the lowest rating over all targets and splits of a sweep."""
        ratings = (rules[name].default_for(m, s, asked) or (0, "") for m in models for s in splits)
        return min(ratings, default=(0, ""), key=lambda rating: rating[0])

    if "accept" in given or rules[default].default_for("", "", ()) is None:
        return None
    best = max(rules, key=lambda name: (rated(name)[0], name == default))
    reasons = [rated(name)[1] for name in dict.fromkeys((default, best))]
    return Choice("rule", best, "; ".join(filter(None, reasons)))


def with_rule(arguments: Sequence[str], choice: Choice | None) -> list[str]:
    """Add ``accept=`` if the choice is not the default."""
    if choice is None or choice.name == defaults()["accept"]:
        return list(arguments)
    return [*arguments, f"accept={choice.name}"]


def _targets(presets: str | None) -> list[str]:
    """Return the models of presets in ``conf/model``; an unknown preset is refused later."""
    names = (presets or defaults()["model"]).split(",")
    files = [CONF / "model" / f"{name}.yaml" for name in names]
    found: list[Any] = [OmegaConf.load(file) for file in files if file.is_file()]
    return [str(preset.get("path")) for preset in found]
