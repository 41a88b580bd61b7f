"""Stage 2: sample next steps of every context, by the probed model and by the other one.

The probed model continues each context ``samples`` times (SemanticSpec 3.2.1, step 1). Its states over each step,
pooled inside the pass, are the features. In use, a rule asks the probe about steps of *the draft*, and these may have
probability 0, which the model's own samples never have. So the other model also writes steps from the same contexts,
and the probed model reads them.

Contexts only grow: a chain keeps its session, and the next cut feeds only the new tokens. ``next_steps`` decides the
order of the queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

from semspec.jobs.stages import Shard
from semspec.training.probes.contexts import Chain, Pair
from semspec.training.probes.next_steps import Freely, InTurns, Place
from semspec.training.probes.settings import ProbeConfig
from semspec.training.probes.shards import GroupWriter, Plan, check_room, is_done

FOLDER = "samples"
UNIT = 4000  # samples that are committed together, about: the most that a kill loses


def plan(config: ProbeConfig, cuts: dict[str, list[int]], layers: int, width: int) -> Plan:
    return Plan(
        contexts=sum(len(c) for c in cuts.values()),
        own=config.samples,
        kept=min(config.keep or config.samples, config.samples) if config.pooling else 0,
        drafted=config.drafted if config.both_write else 0,
        poolings=len(config.pooling),
        layers=layers,
        width=width,
    )


def sample(
    config: ProbeConfig,
    pair: Pair,
    chains: Sequence[Chain],
    cuts: dict[str, list[int]],
    planned: Plan,
    folder: Path,
    tell: Callable[[int], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    shard: Shard | None = None,
) -> None:
    """Sample all contexts, or a shard's, that no earlier start has sampled; report progress to ``tell``."""
    into = folder / FOLDER
    into.mkdir(parents=True, exist_ok=True)
    say(planned.line(check_room(into, planned.bytes)))
    way = Freely if pair.solver.free else InTurns
    for number, places in units(config, chains, cuts, shard):
        if is_done(into, number):
            tell(len(places) * (planned.own + planned.drafted))
            continue
        writer = GroupWriter(into, number)
        way(pair, places, planned, writer, tell).run()
        writer.commit()


def units(
    config: ProbeConfig,
    chains: Sequence[Chain],
    cuts: dict[str, list[int]],
    shard: Shard | None = None,
) -> Iterator[tuple[int, list[Place]]]:
    """Yield the contexts in sampling order, as numbered units that are committed together.

    As many chains as a batch holds advance together: the first chosen cut of each, then the second of each, so batches
    stay full. A unit starts with fresh sessions, so it does not depend on earlier units, and a resumed run repeats
    exactly the same passes.
    """
    chosen, numbers = [chain for chain in chains if cuts[chain.id]], count()
    for start in range(0, len(chosen), config.batch):
        group = chosen[start : start + config.batch]
        turns = max(1, UNIT // (len(group) * config.samples))
        for turn in range(0, max(len(cuts[c.id]) for c in group), turns):
            number = next(numbers)
            if shard is None or shard.has(number):
                yield number, [(c, cut) for c in group for cut in cuts[c.id][turn : turn + turns]]
