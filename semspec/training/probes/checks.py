"""The help of ``python -m semspec.train_probe``'s options, and the checks of their values."""

from __future__ import annotations

import math

from semspec import registry, world
from semspec.config import did_you_mean
from semspec.errors import UserError
from semspec.training.probes.settings import POOLINGS, ProbeConfig

HELP = {
    "Models": {
        "model": "the model to probe: a preset, or model.path=FOLDER_OR_REPO [model.revision=...]",
        "draft": "the draft model, whose steps the target's probe will judge",
        "role": "which model is probed: target or draft",
        "engine": "what runs the models: hf, or sglang (servers given by engine.target_url=, engine.draft_url=)",
    },
    "Where it goes": {
        "folder": "samples and the probe (runs/probe-MODEL-ROLE); the same folder again resumes",
        "out": "the finished probe's folder (FOLDER/probe)",
        "part": "2/4: only sample the second of this folder's four parts; with -m several of them (1/4,2/4; all/4), started"
        " by hydra/launcher=. Without part= the command uses the finished parts (docs/scale-out.md)",
    },
    "1. Contexts": {
        "source": "embedded (the embedded world), hub (s1K's schema), or jsonl",
        "data": "hub: a data set such as simplescaling/s1K; jsonl: a file of question and thinking",
        "revision": "the data set's revision (a commit, tag or branch); the samples record its commit",
        "domains": "domains of the embedded world",
        "definitions": "embedded world: fewest and most definitions in a question",
        "problems": "how many questions",
        "chains": "embedded: written by the model, the world, or mixed (as in speculation);"
        " hub, jsonl: answers lets the model answer the questions",
        "split": "where a step ends: paragraph or sentence",
        "step_cap": "most tokens in a step (0: 512)",
        "max_new_tokens": "most tokens of a chain that a model writes",
        "per_problem": "most contexts per problem (0: all)",
        "contexts": "contexts in all (0: all of them)",
    },
    "2. Sampling": {
        "samples": "next steps to sample in each context",
        "keep": "how many of them keep their states (0: all); all count for the probability",
        "writers": "own, or both: also use steps of the other model (auto: both with a draft)",
        "drafted": "steps of the other model in each context",
        "temperature": "sampling temperature",
        "top_k": "sample from the k most likely tokens (0: all)",
        "top_p": "sample from the likeliest tokens that together have this probability (1: all)",
        "min_p": "sample from tokens with at least this fraction of the likeliest one's probability (0: all)",
        "pooling": "poolings of the states to keep, [mean,max,last]; auto: those the features need, or all that"
        " the folder's samples have",
        "batch": "sequences at a time, or requests in flight",
        "seed": "random seed of questions, samples and selection",
    },
    "3. Clustering": {"cluster": "which samples mean the same"},
    "4. Training": {
        "label": "semantic: the probability of the step's meaning; advantage: is the target's own step better"
        " (role=draft: a router of accept=arbitrage)",
        "margin": "with label=advantage: better by more than this, as a share of the target's steps",
        "features": "what the probe sees of a step",
        "train_on": "domains to train on ([]: all); the others are still tested",
        "hidden": "sizes of the two hidden layers",
        "activation": "relu or gelu",
        "loss": "bce or mse",
        "rate": "AdamW's learning rate",
        "weight_decay": "AdamW's weight decay",
        "dropout": "dropout of the inputs and between the layers",
        "epochs": "most epochs",
        "patience": "epochs without a better validation loss before training stops",
        "train_batch": "rows in a batch",
        "train_seed": "random seed of the data split and the training",
        "train_device": "auto, cpu or cuda",
        "memory": "GiB of rows to hold in memory; more are streamed from disk",
        "max_temperature": "highest temperature at which rules may use the probe",
    },
    "Other": {"quiet": "print only the result"},
}


CHOICES = {
    "role": ("target", "draft"),
    "source": ("embedded", "hub", "jsonl"),
    "chains": ("model", "world", "mixed", "answers"),
    "writers": ("auto", "own", "both"),
    "activation": ("relu", "gelu"),
    "label": ("semantic", "advantage"),
    "loss": ("bce", "mse"),
    "train_device": ("auto", "cpu", "cuda"),
}
LEAST = {
    1: ("problems", "max_new_tokens", "batch", "epochs", "patience", "train_batch"),
    0: ("per_problem", "contexts", "keep", "drafted", "step_cap", "top_k"),
    2: ("samples",),
}


def check(config: ProbeConfig) -> None:
    """Raise UserError for impossible options, before any model is loaded."""
    for option, known in CHOICES.items():
        _choice(option, getattr(config, option), known)
    if not config.draft.plain and "draft" not in config.draft.models():
        raise UserError("draft= must be a model here, such as draft=tiny or draft=r1-1.5b")
    _choice("split", config.split, tuple(registry.plugins("split")))
    for least, names in LEAST.items():
        for name in names:
            if getattr(config, name) < least:
                raise UserError(f"{name}={getattr(config, name)}: give at least {least}")
    if config.split == "token":
        raise UserError("split=token: a token has no meaning to probe: use paragraph or sentence")
    if not 1e-3 <= config.temperature < math.inf:
        raise UserError(
            f"temperature={config.temperature}: samples differ above 0 only: give 0.001 or more"
        )
    if not 0 < config.top_p <= 1:
        raise UserError(f"top_p={config.top_p}: give a number above 0 and up to 1")
    if not 0 <= config.min_p <= 1:
        raise UserError(f"min_p={config.min_p}: give a number from 0 (off) to 1")
    if not 0 <= config.dropout < 1 or not config.rate > 0 or not config.memory > 0:
        raise UserError("dropout is at least 0 and below 1; rate and memory are above 0")
    if len(config.hidden) != 2 or min(config.hidden) < 1:
        raise UserError(f"hidden={config.hidden}: a probe has three layers, so give two sizes")
    if config.source == "embedded" and config.chains == "answers":
        raise UserError("chains=answers is for data sets: with source=embedded use chains=model")
    if config.source != "embedded":
        if not config.data:
            example = "simplescaling/s1K" if config.source == "hub" else "chains.jsonl"
            raise UserError(f"source={config.source} needs data=..., such as data={example}")
        if config.chains not in ("model", "answers"):
            raise UserError(f"chains={config.chains} is for source=embedded: leave it out")
        if config.cluster.name == "oracle":
            raise UserError("cluster=oracle knows the embedded world only: use cluster=nli")
    for name in [*config.domains, *config.train_on]:
        if config.source == "embedded":
            _choice("domains", name, tuple(world.DOMAINS))
    if not config.domains:
        raise UserError("domains is empty: give at least one, such as domains=[residues]")
    given = config.definitions
    if len(given) != 2 or not 1 <= given[0] <= given[1] <= world.MOST_DEFINITIONS:
        raise UserError(
            f"definitions={given}: give the fewest and the most, from 1 to {world.MOST_DEFINITIONS},"
            " such as definitions=[3,7]"
        )
    if (config.both_write or config.chains == "mixed") and config.draft.plain:
        option = "chains=mixed" if config.chains == "mixed" else "writers=both"
        raise UserError(f"{option} needs a draft model: add draft=tiny, or another one")
    if config.routes:
        _check_router(config)
    _check_features(config)


def _check_router(config: ProbeConfig) -> None:
    if config.probed != "draft":
        raise UserError(
            "label=advantage is learned from the draft's states: give role=draft and a draft model, such as draft=tiny"
        )
    if not config.both_write or config.drafted < 2:
        raise UserError(
            f"label=advantage compares with the target's own steps, and there are {config.drafted * config.both_write}"
            " of them in a context: give writers=both drafted=2 or more"
        )
    if not -1 <= config.margin < 1:
        raise UserError(f"margin={config.margin}: advantages go from -1 to 1")


def _check_features(config: ProbeConfig) -> None:
    features = config.features
    if not isinstance(config.pooling, list):
        raise UserError(f"pooling={config.pooling}: give auto, or a list such as [mean,max]")
    for name in [*config.pooling, *features.pooling]:
        _choice("pooling", name, POOLINGS)
    missing = [name for name in features.pooling if name not in config.pooling]
    if missing:
        raise UserError(
            f"the features need pooling {', '.join(missing)}, but only"
            f" {', '.join(config.pooling) or 'nothing'} is kept: add it to pooling="
        )
    if not features.pooling and not features.logprobs:
        raise UserError("no features are left: give features.pooling or features.logprobs=true")
    layers = features.layers
    whole = isinstance(layers, list) and layers and all(type(i) is int for i in layers)
    if layers not in ("all", "last") and not whole:
        raise UserError(f"features.layers={layers}: give all, last, or a list such as [0,12,24]")


def _choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        near = did_you_mean(value, known)
        raise UserError(f"unknown {name} '{value}'{near} known: {', '.join(known)}")
