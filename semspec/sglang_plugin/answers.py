"""What drafters inside SGLang can read of the target: embeddings, and rows of its passes.

A verifying pass has logits for every drafted node. For a prompt SGLang computes only the last row; in its other
rows, the actual next token stands in for the most likely ones. States are those of the last layer after the final
norm, if the server keeps them (``--enable-return-hidden-states``). States of prompt tokens from the prefix cache
were never computed; they read as zeros and match nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from semspec.decoding.trim import along
from semspec.drafters.adapld import AdaPld
from semspec.errors import UserError
from semspec.sglang_plugin import compat_speculative as compat
from semspec.types import Answer, Query, Read, Seen, What

if TYPE_CHECKING:
    from semspec.sglang_plugin.drafts import Session


def without_missing_reads(drafter: Any, runner: Any) -> Any:
    """Return AdaPLD on the last layer's states, or unranked if the server keeps none; return other drafters unchanged."""
    if not isinstance(drafter, AdaPld) or not drafter.ranked:
        return drafter
    if drafter.layer not in (0, -1):
        raise UserError(
            f"adapld: layer={drafter.layer}: SGLang keeps only the last layer's states:"
            " leave layer out"
        )
    if not compat.keeps_states(runner):
        return replace(drafter, ranked=False)
    return replace(drafter, layer=-1)


class Rows:
    """Collects what the drafters of one worker's requests read from its passes."""

    def __init__(self, reads: Sequence[Read], runner: Any) -> None:
        self.runner, self.width, self.reads = runner, compat.width(runner), tuple(reads)
        self.hidden = next((read for read in reads if read.what is What.HIDDEN), None)
        self.top = next((read for read in reads if read.what is What.TOP_K), None)
        self._kept: tuple[dict[str, int], int, dict[Read, Tensor]] | None = None

    def keep(self, rids: Sequence[str], n: int, logits: Tensor, states: Tensor | None) -> None:
        """Store what is read of a verifying pass over trees of n nodes, until ``settle``."""
        values: dict[Read, Tensor] = {}
        if self.top is not None:
            values[self.top] = logits.topk(self.top.k, -1).indices
        if self.hidden is not None and states is not None:
            values[self.hidden] = states
        self._kept = {rid: i for i, rid in enumerate(rids)}, n, values

    def settle(self, rids: Sequence[str], sessions: Sequence[Session]) -> None:
        """Show each session the rows along its accepted path, with one device copy for all sessions."""
        if self._kept is None:
            return
        (places, n, values), self._kept = self._kept, None
        index: list[int] = []
        shown: list[tuple[Session, int]] = []
        for rid, session in zip(rids, sessions, strict=True):
            tree = session.tree
            if rid not in places or tree is None:  # the id belonged to another request before
                continue
            assert tree.parents is not None
            gained = session.context.tokens[session.root :]
            way = [0, *(node + 1 for node in along(tree.tokens, tree.parents, gained))]
            way = way[: len(gained)]
            index += [places[rid] * n + node for node in way]
            shown.append((session, len(way)))
        if not index:
            return
        read = {
            key: rows.index_select(0, compat.on(index, rows.device)).cpu()
            for key, rows in values.items()
        }
        at = 0
        for session, count in shown:
            part = slice(at, at + count)
            session.drafting.see(Seen(session.root - 1, count, self._values(read, part, count)))
            at += count

    def _values(self, read: dict[Read, Tensor], part: slice, count: int) -> dict[Read, Any]:
        values: dict[Read, Any] = {}
        if self.top is not None:
            values[self.top] = (read[self.top][part], None)
        if self.hidden is not None:
            states = read.get(self.hidden)
            rows = torch.zeros(count, self.width) if states is None else states[part].float()
            values[self.hidden] = rows[:, None]
        return values

    def answer(self, query: Query, session: Session) -> Answer:
        """Answer a query for token embeddings, or for the rows before the first draft."""
        if all(read.what is What.EMBEDDINGS for read in query.reads):
            ids = compat.on(list(query.tokens), compat.device(self.runner))
            rows = compat.embeddings(self.runner)(ids).cpu()
            return Answer(values=dict.fromkeys(query.reads, rows))
        assert query.rows_from is not None
        first, after = query.rows_from, len(query.context) - 1
        values: dict[Read, Any] = {}
        if self.top is not None:
            followed = torch.tensor(query.context.tokens[first + 1 :], dtype=torch.int32)
            values[self.top] = (followed[:, None].expand(-1, self.top.k), None)
        if self.hidden is not None:
            states = torch.zeros(after - first, self.width)
            for start, rows in session.prompt_states:
                low, high = max(start, first), min(start + len(rows), after)
                if low < high:
                    states[low - first : high - first] = rows[low - start : high - start].cpu()
            values[self.hidden] = states[:, None]
        session.prompt_states.clear()
        return Answer(values=values)
