"""Stages 1 and 2 in parts: each has every so many-th batch of chains, and every so many-th unit of contexts.

    part-2-of-4/chains.jsonl        the chains of its batches; of all, where no model writes them
    samples/group-00005.jsonl ...   its units, beside those of the others

Which contexts are sampled depends on all chains: the second stage begins when every part has done the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from semspec.jobs.parts import Part, begun, check, check_all
from semspec.models.location import ModelFacts
from semspec.report.progress import Steps
from semspec.storage.files import _write_all, dumps, replacing, write_json
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
from semspec.training.probes.sample import numbered, plan, sample
from semspec.training.probes.settings import ProbeConfig
from semspec.training.probes.shards import Plan
from semspec.training.resume import begin


def stages(config: ProbeConfig) -> tuple[str, ...]:
    """What parts have to wait for each other for."""
    return ("chains", "samples") if by_a_model(config) else ("samples",)


def compare(
    config: ProbeConfig, folder: Path, model: ModelFacts, parts: Sequence[Part], **more: Any
) -> None:
    """Refuses parts of something else; a data set's commit is the one that the first part has read."""
    for part in parts:
        begin(part.folder(folder), config, model, **more)


def sample_part(
    config: ProbeConfig,
    model: ModelFacts,
    part: Part,
    folder: Path,
    until: str,
    about: Mapping[str, Any],
    steps: Steps,
) -> None:
    """Does one part's share of the stages up to ``until``."""
    check(part, folder)
    compare(config, folder, model, begun(folder))
    with part.at_work(folder, about) as own:
        begin(own, config, model)
        todo = [s for s in stages(config) if s not in part.done(folder)]
        if until not in todo:
            steps.say(f"part {part} has its {until}")
            return
        if "chains" not in todo and joined(config, part, folder) is None:  # before models load
            _waits(part, steps)
            return
        pair = Pair(config)
        try:
            pair.check_states(config.pooling)
            mine = part if by_a_model(config) else None
            if "chains" in todo or mine is None:
                with steps.stage("chains of thought", None) as tell:
                    made = make_chains(config, pair, own, tell.to, mine)
                if mine is not None:
                    part.keep(folder, "chains", {"chains": len(made)})
            if until == "samples":
                _sample(config, model, pair, part, folder, steps)
        finally:
            pair.close()


def _sample(
    config: ProbeConfig, model: ModelFacts, pair: Pair, part: Part, folder: Path, steps: Steps
) -> None:
    chains = joined(config, part, folder)
    if chains is None:
        _waits(part, steps)
        return
    cuts = choose_cuts(config, chains, pair.engine.context_limit - 1)
    units = [places for _, places in numbered(config, chains, cuts, part)]
    whole = plan(config, cuts, model.layers, model.width)
    planned = replace(whole, contexts=sum(map(len, units)))
    if not units:
        steps.say(
            f"part {part} has nothing to sample: there are fewer units than parts; a smaller batch= makes more"
        )
    with steps.stage("sampling", planned.samples) as tell:
        sample(config, pair, chains, cuts, planned, folder, tell.by, steps.say, part)
    part.keep(folder, "samples", asdict(planned))


def _waits(part: Part, steps: Steps) -> None:
    steps.say(
        f"part {part} has its chains; contexts are chosen of all: start it again when every part has its own"
    )


def joined(config: ProbeConfig, part: Part, folder: Path) -> list[Chain] | None:
    """The chains of all parts in the order of one process; None where some are not written yet."""
    if not by_a_model(config):
        return read_chains(part.folder(folder) / CHAINS)
    if any("chains" not in p.done(folder) for p in part.all()):
        return None
    each = [read_chains(p.folder(folder) / CHAINS) for p in part.all()]
    chains: list[Chain] = []
    for start in range(0, max(map(len, each)), config.batch):
        for own in each:
            chains += own[start : start + config.batch]
    check_steps(chains)
    return chains


def take_in(config: ProbeConfig, found: Sequence[Part], folder: Path) -> list[Chain]:
    """Makes of finished parts what one process would have left; refuses where one is not finished."""
    check_all(found, folder, "samples")
    chains = joined(config, found[0], folder)
    assert chains is not None, "samples come after chains"
    with replacing(folder / CHAINS) as fd:
        for chain in chains:
            _write_all(fd, (dumps(asdict(chain)) + "\n").encode())
    plans = [Plan(**part.done(folder)["samples"]) for part in found]
    whole = replace(plans[0], contexts=sum(p.contexts for p in plans))
    write_json(folder / "sampled.json", asdict(whole))
    return chains
