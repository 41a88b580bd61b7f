"""Compare the paper's probes of both models, trained on samples drawn at several temperatures, on the same steps.

    python scripts/compare_probe_temperatures.py [problems=100 ...] [--pair runs/doubting] [--out runs/temperatures.json]

Both models continue the same contexts at each temperature, and a probe of each is trained on the result, with the
options of scripts/train_tiny_probes.py. All probes judge the same drafted steps, from problems that they were not trained on,
as accept=semantic does; the oracle says which steps are right. For comparison, probabilities are also counted from the same
samples: what a perfect probe would say. Options without -- are those of train_probe. A killed run resumes where it was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from compare_probe_features import Samples
from script_kit import check_known, markdown, parser
from temperature_samples import PAPER, ROLES, Judged, Work

from semspec.errors import UserError
from semspec.report.progress import Steps
from semspec.report.terminal import open_console
from semspec.storage.files import write_json
from semspec.training.probes import metrics
from semspec.training.probes.dataset import PATTERN, Rows, divided
from semspec.training.probes.judging import SMALLEST, together, told_apart
from semspec.training.probes.settings import ProbeConfig
from semspec.training.probes.train import predict, train
from semspec.types import Role

HEADINGS = (
    "samples at", "Spearman of f_T", "Spearman of f_D", "AUROC right / wrong of f_T [95 %]", "AUROC of f_D", "AUROC of f_T / f_D [95 %]",
    "right steps kept [95 %]", "wrong steps kept [95 %]",
)  # fmt: skip
Figures = dict[str, Any]


def scores(
    training: Rows, config: ProbeConfig, judged: Sequence[Rows], turns: int
) -> list[np.ndarray]:
    """Score all judged steps with probes that have not seen their problems; NaN where no turn holds them out."""
    found = [np.full(len(rows), np.nan) for rows in judged]
    for turn in range(turns):
        index = divided(training, config.train_seed, turn)
        held = {training.chains[i] for i in index["test"]}
        made = train(training, index["train"], index["validation"], config)
        for rows, score in zip(judged, found, strict=True):
            test = [i for i, chain in enumerate(rows.chains) if chain in held]
            score[test] = predict(made, rows, test)
    return found


@dataclass(frozen=True)
class Scored:
    """Scores of drafted steps, by the probes of one temperature or by counts of its samples."""

    label: str
    target: np.ndarray
    draft: np.ndarray

    def of(self, steps: np.ndarray) -> Scored:
        return Scored(self.label, self.target[steps], self.draft[steps])

    @property
    def ratio(self) -> np.ndarray:
        """f_T / f_D."""
        return self.target / np.maximum(self.draft, SMALLEST)

    @property
    def kept(self) -> np.ndarray:
        """P(keep) = min(1, f_T / f_D)."""
        return np.minimum(1.0, self.ratio)


def figures(one: Scored, usual: Scored, true: Scored, right: np.ndarray, groups: Sequence[str]) -> Figures:  # fmt: skip
    """Return the figures of one way to score steps, and its difference from the usual one on the same steps.

    ``true``: the semantic probabilities to correlate ranks with.
    """

    def change(figure: Callable[[Scored, list[int]], float | None]) -> Figures:
        """Return a figure's change from the usual temperature, with its interval, using the same bootstrap draws for both."""

        def by(rows: list[int]) -> float | None:
            new, old = figure(one, rows), figure(usual, rows)
            return None if new is None or old is None else new - old

        whole = list(range(len(right)))
        return {"by": by(whole), "interval": list(metrics.interval_of(by, groups, 0))}

    def kept(truth: bool) -> Callable[[Scored, list[int]], float | None]:
        def mean(scored: Scored, rows: list[int]) -> float | None:
            among = scored.kept[rows][(right[rows] > 0) == truth]
            return float(among.mean()) if len(among) else None

        return mean

    return {
        "label": one.label,
        "spearman_target": metrics.spearman(one.target, true.target),
        "spearman_draft": metrics.spearman(one.draft, true.draft),
        "target": told_apart(one.target, right, groups),
        "draft": told_apart(one.draft, right, groups),
        "ratio": together(one.target, one.draft, right, groups),
        "change": {
            "target": change(lambda s, rows: metrics.auroc(s.target[rows], right[rows])),
            "ratio": change(lambda s, rows: metrics.auroc(s.ratio[rows], right[rows])),
            "right_kept": change(kept(True)),
            "wrong_kept": change(kept(False)),
        },
    }


def compared(
    work: Work, temperatures: Sequence[float], judged: Sequence[float], turns: int
) -> Iterator[Figures]:
    """Yield the figures of each temperature's drafted steps, with the probes and with the counts of all temperatures."""
    drawn = {t: {role: Samples(work.at(role, t)) for role in ROLES} for t in temperatures}
    every = [set(samples.semantic) for both in drawn.values() for samples in both.values()]
    contexts = set.intersection(*every)
    sets = [Judged(work, t, drawn[t], contexts) for t in judged]
    learned: dict[float, dict[Role, list[np.ndarray]]] = {t: {} for t in temperatures}
    sizes = dict[str, int]()
    for t in temperatures:
        for role in ROLES:
            rows = drawn[t][role].rows(PAPER, contexts)
            sizes[role], asked = len(rows), [one.rows[role] for one in sets]
            learned[t][role] = scores(rows, work.config(role, t), asked, turns)
            print(f"the {role}'s probes, T = {t:g}: trained", file=sys.stderr, flush=True)
    for number, steps in enumerate(sets):
        probes = {
            t: Scored(f"T = {t:g}", *(learned[t][role][number] for role in ROLES))
            for t in temperatures
        }
        counts = {
            t: Scored(f"counted, T = {t:g}", *(steps.counted(drawn[t][role]) for role in ROLES))
            for t in temperatures
        }
        for table in tables(steps, probes, counts, work.usual):
            yield {"contexts": len(contexts), "sampled": sizes, **table}


def tables(
    steps: Judged, probes: Mapping[float, Scored], counts: Mapping[float, Scored], usual: float
) -> Iterator[Figures]:
    """Yield the figures of all held-out steps, and of those after right steps only."""
    held = ~np.isnan(probes[usual].target)
    for behind, some in {"any text": held, "right steps only": held & steps.spotless}.items():
        right, groups = steps.right[some], [steps.groups[i] for i in np.flatnonzero(some)]
        true = counts[steps.temperature].of(some)
        found = [
            figures(one.of(some), way[usual].of(some), true, right, groups)
            for way in (probes, counts)
            for one in way.values()
        ]
        lowest = told_apart(steps.rows["target"].lowest[some], right, groups)
        yield {
            "drafted_at": steps.temperature,
            "behind": behind,
            "problems": len(set(groups)),
            "rows": found,
            "lowest": lowest,
        }


def ranked(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def line(found: Figures) -> list[str]:
    """Return a row of the table."""

    def between(value: float | None, interval: Sequence[float]) -> str:
        if value is None or not interval:
            return "-"
        low, high = interval
        return f"{value:.3f} [{low:.3f}, {high:.3f}]"

    target, draft, both = found["target"], found["draft"], found["ratio"]
    return [
        found["label"], ranked(found["spearman_target"]), ranked(found["spearman_draft"]),
        between(target["auroc"], target["interval"]), ranked(draft["auroc"]), between(both["auroc"], both["interval"]),
        *(between(both[key]["kept"], both[key]["interval"]) for key in ("right_kept", "wrong_kept")),
    ]  # fmt: skip


def show(found: Figures) -> None:
    of = found["lowest"]
    print(
        f"\nDrafted at T = {found['drafted_at']:g}, behind {found['behind']}: {of['steps']:,} steps"
        f" of {found['problems']} problems, {of['wrong']:,} of them wrong; AUROC of the lowest"
        f" log-probability {ranked(of['auroc'])}\n"
    )
    print("\n".join(markdown(HEADINGS, [line(one) for one in found["rows"]])))


def main() -> int:
    made = parser(
        __doc__,
        work=(Path("runs/probe-temperatures"), "the folder of all samples"),
        pair=("", "a folder with tiny-target and tiny-draft; else the embedded pair"),
        known=("", "a folder with finished samples at the usual temperature: target, draft"),
        temperatures=[0.3, 0.6, 1.0],
        usual=(0.6, "the others are compared with it, and the contexts are written at it"),
        judged=([0.6], "temperatures at which the judged steps were drafted"),
        turns=(len(PATTERN), "so many sevenths of the problems are held out, one after the other"),
        out=("", "a JSON file for the figures"),
    )
    made.add_argument("more", nargs="*", help="options of train_probe: problems=100 ...")
    a = made.parse_intermixed_args()
    if not 1 <= a.turns <= len(PATTERN):
        raise UserError(f"--turns {a.turns}: give 1 to {len(PATTERN)}")
    check_known([f"{t:g}" for t in (a.usual, *a.judged)], [f"{t:g}" for t in a.temperatures])
    began, temperatures = time.process_time(), sorted(set(a.temperatures))
    work = Work(a.work, a.pair, a.known, a.usual, a.more)
    work.draw(temperatures, Steps(open_console()))
    found = []
    for one in compared(work, temperatures, a.judged, a.turns):
        found.append(one)
        show(one)
    if a.out:
        seconds = round(time.process_time() - began, 1)
        write_json(Path(a.out), {"pair": a.pair or "embedded", "options": a.more, "tables": found, "cpu_seconds": seconds})  # fmt: skip
    return 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
