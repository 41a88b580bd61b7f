"""The dense half of ``build``: states, projection, keys, index, and the index's recall."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semspec.artifacts import binding
from semspec.artifacts.datastore import Datastore, shard_names
from semspec.artifacts.dense_datastore import INDEX, DenseDatastore
from semspec.datastores import dense, indices
from semspec.datastores.files import Shapes, open_arrays, write_arrays
from semspec.datastores.sparse import END
from semspec.deferred import torch
from semspec.errors import UserError
from semspec.jobs.stages import Shard
from semspec.report.progress import Steps
from semspec.storage.files import read_json, write_json
from semspec.storage.screen import LOG
from semspec.training.datastores.corpus import Document, Documents, Work
from semspec.training.datastores.joining import joined_dense
from semspec.training.datastores.settings import Options, artifact_config
from semspec.training.datastores.states import StateReader

ASKED = 1000  # places used to measure a dense datastore
ARRAYS = ("mean", "deviation", "centre", "components")


def build_dense(work: Work, documents: Documents, steps: Steps) -> Datastore:
    options, folder, total = work.options, work.folder, documents.total
    model, reader = binding.of(work.model), StateReader(work.config)
    try:
        if work.base is None:
            with steps.stage("states to fit", total["documents"]) as tell:
                fit_states(work, documents, reader, tell.by)
        with steps.stage("fitting", None):
            projection, variance = projected(work)
        with steps.stage("keys", total["documents"]) as tell:
            counts = keep_keys(work, documents, reader, projection, tell.by)
    finally:
        reader.close()
    config = artifact_config(DenseDatastore, work.config, options, total) | {
        "model": model,
        "dims": options.dims,
        "shards": counts,
        "training": {"share": _share(work, documents), "longest": options.longest},
        "metrics": {"variance": variance},
    }
    tensors = {n: torch.from_numpy(np.array(getattr(projection, n))) for n in ARRAYS}
    parts = {n: folder / n for n in shard_names(len(counts))}
    made = DenseDatastore(config, tensors, parts=parts)
    if work.base is not None:
        made = joined_dense(work.base, made)
    return indexed(made, options, folder, work.config.seed, steps)


def indexed(
    made: DenseDatastore, options: Options, folder: Path, seed: int, steps: Steps
) -> DenseDatastore:
    """Build the datastore's index, tune the search effort on its own keys, and measure it."""
    paths = [path for name, path in made.parts.items() if name != INDEX]
    keys = [shard.keys for shard in dense.open_shards(paths, made.config["dims"])]
    count = sum(map(len, keys))
    name = indices.suitable_index(count) if options.index == "auto" else options.index
    with steps.stage(f"index={name}", None):
        files = _index(name, options, keys, folder)
    with steps.stage("measuring", None):
        places, effort = dense.Places.drawn(keys, ASKED, seed), indices.NO_EFFORT
        if name != "exact":
            leaves = options.leaves or indices.default_leaves(count)
            load = partial(indices.load, name, files, keys, folder / INDEX)
            effort = dense.tuned(places, load, leaves)
        index = indices.load(name, files, keys, folder / INDEX, effort)
        metrics = dense.measure(places, index)
    if metrics["recall_at_10"] < indices.PROMISED:
        LOG.warning(
            "index=%s finds %.3f of the ten nearest places, where %g is promised: leave leaves= out, or build"
            " with index=exact",
            *(name, metrics["recall_at_10"], indices.PROMISED),
        )
    stored = {"name": name, "files": {n: len(data) for n, data in files.items()}}
    config = made.config | {
        "index": stored | effort.as_json(),
        "metrics": metrics | {"variance": made.config["metrics"]["variance"]},
    }
    parts = dict(zip(shard_names(len(paths)), paths, strict=True))
    return DenseDatastore(
        config, made.tensors, parts=parts | ({INDEX: folder / INDEX} if files else {})
    )


def _share(work: Work, documents: Documents) -> float:
    """Return the share of documents to which the projection is fitted."""
    return min(1.0, work.options.fit / documents.total["tokens"])


def groups(work: Work, documents: Documents) -> Iterator[list[Document]]:
    """Yield the documents by group; with ``prompts=true`` mark no token as prompt, so that all places are kept."""
    for group in documents.groups():
        yield [d._replace(given=0) for d in group] if work.options.prompts else group


def fit_states(
    work: Work,
    documents: Documents,
    reader: StateReader,
    tell: Callable[[int], None],
    only: Shard | None = None,
) -> None:
    """Save the states to which the projection is fitted, of all groups or only a shard's."""
    share = _share(work, documents)
    for number, group in enumerate(groups(work, documents)):
        path = work.folder / f"fit-{number:05d}.safetensors"
        if not path.exists() and (only is None or only.has(number)):
            rng = random.Random(f"{work.config.seed} fit {number}")
            chosen = [d for d in group if share == 1 or rng.random() < share]
            states = [rows.astype(np.float16) for rows in reader.of(chosen)]
            kept = np.concatenate([np.zeros((0, work.model.width), np.float16), *states])
            write_arrays(path, {"states": kept})
        tell(len(group))


def keep_keys(
    work: Work,
    documents: Documents,
    reader: StateReader,
    projection: dense.Projection,
    tell: Callable[[int], None],
    only: Shard | None = None,
) -> list[int]:
    """Save the keys of all groups or only a shard's; return the number of entries of every file."""
    share, counts = _share(work, documents), list[int]()
    for number, group in enumerate(groups(work, documents)):
        path = work.folder / f"shard-{len(counts):05d}.safetensors"
        count = sum(_entries(d, reader.limit) for d in group)
        if count and not path.exists() and (only is None or only.has(number)):
            whole = _fitted(work, number) if share == 1 and work.base is None else None
            _write_keys(path, group, reader, projection, whole)
        counts += [count] if count else []
        tell(len(group))
    return counts


def _fitted(work: Work, number: int) -> NDArray[np.float16]:
    path = work.folder / f"fit-{number:05d}.safetensors"
    return open_arrays(path, {"states": ("F16", (-1, work.model.width))}).array("states")


def projected(work: Work) -> tuple[dense.Projection, float | None]:
    """Return the projection and the share of variance it keeps; fit it if that is not done yet.

    A corpus appended to a datastore uses that one's projection. Raises UserError if there are too few states.
    """
    if work.base is not None:
        assert isinstance(work.base.store, DenseDatastore)
        return work.base.store.projection(), work.base.store.config["metrics"].get("variance")
    folder, dims, width = work.folder, work.options.dims, work.model.width
    path, fit = folder / "projection.safetensors", read_json(folder / "projection.json")
    shapes: Shapes = dict.fromkeys(ARRAYS, ("F32", (width,)))
    shapes = {**shapes, "components": ("F32", (dims, width))}
    if fit is None:
        count = len(list(folder.glob("fit-*.safetensors")))

        def batches() -> Iterator[dense.Floats]:
            for number in range(count):
                rows = _fitted(work, number)
                for start in range(0, len(rows), 8192):
                    yield rows[start : start + 8192].astype(np.float32)

        try:
            made, variance = dense.fit(batches, dims)
        except ValueError as error:
            raise UserError(f"{error}: give a larger corpus, or smaller dims=") from error
        write_arrays(path, {name: getattr(made, name) for name in ARRAYS})
        fit = {"variance": variance}
        write_json(folder / "projection.json", fit)
    mapped = open_arrays(path, shapes)
    return dense.Projection(*(mapped.array(name) for name in ARRAYS)), float(fit["variance"])


def _entries(document: Document, limit: int) -> int:
    """Count the places that have a state and a following token."""
    return max(0, min(len(document.tokens), limit) - max(document.given, 1))


def _write_keys(
    path: Path,
    group: list[Document],
    reader: StateReader,
    projection: dense.Projection,
    fitted: NDArray[np.float16] | None,
) -> None:
    keys, places = list[dense.Floats](), list[NDArray[np.int32]]()
    tokens: list[int] = []
    if fitted is not None:
        keys = [projection(fitted.astype(np.float32))]
    else:  # round as saved states are, so that the same text gets the same keys
        rounded = (rows.astype(np.float16).astype(np.float32) for rows in reader.of(group))
        keys = [projection(rows) for rows in rounded]
    for document in group:
        count = _entries(document, reader.limit)
        if count:
            start = max(document.given, 1) - 1
            places.append(len(tokens) + np.arange(count, dtype=np.int32))
            tokens += [*document.tokens[start : start + count + 1], END]
    dense.write_shard(path, np.concatenate(keys), np.concatenate(places), tokens)


def _index(name: str, options: Options, keys: indices.Keys, folder: Path) -> indices.Files:
    sizes, path = read_json(folder / "index.json"), folder / INDEX
    if sizes is None:
        files = indices.build(name, keys, options.leaves)
        if files:
            write_arrays(path, files)
        sizes = {n: len(data) for n, data in files.items()}
        write_json(folder / "index.json", sizes)
    if not sizes:
        return {}
    mapped = open_arrays(path, {n: ("U8", (size,)) for n, size in sizes.items()})
    return {n: mapped.array(n) for n in sizes}
