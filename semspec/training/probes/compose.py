"""Compose the configuration of ``python -m semspec.train_probe`` and of commands that share its options."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from semspec import config as shared
from semspec.choices.engine import choose_engine, with_engine
from semspec.config import one_line
from semspec.deferred import hydra
from semspec.errors import UserError
from semspec.storage.files import read_json
from semspec.training.probes.checks import check
from semspec.training.probes.settings import CLUSTERS, FEATURES, POOLINGS, ProbeConfig, folder_of

OWN = {"cluster": CLUSTERS, "features": FEATURES}
GROUPS = ("model", "draft", "engine", *OWN)


def register_configs() -> None:
    shared.register_configs()
    store = hydra.core.config_store.ConfigStore.instance()
    store.store(name="train_probe_schema", node=shared.composable(ProbeConfig))
    for group, known in OWN.items():
        for name, cls in known.items():
            store.store(group=group, name=name, node=shared.composable(cls))


def options(group: str) -> dict[str, str]:
    """Return the values of ``group=``, each with one line of help."""
    if group not in OWN:
        return shared.options(group)
    return {name: (cls.__doc__ or "").splitlines()[0] for name, cls in OWN[group].items()}


def build(
    arguments: Sequence[str], command: str = "semspec.train_probe", own: Collection[str] = ()
) -> ProbeConfig:
    """Return the typed configuration; raise UserError for any mistake.

    An error about an unknown option points to the help of ``command``; ``own`` lists options that only it has.
    """
    register_configs()
    choice = choose_engine(arguments, unless_named=False, check=False)
    arguments = with_engine(arguments, choice)
    for argument in arguments:
        _check_argument(argument, command, own)
    try:
        with hydra.initialize_config_dir(str(shared.CONF.resolve()), version_base="1.3"):
            composed = hydra.compose("train_probe", overrides=list(arguments))
        made = OmegaConf.to_object(composed)
    except (hydra.errors.HydraException, OmegaConfBaseException) as error:
        raise UserError(_explain(error, arguments)) from error
    assert isinstance(made, ProbeConfig), type(made)
    if made.pooling == "auto":
        made.pooling = pooling_for(made)
    check(made)
    return made


def pooling_for(config: ProbeConfig) -> list[str]:
    """Return the pools to keep: those the features need, or all of an earlier start's if these include them.

    States fill the disk: with a model of 32 billion weights, one pool of one step takes 0.7 MB.
    """
    needed = [name for name in POOLINGS if name in config.features.pooling]
    strange = [name for name in config.features.pooling if name not in POOLINGS]
    folder = folder_of(config)
    for file in (folder / "config.json", *sorted(folder.glob("part-*/config.json"))):
        kept = (read_json(file) or {}).get("pooling") or []
        if set(needed) <= set(kept):
            return [*kept, *strange]
    return [*needed, *strange]


def _check_argument(argument: str, command: str, own: Collection[str]) -> None:
    key, equals, value = argument.partition("=")
    names, top = [f.name for f in fields(ProbeConfig)], key.partition(".")[0]
    if not equals:
        raise UserError(f"'{argument}' is not an option: options are written name=value")
    if top not in names:
        hint = shared.did_you_mean(top, [*names, *own])
        raise UserError(f"unknown option '{key}'{hint} see python -m {command} --help")
    if key in GROUPS and value not in (known := options(key)):
        near = shared.did_you_mean(value, list(known))
        raise UserError(f"unknown {key} '{value}'{near} known: {', '.join(known)}")


def _explain(error: Exception, arguments: Sequence[str]) -> str:
    line = one_line(error)
    culprit = next((a for a in arguments if f"'{a.partition('=')[2]}'" in line), None)
    return f"{culprit}: {line}" if culprit else line
