"""Stage 3: cluster each context's samples by meaning, and compute every step's semantic probability.

    semantic-NAME.jsonl    one line per context: clusters, and a probability for each of its samples

A step's semantic probability is the share of the model's own samples in its cluster (SemanticSpec 3.2.1, steps 2 and
3). Steps of the other model are clustered too but do not count as samples, so their probability is 0 if no own sample
means the same.
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

SYNC = 50  # contexts between two fsyncs: the most that a crash loses


def options(config: ProbeConfig) -> dict[str, Any]:
    """Return the options, besides the clusterer's name, that determine the clusters."""
    cluster: ClusterOptions = config.cluster
    if not isinstance(cluster, Nli):
        return {}
    embedded = config.source == "embedded"
    default = f"{EMBEDDED}tiny-nli" if embedded else PAPERS
    revision = {"revision": cluster.revision} if cluster.revision else {}
    return {"model": cluster.model or default, **revision}


def clusterer_of(config: ProbeConfig) -> Clusterer:
    """Return the configured clusterer; it loads its entailment model at first use."""
    how, cluster = options(config), config.cluster
    if isinstance(cluster, Nli):
        how |= {"device": cluster.device, "batch_size": cluster.batch_size}
    return clusterer(cluster.name, **how)


def try_out(config: ProbeConfig, say: Callable[[str], None], device: str = "") -> None:
    """Let the entailment model, if there is one, judge a pair before any sampling starts.

    ``device`` overrides the option. Raises UserError if the model does not exist, does not load or gives no figures.
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
    """Return each sample's semantic probability, counted over own samples only."""
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
    """Return the probabilities of every context's samples, by context; resumes after a kill."""
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
