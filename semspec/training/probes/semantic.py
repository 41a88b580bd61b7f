"""Stage 3: which samples of a context mean the same, and so each step's semantic probability.

    semantic-NAME.jsonl    one line a context: clusters, and a probability for each of its samples

SemanticSpec 3.2.1, steps 2 and 3: the share of the model's own samples that are in a step's
cluster. A step of the other model is clustered along, but it is no sample of this model: only own
samples count, and its probability is 0 where none means the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from semspec.models.location import EMBEDDED
from semspec.probes.cluster import Clusterer, clusterer, shares
from semspec.probes.cluster import Nli as Judge
from semspec.probes.cluster.published import PAPERS
from semspec.storage.digest import digest
from semspec.storage.files import LineFile, cut_torn_line, parse, whole_lines
from semspec.training.probes.contexts import Chain
from semspec.training.probes.settings import ClusterOptions, Nli, ProbeConfig
from semspec.training.probes.shards import Sample

SYNC = 50  # contexts between two fsyncs: what a crash costs


def options(config: ProbeConfig) -> dict[str, Any]:
    """Return the options that decide the clusters, beside the clusterer's name."""
    cluster: ClusterOptions = config.cluster
    if not isinstance(cluster, Nli):
        return {}
    embedded = config.source == "embedded"
    default = f"{EMBEDDED}tiny-nli" if embedded else PAPERS
    revision = {"revision": cluster.revision} if cluster.revision else {}
    return {"model": cluster.model or default, **revision}


def clusterer_of(config: ProbeConfig) -> Clusterer:
    """Return the clusterer that the options ask for; an entailment model is loaded when it is used."""
    how, cluster = options(config), config.cluster
    if isinstance(cluster, Nli):
        how |= {"device": cluster.device, "batch_size": cluster.batch_size}
    return clusterer(cluster.name, **how)


def try_out(config: ProbeConfig, say: Callable[[str], None], device: str = "") -> None:
    """Have an entailment model judge one pair before anything is sampled for it to judge.

    ``device``: another one than the options name. Raises UserError if there is no such model, it does not load
    or gives no figures.
    """
    judge = clusterer_of(config)
    if isinstance(judge, Judge):
        judge.device = device or judge.device
        judge.try_out()
        say(f"{options(config)['model']} was tried: it judges what means the same")


def path_of(config: ProbeConfig, folder: Path) -> Path:
    asked = options(config)
    return folder / f"semantic-{config.cluster.name}{'-' + digest(asked) if asked else ''}.jsonl"


def probabilities(clusters: Sequence[int], own: Sequence[bool]) -> list[float]:
    """Each sample's semantic probability, counted over own samples only."""
    counted = [c for c, mine in zip(clusters, own, strict=True) if mine]
    share = dict(zip(counted, shares(counted), strict=True)) if counted else {}
    return [share.get(c, 0.0) for c in clusters]


def cluster_samples(
    config: ProbeConfig,
    chains: Sequence[Chain],
    samples: Callable[[], Iterator[Sample]],
    folder: Path,
    tell: Callable[[int], None] = lambda _: None,
) -> dict[str, list[float]]:
    """Return the probabilities of every context's samples, by context; after a kill, resume."""
    path = path_of(config, folder)
    cut_torn_line(path)
    kept = (value for line in whole_lines(path) if (value := parse(line)) is not None)
    found = {value["context"]: value["semantic"] for value in kept}
    tell(len(found))
    if all(sample.context in found for sample in samples()):
        return found
    texts = {chain.id: chain for chain in chains}
    waiting: list[tuple[str, list[Sample]]] = []

    def items() -> Iterator[tuple[str, list[str]]]:
        for name, members in groupby(samples(), key=lambda s: s.context):
            if name not in found:
                waiting.append((name, group := list(members)))
                yield texts[group[0].chain].text(group[0].cut), [s.text for s in group]

    made = clusterer_of(config)
    with LineFile(path) as file:
        for number, clusters in enumerate(made.cluster_many(items()), 1):
            name, group = waiting.pop(0)
            semantic = probabilities(clusters, [s.writer == "own" for s in group])
            file.append({"context": name, "clusters": clusters, "semantic": semantic})
            found[name] = semantic
            tell(1)
            if number % SYNC == 0:
                file.sync()
        file.sync()
    return found
