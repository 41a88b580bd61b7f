"""Indices over unit-length keys: exact, ScaNN (fast), and faiss (small).

Each is built from the shards' keys, stored as bytes by file name (``files``), and loaded from these. ScaNN
and faiss are optional; their readers are native code, which only gets files from the manifest.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from semspec.errors import UserError, first_line

Keys = Sequence[NDArray[np.float16]]  # [n, dims] of each shard
Floats = NDArray[np.float32]
Found = tuple[NDArray[np.int64], Floats]  # entries [queries, count], -1 for none, and their cosines
Files = Mapping[str, NDArray[np.uint8]]
NAMES = ("scann", "faiss", "exact")
CHUNK = 1 << 18  # keys compared at a time
WANTED_BY_SCANN = 20_000  # fewest entries for which ScaNN's tree pays
TOO_MANY_FOR_SCANN = 10_000_000  # entries, at 164 bytes of memory each
SAMPLE = 250_000  # keys to train quantisers on
REORDERED = 200  # best candidates, compared again in bf16
PROMISED = 0.95  # target recall@10, not counting the query's own key
SCANN_FILES = {
    *("ah_codebook.pb", "bfloat16_dataset.npy", "datapoint_to_token.npy", "hashed_dataset.npy"),
    *("scann_assets.pbtxt", "scann_config.pb", "serialized_partitioner.pb"),
}


@dataclass(frozen=True, slots=True)
class Effort:
    """How much an index searches per query; 0: as it was built."""

    searched: int = 0  # leaves
    reordered: int = 0  # best candidates, compared again

    def as_json(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if value}


NO_EFFORT = Effort()


class Index(Protocol):
    def search(self, queries: Floats, count: int) -> Found:
        """Return each query's nearest entries and their cosines, the nearest first."""
        ...


class Exact:
    """Compares with every key, one chunk at a time."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def search(self, queries: Floats, count: int) -> Found:
        entries = np.zeros((len(queries), 0), np.int64)
        cosines = np.zeros((len(queries), 0), np.float32)
        start = 0
        for shard in self.keys:
            for at in range(0, len(shard), CHUNK):
                part = shard[at : at + CHUNK].astype(np.float32)
                alike = queries @ part.T
                own = np.broadcast_to(np.arange(start + at, start + at + len(part)), alike.shape)
                entries = np.concatenate([entries, own], 1)
                cosines = np.concatenate([cosines, alike], 1)
                entries, cosines = _best(entries, cosines, count)
            start += len(shard)
        return entries, cosines


def _best(entries: NDArray[np.int64], cosines: Floats, count: int) -> Found:
    if cosines.shape[1] > count:
        kept = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
        entries = np.take_along_axis(entries, kept, 1)
        cosines = np.take_along_axis(cosines, kept, 1)
    order = np.lexsort((entries, -cosines), axis=1)
    return np.take_along_axis(entries, order, 1), np.take_along_axis(cosines, order, 1)


class Again:
    """The exact keys of an approximate index, to compare its best candidates again.

    Neighbouring states of natural text have cosines that differ in the fourth digit, which the compressed keys
    of an index do not tell apart.
    """

    TIMES = 8  # candidates compared again, times the number wanted

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._starts = np.cumsum([0, *map(len, keys)])

    def cosines(self, entries: NDArray[np.int64], queries: Floats) -> Floats:
        """Return the exact cosines of entries [queries, n]; -inf for invalid entries."""
        at = np.clip(np.searchsorted(self._starts, entries, "right") - 1, 0, len(self.keys) - 1)
        found = np.full(entries.shape, -np.inf, np.float32)
        for number, query in enumerate(queries):
            own = (entries[number] >= 0) & (entries[number] < self._starts[-1])
            for shard in np.unique(at[number][own]):
                which = own & (at[number] == shard)
                rows = self.keys[shard][entries[number][which] - self._starts[shard]]
                found[number, which] = rows.astype(np.float32) @ query
        return found

    def best(self, entries: NDArray[np.int64], queries: Floats, count: int) -> Found:
        cosines = self.cosines(entries, queries)
        return _best(np.where(np.isfinite(cosines), entries, -1), cosines, count)


class Scann:
    """A tree over anisotropically quantised keys, with the best reordered in bf16 (Guo et al. 2020).

    The best of these are compared again with the exact mapped keys.
    """

    def __init__(self, searcher: Any, keys: Keys, effort: Effort = NO_EFFORT) -> None:
        self.searcher, self.effort, self.again = searcher, effort, Again(keys)

    def search(self, queries: Floats, count: int) -> Found:
        wanted = Again.TIMES * count
        options: dict[str, int] = {"final_num_neighbors": wanted}
        if self.effort.searched:
            options["leaves_to_search"] = self.effort.searched
        options["pre_reorder_num_neighbors"] = max(wanted, self.effort.reordered or REORDERED)
        if len(queries) == 1:
            entries = self.searcher.search(queries[0], **options)[0][None]
        else:
            entries = self.searcher.search_batched(queries, **options)[0]
        return self.again.best(entries.astype(np.int64), queries, count)

    @staticmethod
    def build(keys: Keys, leaves: int, searched: int) -> Files:
        module = _imported("scann")
        count, dims = _counted(keys), keys[0].shape[1]
        # ScaNN holds all keys in memory, and twice while it builds
        needed, free = (
            3 * 4 * count * dims,
            os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        )
        if needed > free:
            raise UserError(
                f"index=scann needs {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f}"
                " GB are free: use index=faiss"
            )
        held = np.concatenate([shard.astype(np.float32) for shard in keys])
        bf16 = module.scann_ops_pybind.scann_builder.ReorderType.BFLOAT16
        trained = {"training_sample_size": min(count, SAMPLE)}
        searcher = (
            module.scann_ops_pybind.builder(held, 10, "dot_product")
            .tree(leaves, searched, **trained)
            .score_ah(2, anisotropic_quantization_threshold=0.2, **trained)
            .reorder(min(REORDERED, count), quantize=bf16)
            .build()
        )
        with tempfile.TemporaryDirectory() as folder:  # an absolute path, as ScaNN requires
            searcher.serialize(folder, relative_path=True)
            return {f.name: np.fromfile(f, np.uint8) for f in sorted(Path(folder).iterdir())}

    @classmethod
    def load(cls, files: Files, keys: Keys, effort: Effort = NO_EFFORT) -> Scann:
        """Load an index from exactly ScaNN's own files; raise ValueError for any others.

        ScaNN would read more from a folder than it wrote there.
        """
        module = _imported("scann")
        if set(files) != SCANN_FILES:
            raise ValueError("it is no index of ScaNN's")
        # ScaNN opens the files named in its list, wherever they are
        listed = bytes(files["scann_assets.pbtxt"])
        named = re.findall(rb'asset_path: "([a-z0-9_.]+)"', listed)
        if len(named) != listed.count(b"asset_path") or {n.decode() for n in named} - SCANN_FILES:
            raise ValueError("its list of files names others than its own")
        with tempfile.TemporaryDirectory() as folder:
            for name, data in files.items():
                data.tofile(Path(folder) / name)
            return cls(module.scann_ops_pybind.load_searcher(folder), keys, effort)


class Faiss:
    """Inverted lists of compressed keys by nearest centre; the best are compared again exactly."""

    def __init__(self, index: Any, keys: Keys, effort: Effort = NO_EFFORT) -> None:
        self.index, self.effort, self.again = index, effort, Again(keys)
        index.nprobe = effort.searched or index.nprobe

    def search(self, queries: Floats, count: int) -> Found:
        wanted = max(Again.TIMES * count, self.effort.reordered)
        _, entries = self.index.search(np.ascontiguousarray(queries), wanted)
        return self.again.best(entries.astype(np.int64), queries, count)

    @staticmethod
    def build(keys: Keys, leaves: int, searched: int) -> Files:
        module = _imported("faiss")
        count, dims = _counted(keys), keys[0].shape[1]
        rng = np.random.default_rng(0)
        share = min(1.0, SAMPLE / count)
        sizes = [max(1, round(share * len(k))) for k in keys]
        sample = [k[np.sort(rng.permutation(len(k))[:n])] for k, n in zip(keys, sizes, strict=True)]
        # half a byte per dimension, which trains at once; product codes of that size take minutes
        index = module.index_factory(dims, f"IVF{leaves},SQ4", module.METRIC_INNER_PRODUCT)
        index.train(np.concatenate(sample).astype(np.float32))
        for shard in keys:
            for at in range(0, len(shard), CHUNK):
                index.add(shard[at : at + CHUNK].astype(np.float32))
        index.nprobe = min(searched, leaves)
        return {"index": module.serialize_index(index)}

    @classmethod
    def load(cls, files: Files, keys: Keys, where: Path, effort: Effort = NO_EFFORT) -> Faiss:
        """Load headers and centres from the file's one array, and map its lists.

        Deserialising the bytes would copy all of them to memory. Raise ValueError if the index is not faiss's or
        belongs to other keys.
        """
        module = _imported("faiss")
        if set(files) != {"index"}:
            raise ValueError("it is no index of faiss")
        reader = module.FileIOReader(str(where))
        before = np.zeros(where.stat().st_size - len(files["index"]), np.uint8)
        reader(module.swig_ptr(before), 1, len(before))
        index = module.read_index(reader, module.IO_FLAG_MMAP | module.IO_FLAG_READ_ONLY)
        if not hasattr(index, "invlists"):
            raise ValueError("its index has no lists")
        count, lists = _counted(keys), module.downcast_InvertedLists(index.invlists)
        if getattr(lists, "filename", None) != "":  # "" for lists mapped from the index itself
            raise ValueError("its lists are in another file")
        sizes = [lists.list_size(number) for number in range(lists.nlist)]
        if index.d != keys[0].shape[1] or index.ntotal != count or sum(sizes) != count:
            raise ValueError("its index is of other keys")
        lists.prefetch_nthread = 0  # threads per query cost more than they save
        return cls(index, keys, effort)


class Opening:
    """An index that loads in the background while models load; the first search waits for it."""

    def __init__(self, read: Callable[[], Index]) -> None:
        worker = ThreadPoolExecutor(1)
        self._index = worker.submit(read)
        worker.shutdown(wait=False)

    def search(self, queries: Floats, count: int) -> Found:
        return self._index.result().search(queries, count)


def suitable_index(entries: int) -> str:
    """Return the index for ``index=auto``, by the number of entries."""
    if entries > TOO_MANY_FOR_SCANN:
        return "faiss"
    return "scann" if entries >= WANTED_BY_SCANN else "exact"


def default_leaves(entries: int) -> int:
    return max(1, round(math.sqrt(entries)))


def default_searched(leaves: int) -> int:
    return max(1, min(leaves, leaves // 20 + 20))


def build(name: str, keys: Keys, leaves: int = 0) -> Files:
    """Build an index and return its files; raise UserError if there are too few entries.

    By default (0), the number of leaves is about the square root of the entries. The number searched is only a
    start; ``dense.tuned`` finds the ``Effort`` for the given keys.
    """
    count = _counted(keys)
    leaves = leaves or default_leaves(count)
    searched = default_searched(leaves)
    if name == "exact":
        return {}
    if count < 1000:
        raise UserError(
            f"index={name} needs at least 1,000 entries, and there are {count:,}: use index=exact"
        )
    if name == "scann":
        return Scann.build(keys, leaves, searched)
    return Faiss.build(keys, leaves, searched)


def load(name: str, files: Files, keys: Keys, where: Path, effort: Effort = NO_EFFORT) -> Index:
    """Load an index; raise UserError if it is damaged, whatever error the native code raises."""
    if name == "exact":
        return Exact(keys)
    try:
        if name == "scann":
            return Scann.load(files, keys, effort)
        return Faiss.load(files, keys, where, effort)
    except UserError:
        raise
    except (ValueError, TypeError, RuntimeError, OSError, MemoryError) as error:
        raise UserError(
            f"{where} cannot be read as an index ({first_line(error)[:200]}): use an intact copy of"
            " the datastore"
        ) from error


def _imported(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise UserError(
            f"index={name}: {name} cannot be imported ({first_line(error)[:100]}): run pip"
            " install 'semspec[datastores]', or use index=exact"
        ) from error


def _counted(keys: Keys) -> int:
    return sum(map(len, keys))
