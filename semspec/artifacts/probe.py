"""A probe: predicts from a model's states over a step how probable the step's meaning is.

probe = Probe.load("embedded/probe-tiny-target-paper")
probe.check(read_facts(model, tokenizer), split="paragraph", temperature=0.6)
reads = probe.reads(spans)                  # put them into the scoring query ...
scores = probe.score(answer.values, reads, spans)    # ... one probability a step
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from semspec.artifacts import base, binding
from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.models.location import EXAMPLE
from semspec.probes.features import LOGPROB_NAMES, Features, of_logprobs
from semspec.probes.mlp import NAMES, Folded, shapes
from semspec.registry import register
from semspec.storage.files import dumps
from semspec.storage.json_schema import array, integer, mapping, record
from semspec.storage.tensors import Layout
from semspec.types import LOGPROBS, Read, What

Spans = Sequence[tuple[int, int]]
FEATURES = {
    "pooling": array({"enum": ["mean", "max", "last"]}, maxItems=3, uniqueItems=True),
    "layers": array(binding.SIZE, maxItems=4096, uniqueItems=True),
    "logprobs": {"type": "boolean"},
    "inputs": integer(1, 1 << 40),
    "hidden": array(integer(1, binding.LARGEST), minItems=2, maxItems=2),
    "activation": {"enum": ["relu", "gelu"]},
}  # the properties of a config's ``features``
TEST = {"type": "object", "properties": {"all": mapping({"type": ["number", "null"]})}}
COMMON = {  # the properties of the configs of all kinds of probes
    "model": binding.model_with("layers", "width"),
    "split": binding.SPLIT,
    "temperature": binding.TEMPERATURE,
    "features": record(**FEATURES),
    "calibration": {"type": "object"},
    "metrics": {"type": "object", "properties": {"test": TEST}},
}
REQUIRED = ("role", "model", "split", "temperature", "features", "data", "training", "metrics")


@register("artifact", "probe")
@dataclass
class Probe(base.Artifact):
    """Predicts the probability that the model would write something with the same meaning as a step.

    ``tensors`` holds the perceptron (see ``mlp``), ``mean`` and ``std`` of the features, and from
    held-out problems ``calibration.scores``, ``.semantic`` and ``.groups`` (problem numbers): scores
    of steps of the kind that a rule judges, and their true probabilities.
    """

    kind = "probe"
    schema = base.of_schema(
        {
            "role": {"enum": ["target", "draft"]},
            **COMMON,
            # a step with a token less likely than its "lowest" is scored 0
            "guard": mapping({"type": "number"}) | {"type": ["object", "null"], "required": ["lowest"]},
        },
        REQUIRED,
    )  # fmt: skip
    made_by = "python -m semspec.train_probe"
    tags = ("semantic-probability",)
    listed: ClassVar[tuple[str, ...]] = ("r2", "spearman", "auroc", "ece")  # test figures to list

    def __post_init__(self) -> None:
        super().__post_init__()
        self.features = _features(self.config)
        model = self.config["model"]
        self.layers, self.width = int(model["layers"]), int(model["width"])
        self._block = len(self.features.picked(self.layers)) * self.width
        weights = {name: self.tensors[name] for name in NAMES}
        activation = self.config["features"]["activation"]
        with torch.inference_mode():
            self._folded = Folded(weights, self.tensors["mean"], self.tensors["std"], activation)
        self._copies = {torch.device("cpu"): self._folded}
        guard = self.config.get("guard")
        # the lowest log-probability of a token in a step, see "guard" above
        self.guard = float(guard["lowest"]) if guard else -torch.inf
        self._generating = self._reads(())

    # ---- files --------------------------------------------------------------------------------

    @classmethod
    def layout(cls, config: Mapping[str, Any]) -> Layout:
        model, own, features = config["model"], config["features"], _features(config)
        if any(i > model["layers"] for i in features.layers):
            raise ValueError(f"features.layers: the model has layers 0 to {model['layers']}")
        size = features.size(model["layers"], model["width"])
        if not size or size != own["inputs"]:
            raise ValueError(f"features.inputs is {own['inputs']}, the features are {size} numbers")
        single, stored = (torch.float32,), (torch.float16, torch.float32)
        return {
            **{name: (shape, stored) for name, shape in shapes(size, own["hidden"]).items()},
            **dict.fromkeys(("mean", "std"), ((size,), single)),
            **{f"calibration.{n}": ((-1,), single) for n in ("scores", "semantic")},
            "calibration.groups": ((-1,), (torch.int64,)),
        }

    def check_content(self) -> None:
        if not bool((self.tensors["std"] > 0).all()):
            raise ValueError("std is not above 0 everywhere")
        if len({len(column) for column in self.calibration}) != 1:
            raise ValueError("the calibration's columns differ in length")
        if not self._folded.finite:
            raise ValueError("weights and std give numbers that are not finite")

    @classmethod
    def example(cls, role: str = "target", features: str = "paper") -> Self:
        plus = features == "plus"
        pooling = ["mean", "max", "last"] if plus else ["mean"]
        layers = [EXAMPLE.layers] if features == "last_layer" else []
        rows = len(layers) or EXAMPLE.layers + 1
        size, hidden = len(pooling) * rows * EXAMPLE.width + plus * len(LOGPROB_NAMES), (3, 2)
        rng = torch.Generator().manual_seed(len(role))
        made = {n: 0.3 * torch.randn(s, generator=rng) for n, s in shapes(size, hidden).items()}
        made |= {"mean": torch.randn(size, generator=rng), "std": torch.ones(size)}
        count = 400  # steps, all of them right: a risk can be certified
        made |= {
            "calibration.scores": torch.linspace(0.3, 1, count),
            "calibration.semantic": torch.ones(count),
            "calibration.groups": torch.arange(count),
        }
        own = {"pooling": pooling, "layers": layers, "logprobs": plus}
        config = cls.config_of(
            role=role,
            model=binding.of(EXAMPLE),
            split="paragraph",
            temperature={"sampled": 0.6, "lowest": 0.0, "highest": 1.0},
            features=own | {"inputs": size, "hidden": list(hidden), "activation": "relu"},
            calibration={"temperature": 1.0},
            data={"source": "embedded"},
            training={},
            metrics={"test": {"all": {"spearman": 0.5, "r2": None}}},
        )
        return cls(config, made)

    def figures(self) -> Mapping[str, float]:
        test = self.config["metrics"].get("test", {}).get("all", {})
        return {k: test[k] for k in self.listed if test.get(k) is not None}

    # ---- what it is bound to ------------------------------------------------------------------

    @property
    def role(self) -> str:
        return str(self.config["role"])

    @cached_property
    def digest(self) -> str:
        """Return a digest that is equal for probes that give equal scores, whatever their names."""
        hashed = hashlib.sha256(dumps(self.config["features"] | {"guard": self.guard}).encode())
        for name in (*NAMES, "mean", "std"):
            tensor = self.tensors[name].float().contiguous()
            hashed.update(f"{name} {list(tensor.shape)}".encode())
            hashed.update(tensor.numpy().tobytes())
        return hashed.hexdigest()[:16]

    @property
    def calibration(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores, semantic probabilities and problem numbers of held-out steps."""
        return tuple(self.tensors[f"calibration.{n}"] for n in ("scores", "semantic", "groups"))  # type: ignore[return-value]

    def _on(self, device: torch.device) -> Folded:
        if device not in self._copies:
            self._copies[device] = self._folded.on(device)
        return self._copies[device]

    # ---- scoring ------------------------------------------------------------------------------

    def reads(self, spans: Spans) -> tuple[Read, ...]:
        """Return the reads of a query that scores these steps."""
        return self._reads(tuple((start, end) for start, end in spans))

    def _reads(self, spans: tuple[tuple[int, int], ...]) -> tuple[Read, ...]:
        pooled = pools(self.features, spans)
        return (*pooled, LOGPROBS) if self.features.logprobs else pooled

    def draft_reads(self) -> tuple[Read, ...]:
        """Return the reads of a query that generates the steps."""
        return self._generating

    def score(self, values: Mapping[Read, Any], reads: Sequence[Read], spans: Spans) -> Tensor:
        """Return the probability of each step's meaning [steps], float32.

        ``reads`` are those that ``values`` answers: ``reads(spans)`` or ``draft_reads()``.
        """
        count, parts = len(spans), []
        rows: list[list[float]] = []
        with torch.inference_mode():
            for read in reads:
                if read.what is not What.POOLED:
                    continue
                # without a generated tail that is not a unit of the draft
                parts.append(values[read][:count].reshape(count, self._block))
            if self.features.logprobs:
                logprobs = values[LOGPROBS].tolist()
                rows = [of_logprobs(logprobs[a:b]) for a, b in spans]
                parts.append(torch.tensor(rows, device=values[LOGPROBS].device))
            x = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
            return self._guarded(self._on(x.device)(x.float()), rows)

    def begin(self, states: Sequence[Tensor]) -> Tensor:
        """Return the first layer's sums over the states [steps, hidden], before ``finish``.

        ``states`` [steps, layers, width] may be on any device; ``finish`` adds the features that are
        not states, elsewhere and later. Together they are ``score`` in two halves.
        """
        with torch.inference_mode():
            x = torch.cat([s.reshape(len(s), self._block) for s in states], 1).float()
            return self._on(x.device).begin(x)

    def finish(self, hidden: Tensor, logprobs: Sequence[Sequence[float]]) -> Tensor:
        """Return scores from the sums of ``begin`` and each step's log-probabilities, if the probe reads them."""
        with torch.inference_mode():
            folded = self._on(hidden.device)
            if not self.features.logprobs:
                return self._checked(folded.finish(hidden))
            rows = [of_logprobs(step) for step in logprobs]
            further = torch.tensor(rows, device=hidden.device)
            return self._guarded(folded.finish(folded.rest(hidden, further)), rows)

    def of_rows(self, rows: Tensor) -> Tensor:
        """Return scores of features that are assembled already [rows, features]."""
        with torch.inference_mode():
            scores = self._on(rows.device)(rows.float())
            if self.features.logprobs:
                lowest = rows[:, rows.shape[1] - len(LOGPROB_NAMES)]
                scores[lowest < self.guard] = 0.0
            return self._checked(scores)

    def _guarded(self, scores: Tensor, rows: Sequence[Sequence[float]]) -> Tensor:
        """Set the score to 0 for steps with a token unlike any in the training data; check the scores."""
        if beyond := [unit for unit, row in enumerate(rows) if row[0] < self.guard]:
            scores[beyond] = 0.0
        return self._checked(scores)

    def _checked(self, scores: Tensor) -> Tensor:
        """Return the scores; raise UserError if one is NaN, before it decides anything."""
        if bool(scores.isnan().any()):
            raise UserError(
                f"probe {self.name} scores a step with NaN: its weights overflow on this model's"
                " states; take another probe, or train one with python -m semspec.train_probe"
            )
        return scores


def pools(features: Features, spans: tuple[tuple[int, int], ...]) -> tuple[Read, ...]:
    """Return the reads of the states of these features."""
    return tuple(
        Read(What.POOLED, layers=features.layers, spans=spans, reduce=p)  # type: ignore[arg-type]
        for p in features.pooling
    )


def _features(config: Mapping[str, Any]) -> Features:
    own = config["features"]
    return Features(tuple(own["pooling"]), tuple(own["layers"]), bool(own["logprobs"]))
