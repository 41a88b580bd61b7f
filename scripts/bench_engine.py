"""Measure engine=hf on one model folder: decoding, scoring and long contexts, beside transformers.

    python scripts/bench_engine.py path/to/model [--tokens 64] [--contexts 256 1024 2048]

Random weights will do: the cost of a pass does not depend on their values.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from semspec.engines._lean.engine import HfEngine
from semspec.engines.hf import Hf
from semspec.errors import UserError
from semspec.types import Context, Generate, Query, Read, Sampling, What

GREEDY = Sampling(temperature=0.0)
CONTEXTS = (256, 1024, 2048, 4096, 8192)


def bench_engine(
    folder: Path,
    *,
    tokens: int = 64,
    repeats: int = 5,
    contexts: Sequence[int] = CONTEXTS,
    batches: Sequence[int] = (4, 8),
    reference: bool = True,
    options: Hf | None = None,
) -> dict[str, Any]:
    """Measure one model in milliseconds: the lowest of several runs, since other work can only add to it.

    For contexts beyond its limit, a copy of the model has a higher limit.
    """
    with tempfile.TemporaryDirectory() as temporary:
        at = _roomy_copy(folder, Path(temporary), max([*contexts, 512]) + tokens + 1)
        options = options or Hf()
        options.load(str(at)).close()  # keeps imports out of the measurement
        started = time.perf_counter()
        engine = options.load(str(at))
        load = time.perf_counter() - started
        prompts = [random_tokens(engine, 64 + 16 * i, i) for i in range(max([1, *batches]))]

        def decode(sampling: Sampling, batch: int = 1) -> float:
            return _least(repeats, partial(_decode, engine, prompts[:batch], sampling, tokens))

        greedy, sampled = decode(GREEDY), decode(Sampling(temperature=0.6))
        score = {n: _least(repeats * 4, partial(_score, engine, n)) for n in (20, 40, 80)}
        batch_token = {batch: decode(GREEDY, batch) for batch in batches}
        engine.close()
        at_length = {n: _at_length(engine, n, tokens, repeats) for n in contexts}
        memory = engine.memory_bytes()
        return {
            "load": 1e3 * load,
            "token_greedy": greedy,
            "token_sampled": sampled,
            "token_transformers": _transformers(at, engine, prompts[0], tokens)
            if reference
            else None,
            "score": score,  # by number of tokens
            "token_at": {n: token for n, (token, _) in at_length.items()},  # by context length
            "prefill_at": {n: prefill for n, (_, prefill) in at_length.items()},
            "batch_token": batch_token,  # by batch size, for each token of each member
            "weights_mb": memory["weights"] / 1e6,
            "cache_mb": memory["cache"] / 1e6,
            "threads": torch.get_num_threads(),
        }


def _least(repeats: int, run: Callable[[], float]) -> float:
    """Return the lowest of several runs' seconds, in milliseconds."""
    return 1e3 * min(run() for _ in range(repeats))


def _roomy_copy(folder: Path, into: Path, positions: int) -> Path:
    """Return the folder itself, or one with its weights and a higher limit of positions."""
    path = folder / "config.json"
    if not path.exists():
        raise UserError(f"no config.json in {folder}: give the folder of a model")
    config = json.loads(path.read_text())
    if config.get("max_position_embeddings", 0) >= positions:
        return folder
    for file in folder.iterdir():
        if file.is_file():
            (into / file.name).symlink_to(file.resolve())
    (into / "config.json").unlink()
    (into / "config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))
    return into


def random_tokens(engine: HfEngine, count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    usable = [i for i in range(min(engine.vocabulary, 10_000)) if i not in engine.stop_ids]
    return rng.choices(usable, k=count)


def _query(context: Context, sampling: Sampling, generate: Generate | None = None) -> Query:
    return Query("target", context, sampling, random.Random(0), generate=generate)


def _generate(
    engine: HfEngine, contexts: Sequence[Context], sampling: Sampling, tokens: int
) -> float:
    """Return seconds per token of one context; nothing stops early, so that every run has the same length."""
    stop_ids, engine.stop_ids = engine.stop_ids, frozenset()
    answers = engine.answer([_query(one, sampling, Generate(tokens)) for one in contexts])
    engine.stop_ids = stop_ids
    return answers[0].seconds / tokens / len(contexts)


def _decode(
    engine: HfEngine, prompts: Sequence[Sequence[int]], sampling: Sampling, tokens: int
) -> float:
    """Return seconds per token of each of several short, cached contexts."""
    contexts = [Context(i, prompt) for i, prompt in enumerate(prompts)]
    engine.answer([_query(context, sampling) for context in contexts])
    seconds = _generate(engine, contexts, sampling, tokens)
    for context in contexts:
        engine.forget(context)
    return seconds


def _score(engine: HfEngine, count: int) -> float:
    """Return the seconds for scoring this many drafted tokens after a cached context of 256."""
    context, draft = Context(0, random_tokens(engine, 256)), random_tokens(engine, count, 1)
    query = _query(context, Sampling(temperature=0.6))
    engine.answer([query])
    query.tokens, query.reads = draft, (Read(What.PROBS),)
    seconds = engine.answer([query])[0].seconds
    engine.forget(context)
    return seconds


def _at_length(engine: HfEngine, length: int, tokens: int, repeats: int) -> tuple[float, float]:
    """Return milliseconds per token after a context of this length, and for reading that context."""
    context = Context(0, random_tokens(engine, length))
    prefill = engine.answer([_query(context, GREEDY)])[0].seconds
    token = _least(repeats, lambda: _generate(engine, [context], GREEDY, min(tokens, 32)))
    engine.forget(context)
    return token, 1e3 * prefill


def _transformers(at: Path, engine: HfEngine, prompt: Sequence[int], tokens: int) -> float:
    """Measure the same greedy decoding with transformers' generate and its dynamic cache."""
    from transformers import AutoModelForCausalLM

    where, dtype = engine.model.device, engine.model.dtype
    model: Any = AutoModelForCausalLM.from_pretrained(at, dtype=dtype)
    model = model.to(where).eval()
    ids = torch.tensor([list(prompt)], device=where)

    def run(count: int) -> float:
        started = time.perf_counter()
        lengths = {"min_new_tokens": count, "max_new_tokens": count}
        mask = torch.ones_like(ids)
        model.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, **lengths)
        return time.perf_counter() - started

    with torch.inference_mode():
        run(2)
        # the prompt's own pass cancels out
        return 1e3 * statistics.median((run(tokens) - run(1)) / (tokens - 1) for _ in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--contexts", type=int, nargs="*", default=list(CONTEXTS))
    parser.add_argument("--no-reference", action="store_true", help="skip transformers")
    given = parser.parse_args()
    try:
        result = bench_engine(
            given.folder,
            tokens=given.tokens,
            contexts=given.contexts,
            reference=not given.no_reference,
        )
    except UserError as e:
        print(e, file=sys.stderr)
        sys.exit(2)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
