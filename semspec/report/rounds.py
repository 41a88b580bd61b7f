"""Summarise the rounds of a run: acceptance by place, scores against the truth, transcripts.

Reads rounds.jsonl, which may be large, once. Memory use does not grow with the run, except for the few problems whose
transcripts are shown.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from semspec import world
from semspec.report.runs import Run
from semspec.results.metrics import Interval, wilson
from semspec.storage.files import parse, whole_lines

Decode = Callable[[Sequence[int]], str]
GRAIN = 16  # tokens of the output in one bin of the finest count
PLACES = 10  # bins that are shown
LONGEST = 24  # places within a draft
MOST_SCORES = 20_000
BINS = 10
FEWEST = 5  # scores in a bin
FORMAT: dict[str, type] = {  # required fields of a round's line
    **dict.fromkeys(("drafted", "ends", "kept", "written", "handed", "scores"), list),
    "units_kept": int,
    "round": int,
    "note": str,
}


@dataclass(frozen=True, slots=True)
class Share:
    """A share of successes among the trials at a place."""

    at: float
    of: int
    share: float
    interval: Interval

    @classmethod
    def counted(cls, at: float, hits: int, of: int) -> Share:
        interval = wilson(hits, of)
        assert interval is not None, of
        return cls(at, of, hits / of, interval)


@dataclass
class Rounds:
    """Counts over the speculative rounds of a run."""

    drafted: Counter[int] = field(default_factory=Counter)  # units, by GRAIN tokens of output
    kept: Counter[int] = field(default_factory=Counter)
    offered: Counter[int] = field(default_factory=Counter)  # by place within the draft, from 1
    taken: Counter[int] = field(default_factory=Counter)
    trees: bool = False
    scored: list[tuple[float, bool]] = field(default_factory=list)  # score, truth of the step
    judged: Counter[tuple[bool, bool]] = field(
        default_factory=Counter
    )  # (step is true, step was kept)
    left_out: bool = False  # True if later scores were dropped
    shown: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)  # rounds by problem

    def add(self, r: Mapping[str, Any], written: int) -> None:
        if not r["drafted"]:
            return
        kept = int(r["units_kept"])
        self.drafted[written // GRAIN] += len(r["ends"])
        self.kept[written // GRAIN] += kept
        depth = len(r["ends"])
        if r.get("parents") is not None:
            self.trees, depth = True, _depth(r["parents"])
        for place in range(1, min(depth, LONGEST) + 1):
            self.offered[place] += 1
            self.taken[place] += kept >= place

    def by_output(self) -> list[Share]:
        """Return acceptance over the position in the answer, in bins of about equally many units."""
        whole = self.drafted.total()
        shares, of, hits, weight = [], 0, 0, 0.0
        for place in sorted(self.drafted):
            of, hits = of + self.drafted[place], hits + self.kept[place]
            weight += self.drafted[place] * (place + 0.5) * GRAIN
            if of * PLACES >= whole or place == max(self.drafted):
                shares.append(Share.counted(weight / of, hits, of))
                of, hits, weight = 0, 0, 0.0
        return shares

    def by_draft(self) -> list[Share]:
        """Return how often the first n units were all kept, among drafts of at least n units."""
        return [Share.counted(n, self.taken[n], self.offered[n]) for n in sorted(self.offered)]

    def calibration(self) -> list[Share]:
        """Return the share of true steps over the score, in bins of equally many steps."""
        ordered = sorted(self.scored)
        bins = max(1, min(BINS, len(ordered) // FEWEST))
        cuts = [number * len(ordered) // bins for number in range(bins + 1)]
        parts = [ordered[a:b] for a, b in zip(cuts, cuts[1:], strict=False) if a < b]
        columns = [tuple(zip(*part, strict=True)) for part in parts]  # scores, truths
        return [Share.counted(math.fsum(s) / len(s), sum(t), len(t)) for s, t in columns]

    def kept_share(self, *, right: bool) -> float | None:
        """Return the share of true (``right``) or of false drafted steps that were kept."""
        kept, refused = self.judged[right, True], self.judged[right, False]
        return kept / (kept + refused) if kept + refused else None

    def auroc(self) -> float | None:
        """Return how often a true step has a higher score than a false one; ties count half."""
        true = sorted(score for score, is_true in self.scored if is_true)
        false = [score for score, is_true in self.scored if not is_true]
        if not true or not false:
            return None
        below = sum(bisect.bisect_left(true, s) + bisect.bisect_right(true, s) for s in false) / 2
        return 1 - below / (len(true) * len(false))


def _depth(parents: Sequence[int]) -> int:
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths, default=0)


@dataclass
class _Truth:
    """Decides if drafted steps are true, which only the embedded world knows."""

    problem: world.Problem
    decode: Decode
    text: str = ""  # committed part of an unfinished step
    before: list[world.Meaning] = field(default_factory=list)

    def steps(self, r: Mapping[str, Any]) -> list[bool]:
        """Return the truth of a round's drafted steps; [] if the committed text ends within a step."""
        if self.text:
            return []
        before, found = list(self.before), []
        for start, end in pairwise([0, *r["ends"]]):
            meaning = world.meaning(self.problem, self.decode(r["drafted"][start:end]))
            found.append(world.is_next(self.problem, before, meaning))
            before.append(meaning or ("unreadable",))
        return found

    def commit(self, r: Mapping[str, Any]) -> None:
        self.text += self.decode([*r["kept"], *r["written"], *r["handed"]])
        *whole, self.text = self.text.split(world.STEP_END)
        read = (world.meaning(self.problem, step + world.STEP_END) for step in whole)
        self.before += [meaning or ("unreadable",) for meaning in read]


def read_rounds(
    run: Run, questions: Mapping[str, str], chosen: Collection[str], decode: Decode | None
) -> Rounds:
    """Read the rounds of all problems in ``questions`` (id to text); keep those of ``chosen``."""
    found = Rounds()
    written: Counter[str] = Counter()
    truths: dict[str, _Truth | None] = {}
    for raw in whole_lines(run.folder / "rounds.jsonl"):
        if b'"mode":"plain"' in raw[:300]:  # half of the file: skip it without parsing
            continue
        r = parse(raw)
        if r is None or r.get("mode") != "speculative" or r.get("id") not in questions:
            continue
        if not all(isinstance(r.get(key), kind) for key, kind in FORMAT.items()):
            continue
        name = r["id"]
        found.add(r, written[name])
        if name in chosen:
            found.shown.setdefault(name, []).append(r)
        written[name] += len(r["kept"]) + len(r["written"]) + len(r["handed"])
        if decode is None or run.split != "paragraph" or found.left_out:
            continue
        if name not in truths:
            truths.clear()  # forget finished problems: rounds come problem by problem, or by groups of them
            posed = world.find_problem(questions[name])
            begun = posed and written[name] and not r["round"]
            truths[name] = _Truth(posed, decode) if posed and begun else None
        if truth := truths[name]:
            steps = truth.steps(r)
            if len(r["scores"]) <= len(steps):
                found.scored += [(float(score), true) for score, true in zip(r["scores"], steps, strict=False)]  # fmt: skip
            # steps after the first rejected one were not judged
            judged = steps[: r["units_kept"] + 1]
            found.judged.update((true, at < r["units_kept"]) for at, true in enumerate(judged))
            truth.commit(r)
            found.left_out = len(found.scored) > MOST_SCORES
    return found
