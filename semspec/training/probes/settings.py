"""The options of ``python -m semspec.train_probe``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from omegaconf import MISSING

from semspec import world
from semspec.config import Decoding
from semspec.models.location import ModelConfig
from semspec.types import Role

Pooling = Literal["mean", "max", "last"]
POOLINGS: tuple[Pooling, ...] = ("mean", "max", "last")


@dataclass(kw_only=True)
class ClusterOptions:
    """How samples of the same meaning are found."""

    name: str = MISSING


@dataclass(kw_only=True)
class Nli(ClusterOptions):
    """Bidirectional entailment by an NLI model (the paper's way)."""

    name: str = "nli"
    model: str = ""  # "": by the source, the embedded one or DeBERTa
    revision: str | None = None
    device: str = "auto"  # a GPU if there is one
    batch_size: int = 64  # pairs in a pass


@dataclass(kw_only=True)
class OracleClusters(ClusterOptions):
    """The embedded world's own meanings (source=embedded only)."""

    name: str = "oracle"


@dataclass(kw_only=True)
class ExactClusters(ClusterOptions):
    """Equal texts only: a lower bound of every semantic probability."""

    name: str = "exact"


@dataclass(kw_only=True)
class FeatureOptions:
    """The features of a step: layers all, last, or a list such as [0,12,24]."""

    pooling: list[str] = field(default_factory=lambda: ["mean"])
    layers: Any = "all"
    logprobs: bool = False


@dataclass(kw_only=True)
class Paper(FeatureOptions):
    """The paper's: states of all layers, averaged over the step's tokens."""


@dataclass(kw_only=True)
class LastLayer(FeatureOptions):
    """The paper's ablation: the last layer's states, averaged."""

    layers: Any = "last"


@dataclass(kw_only=True)
class Plus(FeatureOptions):
    """Mean, maximum and last token of all layers, and the step's token log-probabilities."""

    pooling: list[str] = field(default_factory=lambda: list(POOLINGS))
    logprobs: bool = True


@dataclass(kw_only=True)
class Logprobs(FeatureOptions):
    """The token log-probabilities alone: free, from the same pass."""

    pooling: list[str] = field(default_factory=list)
    logprobs: bool = True


ByName = dict[str, type[Any]]
CLUSTERS: ByName = {"nli": Nli, "oracle": OracleClusters, "exact": ExactClusters}
FEATURES: ByName = {"paper": Paper, "last_layer": LastLayer, "plus": Plus, "logprobs": Logprobs}


@dataclass(kw_only=True)
class ProbeConfig(Decoding):
    """All options that a probe depends on; ``python -m semspec.train_probe --help`` explains each."""

    model: ModelConfig = field(default_factory=ModelConfig)
    draft: Any = MISSING
    engine: Any = MISSING
    role: str = "target"
    folder: str = ""
    out: str = ""
    # 1. contexts
    source: str = "embedded"
    data: str = ""
    revision: str | None = None
    domains: list[str] = field(default_factory=lambda: list(world.DOMAINS))
    definitions: list[int] = field(default_factory=lambda: [3, 7])
    problems: int = 64
    chains: str = "model"
    split: str = "paragraph"
    step_cap: int = 0
    max_new_tokens: int = 512
    per_problem: int = 0
    contexts: int = 0
    # 2. sampling
    samples: int = 20
    keep: int = 0
    writers: str = "auto"
    drafted: int = 4
    temperature: float = 0.6
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    pooling: Any = "auto"  # a list, once composed
    batch: int = 80
    seed: int = 0
    # 3. clustering
    cluster: Any = MISSING
    # 4. training
    label: str = "semantic"
    margin: float = 0.25
    features: Any = MISSING
    train_on: list[str] = field(default_factory=list)
    hidden: list[int] = field(default_factory=lambda: [256, 64])
    activation: str = "relu"
    loss: str = "bce"
    rate: float = 1e-3
    weight_decay: float = 0.05
    dropout: float = 0.1
    epochs: int = 60
    patience: int = 8
    train_batch: int = 128
    train_seed: int = 0
    train_device: str = "auto"
    memory: float = 2.0
    max_temperature: float = 1.0
    quiet: bool = False

    @property
    def probed(self) -> Role:
        """The probed model: ``role``, but the target if there is no draft model."""
        return "draft" if self.role == "draft" and not self.draft.plain else "target"

    @property
    def routes(self) -> bool:
        """True if a router is trained: it predicts the target's advantage over a drafted step."""
        return self.label == "advantage"

    @property
    def both_write(self) -> bool:
        if self.writers == "auto":
            return (self.role == "target" or self.routes) and not self.draft.plain
        return self.writers == "both"

    @property
    def learning(self) -> dict[str, Any]:
        """The perceptron's training options, as an artifact's config records them."""
        names = ("loss", "rate", "weight_decay", "dropout")
        kept = {name: getattr(self, name) for name in names}
        return kept | {"batch": self.train_batch, "seed": self.train_seed}

    def sampled(self) -> dict[str, Any]:
        """Return the options that samples depend on; a folder resumes only with the same ones."""
        names = (
            *("source", "data", "revision", "problems", "chains", "split", "max_new_tokens"),
            *("per_problem", "contexts", "samples", "keep", "temperature", "top_k", "top_p"),
            *("min_p", "pooling", "seed", "role", "batch"),
        )
        kept = {name: getattr(self, name) for name in names}
        kept |= {"model": asdict(self.model), "engine": asdict(self.engine)}
        kept["draft"] = None if self.draft.plain else asdict(self.draft)
        kept |= {"step_cap": self.longest_unit, "drafted": self.drafted if self.both_write else 0}
        if self.source == "embedded":
            kept |= {"domains": list(self.domains), "definitions": list(self.definitions)}
        return kept


def folder_of(config: ProbeConfig) -> Path:
    """Return the folder of a configuration's samples."""
    probed = config.draft.model if config.probed == "draft" else config.model
    name = probed.path.rstrip("/").rpartition("/")[2]
    kind = "router" if config.routes else "probe"
    return Path(config.folder or f"runs/{kind}-{name}-{config.role}")
