"""Estimate the cost of training a probe before anything is fetched: contexts, tokens, disk and GPU hours.

Lengths that are unknown until the data are cut into steps come from ``ASSUMED``, and the plan says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from semspec.models.memory import Gpu, ModelSize
from semspec.storage.files import parse, whole_lines
from semspec.training.probes.settings import Nli, ProbeConfig
from semspec.training.probes.shards import Plan
from semspec.types import Role

# embedded world?: steps of a chain, tokens of a step (False: as in s1K, cut into paragraphs)
ASSUMED: Mapping[bool, tuple[int, int]] = {False: (125, 40), True: (8, 20)}
# memory bandwidth in bytes a second, which bounds decoding; by a part of the GPU's name
READ: Mapping[str, float] = {
    "B200": 8.0e12, "H200": 4.8e12, "H100": 3.35e12, "A100": 2.0e12, "4090": 1.0e12,
    "3090": 0.94e12, "L40": 0.86e12, "A10": 0.6e12, "L4": 0.3e12,
}  # fmt: skip
USUAL = "H100"
REACHED = 0.5  # share of that bandwidth that decoding reaches
COMPUTE = 50e12  # operations a second that an entailment model reaches
NLI_PARAMETERS, NLI_TOKENS, COMPARED = 0.9e9, 512, 3  # DeBERTa's; of a pair; pairs per sample
SMALLEST = 1 << 30  # bytes of weights; hours of smaller models mean nothing


@dataclass(frozen=True)
class Cost:
    """The amount of work of one training."""

    work: Plan
    known: bool  # whether the chains exist; otherwise lengths are assumed
    read: int  # tokens of the chains
    context: float  # mean tokens of a context: half a chain
    own: int  # tokens that the probed model writes
    other: int  # tokens that the other model writes
    pairs: int  # pairs of samples that an entailment model compares

    def by_model(
        self, sizes: Mapping[Role, ModelSize], probed: Role, batch: int, gpu: str
    ) -> dict[Role, float]:
        """Estimate each model's GPU hours: each batched decoding pass reads the weights and all KV caches."""
        rate = READ[gpu] * REACHED
        hours: dict[Role, float] = {}
        for role, size in sizes.items():
            written = self.own if role == probed else self.other
            if not written:  # the model is not used
                continue
            passes = written / batch
            decoding = passes * (size.weights + batch * self.context * size.token) / rate
            reading = self.read * size.weights / COMPUTE  # two operations for two bytes
            hours[role] = (decoding + reading) / 3600
        return hours

    def judging(self) -> float:
        """Return the entailment model's GPU hours: each pair is judged in both directions."""
        return self.pairs * 2 * NLI_PARAMETERS * 2 * NLI_TOKENS / COMPUTE / 3600


def known_gpu(gpus: Sequence[Gpu]) -> str:
    """Return this machine's GPU by its name in ``READ``, or ``USUAL``."""
    return next((name for name in READ if gpus and name in gpus[0].name), USUAL)


def estimate(config: ProbeConfig, chains: Path, layers: int, width: int) -> Cost:
    """Return the cost of a configuration; lengths come from the file ``chains`` if an earlier start wrote it."""
    lengths = [_lengths(line) for line in whole_lines(chains)] if chains.exists() else []
    known = bool(lengths)
    steps, step = ASSUMED[config.source == "embedded"]
    if not known:
        lengths = [[step] * steps] * config.problems
    tokens = sum(map(sum, lengths))
    per_step = tokens / max(1, sum(map(len, lengths)))
    contexts = sum(min(len(one), config.per_problem or len(one)) for one in lengths)
    contexts = min(contexts, config.contexts or contexts)
    kept = min(config.keep or config.samples, config.samples) if config.pooling else 0
    drafted = config.drafted if config.both_write else 0
    work = Plan(contexts, config.samples, kept, drafted, len(config.pooling), layers, width)
    writes = not known and config.chains in ("answers", "mixed", "model") and (
        config.source == "embedded" or config.chains == "answers"
    )  # fmt: skip
    compares = isinstance(config.cluster, Nli)
    return Cost(
        work=work,
        known=known,
        read=tokens,
        context=tokens / max(1, len(lengths)) / 2,
        own=round(contexts * config.samples * per_step) + tokens * writes,
        other=round(contexts * drafted * per_step),
        pairs=contexts * (config.samples + drafted) * COMPARED if compares else 0,
    )


def _lengths(line: bytes) -> list[int]:
    chain = parse(line)
    return [len(step) for step in chain["steps"]] if isinstance(chain, dict) else []
