"""From chains of thought to rows: pooling, semantic probabilities, the train and test split, the plan."""

from __future__ import annotations

import json
import math
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from semspec import world
from semspec.engines._lean.engine import HfEngine
from semspec.errors import UserError
from semspec.probes.features import FLOOR, LOGPROB_NAMES, Features, of_logprobs, resolve
from semspec.training.probes import shards
from semspec.training.probes.compose import build
from semspec.training.probes.contexts import CACHES, Chain, Pair, choose_cuts, make_chains
from semspec.training.probes.dataset import PATTERN, Rows, check_split, split_chains
from semspec.training.probes.sample import plan, sample
from semspec.training.probes.semantic import probabilities
from semspec.training.probes.settings import FeatureOptions, ProbeConfig
from semspec.training.probes.shards import Sample, read_samples, read_states
from semspec.training.probes.sources import questions
from semspec.types import Context
from tests.support.pair import DRAFT
from tests.support.probes import configuration

# ---- sampling with real models -------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProbeConfig, list[Chain], Path]:
    """The draft as the model, and as its own draft: both writers, quickly."""
    folder = tmp_path_factory.mktemp("sampled")
    more = ("draft=tiny", "problems=3", "per_problem=2", "samples=4", "drafted=2", "keep=3")
    config = configuration(folder, *more)
    pair = Pair(config)
    chains = make_chains(config, pair, folder)
    cuts = choose_cuts(config, chains, 2048)
    sample(config, pair, chains, cuts, plan(config, cuts, 2, 128), folder)
    pair.close()
    return config, chains, folder / "samples"


def test_pools_are_plain_averages_over_the_states_of_transformers(
    sampled: tuple[ProbeConfig, list[Chain], Path],
) -> None:
    config, chains, folder = sampled
    model: Any = AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32).eval()
    by_id = {chain.id: chain for chain in chains}
    writers = set()
    for one in read_samples(folder):
        if one.file is None:
            continue
        writers.add(one.writer)
        chain = by_id[one.chain]
        before = chain.ids + [t for step in chain.steps[: one.cut] for t in step]
        with torch.inference_mode():
            out = model(torch.tensor([before + one.tokens]), output_hidden_states=True)
        states = torch.stack(out.hidden_states)[:, 0, len(before) :]
        stored = read_states(folder, one.file)[one.row].float()
        expected = torch.stack([states.mean(1), states.amax(1), states[:, -1]])
        assert torch.allclose(stored, expected, rtol=2e-3, atol=2e-3)
        logits = out.logits[0, len(before) - 1 : -1].log_softmax(-1)
        logprobs = logits.gather(-1, torch.tensor(one.tokens)[:, None])[:, 0]
        assert one.logprobs == pytest.approx(logprobs.tolist(), abs=2e-3)
        assert len(one.tokens) == len(one.logprobs)
    assert writers == {"own", "other"}
    assert config.pooling == ["mean", "max", "last"]


def test_every_context_keeps_the_wanted_share_of_its_samples(
    sampled: tuple[ProbeConfig, list[Chain], Path],
) -> None:
    _, _, folder = sampled
    by_context: dict[str, list[Sample]] = {}
    for one in read_samples(folder):
        by_context.setdefault(one.context, []).append(one)
    assert len(by_context) == 6
    for group in by_context.values():
        assert [(s.writer, s.number) for s in group] == [
            *(("own", n) for n in range(4)),
            *(("other", n) for n in range(2)),
        ]
        assert [s.file is not None for s in group] == [True] * 3 + [False] + [True] * 2
        assert all(s.text.endswith(("\n\n", ".")) for s in group)


def test_the_plan_counts_every_byte(
    sampled: tuple[ProbeConfig, list[Chain], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, chains, folder = sampled
    planned = plan(config, choose_cuts(config, chains, 2048), 2, 128)
    assert planned.rows == 6 * (3 + 2)
    stored = sum(read_states(folder, f.name).nbytes for f in folder.glob("*.safetensors"))
    assert planned.bytes == stored == 30 * 3 * 3 * 128 * 2
    # the paper's: 200,000 samples of a model of 64 layers and width 5,120, the mean alone
    assert shards.state_bytes(200_000, 1, 64, 5120) == 200_000 * 65 * 5120 * 2
    monkeypatch.setattr(
        shards.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10_000_000})
    )
    with pytest.raises(UserError, match=r"need 133\.12 GB.*10\.0 MB free.*keep="):
        shards.check_room(folder, shards.state_bytes(200_000, 1, 64, 5120))


def test_as_many_contexts_are_open_as_the_memory_holds(
    sampled: tuple[ProbeConfig, list[Chain], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, chains, folder = sampled
    wide = [(s.context, s.writer, s.number, s.tokens) for s in read_samples(folder)]
    most, opened = [1, 2], list[int]()

    def free(engine: HfEngine) -> int:
        # for both models, which are alike; contexts here have up to 1,024 tokens
        return math.ceil((most[0] + 0.5) * 2 * engine.session_bytes(1000) / CACHES)

    forget = HfEngine.forget

    def forgotten(engine: HfEngine, context: Context) -> None:
        opened.append(sum(tenant is not None for tenant in engine.cache.tenants))
        forget(engine, context)

    monkeypatch.setattr(HfEngine, "free_bytes", free)
    monkeypatch.setattr(HfEngine, "forget", forgotten)
    monkeypatch.setattr(HfEngine, "memory_bytes", lambda _: {"cache": 0})
    pair = Pair(config)
    while most:
        cuts = choose_cuts(config, chains, 2048)
        into = tmp_path / str(most[0])
        sample(config, pair, chains, cuts, plan(config, cuts, 2, 128), into)
        assert [
            (s.context, s.writer, s.number, s.tokens) for s in read_samples(into / "samples")
        ] == wide
        assert max(opened) == most.pop(0)
        opened.clear()
    most.append(0)
    with pytest.raises(UserError, match=r"a context of 1,000 tokens takes .* of KV cache, and"):
        pair.most_contexts(1000)
    pair.close()


def test_samples_keep_the_pools_that_the_features_need(tmp_path: Path) -> None:
    def kept(*options: str) -> list[str]:
        given = build(["cluster=oracle", f"folder={tmp_path}", *options]).pooling
        assert isinstance(given, list)
        return given

    assert kept() == kept("features=last_layer") == ["mean"]
    assert kept("features=plus") == ["mean", "max", "last"]
    assert kept("features=logprobs") == []
    assert kept("features=plus", "features.pooling=[last,mean]") == ["mean", "last"]
    assert kept("pooling=[mean,max]") == ["mean", "max"]
    with pytest.raises(UserError, match="pooling=max: give auto, or a list"):
        kept("pooling=max")
    # a folder that has more serves fewer features, whoever wrote it; one that has fewer does not serve more
    (tmp_path / "config.json").write_text(json.dumps({"pooling": ["mean", "max", "last"]}))
    assert kept() == kept("features=plus") == ["mean", "max", "last"]
    (tmp_path / "config.json").write_text(json.dumps({"pooling": ["mean"]}))
    assert kept("features=plus") == ["mean", "max", "last"]
    assert kept("features=logprobs") == ["mean"]


# ---- contexts ------------------------------------------------------------------------------------


def test_problems_are_not_those_of_the_benchmark(tmp_path: Path) -> None:
    from itertools import islice

    from semspec.benchmarks.synthetic import Synthetic

    for seed in (0, 2026):
        config = configuration(tmp_path, "problems=60", f"seed={seed}")
        ours = {q.question for q in questions(config)}
        theirs = {p.question for p in islice(Synthetic(seed=seed).problems(), 300)}
        assert len(ours) == 60
        assert not ours & theirs


def test_the_worlds_chains_are_cut_into_its_steps(tmp_path: Path) -> None:
    config = configuration(tmp_path, "chains=world", "problems=4")
    pair = Pair(config)
    for chain, question in zip(make_chains(config, pair, tmp_path), questions(config), strict=True):
        assert question.thinking is not None
        assert "".join(chain.texts) == question.thinking
        assert chain.texts == world.split_steps(question.thinking)
        assert chain.text(2).endswith(chain.texts[0] + chain.texts[1])
        assert chain.text(0).endswith("<think>\n")


def _jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
    return path


def test_chains_are_read_from_a_file_of_lines(tmp_path: Path) -> None:
    rows = [
        {"question": f"What is {n} + {n}?", "thinking": f"Let us see.\n\nIt is {2 * n}.\n\nDone."}
        for n in range(5)
    ]
    file = _jsonl(tmp_path / "mine.jsonl", rows)
    more = ("source=jsonl", f"data={file}", "cluster=exact", "problems=4")
    config = configuration(tmp_path, *more)
    chains = make_chains(config, Pair(config), tmp_path)
    assert len(chains) == 4
    assert all(len(chain.steps) == 3 for chain in chains)
    again = make_chains(config, Pair(config), tmp_path)  # read, not made again
    assert again == chains


def test_chains_are_read_in_the_schema_of_s1k(tmp_path: Path) -> None:
    data = tmp_path / "s1k"
    data.mkdir()
    _jsonl(
        data / "train.jsonl",
        [
            {"question": "a?", "thinking_trajectories": ["First.\n\nSecond."], "solution": "x"},
            {"question": "b?", "deepseek_thinking_trajectory": "Only.", "source_type": "amc"},
            {"question": "d?", "thinking": "One.", "source_type": "amc", "cot_type": "math"},
            {"question": "c?", "thinking_trajectories": []},
        ],
    )
    more = ("source=hub", f"data={data}", "cluster=exact")
    found = {q.question: q for q in questions(configuration(tmp_path, *more))}
    assert found["a?"].thinking == "First.\n\nSecond."
    assert found["b?"].domain == "amc"
    assert found["d?"].domain == "math"
    assert "c?" not in found


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (["{"], "line 1 is not JSON"),
        (["1"], "is no object"),
        ([{"thinking": "x"}], "has no question"),
        ([{"question": "x"}], "has a chain of thought"),
        ([], "has a chain of thought"),
    ],
)
def test_mistakes_in_a_file_are_refused_with_their_line(
    rows: list[Any], says: str, tmp_path: Path
) -> None:
    file = _jsonl(tmp_path / "mine.jsonl", rows)
    more = ("source=jsonl", f"data={file}", "cluster=exact")
    with pytest.raises(UserError, match=says):
        list(questions(configuration(tmp_path, *more)))


def test_parquet_without_pyarrow_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)  # as if it were not installed
    (tmp_path / "data.parquet").write_bytes(b"PAR1")
    more = ("source=hub", f"data={tmp_path}", "cluster=exact")
    with pytest.raises(UserError, match=r"pip install pyarrow"):
        list(questions(configuration(tmp_path, *more)))


def test_contexts_are_limited_by_a_seeded_choice(tmp_path: Path) -> None:
    chains = [
        Chain(f"c{n}", "d", "p", [1] * 10, [[2] * 5 for _ in range(6)], ["x"] * 6) for n in range(4)
    ]
    cuts = choose_cuts(configuration(tmp_path, "per_problem=0"), chains, 1000)
    assert cuts == {f"c{n}": [0, 1, 2, 3, 4, 5] for n in range(4)}
    few = [
        choose_cuts(configuration(tmp_path, "per_problem=4", "contexts=9", s), chains, 1000)
        for s in ("seed=0", "seed=0", "seed=1")
    ]
    assert few[0] == few[1] != few[2]
    assert sum(map(len, few[0].values())) == 9
    assert max(map(len, few[0].values())) <= 4
    # contexts that a model cannot hold are left out
    assert choose_cuts(configuration(tmp_path, "per_problem=0"), chains, 21)["c0"] == [0, 1, 2]


# ---- probabilities, features, rows ----------------------------------------------------------------


def test_only_own_samples_count() -> None:
    own = [True, True, True, True, False, False, False]
    assert probabilities([0, 0, 0, 1, 0, 2, 2], own) == [0.75, 0.75, 0.75, 0.25, 0.75, 0.0, 0.0]


def test_log_probability_features_equal_those_worked_by_hand() -> None:
    told = dict(zip(LOGPROB_NAMES, of_logprobs([-0.5, -3.0, -50.0, -1.5]), strict=True))
    assert told["lowest"] == FLOOR
    assert told["second lowest"] == -3.0
    assert told["sum"] == pytest.approx(-25.0)
    assert told["mean"] == pytest.approx(-6.25)
    assert (told["first"], told["last"]) == (-0.5, -1.5)
    assert [told[f"below {t}"] for t in (-1, -2, -4)] == [3, 2, 1]
    assert (told["tokens"], told["lowest at"]) == (4, 0.5)
    assert len(of_logprobs([-0.1])) == len(of_logprobs([])) == len(LOGPROB_NAMES)


def test_layers_are_numbers_of_the_model() -> None:
    assert resolve(FeatureOptions(layers="all"), 4) == Features()
    assert resolve(FeatureOptions(layers="last"), 4).layers == (4,)
    assert resolve(FeatureOptions(layers=[0, -1]), 4).layers == (0, 4)
    assert resolve(FeatureOptions(), 4).size(4, 10) == 50
    for layers in ([5], [-6], [0, 0]):
        with pytest.raises(UserError, match="layers 0 \\(embeddings\\) to 4"):
            resolve(FeatureOptions(layers=layers), 4)


def _rows(folder: Path, memory: float) -> Rows:
    """Forty rows of ten chains in shards of few."""
    torch.manual_seed(0)
    samples: list[Sample] = []
    for number in range(5):
        writer = shards.GroupWriter(folder, number, shard=3 * 2 * 2 * 4 * 2)
        for row in range(8):
            chain = f"c{number * 2 + row // 4}"
            one = Sample(chain, "d", row % 2, "own", row % 4, "x", [1], [-float(row)])
            writer.add(one, torch.randn(2, 2, 4))
        writer.commit()
    samples = sorted(read_samples(folder), key=lambda s: s.context)
    semantic = {s.context: [0.1 * n for n in range(4)] for s in samples}
    features = Features(("max", "mean"), (), True)
    size = features.size(1, 4)
    return Rows(folder, samples, semantic, ("mean", "max"), features, size, memory)


def test_rows_are_the_same_in_memory_and_streamed(tmp_path: Path) -> None:
    whole, streamed = _rows(tmp_path, 1.0), _rows(tmp_path, 300 / 2**30)
    assert whole.fits and not streamed.fits
    index = [i for i in range(len(whole)) if i % 3]
    for rng in (None, 7):
        gathered = []
        for rows in (whole, streamed):
            x = torch.zeros(len(rows), rows.size)
            seen: list[int] = []
            for batch in rows.batches(index, 4, rng and random.Random(rng)):
                x[batch.index] = batch.x
                seen += batch.index.tolist()
            assert sorted(seen) == index
            gathered.append(x)
        assert torch.equal(*gathered)
    largest = max(len(held) for held, _ in streamed._held(index, None))
    assert largest * streamed.size * 2 <= 300 + 3 * streamed.size * 2
    first = whole.whole[0]
    stored = read_states(tmp_path, "group-00000.00.safetensors")[0]
    assert torch.equal(first[:16], torch.cat([stored[1].flatten(), stored[0].flatten()]))


def test_the_division_keeps_problems_apart(tmp_path: Path) -> None:
    rows = _rows(tmp_path, 1.0)
    domains = {f"{kind}{n}": kind for kind in "ab" for n in range(70)} | dict.fromkeys(
        rows.chains, "c"
    )
    sides = split_chains(domains, 0)
    check_split(rows.contexts, rows.chains, [sides[c] for c in rows.chains])
    assert split_chains(domains, 0) == sides != split_chains(domains, 1)
    for kind in "ab":  # every domain is on every side
        counted = Counter(sides[f"{kind}{n}"] for n in range(70))
        assert counted == {"train": 50, "validation": 10, "test": 10}
    turns = [split_chains(domains, 0, turn) for turn in range(len(PATTERN))]
    assert turns[0] == sides
    for chain in domains:  # held out once, and of use for validation once
        assert Counter(turn[chain] for turn in turns) == Counter(PATTERN)
    with pytest.raises(UserError, match="more problems="):
        split_chains({"a": "x", "b": "x"}, 0)


@pytest.mark.parametrize(
    "parts",
    [
        ["train", "test", "train", "train"],  # rows of one context
        ["train", "train", "test", "test"],  # contexts of one problem
    ],
)
def test_a_division_that_leaks_is_found(parts: list[str]) -> None:
    with pytest.raises(AssertionError, match="is in train and in test"):
        check_split(["a/0", "a/0", "a/1", "a/1"], ["a", "a", "a", "a"], parts)


# ---- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("sampels=3", "did you mean 'samples'"),
        ("cluster=orcale", "did you mean 'oracle'"),
        ("features=papr", "did you mean 'paper'"),
        ("samples=1", "at least 2"),
        ("samples=many", "samples=many"),
        ("split=token", "not single tokens"),
        ("split=paragraf", "did you mean 'paragraph'"),
        ("temperature=0", "only above 0"),
        ("hidden=[8]", "two sizes"),
        ("source=hub", "data=simplescaling/s1K"),
        ("domains=[chess]", "residues"),
        ("chains=mixed", "needs a draft model"),
        ("writers=both", "needs a draft model"),
        ("features.pooling=[median]", "known: mean, max, last"),
        ("features.pooling=[]", "no features are left"),
        ("features.layers=some", "features.layers=some"),
        ("pooling=[max]", "add it to pooling="),
        ("memory=0", "above 0"),
        ("folder", "name=value"),
    ],
)
def test_mistakes_are_refused_in_one_line(argument: str, says: str) -> None:
    with pytest.raises(UserError) as told:
        build(["cluster=oracle", argument])
    assert says in str(told.value)
    assert "\n" not in str(told.value)
