"""``nli``: clustering by bidirectional entailment, many contexts at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from semspec.errors import UserError
from semspec.models.location import ModelConfig
from semspec.probes.cluster.entailment import Entailment
from semspec.probes.cluster.greedy import Item, lockstep


@dataclass(kw_only=True)
class Nli:
    """Steps that entail each other after their context, by an MNLI model."""

    model: ModelConfig | str = ""  # embedded/tiny-nli, a folder, or a Hub repository
    revision: str | None = None
    device: str = "cpu"
    batch_size: int = 64  # pairs in a forward pass
    lanes: int = 256  # contexts that are open at once
    progress: Callable[[int], object] | None = None  # called with the number of finished contexts

    def __post_init__(self) -> None:
        if not self.model:
            raise UserError(
                "cluster=nli needs a model: embedded/tiny-nli for the embedded task, "
                "microsoft/deberta-v2-xlarge-mnli (the paper's) for other text"
            )
        for name in ("batch_size", "lanes"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)}: give at least 1")

    @cached_property
    def entailment(self) -> Entailment:
        """The model, loaded on first use."""
        place = self.model
        if isinstance(place, str):
            place = ModelConfig(path=place, revision=self.revision)
        return Entailment.load(place.fetch(), device=self.device, batch_size=self.batch_size)

    def cluster(self, context: str, steps: Sequence[str]) -> list[int]:
        return next(self.cluster_many([(context, steps)]))

    def cluster_many(self, items: Iterable[Item]) -> Iterator[list[int]]:
        return lockstep(items, self.entailment.both_ways, self.lanes, self.progress)
