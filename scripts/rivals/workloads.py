"""The problems that all engines are given: of the embedded pair, of the embedded copier, and of a real model."""

from __future__ import annotations

from itertools import islice

from rivals.base import Problem, Workload
from semspec.config import build, compose
from semspec.models.location import ModelConfig
from semspec.models.spec import read_stop_ids
from semspec.models.text import Text

CORRECTIONS = "benchmark.data=conf/experiment/ours/corrections.jsonl"
EDITS = "benchmark.data=conf/experiment/ours/edits.jsonl"
KNOWN: dict[
    str, tuple[str, tuple[str, ...], int, bool]
] = {  # title, options, limit, has a draft model
    "reasoning": (
        "Reasoning problems of the embedded world, the embedded pair",
        ("model=tiny", "benchmark=synthetic", "benchmark.seed=20261123"),
        300,
        True,
    ),
    "editing": (
        "A list written again with one value changed, the embedded copier",
        ("model=tiny-copier", "benchmark=editing", "benchmark.seed=20261123"),
        300,
        False,
    ),
    "corrections": (
        "A paragraph written again with a word corrected, SmolLM2-135M",
        ("model=smollm2-135m", "benchmark=alpaca", CORRECTIONS),
        160,
        False,
    ),
    "edits": (
        "A function written again with one line replaced, SmolLM2-135M",
        ("model=smollm2-135m", "benchmark=alpaca", EDITS),
        320,
        False,
    ),
}
EMBEDDED = ("reasoning", "editing")  # need no package with a model
REAL = 4  # problems of the others: an answer takes many seconds


def workload(name: str, problems: int, limit: int | None = None) -> Workload:
    """Return the first problems of a workload, with the ids that its target's tokenizer makes of them.

    ``limit``: tokens an answer; None: as many as the workload has.
    """
    title, options, own_limit, drafted = KNOWN[name]
    problems = min(problems, REAL if name not in EMBEDDED else problems)
    config = build(compose(["draft=none", "split=token", "accept=lossless", *options]))
    folder = config.model.fetch()
    text = Text(str(folder), thinking=config.model.thinking)
    stops = sorted(read_stop_ids(folder) | text.stop_ids)
    chosen = tuple(
        Problem(p.id, p.question, tuple(text.prompt(p.question, p.system)[1]))
        for p in islice(config.benchmark.problems(), problems)
    )
    draft = ModelConfig(path="embedded/tiny-draft").fetch() if drafted else None
    model = options[0].removeprefix("model=")
    return Workload(name, title, model, folder, draft, tuple(stops), limit or own_limit, chosen)
