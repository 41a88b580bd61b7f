"""From a corpus to a datastore's folder, in stages; after a kill each one resumes.

config.json               what all of it depends on
documents/                stage 1, see ``corpus``
fit-*.safetensors         dense: states of documents that the projection is fitted to
projection.safetensors    dense: the projection
shard-*.safetensors       what drafters will map
index.safetensors         dense: the index, where there is one

Memory is bounded by a group of documents and a shard, except that ScaNN holds all keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from semspec.artifacts.datastore import Datastore, shard_names
from semspec.artifacts.sparse_datastore import SparseDatastore, bound_to
from semspec.datastores import sparse
from semspec.jobs.stages import check_barrier, compare_shards, hold
from semspec.report.progress import Steps
from semspec.training.datastores.build_dense import build_dense
from semspec.training.datastores.corpus import Documents, Work, collect
from semspec.training.datastores.settings import ALL, Options, artifact_config
from semspec.training.datastores.stages import Reading
from semspec.training.probes.settings import ProbeConfig

LEAD = 16  # tokens of a prompt that stand before its answer: what REST's first match may look at


def make(config: ProbeConfig, options: Options, steps: Steps) -> tuple[Datastore, Path]:
    """Build and save a datastore.

    Raises UserError if the folder was begun with other options, or a shard has not finished.
    """
    work = Reading(config, options)
    folder = work.folder
    out = Path(options.out) if options.out else folder / "datastore"
    with hold(folder):
        shards = compare_shards(work)
        work.keep_options(folder)
        if shards:
            check_barrier(shards, folder, work.stages[-1])
        total = None if config.problems == ALL else config.problems
        with steps.stage("documents", total) as tell:
            documents = collect(work, tell.to)
        build = _sparse if options.kind == "sparse" else build_dense
        made = build(work, documents, steps)
        with steps.stage("saving", None):
            made.save(out)
    return made, out


def _sparse(work: Work, documents: Documents, steps: Steps) -> Datastore:
    options, folder, counts = work.options, work.folder, list[int]()
    model = bound_to(work.model)
    with steps.stage("sorting", documents.total["tokens"]) as tell:
        for texts in _cut(documents, options.shard):
            path = folder / f"shard-{len(counts):05d}.safetensors"
            counts.append(sum(len(tokens) + 1 for tokens in texts))
            if not path.exists():
                sparse.write_shard(path, texts, options.depth)
            tell.by(counts[-1])
    config = artifact_config(SparseDatastore, work.config, options, documents.total)
    config |= {"model": model, "depth": options.depth, "shards": counts}
    return SparseDatastore(config, parts={n: folder / n for n in shard_names(len(counts))})


def _cut(documents: Documents, size: int) -> Iterator[list[list[int]]]:
    """Yield the documents of each shard of the datastore; one that is longer than a shard is cut."""
    texts: list[list[int]] = []
    filled = 0
    for group in documents.groups():
        for tokens, given in group:
            own = tokens[max(0, given - LEAD) :]
            for start in range(0, len(own), size - 1):
                piece = own[start : start + size - 1]
                if filled + len(piece) + 1 > size:
                    yield texts
                    texts, filled = [], 0
                texts.append(piece)
                filled += len(piece) + 1
    if texts:
        yield texts
