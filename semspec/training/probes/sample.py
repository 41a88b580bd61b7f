"""Stage 2: next steps of every context, by the model itself and by the other one.

The model that is probed continues each context ``samples`` times (SemanticSpec 3.2.1, step 1); its
states over each step, pooled inside the pass, are the features. A rule asks a probe about steps
that *the draft* wrote, and these may have probability 0, which own samples never show: so the
other model writes steps at the same contexts, and the probed one reads them.

Contexts only grow: a chain keeps its session alive, and the next cut feeds what is new. Who is asked
in what order is ``next_steps``.
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
UNIT = 4000  # samples that are committed together, about: what a kill costs at most


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
    """Sample every context, or a shard's, that an earlier start has not; ``tell`` is called with the progress."""
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
    """Yield the contexts in the order of sampling, cut into numbered units that are committed together.

    As many chains as a batch holds go along together, each one's first chosen cut, then each one's
    second: batches stay full. A unit begins with fresh sessions, so that nothing in it depends on
    what was done before it, and a resumed run repeats the very same passes.
    """
    chosen, numbers = [chain for chain in chains if cuts[chain.id]], count()
    for start in range(0, len(chosen), config.batch):
        group = chosen[start : start + config.batch]
        turns = max(1, UNIT // (len(group) * config.samples))
        for turn in range(0, max(len(cuts[c.id]) for c in group), turns):
            number = next(numbers)
            if shard is None or shard.has(number):
                yield number, [(c, cut) for c in group for cut in cuts[c.id][turn : turn + turns]]
