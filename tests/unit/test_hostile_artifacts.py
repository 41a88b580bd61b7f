"""Damaged configs, headers and manifests of every kind cause a one-line error each, and nothing else.

Each damaged file is tried with the manifest of the intact files, without a manifest, and with one made for the damaged
file. A deep run tries 3,000 of each kind; ``make test-attack`` 20,000, and as many for every reader.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml  # type: ignore[import-untyped]

from semspec import registry
from semspec.artifacts import _card, inspection
from semspec.artifacts.base import CARD, CONFIG, MANIFEST, TENSORS, Artifact
from semspec.artifacts.dense_datastore import DenseDatastore
from semspec.artifacts.model import Model
from semspec.artifacts.sparse_datastore import SparseDatastore
from semspec.engines._lean.engine import HfEngine
from semspec.errors import UserError
from semspec.heads.eagle3 import Eagle3
from semspec.heads.medusa import Medusa
from semspec.models.location import EXAMPLE_VOCABULARY, ModelConfig, read_facts
from semspec.models.text import Text
from semspec.storage import manifests
from semspec.storage.packaged import beside_package
from tests.support.deep import samples
from tests.support.mutants import MUTANTS, scribbled, twisted

KINDS = {name: plugin.cls for name, plugin in registry.plugins("artifact").items()}
# of each kind, of each of the drafters' readers, and of what a run loads of a model
CASES = len(KINDS) * (MUTANTS or samples(quick=150, deep=3_000))
HEADS = MUTANTS or 3_000
MODELS = MUTANTS or samples(quick=100, deep=1_000)
SECONDS, MEGABYTES = 2.0, 500  # that a damaged file may cost
FORBIDDEN = {
    *("exec", "compile", "import", "pickle.find_class", "os.system", "os.exec", "os.posix_spawn"),
    *("subprocess.Popen", "socket.connect", "os.remove", "os.rename", "shutil.rmtree"),
}
TYPES = ("F16", "F32", "F64", "BF16", "I64", "U8", "BOOL", "C64", "F8_E4M3", "OBJECT", "", 7, None)


def tensors(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file whose header lies."""
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    name = rng.choice([n for n in header if n != "__metadata__"])
    what = rng.randrange(9)
    if what == 0:
        header[name]["dtype"] = rng.choice(TYPES)
    elif what == 1:
        header[name]["shape"] = rng.choice(
            [[], [0], [-1], [2**62, 4], [2**64], [1.5], "x", [1] * 3000]
        )
    elif what == 2:
        header[name]["data_offsets"] = rng.choice([[0, 2**63], [-8, 0], [4, 0], [0], "x", [2**70, 2**70], [0, 0]])  # fmt: skip
    elif what == 3:
        header[rng.choice(["../../x", "", "a" * 9000, "more", "__metadata__"])] = header.pop(name)
    elif what == 4:
        header["__metadata__"] = rng.choice([{"x": 1}, [], "x", {"x": "y" * 5000}, None])
    elif what == 5:
        body = rng.choice([b"", body[:-1], body + b"\0", body * 2])
    elif what == 6:
        body = bytearray(body)
        at = rng.randrange(len(body) // 4) * 4
        body[at : at + 4] = rng.choice([b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff"])
    elif what == 7:
        return rng.randbytes(8) + data[8:]
    else:
        return rng.choice([2**63, 2**40, 99_999_999, 0, length - 1, length + 1]).to_bytes(8, "little") + data[8:]  # fmt: skip
    told = json.dumps(header).encode()
    return len(told).to_bytes(8, "little") + told + bytes(body)


def vouched(rng: random.Random, folder: Path, manifest: bytes, name: str) -> None:
    """Leaves the manifest as it was, takes it away, or lets it vouch for what is there now."""
    path = folder / MANIFEST
    if name == MANIFEST:  # it is itself what was damaged
        return
    path.unlink(missing_ok=True)
    mode = rng.randrange(3)
    if mode == 1:
        path.write_bytes(manifest)
    elif mode == 2:
        told = json.loads(manifest)
        files = {n: (f["size"], f["sha256"]) for n, f in told["files"].items()}
        files[name] = ((folder / name).stat().st_size, manifests.sha256(folder / name))
        path.write_bytes(manifests.make(told["kind"], told["version"], files))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Return a folder in memory, where there is one: writing a mutant to a disk takes ten times as long as reading it."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="semspec-mutants-", dir="/dev/shm") as folder:
        yield Path(folder)


class Watch:
    """Notes what is opened outside a folder, run or imported, while it is ``on``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.on = str(folder), False
        self.seen: list[str] = []
        sys.addaudithook(self.hook)  # it can never be taken away, only told to look no more

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open" and isinstance(arguments[0], str | bytes):
            if not os.fsdecode(arguments[0]).startswith(self.folder):
                self.seen.append(f"open {arguments[0]!r:.80}")
        elif event in FORBIDDEN:
            self.seen.append(f"{event} {arguments[:1]!r:.80}")


def of_file(name: str) -> list[Callable[[random.Random, bytes], bytes]]:
    if name.endswith(".safetensors"):
        return [tensors, tensors, tensors, scribbled]
    return [twisted, scribbled] if name == MANIFEST else [twisted, twisted, scribbled]


def asked(made: Artifact) -> None:
    """Ask a datastore that could be opened what a drafter asks."""
    if isinstance(made, SparseDatastore):
        store = made.open()
        found = store.longest([1, 2], 8)
        if found:
            store.following(found, 4, 10)
    elif isinstance(made, DenseDatastore):
        with np.errstate(all="ignore"):  # any finite number may be in a projection
            made.open(index=True).nearest(np.ones(4, np.float32), 3, 4)


@pytest.mark.deep(quick=True)
def test_damaged_artifacts_end_in_an_error(place: Path) -> None:
    """Of every registered kind, whichever there are: all files that a load reads."""
    intact: dict[str, dict[str, bytes]] = {}
    for kind, cls in KINDS.items():
        folder = place / kind
        cls.example().save(folder)
        files = [CONFIG, MANIFEST, *(f.name for f in sorted(folder.glob("*.safetensors")))]
        intact[kind] = {name: (folder / name).read_bytes() for name in files}
        asked(cls.read(folder))  # what is imported late is imported now
    rng = random.Random(20261121)
    tried, refused = Counter[str](), Counter[str]()
    slowest, long = 0.0, set[int]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watch = Watch(place)
    for case in range(CASES):
        kind = rng.choice(list(KINDS))
        name = rng.choice(list(intact[kind]))
        path = place / kind / name
        path.write_bytes(rng.choice(of_file(name))(rng, intact[kind][name]))
        vouched(rng, path.parent, intact[kind][MANIFEST], name)
        began = time.process_time()
        watch.on = True
        try:
            asked(KINDS[kind].read(path.parent))
        except UserError as error:
            refused[kind] += 1
            long |= {case} if "\n" in str(error) or len(str(error)) > 1000 else set()
        watch.on = False
        tried[kind] += 1
        slowest = max(slowest, time.process_time() - began)
        path.write_bytes(intact[kind][name])
        (path.parent / MANIFEST).write_bytes(intact[kind][MANIFEST])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert not watch.seen, watch.seen[:5]
    assert not long  # cases whose error is no line to read
    assert set(refused) == set(KINDS)
    for kind, cls in KINDS.items():
        # the rest changed what may be changed: a figure, a finite number, a token; and a config in
        # transformers' format may hold anything beside what is read of it
        least = 0.4 if issubclass(cls, Model) else 0.8
        assert refused[kind] > least * tried[kind], f"{kind}: {refused[kind]} of {tried[kind]}"
    assert slowest < SECONDS
    assert grown < MEGABYTES, f"{grown:.0f} MiB"
    assert {f.name for f in place.iterdir()} == set(KINDS)


@pytest.mark.parametrize("kind", ["eagle3_head", "medusa_head"])
@pytest.mark.deep
def test_damaged_heads_end_in_an_error(kind: str, place: Path) -> None:
    """Drafters read heads of other makers, beside their target, by readers of their own."""
    (place / "target").mkdir()
    sizes = {"num_hidden_layers": 8, "hidden_size": 4, "vocab_size": EXAMPLE_VOCABULARY}
    (place / "target" / CONFIG).write_text(json.dumps(sizes))
    head = KINDS[kind].example()
    load: Callable[[Path, Path], object] = Medusa.load
    if kind == "eagle3_head":
        load = Eagle3.load
        head.config |= {"num_hidden_layers": 1, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
        head.tensors["embed_tokens.weight"] = torch.ones(EXAMPLE_VOCABULARY, 4)
    folder = place / "head"
    head.save(folder)
    intact = {name: (folder / name).read_bytes() for name in (CONFIG, TENSORS, MANIFEST)}
    load(folder, place / "target")
    rng, refused, slowest, long = random.Random(7), 0, 0.0, set[int]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watch = Watch(place)
    for case in range(HEADS):
        name = rng.choice(list(intact))
        (folder / name).write_bytes(rng.choice(of_file(name))(rng, intact[name]))
        vouched(rng, folder, intact[MANIFEST], name)
        began = time.process_time()
        watch.on = True
        try:
            load(folder, place / "target")
        except UserError as error:
            refused += 1
            long |= {case} if "\n" in str(error) or len(str(error)) > 1000 else set()
        watch.on = False
        slowest = max(slowest, time.process_time() - began)
        (folder / name).write_bytes(intact[name])
        (folder / MANIFEST).write_bytes(intact[MANIFEST])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert not watch.seen, watch.seen[:5]
    assert not long
    assert refused > 0.4 * HEADS
    assert slowest < SECONDS
    assert grown < MEGABYTES, f"{grown:.0f} MiB"


@pytest.mark.deep(quick=True)
def test_damaged_models_end_in_an_error(place: Path) -> None:
    """All that a run loads of a model: facts, weights, tokenizer and chat template."""
    folder = Path(shutil.copytree(beside_package("hub_artifacts") / "tiny-draft", place / "it"))
    model = ModelConfig(path=str(folder))

    def load() -> None:
        model.fetch()
        text = Text(str(folder))
        text.prompt("What is 2 + 2?")
        read_facts(model, text.fingerprint)
        HfEngine(folder, torch.float32, torch.device("cpu"), 0, 64)

    load()
    told = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
    intact = {n: (folder / n).read_bytes() for n in (*told, TENSORS, MANIFEST)}
    rng, refused, slowest, long = random.Random(13), 0, 0.0, list[str]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(MODELS):
        name = rng.choice(list(intact))
        (folder / name).write_bytes(rng.choice(of_file(name))(rng, intact[name]))
        vouched(rng, folder, intact[MANIFEST], name)
        began = time.process_time()
        try:
            load()
        except UserError as error:
            refused += 1
            long += [str(error)] if "\n" in str(error) or len(str(error)) > 1000 else []
        slowest = max(slowest, time.process_time() - began)
        (folder / name).write_bytes(intact[name])
        (folder / MANIFEST).write_bytes(intact[MANIFEST])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert not long, long[:3]
    assert refused > 0.4 * MODELS
    assert slowest < SECONDS
    assert grown < MEGABYTES, f"{grown:.0f} MiB"


CARDS = MUTANTS or 3_000
SPELT = (
    *(b"&a ", b"*a ", b"&a [*a]", b"!!bool ", b"!!int ", b"!!timestamp ", b"!!binary ", b"!x ", b"<<: "),
    *(b"? ", b"| ", b"> ", b"- ", b"\t", b"'", b"{", b"]", b"...\n", b"---\n", b"%YAML 9.9\n", b"0x" + b"f" * 9000),
)  # fmt: skip
BOMB = "a0: &a0 [x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 7)
)


def card(rng: random.Random, text: bytes) -> bytes:
    """A card whose front matter says something else, or is no YAML to speak of."""
    _, front, body = text.split(b"---\n", 2)
    what = rng.randrange(4)
    if what == 0:
        return scribbled(rng, text)
    if what == 1:
        front = twisted(rng, json.dumps(yaml.safe_load(front)).encode()) + b"\n"
    else:
        for _ in range(what):
            at = rng.randrange(len(front))
            front = front[:at] + rng.choice(SPELT) + front[at:]
    return b"---\n" + front + b"---\n" + body


@pytest.mark.deep
def test_damaged_cards_end_in_an_error(place: Path) -> None:
    """In a folder whose manifest vouches for the card: whoever publishes one can write both."""
    cls = KINDS["risk"]
    folder = place / "it"
    cls.example().save(folder)
    intact = (folder / CARD).read_bytes()
    inspection.check(folder)
    rng, refused, slowest, long = random.Random(11), 0, 0.0, set[int]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watch = Watch(place)
    for case in range(CARDS):
        (folder / CARD).write_bytes(card(rng, intact))
        manifests.seal(folder, cls.kind, cls.version)
        began = time.process_time()
        watch.on = True
        try:
            inspection.check(folder)
        except UserError as error:
            refused += 1
            long |= {case} if "\n" in str(error) or len(str(error)) > 1000 else set()
        watch.on = False
        slowest = max(slowest, time.process_time() - began)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert not watch.seen, watch.seen[:5]
    assert not long
    assert refused > 0.4 * CARDS  # the rest changed the text, or metadata that may say anything
    assert slowest < SECONDS
    assert grown < MEGABYTES, f"{grown:.0f} MiB"


@pytest.mark.parametrize(
    "text",
    [
        "no front matter",
        "---\n" + "[" * 20_000 + "\n---\n",
        "---\na: &a [x, x]\nb: &b [*a, *a]\nc: !!python/object/apply:os.system ['true']\n---\n",
        "---\n- a\n---\n",
        "---\nlibrary_name: [semspec]\n---\n",
        "---\nlibrary_name: semspec\ntags: semspec\n---\n",
        "---\nlibrary_name: semspec\ntags: [semspec]\n---\n",
        f"---\n{BOMB}library_name: *a6\n---\n",
        f"---\nlibrary_name: {'x' * 60_000}\n---\n",
        f"---\nlibrary_name: 0x{'f' * 60_000}\n---\n",
        f"---\nlibrary_name: semspec\nmore: {'x' * 70_000}\n---\n",
        *(f"---\nlibrary_name: !!{tag}\n---\n" for tag in ("bool x", "int ''", "timestamp x")),
    ],
    ids=lambda text: text[:40],
)
def test_cards_without_their_metadata_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"README\.md") as told:
        _card.check(text)
    assert len(str(told.value)) < 600 and "\n" not in str(told.value)
