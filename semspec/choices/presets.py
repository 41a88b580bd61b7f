"""Add the options recommended for a model by its preset or its generation_config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omegaconf import BooleanNode, OmegaConf
from omegaconf.errors import ValidationError

from semspec.config import GROUPS, parse
from semspec.deferred import hydra
from semspec.errors import UserError
from semspec.models.location import ModelConfig
from semspec.models.recommended import GENERATION_CONFIG, in_generation_config
from semspec.models.recommended import presets as bringing

BY_STATES = ("pld_plus", "adapld")  # drafters that compare states of one layer


def with_preset(arguments: Sequence[str]) -> list[str]:
    """Add the options of the target's preset (conf/presets.yaml) that are not given.

    For several targets (a sweep) nothing is added, because every job adds its own.
    """
    brought = bringing().get(given_options(arguments).get("model", ""))
    if brought is None:
        return list(arguments)
    pair = [] if "draft" in _groups(arguments) else brought.pair
    added = [*_missing([*brought.options, *pair], arguments), *_layers(brought.layer, arguments)]
    return [*arguments, *added]


def _layers(layer: int, arguments: Sequence[str]) -> list[str]:
    """Return the layer option of a given drafter that compares states, if that option is not given."""
    given = given_options(arguments)
    groups = [g for g in ("draft", "nested") if given.get(g) in BY_STATES] if layer else []
    return [f"{g}.layer={layer}" for g in groups if not {f"{g}.layer", "layer"} & set(given)]


def with_recommended(
    arguments: Sequence[str], read: Callable[[ModelConfig], Sequence[str]] | None = None
) -> tuple[list[str], str]:
    """Add what the target's preset, or else its generation_config.json, recommends.

    Also return a line that says what was added, or "". ``read``: ``read_generation_config`` or a cached version of it.
    """
    given = given_options(arguments)
    if "model" in given or "model.path" not in given:
        found, source = with_preset(arguments), f"model={given.get('model')}"
    else:
        path, revision = (_parsed(name, given) for name in ("model.path", "model.revision"))
        if not (isinstance(path, str) and path):  # several or none: checked later
            return list(arguments), ""
        model = ModelConfig(path=path, revision=revision)
        source = f"{GENERATION_CONFIG} of {model.path}"
        found = [*arguments, *_missing((read or read_generation_config)(model), arguments)]
    taken = " ".join(found[len(arguments) :])
    return found, f"from {source}: {taken}" if taken else ""


def read_generation_config(model: ModelConfig) -> Sequence[str]:
    """Return the sampling options that a model's own file recommends; none if the model is not available."""
    try:
        folder = model.fetch(weights=False)
    except UserError:  # loading it later will raise it again
        return ()
    return tuple(f"{name}={value}" for name, value in in_generation_config(folder).items())


def given_options(arguments: Sequence[str]) -> dict[str, str]:
    """Return the given value of each option; the last one counts."""
    return dict(argument.partition("=")[::2] for argument in arguments)


def is_yes(value: str) -> bool:
    """Return whether a switch's value on the command line is true, as Hydra reads it."""
    try:
        return bool(OmegaConf.create({"switch": BooleanNode(value)}).switch)
    except ValidationError:  # several values, or an invalid one: refused later
        return False


def _parsed(name: str, given: Mapping[str, str]) -> Any:
    """Return an option's value as Hydra reads it; None if it cannot or there is none."""
    try:
        (override,) = parse([f"{name}={given.get(name, 'null')}"])
    except hydra.errors.HydraException:
        return None
    return None if override.is_sweep_override() else override.value()


def _groups(arguments: Sequence[str]) -> set[str]:
    """Return the groups whose plugin or option is given; ``prompt`` counts as a benchmark."""
    firsts = {key.partition(".")[0] for key in given_options(arguments)}
    return {*GROUPS} & (firsts | ({"benchmark"} if "prompt" in firsts else set()))


def _missing(options: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return the options that are not given."""
    given, groups = given_options(arguments), _groups(arguments)
    keys = [option.partition("=")[0] for option in options]
    return [
        option
        for option, key in zip(options, keys, strict=True)
        if key not in given and key.partition(".")[0] not in groups
    ]
