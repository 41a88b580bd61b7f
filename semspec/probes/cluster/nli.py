"""``nli``: clustering by bidirectional entailment, many contexts at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from semspec.deferred import torch
from semspec.errors import UserError
from semspec.models.location import ModelConfig
from semspec.probes.cluster.entailment import Entailment
from semspec.probes.cluster.greedy import Item, lockstep
from semspec.probes.cluster.published import fetched


@dataclass(kw_only=True)
class Nli:
    """Steps that entail each other after their context, by an MNLI model."""

    model: ModelConfig | str = ""  # embedded/tiny-nli, a folder, or a Hub repository
    revision: str | None = None
    device: str = "cpu"  # auto: a GPU if there is one
    batch_size: int = 64  # pairs in a forward pass
    lanes: int = 256  # contexts that are open at once
    progress: Callable[[int], object] | None = None  # called with the number of finished contexts

    def __post_init__(self) -> None:
        if not self.model:
            raise UserError(
                "cluster=nli needs a model: give cluster.model=embedded/tiny-nli for the"
                " embedded task, or microsoft/deberta-v2-xlarge-mnli (the paper's) for"
                " other text"
            )
        for name in ("batch_size", "lanes"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)}: give at least 1")

    @cached_property
    def entailment(self) -> Entailment:
        """Return the model, loaded on first use."""
        return self._load()

    def try_out(self) -> None:
        """Load the model, have it judge a pair, and free it; raise UserError if that fails."""
        self._load(tried=True)
        if torch.cuda.is_available():  # servers will start on the GPU
            torch.cuda.empty_cache()

    def _load(self, tried: bool = False) -> Entailment:
        place = self.model
        if isinstance(place, str):
            place = ModelConfig(path=place, revision=self.revision)
        return Entailment.load(
            fetched(place), device=self.device, batch_size=self.batch_size, tried=tried
        )

    def cluster(self, context: str, steps: Sequence[str]) -> list[int]:
        return next(self.cluster_many([(context, steps)]))

    def cluster_many(self, items: Iterable[Item]) -> Iterator[list[int]]:
        return lockstep(items, self.entailment.both_ways, self.lanes, self.progress)
