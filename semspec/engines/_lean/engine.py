"""The hf engine: it answers batches of queries and keeps a session per context."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from semspec.engines._lean.cache import Cache
from semspec.engines._lean.generate import generate
from semspec.engines._lean.jobs import Job
from semspec.engines._lean.model import Model
from semspec.engines._lean.passes import feed
from semspec.engines._lean.rows import FROM_LOGITS
from semspec.engines._lean.session import Session
from semspec.engines._lean.step import Step
from semspec.errors import UserError
from semspec.models import memory
from semspec.models.spec import read_spec
from semspec.models.weights import read_weights
from semspec.types import Answer, Context, Query, What


class HfEngine:
    """Answers queries with a model in transformers' format; keeps one session per context."""

    offers = frozenset(What) - {What.SCORE}  # of a language model; a classifier offers less

    def __init__(
        self, folder: Path, dtype: torch.dtype, device: torch.device, max_context: int, chunk: int
    ) -> None:
        spec = read_spec(folder, max_context)
        with torch.inference_mode():
            self.model = Model(spec, read_weights(folder, spec, dtype, device))
            self.cache = Cache(spec, dtype, device)
            lean = device.type == "cpu" and dtype == torch.float32
            self._step = Step(self.model) if lean else None
        if spec.classifier:
            self.offers = self.offers - FROM_LOGITS
        self.chunk = chunk
        self.vocabulary, self.context_limit = spec.vocabulary, spec.context_limit
        self.stop_ids, self.layers, self.width = spec.stop_ids, spec.layers, spec.width
        self._sessions: dict[int, Session] = {}

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        """Answer a batch; queries on the same context run one after the other."""
        if len(queries) == 1:
            with torch.inference_mode():
                return self._wave(queries)
        waves: defaultdict[int, list[int]] = defaultdict(list)
        turns: Counter[int] = Counter()
        for i, query in enumerate(queries):
            waves[turns[query.context.key]].append(i)
            turns[query.context.key] += 1
        answers: dict[int, Answer] = {}
        with torch.inference_mode():
            for wave in waves.values():
                answers.update(zip(wave, self._wave([queries[i] for i in wave]), strict=True))
        return [answers[i] for i in range(len(queries))]

    def _wave(self, queries: Sequence[Query]) -> list[Answer]:
        started = time.perf_counter()
        jobs = [Job(query, self._session(query), self.model) for query in queries]
        passing = [job for job in jobs if job.query.passes]
        for job in passing:
            job.begin(self.cache)
        feed(passing, self.model, self._step, self.cache, self.chunk)
        writing = [job for job in passing if job.query.generate]
        waited_for = len(writing) < len(passing)
        generate(writing, self.model, self._step, self.cache, self.stop_ids, waited_for)
        for job in jobs:
            job.answer.values = job.reader.values()
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        seconds = time.perf_counter() - started
        for job in jobs:
            job.answer.seconds = seconds
        return [job.answer for job in jobs]

    def _session(self, query: Query) -> Session:
        key = query.context.key
        if key not in self._sessions:
            self._sessions[key] = Session(query.context)
            self.cache.admit(self._sessions[key])
        return self._sessions[key]

    def forget(self, context: Context) -> None:
        if (session := self._sessions.pop(context.key, None)) is not None:
            self.cache.evict(session)

    def close(self) -> None:
        """Free the cache; the engine stays usable and starts afresh."""
        self._sessions.clear()
        self.cache = Cache(self.model.spec, self.model.dtype, self.model.device)

    def session_bytes(self, positions: int) -> int:
        """Return the memory that a context of so many tokens may take."""
        return self.cache.session_bytes(positions)

    def free_bytes(self) -> int:
        """Return how many bytes of the engine's device are free, with all present caches counted as taken."""
        device = self.model.device
        if device.type != "cuda":
            return memory.available()
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))

    def memory_bytes(self) -> dict[str, int]:
        """Return the bytes that ``weights`` and ``cache`` occupy."""
        return {"weights": self.model.bytes(), "cache": self.cache.bytes()}


def resolve(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """Return the device and dtype that these options name; raise UserError if unknown."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        where = torch.device(device)
    except RuntimeError as e:
        raise UserError(f"unknown device '{device}': choose auto, cpu or cuda") from e
    if where.type not in ("cpu", "cuda"):
        raise UserError(f"engine=hf runs on cpu and cuda, not on '{device}'")
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise UserError(f"this machine has no device {device}: choose device=auto or device=cpu")
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    types["auto"] = types["bf16" if where.type == "cuda" else "fp32"]
    if dtype not in types:
        raise UserError(f"unknown dtype '{dtype}': choose auto, fp32 or bf16")
    return where, types[dtype]
