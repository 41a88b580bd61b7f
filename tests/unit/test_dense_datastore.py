"""Keys as scikit-learn makes them, indices against exhaustive search, and refusals."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.preprocessing import StandardScaler, normalize

from semspec.artifacts import inspection
from semspec.artifacts.base import CONFIG
from semspec.artifacts.dense_datastore import INDEX, DenseDatastore
from semspec.datastores import dense, indices
from semspec.datastores.files import open_arrays, write_arrays
from semspec.datastores.sparse import END
from semspec.errors import UserError
from semspec.storage import manifests
from tests.support.datastores import dense_folder, toy_documents

Floats = NDArray[np.float32]


def states(count: int, width: int, seed: int = 0) -> Floats:
    """Some directions matter more than others, and some are far from zero."""
    rng = np.random.default_rng(seed)
    scale = np.geomspace(30, 0.1, width)
    mixed = (rng.standard_normal((count, width)) * scale) @ rng.standard_normal((width, width))
    made: Floats = (mixed + 50 * rng.standard_normal(width)).astype(np.float32)
    return made


def test_keys_equal_scikit_learns() -> None:
    rows, width, dims = states(3000, 24), 24, 7
    cuts = [0, 5, 700, 701, 2500, 3000]  # batches of any size

    def batches() -> Iterator[Floats]:
        return (rows[a:b] for a, b in zip(cuts, cuts[1:], strict=False))

    projection, variance = dense.fit(batches, dims)
    scaler = StandardScaler().fit(rows.astype(np.float64))
    standard = scaler.transform(rows.astype(np.float64))
    assert np.allclose(projection.mean, scaler.mean_, rtol=1e-5, atol=1e-4)
    assert np.allclose(projection.deviation, scaler.scale_, rtol=1e-5)
    # the same steps by hand, then unit length (the paper's equations 1 and 2)
    size = dense.ROWS_BY_WIDTH * width
    pca = IncrementalPCA(n_components=dims)
    steps = [*range(0, len(rows), size), len(rows)]
    if steps[-1] - steps[-2] < dims:
        del steps[-2]
    for a, b in zip(steps, steps[1:], strict=False):
        pca.partial_fit(standard[a:b])
    wanted = normalize(pca.transform(standard))
    same = np.abs((projection(rows) * wanted).sum(1))
    assert np.abs(projection(rows) @ projection(rows).T - wanted @ wanted.T).max() < 0.02
    assert same.min() > 0.98
    # and the decomposition of all rows at once spans the same space
    whole = PCA(n_components=dims).fit(standard)
    assert variance == pytest.approx(whole.explained_variance_ratio_.sum(), abs=0.01)
    assert np.allclose(np.linalg.norm(projection(rows), axis=1), 1, atol=1e-5)


def test_a_constant_dimension_does_not_count() -> None:
    rows = states(200, 6)
    rows[:, 2] = 7
    projection, _ = dense.fit(lambda: iter([rows]), 4)
    moved = rows[:5].copy()
    assert np.isfinite(projection(moved)).all()
    assert np.abs(projection.components[:, 2]).max() < 1e-3
    with pytest.raises(ValueError, match="too few"):
        dense.fit(lambda: iter([rows[:3]]), 4)
    with pytest.raises(ValueError, match="0 states"):
        dense.fit(lambda: iter([]), 4)


def clustered(count: int, dims: int, seed: int = 0) -> NDArray[np.float16]:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(2, count // 50), dims))
    keys = centres[rng.integers(0, len(centres), count)] + 0.5 * rng.standard_normal((count, dims))
    unit: NDArray[np.float16] = (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float16)  # fmt: skip
    return unit


def test_exact_neighbours_are_those_of_a_comparison_of_all() -> None:
    keys = clustered(500, 8)
    shards = [keys[:123], keys[123:124], keys[124:]]
    queries = clustered(20, 8, 1).astype(np.float32)
    alike = queries @ keys.astype(np.float32).T
    wanted = np.argsort(-alike, axis=1, kind="stable")[:, :10]
    for count in (1, 10, 1000):
        entries, cosines = indices.Exact(shards).search(queries, count)
        assert entries.shape == (20, min(count, 500))
        assert (entries[:, :10] == wanted[:, :count]).all()
        assert np.allclose(cosines, np.take_along_axis(alike, entries, 1))


@pytest.mark.parametrize("name", ["scann", "faiss"])
def test_approximate_neighbours_are_nearly_the_exact_ones(name: str, tmp_path: Path) -> None:
    keys = clustered(6000, 16)
    shards = [keys[:2500], keys[2500:]]
    files = indices.build(name, shards, leaves=40)
    # as bytes of a file and back
    write_arrays(tmp_path / INDEX, files)
    index = indices.load(name, files, shards, tmp_path / INDEX)
    told = dense.measure(dense.Places.drawn(shards, 200, seed=0), index)
    assert told["recall_at_10"] >= 0.95
    assert told["mrr"] >= 0.95
    assert told["asked"] == 200
    entries, cosines = index.search(keys[7:9].astype(np.float32), 5)
    assert entries[:, 0].tolist() == [7, 8]
    assert np.allclose(cosines[:, 0], 1, atol=0.02)
    assert (np.diff(cosines, axis=1) <= 1e-6).all()


@pytest.mark.parametrize("name", ["scann", "faiss"])
def test_damaged_indices_are_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    keys = [clustered(1000, 8)]
    files = dict(indices.build(name, keys, leaves=8))
    where = tmp_path / INDEX

    def load(files: indices.Files, keys: indices.Keys) -> indices.Index:
        write_arrays(where, files)
        return indices.load(name, files, keys, where)

    load(files, keys)
    with pytest.raises(UserError, match="1,000 entries"):
        indices.build(name, [keys[0][:10]])
    for wrong in ({}, {"scann_docids.pkl": np.zeros(3, np.uint8)}, files | {"more": np.zeros(1, np.uint8)}):  # fmt: skip
        with pytest.raises(UserError, match="cannot be read as an index"):
            load(wrong, keys)
    if name == "faiss":
        import faiss

        flat = faiss.IndexFlatIP(8)
        flat.add(keys[0].astype(np.float32))
        with pytest.raises(UserError, match="no lists"):
            load({"index": faiss.serialize_index(flat)}, keys)
        with pytest.raises(UserError, match="other keys"):
            load(files, [keys[0][:999]])
        with pytest.raises(UserError, match="cannot be read as an index"):
            load({"index": files["index"][:100]}, keys)
        with pytest.raises(UserError, match="cannot be read as an index"):
            load({"index": files["index"][:-10]}, keys)


@pytest.mark.parametrize(
    "path", ['"../codebook.pb"', '"/etc/hostname"', "'ah_codebook.pb'", '"\\x2e"']
)
def test_scann_opens_no_file_outside_its_folder(path: str, tmp_path: Path) -> None:
    keys = [clustered(1000, 8)]
    files = dict(indices.build("scann", keys, leaves=8))
    listed = bytes(files["scann_assets.pbtxt"]).decode()
    foreign = listed.replace('"ah_codebook.pb"', path)
    assert foreign != listed
    files["scann_assets.pbtxt"] = np.frombuffer(foreign.encode(), np.uint8)
    with pytest.raises(UserError, match="names others than its own"):
        indices.load("scann", files, keys, tmp_path)


def test_lists_of_more_than_memory_open_at_once(tmp_path: Path) -> None:
    """The last list of faiss becomes one of 60 GB of holes; what another one answers is asked."""
    count, more = 2000, 5_000_000_000
    own = clustered(count, 8)
    files = indices.Faiss.build([own], leaves=4, searched=1)
    small, large, whole = tmp_path / "small", tmp_path / "large", bytes(files["index"])
    at = whole.index(b"ilar") + 4  # lists, bytes of a code, "full", lists again, their lengths
    lists, code, _, _, *lengths = struct.unpack_from("<QQ4sQ4Q", whole, at)
    assert (lists, code, sum(lengths)) == (4, 4, count)
    first, kept = at + struct.calcsize("<QQ4sQ4Q"), sum(lengths[:3])
    header = bytearray(whole[:first])
    struct.pack_into("<q", header, 8, kept + more)
    struct.pack_into("<Q", header, first - 8, more)
    small.write_bytes(whole)
    with large.open("wb") as file:
        file.write(header + whole[first : first + kept * (code + 8)])
        file.truncate(first + (kept + more) * (code + 8))
    keys = np.broadcast_to(np.float16(0), (kept + more, 8))
    asked = own[:1].astype(np.float32)
    began = time.process_time()
    mapped = np.memmap(large, np.uint8, "r")
    found = indices.Faiss.load({"index": mapped}, [keys], large).index.search(asked, 5)[1]
    assert time.process_time() - began < 1
    reference = indices.Faiss.load(files, [own], small).index.search(asked, 5)[1]
    assert found.tolist() == reference.tolist()


def test_lists_that_claim_more_than_memory_has_addresses_are_refused(tmp_path: Path) -> None:
    """Their bytes, counted in 64 bits, are as many as before: nothing may be read beyond the file."""
    keys = [clustered(1000, 8)]
    whole = bytearray(bytes(indices.build("faiss", keys, leaves=4)["index"]))
    at = whole.index(b"ilar") + struct.calcsize("<4sQQ4sQ")
    (length,) = struct.unpack_from("<Q", whole, at)
    struct.pack_into("<Q", whole, at, length + 2**62)
    (tmp_path / INDEX).write_bytes(whole)
    files = {"index": np.frombuffer(whole, np.uint8)}
    with pytest.raises(UserError, match="cannot be read as an index"):
        indices.load("faiss", files, keys, tmp_path / INDEX)


def test_faiss_reads_no_lists_of_another_file(tmp_path: Path) -> None:
    keys = [clustered(1000, 8)]
    plain = faiss.deserialize_index(np.array(indices.build("faiss", keys, leaves=4)["index"]))
    other = tmp_path / "other"
    lists = faiss.OnDiskInvertedLists(plain.nlist, plain.code_size, str(other))  # type: ignore[attr-defined]
    lists.merge_from_1(plain.invlists)  # type: ignore[attr-defined]
    plain.replace_invlists(lists)  # type: ignore[attr-defined]
    whole = faiss.serialize_index(plain)
    whole.tofile(tmp_path / INDEX)
    before = other.read_bytes()
    with pytest.raises(UserError, match="its lists are in another file"):
        indices.load("faiss", {"index": whole}, keys, tmp_path / INDEX)
    assert other.read_bytes() == before


@pytest.mark.parametrize("name", ["scann", "faiss"])
def test_an_index_is_waited_for_by_the_first_question(name: str, tmp_path: Path) -> None:
    """Opened in the background, an index finds the same, and its errors come with the first question."""
    keys = clustered(1200, 4)
    files = indices.build(name, [keys], leaves=8)
    folder = dense_folder(tmp_path, toy_documents(5), 5)
    shard, index = tmp_path / "shard-00000.safetensors", tmp_path / INDEX
    dense.write_shard(shard, keys.astype(np.float32), np.arange(1200, dtype=np.int32), [7] * 1201)
    write_arrays(index, files)
    made = DenseDatastore.load(folder)
    sizes = {n: len(data) for n, data in files.items()}
    made.config |= {"shards": [1200], "index": {"name": name, "files": sizes}}
    made.parts = {shard.name: shard, INDEX: index}
    made.save(tmp_path / "indexed")
    store = DenseDatastore.load(tmp_path / "indexed").open(index=True)
    asked = states(5, 4)
    at_once = indices.load(name, files, [keys], index)
    for row in asked:
        found = at_once.search(store.projection(row[None]), 3)[1][0]
        assert [n.cosine for n in store.nearest(row, 3, 2)] == pytest.approx(found.tolist())
    copy = tmp_path / "indexed" / INDEX
    whole = copy.read_bytes()
    copy.unlink()
    copy.write_bytes(whole[:-10] + bytes([whole[-10] ^ 1]) + whole[-9:])
    damaged = DenseDatastore.load(tmp_path / "indexed").open(index=True)
    with pytest.raises(UserError, match="was changed after it was made"):
        damaged.nearest(asked[0], 3, 2)


def test_a_store_finds_what_followed(tmp_path: Path) -> None:
    documents = toy_documents(5)
    folder = dense_folder(tmp_path, documents, 5)
    store = DenseDatastore.load(folder).open(index=True)
    from semspec.engines.toy import Toy

    features = Toy(vocabulary=5).models()["target"].features[:, :, -1].numpy()
    for document in documents:
        for at in range(1, len(document) - 1):
            state = features[document[at - 1], document[at]]
            same = [
                d[i + 1 : i + 4]
                for d in documents
                for i in range(1, len(d) - 1)
                if (d[i - 1], d[i]) == (document[at - 1], document[at])
            ]
            near = store.nearest(state, len(same), 3)
            assert sorted(n.following for n in near) == sorted(same)
            assert all(n.cosine > 0.999 for n in near)
    assert END not in [t for n in near for t in n.following]


def test_keys_with_nan_are_never_neighbours(tmp_path: Path) -> None:
    folder = dense_folder(tmp_path, toy_documents(5), 5)
    shard = folder / "shard-00000.safetensors"
    mapped = open_arrays(shard, dense.shapes(4))
    arrays = {name: mapped.array(name).copy() for name in ("keys", "places", "tokens")}
    arrays["keys"][1:] = np.nan
    arrays["places"][0] = 2**31 - 1
    write_arrays(shard, arrays)
    (folder / "manifest.json").unlink()
    store = DenseDatastore.load(folder).open(index=True)
    assert [n.following for n in store.nearest(states(1, 4)[0], 5, 3)] == [[]]


def test_incomplete_stores_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = dense_folder(tmp_path, toy_documents(5), 5)
    shard = folder / "shard-00000.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    with pytest.raises(UserError, match="bytes, not"):
        DenseDatastore.load(folder)
    shard.write_bytes(whole[:-10] + bytes([whole[-10] ^ 1]) + whole[-9:])
    with pytest.raises(UserError, match="sha256 differs"):
        DenseDatastore.load(folder)
    # of a large file a byte in the middle is not looked at when it is opened; verify finds it
    monkeypatch.setattr(manifests, "LARGEST_HASHED", len(whole) - 1)
    DenseDatastore.load(folder)
    with pytest.raises(UserError, match="sha256 differs"):
        inspection.check(folder)
    shard.unlink()
    with pytest.raises(UserError, match="is missing"):
        DenseDatastore.load(folder)
    shard.write_bytes(whole)
    config = json.loads((folder / CONFIG).read_text())
    (folder / "manifest.json").unlink()
    for change, says in (
        ({"shards": [3]}, "entries, not 3"),
        ({"dims": 3}, "components has the shape"),
        ({"index": {"name": "faiss", "files": {}}}, "the index has no files"),
        ({"dims": 9}, "dims is 9, of states of width 4"),
    ):
        (folder / CONFIG).write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=says):
            DenseDatastore.load(folder)
