"""Sampling a probe's training data as staged work: chains of thought, then samples of their contexts.

    part-2-of-4/chains.jsonl        the chains of a shard's batches; all chains, if no model writes them
    samples/group-00005.jsonl ...   its units, beside those of the other shards

The samples stage comes second because the choice of contexts depends on all chains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from semspec.errors import without_passwords
from semspec.jobs import stages
from semspec.jobs.stages import Shard, check_barrier, lacking
from semspec.models.location import ModelConfig, ModelFacts, read_facts
from semspec.models.text import Text
from semspec.report.progress import Steps
from semspec.storage.digest import flat
from semspec.storage.files import dumps, replacing, write_all, write_json
from semspec.training.probes.contexts import FILE as CHAINS
from semspec.training.probes.contexts import (
    Chain,
    Pair,
    by_a_model,
    check_steps,
    choose_cuts,
    make_chains,
    read_chains,
)
from semspec.training.probes.sample import plan, sample, units
from semspec.training.probes.semantic import try_out
from semspec.training.probes.settings import ProbeConfig, folder_of
from semspec.training.probes.shards import Plan
from semspec.training.probes.sources import commit_of

# values of options that did not exist yet when a folder was begun, if other than today's defaults
BEFORE: dict[str, Any] = {
    "draft.own_prompt": False,  # a draft with marks of its own read the target's template
    **dict.fromkeys(("options.append", "options.merge"), ""),  # of datastores
    "options.prompts": False,
}


def keep_options(folder: Path, config: ProbeConfig, model: ModelFacts, **more: Any) -> None:
    """Write config.json, or compare the options with those of an earlier start.

    Sets ``config.revision`` to the data set's commit that was read first. Raises UserError if an option differs, except
    those that the engine allows to change (such as a server's address).
    """
    stored = stages.stored_options(folder, ("facts", "engine"))
    if config.source == "hub" and config.revision is None:
        config.revision = stored["revision"] if stored else commit_of(config)
    wanted = config.sampled() | {"facts": asdict(model)} | _plain(more)
    wanted["engine"] = without_passwords(wanted["engine"])
    defaults = flat(_defaults(config, more)) | BEFORE
    if stored and not set(stored["engine"]) <= set(wanted["engine"]):  # begun with another engine
        defaults = {key: v for key, v in defaults.items() if not key.startswith("engine.")}
    may_change = [f"engine.{name}" for name in config.engine.may_change]
    stages.keep_options(folder, wanted, stored, defaults, may_change)


def _defaults(config: ProbeConfig, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of every option, including the chosen plugins' options."""
    draft, engine = type(config.draft)(), type(config.engine)()
    unset = ProbeConfig(source=config.source, draft=draft, engine=engine)
    given = {name: v for name, v in more.items() if _is_options(v)}
    return unset.sampled() | _plain({name: type(v)() for name, v in given.items()})


def _plain(more: Mapping[str, Any]) -> dict[str, Any]:
    return {name: asdict(v) if _is_options(v) else v for name, v in more.items()}


def _is_options(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _probed(config: ProbeConfig) -> ModelConfig:
    model: ModelConfig = config.draft.model if config.probed == "draft" else config.model
    return model


def probe_facts(config: ProbeConfig) -> ModelFacts:
    """Return the facts of the probed model, to which the probe will be bound."""
    return facts_of(_probed(config))


def facts_of(model: ModelConfig) -> ModelFacts:
    """Return a model's facts, to which an artifact is bound."""
    return read_facts(model, Text(str(model.fetch(weights=False))).fingerprint)


class Sampling:
    """Chains and samples of one configuration; loads the models when they are first needed."""

    product = "trains the probe"

    def __init__(self, config: ProbeConfig, folder: Path | None = None) -> None:
        self.config, self.quiet = config, config.quiet
        self.folder = folder or folder_of(config)

    @property
    def stages(self) -> tuple[str, ...]:
        return ("chains", "samples") if by_a_model(self.config) else ("samples",)

    @cached_property
    def model(self) -> ModelFacts:
        return probe_facts(self.config)

    @cached_property
    def pair(self) -> Pair:
        """The loaded models; raises UserError if the probed one does not return its states."""
        pair = Pair(self.config)
        try:
            pair.check_states(self.config.pooling)
        except BaseException:
            pair.close()
            raise
        return pair

    def close(self) -> None:
        if "pair" in vars(self):  # otherwise no model was loaded
            self.pair.close()

    def keep_options(self, folder: Path) -> None:
        keep_options(folder, self.config, self.model)

    def run(self, shard: Shard, stage: str, steps: Steps) -> Mapping[str, Any]:
        own = shard.folder(self.folder)
        if "pair" not in vars(self):  # device="auto": clustering may run later on another machine
            try_out(self.config, steps.say, device="auto")
        if stage == "chains":
            return {"chains": len(self.write_chains(own, steps, shard))}
        if not by_a_model(self.config):  # every shard reads all chains
            self.write_chains(own, steps)
        return asdict(self.sample(joined(self.config, shard, self.folder), steps, shard))

    def write_chains(self, folder: Path, steps: Steps, shard: Shard | None = None) -> list[Chain]:
        """Return all chains, or a shard's; write those that are not in the folder yet."""
        pair, total = self.pair, None if shard else self.config.problems
        with steps.stage("chains of thought", total) as tell:
            return make_chains(self.config, pair, folder, tell.to, shard)

    def sample(self, chains: Sequence[Chain], steps: Steps, shard: Shard | None = None) -> Plan:
        """Sample all contexts, or a shard's; return the amount of work."""
        cuts = choose_cuts(self.config, chains, self.pair.engine.context_limit - 1)
        planned = plan(self.config, cuts, self.model.layers, self.model.width)
        if shard is not None:
            own = [places for _, places in units(self.config, chains, cuts, shard)]
            planned = replace(planned, contexts=sum(map(len, own)))
            if not own:
                lacks = f"part {shard} has nothing to sample: there are fewer groups of contexts than parts"
                steps.say(f"{lacks}; a smaller batch= makes more groups")
        args = (self.config, self.pair, chains, cuts, planned, self.folder)
        with steps.stage("sampling", planned.samples) as tell:
            sample(*args, tell.by, steps.say, shard)
        return planned


def joined(config: ProbeConfig, shard: Shard, folder: Path) -> list[Chain]:
    """Return the chains of all shards, in the order in which one process would write them."""
    if not by_a_model(config):
        return read_chains(shard.folder(folder) / CHAINS)
    assert not lacking([shard], folder, "chains"), "samples come after chains"
    each = [read_chains(s.folder(folder) / CHAINS) for s in shard.all()]
    chains: list[Chain] = []
    for start in range(0, max(map(len, each)), config.batch):
        for own in each:
            chains += own[start : start + config.batch]
    check_steps(chains)
    return chains


def merge(config: ProbeConfig, shards: Sequence[Shard], folder: Path) -> list[Chain]:
    """Write the files that one process would have written, and return the chains.

    Raises UserError if a shard is not finished.
    """
    check_barrier(shards, folder, "samples")
    chains = joined(config, shards[0], folder)
    with replacing(folder / CHAINS) as fd:
        for chain in chains:
            write_all(fd, (dumps(asdict(chain)) + "\n").encode())
    plans = [Plan(**shard.done(folder)["samples"]) for shard in shards]
    whole = replace(plans[0], contexts=sum(p.contexts for p in plans))
    write_json(folder / "sampled.json", asdict(whole))
    return chains
