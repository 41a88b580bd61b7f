"""A probe: predicts from a model's states over a step how probable the step's meaning is.

probe = Probe.load("embedded/probe-tiny-target-paper")
probe.check(facts(model), split="paragraph", temperature=0.6)
reads = probe.reads(spans)                  # put them into the scoring query ...
scores = probe.score(answer.values, reads, spans)    # ... one probability a step
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from semspec.artifacts import base
from semspec.errors import UserError
from semspec.models import ModelFacts
from semspec.probes.features import LOGPROB_NAMES, Features, of_logprobs
from semspec.probes.mlp import NAMES, Folded, shapes
from semspec.types import Read, What

KIND, VERSION = "probe", 1
LOGPROBS = Read(What.LOGPROBS)
_STORED = (torch.float16, torch.float32)
Spans = Sequence[tuple[int, int]]


@dataclass
class Probe:
    """Weights, what they are bound to, and how good they were on held-out steps.

    ``tensors`` holds the perceptron (see ``mlp``), ``mean`` and ``std`` of the features, and from
    the test split ``calibration.scores``, ``.semantic`` and ``.groups`` (problem numbers): what
    was said about steps of the kind that a rule judges, and what was true.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    texts: dict[str, str] = field(default_factory=dict)  # card and plots, to be saved along
    name: str = "probe"

    def __post_init__(self) -> None:
        self.features = _features(self.config)
        model = self.config["model"]
        self.layers, self.width = int(model["layers"]), int(model["width"])
        self._block = len(self.features.picked(self.layers)) * self.width
        weights = {name: self.tensors[name] for name in NAMES}
        activation = self.config["features"]["activation"]
        with torch.inference_mode():
            self._folded = Folded(weights, self.tensors["mean"], self.tensors["std"], activation)
        self._device = torch.device("cpu")
        guard = self.config.get("guard")
        # the least likely token that a step may have, see ``probes.make``
        self.guard = float(guard["lowest"]) if guard else -torch.inf
        layers = self.features.layers
        pooled = [
            Read(What.POOLED, layers=layers, reduce=p)  # type: ignore[arg-type]
            for p in self.features.pooling
        ]
        self._generating = (*pooled, LOGPROBS) if self.features.logprobs else tuple(pooled)

    # ---- files --------------------------------------------------------------------------------

    @classmethod
    def load(cls, folder_or_repo: str, revision: str | None = None) -> Self:
        """From a folder, ``embedded/NAME``, or a Hub repository at a revision."""
        folder = base.find(str(folder_or_repo), revision)
        config = base.read_config(folder, KIND, VERSION)
        try:
            layout = _layout(config)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise UserError(f"{folder / base.CONFIG} is no probe's config ({what})") from error
        tensors = base.read_tensors(folder, layout)
        if not bool((tensors["std"] > 0).all()):
            raise UserError(f"{folder / base.TENSORS}: std is not above 0 everywhere")
        lengths = {len(tensors[f"calibration.{n}"]) for n in ("scores", "semantic", "groups")}
        if len(lengths) != 1:
            raise UserError(f"{folder / base.TENSORS}: the calibration's columns differ in length")
        return cls(config, tensors, name=folder.name)

    def save(self, folder: str | Path) -> None:
        """Writes the folder whole, or leaves what was there."""
        base.write(Path(folder), self.config, self.tensors, self.texts)

    # ---- what it is bound to ------------------------------------------------------------------

    @property
    def role(self) -> str:
        return str(self.config["role"])

    @property
    def calibration(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, semantic probabilities and problem numbers of held-out steps."""
        return tuple(self.tensors[f"calibration.{n}"] for n in ("scores", "semantic", "groups"))  # type: ignore[return-value]

    def check(
        self,
        model: ModelFacts,
        *,
        split: str | None = None,
        temperature: float | None = None,
        role: str | None = None,
        allow_mismatch: bool = False,
    ) -> list[str]:
        """Refuses what the probe was not trained for, naming both sides; else returns nothing.

        With ``allow_mismatch`` the differences are returned instead, except those that cannot work
        at all: other layers or another width.
        """
        trained = self.config["model"]
        impossible, unlike = [], []
        for what, ours, theirs in (
            ("layers", self.layers, model.layers),
            ("width", self.width, model.width),
        ):
            if ours != theirs:
                impossible.append(f"it reads {what}={ours}, the model has {what}={theirs}")
        if trained["id"] != model.name:
            unlike.append(f"it was trained for {trained['id']}, the model is {model.name}")
        elif trained.get("fingerprint") != model.fingerprint:
            unlike.append(
                f"it was trained for {model.name} with weights {_short(trained.get('fingerprint'))},"
                f" these are {_short(model.fingerprint)}"
            )
        if trained.get("revision") != model.revision:
            unlike.append(
                f"it was trained for revision {_short(trained.get('revision'))}, the model is at"
                f" {_short(model.revision)}"
            )
        if trained["tokenizer"] != model.tokenizer:
            unlike.append(
                f"it was trained with tokenizer {_short(trained['tokenizer'])}, the model's is"
                f" {_short(model.tokenizer)}"
            )
        if split is not None and split != self.config["split"]:
            unlike.append(f"it was trained with split={self.config['split']}, not split={split}")
        told = self.config["temperature"]
        if temperature is not None and not told["lowest"] <= temperature <= told["highest"]:
            unlike.append(
                f"it was trained at temperature {told['sampled']:g} for {told['lowest']:g} to"
                f" {told['highest']:g}, not for {temperature:g}"
            )
        if role is not None and role != self.role:
            unlike.append(f"it is a {self.role}'s probe, not a {role}'s")
        if impossible or (unlike and not allow_mismatch):
            way = "" if impossible else "; allow_mismatch=true goes on all the same"
            raise UserError(
                f"probe {self.name} does not fit: {'; '.join(impossible + unlike)}. Take the probe"
                f" of this model, or train one with python -m semspec.train_probe{way}"
            )
        return unlike

    # ---- scoring ------------------------------------------------------------------------------

    def reads(self, spans: Spans) -> tuple[Read, ...]:
        """What a query that scores these steps must read."""
        own = tuple(tuple(span) for span in spans)
        pooled = tuple(
            Read(What.POOLED, layers=self.features.layers, spans=own, reduce=p)  # type: ignore[arg-type]
            for p in self.features.pooling
        )
        return (*pooled, LOGPROBS) if self.features.logprobs else pooled

    def draft_reads(self) -> tuple[Read, ...]:
        """What a query that generates the steps must read."""
        return self._generating

    def score(self, values: Mapping[Read, Any], reads: Sequence[Read], spans: Spans) -> Tensor:
        """The probability of each step's meaning [steps], float32.

        ``reads`` are those that ``values`` answers: of ``reads(spans)``, or ``draft_reads()``.
        """
        count, parts = len(spans), []
        beyond: list[int] = []  # steps with a token unlike all that the probe was trained on
        with torch.inference_mode():
            for read in reads:
                if read.what is not What.POOLED:
                    continue
                states = values[read]
                if len(states) != count:  # a generated tail that is no unit of the draft
                    states = states[:count]
                parts.append(states.reshape(count, self._block))
            if self.features.logprobs:
                logprobs = values[LOGPROBS].tolist()
                rows = [of_logprobs(logprobs[a:b]) for a, b in spans]
                beyond = [unit for unit, row in enumerate(rows) if row[0] < self.guard]
                parts.append(torch.tensor(rows, device=values[LOGPROBS].device))
            x = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
            if x.device != self._device:
                self._folded.to(x.device)
                self._device = x.device
            scores = self._folded(x.float())
            if beyond:
                scores[beyond] = 0.0
            return scores

    def of_rows(self, rows: Tensor) -> Tensor:
        """The same of features that are assembled already [rows, features]."""
        with torch.inference_mode():
            scores = self._folded(rows.float())
            if self.features.logprobs:
                lowest = rows[:, rows.shape[1] - len(LOGPROB_NAMES)]
                scores[lowest < self.guard] = 0.0
            return scores


def _features(config: Mapping[str, Any]) -> Features:
    told = config["features"]
    return Features(tuple(told["pooling"]), tuple(told["layers"]), bool(told["logprobs"]))


def _layout(config: Mapping[str, Any]) -> base.Layout:
    """The tensors that a config implies; raises where the config is not one."""
    model, told, features = config["model"], config["features"], _features(config)
    layers, width, hidden = model["layers"], model["width"], told["hidden"]
    for value in (layers, width, *hidden, *features.layers):
        if type(value) is not int or not 0 <= value < 1 << 24:
            raise ValueError(f"{value!r} is no size")
    for name in ("id", "tokenizer"):
        if not isinstance(model[name], str):
            raise ValueError(f"model.{name} is no text")
    for name in ("sampled", "lowest", "highest"):
        if not isinstance(config["temperature"][name], int | float):
            raise ValueError(f"temperature.{name} is no number")
    if config["role"] not in ("target", "draft") or not isinstance(config["split"], str):
        raise ValueError("role is target or draft, and split a text")
    if not all(p in ("mean", "max", "last") for p in features.pooling) or len(
        set(features.pooling)
    ) < len(features.pooling):
        raise ValueError(f"pooling {features.pooling}")
    if any(i > layers for i in features.layers) or told["activation"] not in ("relu", "gelu"):
        raise ValueError("layers or activation")
    guard = config.get("guard")
    if guard is not None and not isinstance(guard["lowest"], int | float):
        raise ValueError("guard.lowest is no number")
    size = features.size(layers, width)
    if len(hidden) != 2 or not size:
        raise ValueError("a probe has two hidden layers and at least one feature")
    layout: dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...]]] = {
        name: (shape, _STORED) for name, shape in shapes(size, hidden).items()
    }
    layout |= dict.fromkeys(("mean", "std"), ((size,), (torch.float32,)))
    layout |= {f"calibration.{n}": ((-1,), (torch.float32,)) for n in ("scores", "semantic")}
    layout["calibration.groups"] = ((-1,), (torch.int64,))
    return layout


def _short(text: str | None) -> str:
    return "none" if not text else text if len(text) < 16 else f"{text[:12]}..."
