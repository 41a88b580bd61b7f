"""Train a head for ``stop=probe`` on the trial answers at the ends of watched steps.

The folder holds::

    trials.jsonl          one line per problem: the graded answer at the end of each step
    states/group-00003.*  the states at the ends of the fourth problem's steps, in the same order
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from semspec.artifacts import base, binding
from semspec.artifacts.stop_probe import StopProbe
from semspec.config import RunConfig
from semspec.errors import UserError
from semspec.models.location import ModelFacts, read_facts
from semspec.models.text import Text
from semspec.probes.features import Features
from semspec.protocols import BenchmarkProblem
from semspec.stops.probe import Gathering
from semspec.training.probes import metrics
from semspec.training.probes.dataset import Parts, Rows, divided, one_sided
from semspec.training.probes.settings import POOLINGS, ProbeConfig
from semspec.training.probes.shards import GroupWriter, Sample, read_samples
from semspec.training.stopping.head_card import card
from semspec.training.stopping.watch import tried

STATES = "states"
MEMORY = 2.0  # GiB of states held in memory


@dataclass(frozen=True, slots=True)
class Asked:
    """What a head reads; a folder's states serve all heads that read the same."""

    span: str
    features: Features

    @classmethod
    def of(cls, span: str, pooling: str, layers: Sequence[int], config: RunConfig) -> Self:
        """Read the options; raise UserError for unknown layers or poolings."""
        names = tuple(pooling.strip("[]").replace(" ", "").split(","))
        if len(set(names)) < len(names) or not set(names) <= set(POOLINGS):
            raise UserError(f"pooling={pooling}: give some of {', '.join(POOLINGS)}")
        text = Text(str(config.model.fetch(weights=False)))
        top = read_facts(config.model, text.fingerprint).layers
        picked = tuple(i + top + 1 if i < 0 else i for i in layers)
        if not all(0 <= i <= top for i in picked) or len(set(picked)) < len(picked):
            raise UserError(
                f"layers={list(layers)}: the model has layers 0 (embeddings) to {top}, each at most once"
            )
        return cls(span, Features(names, picked))


def keeper(
    folder: Path, problems: Sequence[BenchmarkProblem], gathering: Gathering
) -> Callable[[str, str], None]:
    """Return a callback that saves a solved problem's states, given its id and prompt."""
    into = folder / STATES
    into.mkdir(parents=True, exist_ok=True)
    numbers = {problem.id: number for number, problem in enumerate(problems)}

    def keep(name: str, prompt: str) -> None:
        group = GroupWriter(into, numbers[name])
        for step, states in enumerate(gathering.states.pop(prompt)):
            group.add(Sample(name, "", step, "own", 0, "", [], []), states)
        group.commit()

    return keep


def labelled(folder: Path, asked: Asked, model: ModelFacts) -> Rows:
    """Return a row for every trial answer of the problems that could be graded; the target is 1 if it was right."""
    done = {name: line for name, line in tried(folder).items() if line["right"] is not None}
    right = {
        f"{name}/{step}": [float(trial[2])]
        for name, line in done.items()
        for step, trial in enumerate(line["trials"])
    }
    samples = (one for one in read_samples(folder / STATES) if one.chain in done)
    # only the chosen layers are stored
    whole = Features(asked.features.pooling)
    size = asked.features.size(model.layers, model.width)
    return Rows(folder / STATES, samples, right, whole.pooling, whole, size, MEMORY)


def made(
    folder: Path,
    config: RunConfig,
    how: Mapping[str, Any],
    asked: Asked,
    hidden: Sequence[int],
    seed: int,
    model: ModelFacts,
    tell: Callable[[int], None] = lambda count: None,
) -> StopProbe:
    """Train a head on a folder's trials; ``how`` they were written goes into its config."""
    from semspec.training.probes.train import described, predict, tensors_of, train

    if len(hidden) != 2:
        raise UserError(f"hidden={list(hidden)}: the head has two hidden layers, give two sizes")
    rows = labelled(folder, asked, model)
    index, truth = divided(rows, seed), rows.target.numpy()
    if part := one_sided(rows, index):
        raise UserError(
            f"the answers forced at the ends of steps are all right or all wrong ({part}),"
            " so there is nothing to learn: give more problems="
        )
    settings = ProbeConfig(train_seed=seed, hidden=list(hidden))
    trained = train(rows, index["train"], index["validation"], settings, lambda *_: tell(1))
    test = index["test"]
    score, label = predict(trained, rows, test), truth[test]
    chains = [rows.chains[i] for i in test]
    figures, bins = metrics.figures(score, label), metrics.calibration(score, label)
    features = asked.features.to_json() | {"span": asked.span, "inputs": rows.size}
    features |= {"hidden": list(hidden), "activation": trained.activation}
    data = dict(how)
    split, temperature = data.pop("split"), data.pop("temperature")
    about = StopProbe.config_of(
        provenance=base.made_with(),
        role="target",
        model=binding.of(model),
        split=split,
        temperature=dict.fromkeys(("sampled", "lowest", "highest"), temperature),
        features=features,
        stop={name: getattr(config.stop, name) for name in ("words", "answer")},
        data=data
        | {"problems": len(set(rows.chains)), "rows": len(rows), "right": float(rows.target.mean())},
        training={
            **described(settings, trained, rows, index),
            "right": {part: float(truth[index[part]].mean()) for part in Parts},
        },
        metrics={
            "test": {"all": figures},
            "auroc_interval": list(metrics.auroc_interval(score, label, chains, seed)),
            "auroc_of_length": metrics.auroc(lengths(folder, rows, test), label),
            "calibration": bins,
        },
    )  # fmt: skip
    tensors = tensors_of(trained, rows, score, test)
    name = f"stop-probe-{model.name.rpartition('/')[2]}"
    return StopProbe(about, tensors, {"README.md": card(name, about)}, name)


def lengths(folder: Path, rows: Rows, index: Sequence[int]) -> np.ndarray:
    """Return the number of thinking tokens so far: the baseline that needs no head."""
    lines = tried(folder)
    places = (rows.contexts[i].rpartition("/") for i in index)
    return np.array([lines[name]["trials"][int(step)][0] for name, _, step in places], dtype=float)


def seen(config: Mapping[str, Any]) -> str:
    """Return one line with a head's figures."""
    test, between = config["metrics"]["test"]["all"], config["metrics"]["auroc_interval"]
    shown = ", ".join(f"{x:.3f}" for x in between)
    return (
        f"AUROC {test['auroc']:.3f} [{shown}] on {test['rows']} ends of steps of held-out problems"
    )
