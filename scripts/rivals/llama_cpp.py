"""llama.cpp by way of xllamacpp: llama-server in this process, one for each kind of speculation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import xllamacpp as xlc

from rivals.base import Workload, Written, cut, versions_of
from rivals.gguf_model import write_gguf

TYPE = "COMMON_SPECULATIVE_TYPE_"
DRAFTED = {"draft model": None, "draft model, 5 tokens": 5, "draft model, 10 tokens": 10}
COPIED = {  # as they come
    "ngram-simple": "NGRAM_SIMPLE",
    "ngram-map-k": "NGRAM_MAP_K",
    "ngram-map-k4v": "NGRAM_MAP_K4V",
    "ngram-mod": "NGRAM_MOD",
    "ngram-cache": "NGRAM_CACHE",
}


class LlamaCpp:
    """``numbers``: f32 with an f32 cache, the same numbers as everywhere; q8_0 with the cache as it comes, f16."""

    def __init__(self, workload: Workload, folder: Path, numbers: str) -> None:
        self.name = f"llama.cpp {numbers}"
        self.numbers, self.stop_ids = numbers, workload.stop_ids
        self.context = max(len(p.ids) for p in workload.problems) + workload.limit + 64
        self.target = self._written(workload.target, folder)
        self.draft = self._written(workload.draft, folder) if workload.draft else None
        self.kinds = (*(DRAFTED if workload.draft else ()), *COPIED)
        self.server = cache(self._server)

    def _written(self, model: Path, folder: Path) -> Path:
        file = folder / f"{model.name}-{self.numbers}.gguf"
        if not file.exists():
            write_gguf(model, file, self.numbers)
        return file

    def _server(self, kind: str) -> Any:
        return xlc.Server(self.params(kind))

    def params(self, kind: str) -> Any:
        """Return how a server is started; ``kind`` is "" for one that speculates nothing."""
        params = xlc.CommonParams()
        params.model.path = str(self.target)
        params.hostnames, params.port = ["127.0.0.1"], 0
        params.n_ctx, params.n_parallel, params.n_gpu_layers = self.context, 1, 0
        params.verbosity, params.cache_ram_mib, params.fit_params = -1, 0, False
        parts = [params, params.speculative.draft]
        for part in parts:
            for threads in (part.cpuparams, part.cpuparams_batch):
                threads.n_threads = 1
            if self.numbers == "f32":
                part.cache_type_k = part.cache_type_v = xlc.ggml_type.GGML_TYPE_F32
        if self.numbers == "f32":
            params.flash_attn_type = xlc.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if kind in DRAFTED:
            own = params.speculative.draft
            own.mparams.path, own.n_gpu_layers = str(self.draft), 0
            if (length := DRAFTED[kind]) is not None:
                own.n_max, own.p_min = length, 0.0
            params.speculative.types = [_speculative("DRAFT_SIMPLE")]
        elif kind:
            params.speculative.types = [_speculative(COPIED[kind])]
        return params

    def versions(self) -> Mapping[str, str]:
        return versions_of("xllamacpp")

    def plain(self, ids: Sequence[int], limit: int) -> Written:
        return self._complete("", ids, limit)

    def speculative(self, kind: str, ids: Sequence[int], limit: int) -> Written:
        return self._complete(kind, ids, limit)

    def _complete(self, kind: str, ids: Sequence[int], limit: int) -> Written:
        asked = {
            "prompt": list(ids),
            "n_predict": limit,
            "temperature": 0.0,
            "samplers": ["top_k"],
            "top_k": 1,
            "cache_prompt": False,
            "return_tokens": True,
        }
        reply = self._post(self.server(kind).listening_address, asked)
        if "tokens" not in reply:
            raise RuntimeError(f"{self.name}, {kind or 'plain'}: {str(reply)[:200]}")
        found, ended = cut(reply["tokens"], self.stop_ids, limit)
        ended = ended or reply.get("stop_type") == "eos"
        timings = reply.get("timings", {})
        passes = len(found) + ended - timings.get("draft_n_accepted", 0)
        return Written(found, ended, passes)

    def _post(self, address: str, asked: Mapping[str, Any]) -> Any:
        """Ask the server in this process: what it offers without HTTP returns no token ids."""
        connection = HTTPConnection(address.removeprefix("http://"))
        try:
            connection.request("POST", "/completion", json.dumps(asked))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def close(self) -> None:
        self.server.cache_clear()


def _speculative(name: str) -> Any:
    return getattr(xlc.common_speculative_type, TYPE + name)
