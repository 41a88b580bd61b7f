"""Measure pairs of tokens along texts (algorithm 1, lines 3 to 10); resumes after a kill.

pairs.jsonl    one line per text: its pairs
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semspec.calibration.arc import COLUMNS
from semspec.decoding.arc_bound import normalised_entropy
from semspec.decoding.sampling import draw
from semspec.decoding.whitening import Whitened
from semspec.deferred import Tensor, torch
from semspec.protocols import Kit, Plan
from semspec.storage.files import LineFile, cut_torn_line, parse, whole_lines
from semspec.training.calibration.next_step import (
    Measure,
    Swap,
    differences,
    divergences,
    read_text,
)
from semspec.training.probes.contexts import Chain, Pair
from semspec.types import PROBS, Answer, Context, Query

NUMBERS = 1 << 28  # probabilities held in memory at a time: 1 GiB


@dataclass(frozen=True, slots=True)
class Spots:
    """Where in a text pairs are measured, and how many."""

    positions: int = 8  # places per text
    levels: int = 6  # a place is 0 to levels - 1 tokens below the root of its assumed draft
    drafted: bool = False  # also measure the draft model's tokens that are not the likeliest
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """A place of a text, and the root of the draft that it is assumed to belong to."""

    at: int
    root: int

    @property
    def depth(self) -> int:
        return self.at - self.root


def places(count: int, spots: Spots, rng: random.Random) -> list[Place]:
    """Draw distinct places in a text of ``count`` tokens, with roots drawn uniformly."""
    found: dict[int, Place] = {}
    for _ in range(4 * spots.positions):  # some are drawn twice or lie past the end
        root = rng.randrange(count) if count else 0
        at = root + rng.randrange(spots.levels)
        if at < count and len(found) < spots.positions:
            found.setdefault(at, Place(at, root))
    return [found[at] for at in sorted(found)]


def measure_text(
    context: Context,
    tokens: Sequence[int],
    kit: Kit,
    spots: Spots,
    measure: Measure,
    known: Whitened,
    rng: random.Random,
) -> Plan[list[dict[str, float]]]:
    """Return the measured pairs of one text, each as figures by name; ``context`` holds the prompt."""
    rows = yield from read_text(context, tokens, kit)
    q: Tensor | None = None
    if spots.drafted:
        query = Query("draft", context, kit.sampling, kit.rng, tokens=tokens, reads=(PROBS,))
        answer: Answer = yield query
        q = answer[PROBS]
    best = rows.argmax(-1).tolist()
    chosen: list[tuple[Place, Swap, bool]] = []
    for place in places(len(tokens), spots, rng):
        other = _candidate(rows[place.at], measure.top, rng.random())
        if other is not None:
            chosen.append((place, Swap(place.at, other, best[place.at]), False))
    if q is not None:
        drawn = [draw(row, rng.random()) for row in q[: len(tokens)]]
        unlike = [at for at, token in enumerate(drawn) if token != best[at]]
        for at in sorted(rng.sample(unlike, min(spots.positions, len(unlike)))):
            place = Place(at, max(0, at - rng.randrange(spots.levels)))
            chosen.append((place, Swap(at, drawn[at], best[at]), True))
    # an end of text has no next step
    chosen = [c for c in chosen if not kit.stop_ids & {c[1].drafted, c[1].likeliest}]
    if not chosen:
        return []
    swaps = [swap for _, swap, _ in chosen]
    js = yield from divergences(context, tokens, swaps, kit, measure)
    drafted, likeliest = [s.drafted for s in swaps], [s.likeliest for s in swaps]
    p = rows[[swap.place for swap in swaps]]
    distances, margins = yield from differences(drafted, likeliest, p, context, kit, known)
    # the entropy is that of the row before the draft's root; for a text's first token a rule knows none
    entropies = normalised_entropy(rows)
    return [
        {
            "depth": place.depth,
            "entropy": float(entropies[place.root - 1]) if place.root else 1.0,
            "distance": float(distances[i]),
            "margin": float(margins[i]),
            "js": float(js[i]),
            "drafted": float(proposed),
        }
        for i, (place, _, proposed) in enumerate(chosen)
    ]


def _candidate(row: Tensor, top: int, uniform: float) -> int | None:
    """Draw uniformly among the ``top`` likeliest tokens except the likeliest (line 5); skip probability 0."""
    likeliest, best = int(row.argmax()), row.topk(min(top, len(row)))
    found = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    others = [token for token, p in found if p > 0 and token != likeliest]
    return others[int(uniform * len(others))] if others else None


def measure_chains(
    pair: Pair,
    chains: Sequence[Chain],
    spots: Spots,
    measure: Measure,
    known: Whitened,
    path: Path,
    tell: Callable[[int], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Return the lines of all chains, in order; measure only groups that are not in the file yet.

    Rounding depends on what shares a batch. So a group left half done by a kill is measured again as a whole, and a
    resumed run gives exactly the numbers of an unbroken one.
    """
    cut_torn_line(path)
    done = {line["id"]: line for raw in whole_lines(path) if (line := parse(raw)) is not None}
    tell(len(done))
    names: dict[int, Chain] = {}
    longest = max((sum(map(len, chain.steps)) for chain in chains), default=1) + 4 * spots.positions
    # each text keeps its rows in memory until it is measured
    at_once = min(pair.config.batch, max(1, NUMBERS // (longest * pair.engine.vocabulary)))

    def plans(batch: Sequence[Chain]) -> Iterator[tuple[Context, Plan[list[dict[str, float]]]]]:
        for chain in batch:
            context = pair.context(chain.question, chain.ids)
            names[context.key] = chain
            kit = pair.solver.kit(chain.id, chain.prompt, "plain", "pairs")
            room = pair.engine.context_limit - len(chain.ids) - 1
            tokens = [token for step in chain.steps for token in step][:room]
            rng = random.Random(f"{spots.seed} {chain.id} pairs")
            yield context, measure_text(context, tokens, kit, spots, measure, known, rng)

    with LineFile(path) as file:
        for start in range(0, len(chains), at_once):
            group = chains[start : start + at_once]
            if all(chain.id in done for chain in group):
                continue
            for finished in pair.solver.driver.run(plans(group), at_once):
                chain = names.pop(finished.context.key)
                if chain.id not in done:
                    done[chain.id] = {"id": chain.id, "pairs": finished.value}
                    file.append(done[chain.id])
                    tell(len(done))
        file.sync()
    return [done[chain.id] for chain in chains]


def as_columns(lines: Sequence[dict[str, Any]], setting: int) -> Tensor:
    """Return the measured pairs as a float32 tensor [n, columns]; each text is a group."""
    rows = [
        [float({"setting": setting, "group": group, **pair}[name]) for name in COLUMNS]
        for group, line in enumerate(lines)
        for pair in line["pairs"]
    ]
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, len(COLUMNS))
