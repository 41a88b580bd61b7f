"""A small language model as the drafter: a chain of whole steps or of tokens, or a tree of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from semspec.decoding.entropy import entropies
from semspec.drafters._base import DraftSessionBase
from semspec.drafters._trees import TreeOptions, tree_sampling
from semspec.models.location import ModelConfig
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.types import (
    PROBS,
    Answer,
    Boundary,
    Context,
    Draft,
    Gate,
    Generate,
    Query,
    Read,
    Role,
    Room,
    What,
)


@register("drafter", "lm")
@dataclass(frozen=True, kw_only=True)
class LanguageModel(TreeOptions):
    """A small model samples the next steps (or tokens) with the target's sampling settings."""

    model: ModelConfig = field(default_factory=lambda: ModelConfig(path="embedded/tiny-draft"))

    own_prompt: bool = True  # use its own chat template where the target's marks do not fit

    ahead = True
    rows = True

    def models(self) -> Mapping[Role, ModelConfig]:
        return {"draft": self.model}

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        yield cls()
        for tree in ("static", "dynamic", "sampled"):
            yield cls(tree=tree, tree_depth=3, tree_top_k=3, tree_nodes=9)

    def open(self, kit: Kit) -> LanguageModelSession:
        return LanguageModelSession(kit) if self.tree == "chain" else TreeSession(kit, self)


class LanguageModelSession(DraftSessionBase):
    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        # a greedy draft is a point mass: nothing was sampled, so there is no q to read
        self.reads = tuple(
            read for read in kit.evidence if not (kit.sampling.greedy and read.what is What.PROBS)
        )

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        kit = self.kit
        if kit.gate is not None:
            return (yield from self._gated(kit.gate, context, room))
        own = context, kit.sampling, kit.rng, room.tail
        wanted = Generate(room.limit, kit.boundary(), room.units)
        answer: Answer = yield Query(
            "draft", *own, reads=self.reads, generate=wanted, purpose="draft"
        )
        values = answer.values
        return Draft(answer.tokens, answer.unit_ends(), values.get(PROBS), evidence=values)

    def _gated(self, gate: Gate, context: Context, room: Room) -> Plan[Draft]:
        """Draw a single token wherever the gate looks, and drop it where the gate closes."""
        kit, draft = self.kit, Draft()
        own = context, kit.sampling, kit.rng

        def written(limit: int, boundary: Boundary | None, reads: tuple[Read, ...]) -> Plan[Answer]:
            behind, generate = [*room.tail, *draft.tokens], Generate(limit, boundary)
            answer: Answer = yield Query(
                "draft", *own, behind, reads=reads, generate=generate, purpose="draft"
            )
            return answer

        boundary, begun = kit.boundary(), 0  # ``begun``: where the open unit begins
        while len(draft.tokens) < room.limit and len(draft.ends) < room.units:
            answer = yield from written(1, None, (gate.read,))
            draft.doubts += entropies(gate.read, answer[gate.read])
            if draft.doubts[-1] >= gate.limit:
                draft.halted = True
                break
            draft.tokens += answer.tokens
            if draft.tokens[-1] in kit.stop_ids:
                break
            end = boundary.feed(draft.tokens[-1])
            if end is None and gate.each == "unit" and len(draft.tokens) < room.limit:
                answer = yield from written(room.limit - len(draft.tokens), boundary, ())
                end = answer.ends[0] - len(answer.tokens) if answer.ends else None
                draft.tokens += answer.tokens
                if draft.tokens[-1] in kit.stop_ids:
                    break
            if end is not None:
                begun = len(draft.tokens) + end
                draft.ends.append(begun)
        if begun < len(draft.tokens) and len(draft.ends) < room.units:
            draft.ends.append(len(draft.tokens))  # the limit or an end of text left it open
        return draft


class TreeSession(LanguageModelSession):
    """Grows a tree with one pass per level; its nodes are point masses, or draws from q."""

    def __init__(self, kit: Kit, options: LanguageModel) -> None:
        super().__init__(kit)
        self.options = options
        self.sampling = tree_sampling(kit.sampling)

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        if room.chain:
            return (yield from LanguageModelSession.draft(self, context, room))
        kit, options = self.kit, self.options
        tree = options.seed(kit, room)
        while tree.open:
            tokens, parents = tree.reading()
            own = context, self.sampling, kit.rng, tokens, parents if tokens else None
            # rows of the open nodes only, so that only these go through the model
            start = len(context) + len(tokens) - len(tree.open)
            answer: Answer = yield Query(
                "draft", *own, reads=(PROBS,), rows_from=start, purpose="draft"
            )
            tree.grow(answer[PROBS])
        return options.finished(tree, kit)
