"""Samples of both models at several temperatures in the same contexts, and the drafted steps on which probes are compared."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby, islice
from pathlib import Path

import numpy as np
from compare_probe_features import Samples, Variant
from script_kit import read
from train_tiny_probes import options_of

from semspec.errors import UserError
from semspec.jobs.stages import hold
from semspec.probes.features import Features
from semspec.report.progress import Steps
from semspec.storage.files import replacing, whole_lines, write_all
from semspec.training.probes.compose import build
from semspec.training.probes.contexts import FILE, Chain, Pair, read_chains
from semspec.training.probes.dataset import Rows
from semspec.training.probes.pipeline import sampled
from semspec.training.probes.semantic import clusterer_of, probabilities
from semspec.training.probes.settings import ProbeConfig
from semspec.training.probes.shards import GroupWriter, Sample, is_done, read_samples
from semspec.training.probes.stages import Sampling
from semspec.types import LOGPROBS, Query, Read, Role, What

ROLES: tuple[Role, ...] = ("target", "draft")
PAPER = Variant("the paper's features")  # the states of all layers, averaged
SMOOTHING = 0.5  # added to each count, and to the total for this and for one unseen meaning


@dataclass(frozen=True)
class Work:
    """Where the samples of each model and temperature are stored, and how they are drawn."""

    folder: Path
    pair: str  # a folder with tiny-target and tiny-draft; "": the embedded pair
    known: str  # a folder with finished samples at the usual temperature: target, draft
    usual: float  # the contexts are written at it
    more: Sequence[str]  # options of train_probe

    def at(self, role: Role, temperature: float) -> Path:
        if self.known and temperature == self.usual:
            return Path(self.known) / role
        return self.folder / f"{role}-{temperature:g}"

    def config(self, role: Role, temperature: float) -> ProbeConfig:
        """Return the options of train_probe that make one model's probe of one temperature."""
        models: tuple[str, ...] = ()
        if self.pair:
            target, draft = (f"{self.pair}/tiny-{role}" for role in ROLES)
            models = (f"model.path={target}", "draft=lm", f"draft.model.path={draft}")
        places = (f"folder={self.at(role, temperature)}", f"temperature={temperature:g}")
        return build(options_of(f"{role}-paper", "pooling=[mean]", *models, *self.more, *places))

    def draw(self, temperatures: Iterable[float], steps: Steps) -> None:
        """Sample both models at each temperature, the usual one first, since the others reuse its chains of thought."""
        chains = self.at("target", self.usual) / FILE
        for temperature in sorted(temperatures, key=lambda t: t != self.usual):
            for role in ROLES:
                folder, config = self.at(role, temperature), self.config(role, temperature)
                if self.known and temperature == self.usual:
                    check_sampled(config, folder)
                    continue
                steps.say(f"the {role} at T = {temperature:g}: {folder}")
                with hold(folder):
                    Sampling(config, folder).keep_options(folder)
                    if folder / FILE != chains and not (folder / FILE).exists():
                        copy_chains(chains, folder / FILE, config.problems)
                    sampled(config, folder, steps)


def check_sampled(config: ProbeConfig, folder: Path) -> None:
    """Raise UserError if a folder does not hold finished samples of this model and temperature."""
    if not (folder / "sampled.json").exists():
        raise UserError(f"{folder} holds no finished samples: name a folder with target and draft")
    begun = read(folder / "config.json")
    if begun["facts"] != asdict(Sampling(config, folder).model):
        raise UserError(f"{folder} has samples of another model: give its --pair")
    if begun["temperature"] != config.temperature:
        raise UserError(f"{folder} was sampled at {begun['temperature']:g}: give that as --usual")


def copy_chains(source: Path, to: Path, count: int) -> None:
    """Copy the first chains of thought, so that other samples have the same contexts."""
    lines = list(islice(whole_lines(source), count))
    if len(lines) < count:
        raise UserError(f"{source} has {len(lines)} chains: give problems={len(lines)} or fewer")
    with replacing(to) as file:
        write_all(file, b"".join(lines))


def read_steps(
    config: ProbeConfig, steps: Sequence[Sample], chains: Mapping[str, Chain], into: Path
) -> list[Sample]:
    """Have a configuration's model read steps in their contexts, and return its averaged states of each, as a rule would.

    The steps and the returned samples are ordered by chain, cut and number.
    """
    if not is_done(into, 0):
        into.mkdir(parents=True, exist_ok=True)
        writer, pair = GroupWriter(into, 0), Pair(config)
        try:
            for name, members in groupby(steps, key=lambda step: step.chain):
                _read_chain(pair, chains[name], members, writer)
        finally:
            pair.close()
        writer.commit()
    return list(read_samples(into))


def _read_chain(pair: Pair, chain: Chain, steps: Iterable[Sample], writer: GroupWriter) -> None:
    context, behind = pair.context(chain.question, chain.ids), 0
    nothing_is_drawn, sampling = random.Random(0), pair.config.sampling
    for step in steps:
        context.extend([token for known in chain.steps[behind : step.cut] for token in known])
        behind = step.cut
        pool = Read(What.POOLED, spans=((0, len(step.tokens)),))
        query = Query(pair.role, context, sampling, nothing_is_drawn, step.tokens)
        query.reads = (LOGPROBS, pool)
        answer = pair.engine.answer([query])[0]
        logprobs = answer[LOGPROBS].tolist()[: len(step.tokens)]
        states = answer[pool][:1]  # [1 step, which is 1 pool; layers + 1; width]
        writer.add(replace(step, logprobs=[round(x, 4) for x in logprobs]), states)
    pair.forget(context)


class Judged:
    """Drafted steps of one temperature, read by each of the two models."""

    def __init__(
        self,
        work: Work,
        temperature: float,
        drawn: Mapping[Role, Samples],
        contexts: Collection[str],
    ) -> None:
        target, draft = (drawn[role] for role in ROLES)
        self.temperature, into = temperature, work.folder / f"read-{temperature:g}"
        chains = read_chains(work.at("target", temperature) / FILE)
        self.chains = {chain.id: chain for chain in chains}
        labelled: list[tuple[Sample, float]] = []
        for name, members in groupby(read_samples(target.into), key=lambda s: s.context):
            labelled += zip(members, target.right[name], strict=True)
        chosen = [one for one in labelled if one[0].writer != "own" and one[0].context in contexts]
        chosen.sort(key=lambda one: (one[0].chain, one[0].cut, one[0].number))
        self.steps = [step for step, _ in chosen]
        self.right = np.array([right for _, right in chosen])
        self.spotless = np.array([step.context in target.spotless for step in self.steps])
        self.groups = [step.chain for step in self.steps]
        by_draft = read_steps(work.config("draft", temperature), self.steps, self.chains, into)
        if [key_of(s) for s in by_draft] != [key_of(s) for s in self.steps]:
            raise UserError(f"{into} is of other steps: give another --work")
        self.rows: dict[Role, Rows] = {
            "target": to_score(self.steps, target.into, target.pooling, target),
            "draft": to_score(by_draft, into, PAPER.pooling, draft),
        }

    def counted(self, samples: Samples) -> np.ndarray:
        """Return the probability of each step's meaning, counted from a model's own samples in the same context."""
        own: dict[str, list[str]] = {}
        for sample in read_samples(samples.into):
            if sample.writer == "own":
                own.setdefault(sample.context, []).append(sample.text)
        clusterer, found = clusterer_of(samples.config), list[float]()
        for name, members in groupby(self.steps, key=lambda s: s.context):
            group, drawn = list(members), own[name]
            context = self.chains[group[0].chain].text(group[0].cut)
            clusters = clusterer.cluster(context, [*drawn, *(s.text for s in group)])
            mine, total = [True] * len(drawn) + [False] * len(group), len(drawn) + 2 * SMOOTHING
            shares = probabilities(clusters, mine)[len(drawn) :]
            # (count + 1/2) / (samples + 1)
            found += [(share * len(drawn) + SMOOTHING) / total for share in shares]
        return np.array(found)


def key_of(sample: Sample) -> tuple[str, int]:
    return sample.context, sample.number


def to_score(
    steps: Sequence[Sample], states: Path, pooling: Sequence[str], samples: Samples
) -> Rows:
    """Return rows of the paper's features for scoring only: their targets are unknown."""
    features = Features(PAPER.pooling)
    size = features.size(samples.layers, samples.width)
    unknown = {
        name: [np.nan for _ in group] for name, group in groupby(steps, key=lambda s: s.context)
    }
    return Rows(states, steps, unknown, pooling, features, size, samples.config.memory)
