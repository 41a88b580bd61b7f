"""Build a datastore from a corpus, in stages that resume after a kill.

config.json               the options that everything depends on
documents/                stage 1, see ``corpus``
fit-*.safetensors         dense: states that the projection is fitted to
projection.safetensors    dense: the projection
shard-*.safetensors       the data that drafters will map into memory
index.safetensors         dense: the index, if it has one

Memory use is bounded by one group of documents and one shard; only ScaNN holds all keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from semspec.artifacts.datastore import Datastore, shard_names
from semspec.artifacts.dense_datastore import DenseDatastore
from semspec.artifacts.sparse_datastore import SparseDatastore, bound_to
from semspec.datastores import sparse
from semspec.errors import UserError
from semspec.jobs.stages import check_barrier, compare_shards, hold, keep_options, stored_options
from semspec.report.progress import Steps
from semspec.storage import swap
from semspec.storage.files import read_json
from semspec.training.datastores.build_dense import build_dense, indexed
from semspec.training.datastores.corpus import Documents, Work, collect
from semspec.training.datastores.joining import (
    Base,
    check_projection,
    cut,
    documents_of,
    joined_config,
    joined_dense,
    joined_sparse,
)
from semspec.training.datastores.settings import ALL, Options, artifact_config
from semspec.training.datastores.stages import Reading
from semspec.training.probes.settings import ProbeConfig

LEAD = 16  # last tokens of the prompt that are stored before its answer, so that REST's first match can use them


def make(config: ProbeConfig, options: Options, steps: Steps) -> tuple[Datastore, Path]:
    """Build and save a datastore, extend one (append=), or merge several (merge=).

    Raises UserError if the folder was begun with other options or a shard is not finished.
    """
    if options.merge:
        return _merge(config, options, steps)
    if options.append and not options.out and not Path(options.append).expanduser().is_dir():
        raise UserError(
            f"append={options.append} is not a folder that can be replaced: give out=FOLDER"
        )
    work = Reading(config, options)
    folder = work.folder
    kept = work.base.folder if work.base else folder / "datastore"
    out = Path(options.out) if options.out else kept
    with hold(folder):
        if work.base and (done := _added(work.base, folder)):
            swap.tidy(swap.place(out))  # remove the version that it replaced
            return done, out
        shards = compare_shards(work)
        work.keep_options(folder)
        if shards:
            check_barrier(shards, folder, work.stages[-1])
        total = None if config.problems == ALL else config.problems
        with steps.stage("documents", total) as tell:
            documents = collect(work, tell.to)
        build = _sparse if options.kind == "sparse" else build_dense
        made = build(work, documents, steps)
        if work.base:
            made.config["data"]["added"] = work.base.digest
        with steps.stage("saving", None):
            made.save(out)
    return made, out


def _added(base: Base, folder: Path) -> Datastore | None:
    """Return the datastore if an earlier start added this folder's documents already, else None."""
    begun = read_json(folder / "config.json")
    added = base.store.config["data"].get("added")
    return base.store if added and isinstance(begun, dict) and begun.get("base") == added else None


def _sparse(work: Work, documents: Documents, steps: Steps) -> Datastore:
    options, folder = work.options, work.folder
    texts = (d.tokens[max(0, d.given - LEAD) :] for group in documents.groups() for d in group)
    config = artifact_config(SparseDatastore, work.config, options, documents.total)
    own = SparseDatastore(config | {"model": bound_to(work.model), "depth": options.depth})
    if work.base is not None:
        return _joined(work.base, [own], texts, options.shard, folder, steps)
    counts = list[int]()
    with steps.stage("sorting", documents.total["tokens"]) as tell:
        for pieces in cut(texts, options.shard):
            path = folder / f"shard-{len(counts):05d}.safetensors"
            counts.append(sum(len(tokens) + 1 for tokens in pieces))
            if not path.exists():
                sparse.write_shard(path, pieces, options.depth)
            tell.by(counts[-1])
    own.config["shards"] = counts
    own.parts = {n: folder / n for n in shard_names(len(counts))}
    return own


def _joined(
    first: Base,
    others: Sequence[Datastore],
    texts: Iterable[Sequence[int]],
    shard: int,
    folder: Path,
    steps: Steps,
) -> SparseDatastore:
    """Append documents to a sparse datastore; ``others`` supply their part of the config."""
    counts, paths = joined_sparse(first, texts, folder, shard, steps)
    config = joined_config(first.store, others) | {"shards": counts}
    return SparseDatastore(config, parts=dict(zip(shard_names(len(paths)), paths, strict=True)))


def _merge(config: ProbeConfig, options: Options, steps: Steps) -> tuple[Datastore, Path]:
    named = [name for name in options.merge.strip("[] ").split(",") if name.strip()]
    if len(named) < 2 or not options.out or options.append:
        raise UserError(
            f"merge={options.merge}: give [ONE,ANOTHER,...] of at least two datastores, and out=FOLDER"
        )
    first, *others = (Base.of(name.strip(), options.kind) for name in named)
    for other in others:
        first.check(other)
        if options.kind == "dense":
            check_projection(first, other)
    out, folder = Path(options.out), Path(config.folder or f"runs/{options.kind}-merged")
    digests = [one.digest for one in (first, *others)]
    shape = {name: getattr(options, name) for name in ("kind", "shard", "index", "leaves")}
    with hold(folder):
        begun = stored_options(folder, ("merged",))
        keep_options(folder, shape | {"merged": digests, "seed": config.seed}, begun, {}, ())
        stores = [one.store for one in others]
        if options.kind == "sparse":
            texts = (d for one in others for path in one.paths() for d in documents_of(path))
            made: Datastore = _joined(first, stores, texts, options.shard, folder, steps)
        else:
            dense = [store for store in stores if isinstance(store, DenseDatastore)]
            made = indexed(joined_dense(first, *dense), options, folder, config.seed, steps)
        with steps.stage("saving", None):
            made.save(out)
    return made, out
