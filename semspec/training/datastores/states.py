"""Read the target's last hidden states over documents, a few at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count

import numpy as np
from numpy.typing import NDArray

from semspec.protocols import Engine
from semspec.training.datastores.corpus import Document
from semspec.training.probes.settings import ProbeConfig
from semspec.types import LAST_STATES, Context, Query, Sampling

AT_A_TIME = 8  # documents in a pass
LARGEST = float(np.finfo(np.float16).max)  # large models exceed it in a few dimensions


class StateReader:
    """Reads the target's states; loads the target when it is first needed."""

    def __init__(self, config: ProbeConfig) -> None:
        self.config = config
        self._keys = count(1)

    @cached_property
    def engine(self) -> Engine:
        engine: Engine = self.config.engine.load(str(self.config.model.fetch()))
        return engine

    @property
    def limit(self) -> int:
        """The most tokens of a document that the target can read."""
        return self.engine.context_limit

    def of(self, documents: Sequence[Document]) -> Iterator[NDArray[np.float32]]:
        """Yield for each document with an answer its states [n, width]; row i precedes answer token i."""
        limit = self.limit
        whole = [d for d in documents if min(len(d.tokens), limit) > max(d.given, 1)]
        for start in range(0, len(whole), AT_A_TIME):
            queries = []
            for document in whole[start : start + AT_A_TIME]:
                tokens, given = document.tokens[:limit], max(document.given, 1)
                context = Context(next(self._keys), tokens[:given])
                query = Query("target", context, Sampling(0.0), random.Random(0))
                query.tokens, query.reads = tokens[given:-1], (LAST_STATES,)
                queries.append(query)
            for query, answer in zip(queries, self.engine.answer(queries), strict=True):
                self.engine.forget(query.context)
                rows: NDArray[np.float32] = answer[LAST_STATES][:, 0].float().numpy(force=True)
                yield rows.clip(-LARGEST, LARGEST)

    def close(self) -> None:
        if "engine" in vars(self):  # it was loaded
            self.engine.close()
