"""From a corpus to a datastore's folder; each stage goes on where a kill left off.

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
from semspec.jobs.parts import begun, check_all
from semspec.models.location import ModelFacts, read_facts
from semspec.models.text import Text
from semspec.report.progress import Steps
from semspec.training.datastores.build_dense import build_dense
from semspec.training.datastores.corpus import Documents, collect
from semspec.training.datastores.settings import ALL, Options, described
from semspec.training.datastores.stages import stages
from semspec.training.probes.settings import ProbeConfig
from semspec.training.probes.stages import compare
from semspec.training.resume import at_work, begin

LEAD = 16  # tokens of a prompt that stand before its answer: what REST's first match may look at


def folder_of(config: ProbeConfig, options: Options) -> Path:
    model = config.model.path.rstrip("/").rpartition("/")[2]
    return Path(config.folder or f"runs/{options.kind}-{model}")


def make(config: ProbeConfig, options: Options, steps: Steps) -> tuple[Datastore, Path]:
    """Builds and saves a datastore."""
    folder = folder_of(config, options)
    out = Path(options.out) if options.out else folder / "datastore"
    with at_work(folder):
        text = Text(str(config.model.fetch()))
        bound = read_facts(config.model, text.fingerprint)
        found = begun(folder)
        compare(config, folder, bound, found, options=options.made_from())
        begin(folder, config, bound, options=options.made_from())
        if found:
            check_all(found, folder, stages(options)[-1])
        total = None if config.problems == ALL else config.problems
        with steps.stage("documents", total) as tell:
            documents = collect(config, options, text, folder, tell.to)
        build = _sparse if options.kind == "sparse" else build_dense
        made = build(config, options, bound, documents, folder, steps)
        with steps.stage("saving", None):
            made.save(out)
    return made, out


def _sparse(
    config: ProbeConfig,
    options: Options,
    model: ModelFacts,
    documents: Documents,
    folder: Path,
    steps: Steps,
) -> Datastore:
    told = documents.told
    assert told is not None
    counts: list[int] = []
    with steps.stage("sorting", told["tokens"]) as tell:
        for part in _parts(documents, options.shard):
            path = folder / f"shard-{len(counts):05d}.safetensors"
            counts.append(sum(len(tokens) + 1 for tokens in part))
            if not path.exists():
                sparse.write_shard(path, part, options.depth)
            tell.by(counts[-1])
    config_of = described(SparseDatastore, config, options, told) | {
        "model": bound_to(model),
        "depth": options.depth,
        "shards": counts,
    }
    return SparseDatastore(config_of, parts={n: folder / n for n in shard_names(len(counts))})


def _parts(documents: Documents, size: int) -> Iterator[list[list[int]]]:
    """The documents of each shard; one that is longer than a shard is cut."""
    part: list[list[int]] = []
    filled = 0
    for group in documents.groups():
        for tokens, given in group:
            own = tokens[max(0, given - LEAD) :]
            for start in range(0, len(own), size - 1):
                piece = own[start : start + size - 1]
                if filled + len(piece) + 1 > size:
                    yield part
                    part, filled = [], 0
                part.append(piece)
                filled += len(piece) + 1
    if part:
        yield part
