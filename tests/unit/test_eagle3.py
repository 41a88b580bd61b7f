"""The EAGLE-3 head against a slow reference written from the paper: with its cache, and from its files."""

from __future__ import annotations

import math
import random
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from semspec.decoding.sampling import probabilities
from semspec.drafters.eagle3 import Eagle3Drafter, Eagle3Session
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.heads import eagle3_step
from semspec.heads.eagle3 import BIASED, Eagle3, read_shape
from semspec.heads.eagle3_pairs import Pairs
from semspec.heads.eagle3_step import StepPairs
from semspec.models import processor
from semspec.models.location import ModelConfig
from semspec.rules.lossless import Lossless
from semspec.types import Answer, Context, Draft, Query, Read, Room, Sampling, Seen, What
from tests.support.binding import run_of
from tests.support.heads import eagle3_config, eagle3_tensors, target_folder, write
from tests.support.law import toy_kit

VOCABULARY, IDS = 20, [1, 2, 3, 5, 8, 9, 13, 14, 17]
WIDTH, LAYERS = 16, 9
SHAPE: dict[str, Any] = {"width": WIDTH, "heads": 4, "kv_heads": 2}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_folder(tmp_path_factory.mktemp("target"), VOCABULARY, WIDTH, LAYERS)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in the format of the published ones: half precision, the target's embedding."""
    tensors = eagle3_tensors(VOCABULARY, IDS, target_width=WIDTH, **SHAPE)
    halves = {n: t.half() if t.is_floating_point() else t for n, t in tensors.items()}
    config = eagle3_config(VOCABULARY, len(IDS), **SHAPE)
    return write(tmp_path_factory.mktemp("head"), config, halves, "model.safetensors")


# ---- the slow reference -------------------------------------------------------------------------


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean() + 1e-5).sqrt() * weight


def turned(x: Tensor, position: int) -> Tensor:
    """Llama's rotary embedding: the first half of a head's numbers is paired with the second."""
    half = len(x) // 2
    out = x.clone()
    for i in range(half):
        angle = position * 10000.0 ** (-2 * i / len(x))
        c, s = math.cos(angle), math.sin(angle)
        out[i] = x[i] * c - x[i + half] * s
        out[i + half] = x[i + half] * c + x[i] * s
    return out


class Slow:
    """Pair by pair in float64: (feature or own output, token) -> a; everything is attended to."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.w = {n: t.double() for n, t in load_file(folder / "model.safetensors").items()}
        self.embed = load_file(target / "model.safetensors")["model.embed_tokens.weight"].double()
        self.pairs: list[tuple[list[Tensor], list[Tensor]]] = []

    def matrix(self, name: str) -> Tensor:
        return self.w[f"midlayer.{name}.weight"]

    def fused(self, features: Tensor) -> Tensor:
        return self.w["fc.weight"] @ torch.cat(list(features.double()))

    def pair(self, hidden: Tensor, token: int) -> Tensor:
        heads, kv_heads, d = 4, 2, WIDTH // 4
        position = len(self.pairs)
        x = torch.cat(
            [
                norm(self.embed[token], self.matrix("input_layernorm")),
                norm(hidden, self.matrix("hidden_norm")),
            ]
        )
        q, k, v = ((self.matrix(f"self_attn.{n}_proj") @ x).split(d) for n in "qkv")
        self.pairs.append(([turned(one, position) for one in k], list(v)))
        outputs = []
        for head in range(heads):
            own, shared = turned(q[head], position), head // (heads // kv_heads)
            scores = torch.stack([own @ keys[shared] / d**0.5 for keys, _ in self.pairs])
            weights = scores.softmax(0)
            seen = zip(weights, self.pairs, strict=True)
            outputs.append(sum((w * values[shared] for w, (_, values) in seen), torch.zeros(d)))
        x = hidden + self.matrix("self_attn.o_proj") @ torch.cat(outputs).double()
        y = norm(x, self.matrix("post_attention_layernorm"))
        gate, up = self.matrix("mlp.gate_proj") @ y, self.matrix("mlp.up_proj") @ y
        return x + self.matrix("mlp.down_proj") @ (gate * gate.sigmoid() * up)

    def row(self, a: Tensor, sampling: Sampling) -> Tensor:
        """Probabilities over the target's vocabulary."""
        logits = torch.full((VOCABULARY,), -torch.inf, dtype=torch.float64)
        logits[IDS] = self.w["lm_head.weight"] @ norm(a, self.w["norm.weight"])
        return probabilities(logits, sampling)


def slow_rows(
    slow: Slow, tokens: list[int], features: Tensor, drafted: list[int], sampling: Sampling
) -> list[Tensor]:
    """The row that each drafted token came from, from nothing."""
    slow.pairs.clear()
    for i in range(len(tokens) - 1):
        a = slow.pair(slow.fused(features[i]), tokens[i + 1])
    rows = [slow.row(a, sampling)]
    for token in drafted[:-1]:
        a = slow.pair(a, token)
        rows.append(slow.row(a, sampling))
    return rows


# ---- the session --------------------------------------------------------------------------------


def session(
    published: Path, target: Path, sampling: Sampling, seed: int = 0, **options: Any
) -> Eagle3Session:
    options = {"tree": "chain"} | options
    drafter = Eagle3Drafter(head=ModelConfig(path=str(published)), **options).bind(
        run_of({}, folders={"target": target})
    )
    engine = Toy(vocabulary=4).models()["target"]  # of its kit only sampling and numbers are used
    return drafter.open(toy_kit(Lossless(), engine, sampling, seed))


def draft(one: Eagle3Session, context: Context, features: Tensor, room: Room) -> Draft:
    """A draft; what it asks the target for is answered from ``features``."""
    plan = one.draft(context, room)
    try:
        asked = next(plan)
        assert isinstance(asked, Query) and asked.model == "target"
        start = asked.rows_from or 0
        rows = {read: features[start : len(context)] for read in one.watches}
        plan.send(Answer(values=rows))
    except StopIteration as stop:
        value: Draft = stop.value
        return value
    raise AssertionError("it asks once at most")


def show(one: Eagle3Session, features: Tensor, start: int, end: int) -> None:
    (read,) = one.watches
    one.see(Seen(start, end - start, {read: features[start:end]}))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(1.0), Sampling(0.7, 6, 0.9)])
def test_rounds_over_the_cache_equal_the_paper_from_nothing(
    published: Path, target: Path, sampling: Sampling, seed: int
) -> None:
    """Some rounds: features come in pieces, overlapping and with gaps; drafts are thrown away."""
    rng = random.Random(seed)
    one, slow = session(published, target, sampling, seed), Slow(published, target)
    assert one.watches[0].layers == (2, 4, 6)
    features = torch.randn(60, 3, WIDTH, generator=torch.Generator().manual_seed(seed))
    context = Context(0, [rng.randrange(VOCABULARY) for _ in range(rng.randint(2, 6))])
    for turn in range(5):
        found = draft(one, context, features, Room(5, 5, 1))
        assert len(found.tokens) == 5 and set(found.tokens) <= set(IDS)
        rows = slow_rows(slow, context.tokens, features, found.tokens, sampling)
        if sampling.greedy:
            assert found.probs is None
            assert [int(row.argmax()) for row in rows] == found.tokens
        else:
            assert found.probs is not None
            torch.testing.assert_close(
                found.probs.double(), torch.stack(rows).double(), atol=1e-5, rtol=1e-4
            )
            unknown = [t for t in range(VOCABULARY) if t not in IDS]
            assert found.probs[:, unknown].sum() == 0
        before = len(context)
        context.extend([*found.tokens[: turn % 3], rng.randrange(VOCABULARY)])
        if turn != 2:  # once nothing was shown, so that it has to ask
            show(one, features, max(0, before - 1 - turn % 2), len(context) - 1)


@pytest.mark.parametrize("tree", ["static", "dynamic", "sampled"])
def test_every_node_of_a_tree_has_the_row_of_its_own_path(
    published: Path, target: Path, tree: str
) -> None:
    sampling = Sampling(0.9)
    size = {"tree_depth": 4, "tree_top_k": 3, "tree_nodes": 14}
    one, slow = session(published, target, sampling, tree=tree, **size), Slow(published, target)
    features = torch.randn(60, 3, WIDTH, generator=torch.Generator().manual_seed(5))
    context = Context(0, [4, 1, 2])
    for _ in range(3):
        found = draft(one, context, features, Room(4, 4, 1))
        assert found.parents is not None and len(found.tokens) > 6
        rows = found.evidence[Read(What.PROBS)]
        paths: list[list[int]] = []
        for node, parent in enumerate(found.parents):
            path = paths[parent] if parent >= 0 else []
            expected = slow_rows(slow, context.tokens, features, [*path, 0], sampling)[-1]
            torch.testing.assert_close(rows[node].double(), expected.double(), atol=1e-5, rtol=1e-4)
            paths.append([*path, found.tokens[node]])
        assert max(map(len, paths)) > 2
        context.extend([*max(paths, key=len), 7])


def test_a_round_reads_only_what_is_new(published: Path, target: Path) -> None:
    one = session(published, target, Sampling(1.0))
    features, context = torch.randn(400, 3, WIDTH), Context(0, [1] * 300)
    draft(one, context, features, Room(3, 3, 1))
    context.extend([2, 3])
    show(one, features, 299, 301)
    read: list[int] = []
    assert isinstance(one.pairs, StepPairs)
    step = one.pairs.step
    fill, pair = step.fill, step.pair
    step.fill = lambda ids, *rest: (read.append(len(ids)), fill(ids, *rest))[1]  # type: ignore[method-assign]
    step.pair = lambda *rest: (read.append(1), pair(*rest))[1]  # type: ignore[method-assign]
    draft(one, context, features, Room(3, 3, 1))
    # the first new pair gives keys and values; the second gives a row, and so do two of three drafted tokens
    assert read == [1, 1, 1, 1]


@pytest.mark.parametrize("intel", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_a_cpus_short_way_computes_what_the_head_does(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool, intel: bool
) -> None:
    """Prompt, chain and tree, and again behind a longer context; ``full``: with everything a head may have, and no table."""
    tensors = eagle3_tensors(VOCABULARY, IDS, target_width=WIDTH, **SHAPE)
    config = eagle3_config(VOCABULARY, len(IDS), **SHAPE, norm_before_residual=full)
    for name in BIASED if full else ():
        tensors[f"{name}.bias"] = torch.randn(len(tensors[f"{name}.weight"]))
    write(tmp_path, config, tensors, "model.safetensors")
    if full:
        monkeypatch.setattr(eagle3_step, "MOST", 0)
    monkeypatch.setattr(processor, "intel", lambda: intel)
    head = Eagle3.load(tmp_path, target)
    assert (head.down.stride(0) == 1) == intel
    short, whole = eagle3_step.pairs_of(head), Pairs(head)
    assert isinstance(short, StepPairs)
    levels = [
        ([3], [-1]),
        ([1], [0]),  # so far a chain
        ([5, 2, 8], [-1, -1, -1]),
        ([9, 1], [2, 4]),
        ([7], [6]),
    ]
    for tokens in ([3, 1, 2, 5, 4, 6, 2], [7], [4, 4, 9]):
        features = torch.randn(len(tokens), 3 * WIDTH)
        with torch.inference_mode():
            for one in (short, whole):
                one.follow(tokens, features)
            torch.testing.assert_close(short.logits(), whole.logits(), atol=1e-5, rtol=1e-4)
            for ids, parents in levels:
                found, expected = (one.nodes(ids, parents) for one in (short, whole))
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_tokens_that_a_head_can_draft_are_in_the_vocabularys_order(
    published: Path, target: Path, tmp_path: Path
) -> None:
    """Whatever order a checkpoint has them in, a draw takes them as a row over the whole vocabulary has them."""
    tensors = load_file(published / "model.safetensors")
    order = torch.tensor([4, 1, 8, 0, 2, 7, 3, 6, 5])
    ids = (torch.arange(len(IDS)) + tensors["d2t"])[order]
    shuffled = {"d2t": ids - torch.arange(len(IDS)), "lm_head.weight": tensors["lm_head.weight"]}
    shuffled["lm_head.weight"] = shuffled["lm_head.weight"][order]
    config = eagle3_config(VOCABULARY, len(IDS), **SHAPE)
    folder = write(tmp_path / "head", config, tensors | shuffled, "model.safetensors")
    features, context = torch.randn(20, 3, WIDTH), Context(0, [4, 1, 2, 7])
    for sampling in (Sampling(0.0), Sampling(0.8)):
        one, other = (session(at, target, sampling) for at in (published, folder))
        drafts = [draft(s, context, features, Room(6, 6, 1)) for s in (one, other)]
        assert drafts[0].tokens == drafts[1].tokens
        if not sampling.greedy:
            torch.testing.assert_close(drafts[0].probs, drafts[1].probs)


def test_a_greedy_chain_takes_the_likeliest_tokens_of_its_rows(
    published: Path, target: Path
) -> None:
    one, features = session(published, target, Sampling(0.0)), torch.randn(20, 3, WIDTH)
    context = Context(0, [4, 1, 2, 7])
    found = draft(one, context, features, Room(4, 4, 1))
    again = session(published, target, Sampling(0.0))
    draft(again, context, features, Room(1, 1, 1))
    expected: list[int] = []
    for count in range(4):
        with torch.inference_mode():
            row = again.rows(expected[-1:], [count - 2] * (count > 0), Sampling(0.0))
        expected.append(IDS[int(row[0].argmax())])
    assert found.tokens == expected and found.probs is None


# ---- training ---------------------------------------------------------------------------------


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    return import_module("train_eagle3")


def drafted_behind(
    published: Path, target: Path, tokens: list[int], features: Tensor, k: int, j: int
) -> Tensor:
    """a of the drafting session where the pairs up to j - k are true, and k tokens were drafted."""
    one = session(published, target, Sampling(1.0))
    start = j - k + 2  # tokens of the context: its last pair is that of j - k
    show(one, features, 0, start - 1)
    with torch.inference_mode():
        one._follow(tokens[:start])
        for count in range(1, k + 1):
            one.rows([tokens[start + count - 1]], [count - 2], Sampling(1.0))
    assert isinstance(one.pairs, StepPairs)
    return one.pairs.outputs[-1]


LEARNT, TEXTS = 5, 2


def texts(length: int) -> tuple[Tensor, Tensor]:
    """Tokens [texts, length], and the target's states: three features and the last one."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(VOCABULARY, (TEXTS, length), generator=generator)
    return tokens, torch.randn(TEXTS, length, 4, WIDTH, generator=generator)


def test_every_step_of_training_is_what_drafting_computes(
    published: Path, target: Path, training: ModuleType
) -> None:
    """The training-time test: step k at j is the head's k-th drafted token behind j - k true pairs."""
    head = Eagle3.load(published, target)
    tokens, states = texts(9)
    features = states[:, :, :3]
    n = tokens.shape[1] - 1
    with torch.inference_mode():
        made = list(training.steps_of(head, tokens[:, 1:], features[:, :n].flatten(2), LEARNT))
    assert len(made) == LEARNT
    for k, row in [(k, row) for k in range(LEARNT) for row in range(TEXTS)]:
        for j in range(k, n):
            own = drafted_behind(published, target, tokens[row].tolist(), features[row], k, j)
            torch.testing.assert_close(made[k][row, j], own, atol=1e-5, rtol=1e-5)


def test_the_loss_is_the_cross_entropy_of_what_would_be_drafted(
    published: Path, target: Path, training: ModuleType
) -> None:
    """Against one place after the other: the session's logits, the target's own law."""
    head = Eagle3.load(published, target)
    tokens, states = texts(8)
    generator = torch.Generator().manual_seed(4)
    teacher = torch.randn(VOCABULARY, WIDTH, generator=generator)
    sizes = 0.5 + torch.rand(3, WIDTH, generator=generator)
    learned = torch.rand(tokens.shape, generator=generator) < 0.7
    with torch.no_grad():
        total, right = training.loss_of(head, teacher, sizes, LEARNT, (tokens, learned, states))
    expected, hits = 0.0, []
    for k in range(LEARNT):
        losses, same = [], []
        for row in range(TEXTS):
            features = states[row, :, :3] / sizes
            for j in range(k, tokens.shape[1] - 2):
                if not learned[row, j + 2]:  # the token that is drafted there
                    continue
                a = drafted_behind(published, target, tokens[row].tolist(), features, k, j)
                logits = [float(x) for x in head.logits(a)]
                law = (teacher.double() @ states[row, j + 1, 3].double()).tolist()
                norm_of = math.log(sum(math.exp(x) for x in logits))
                mass = sum(math.exp(law[i]) for i in IDS)
                losses.append(
                    -sum(
                        math.exp(law[i]) / mass * (x - norm_of)
                        for i, x in zip(IDS, logits, strict=True)
                    )
                )
                same.append(IDS[logits.index(max(logits))] == law.index(max(law)))
        assert losses, "a step of which nothing is learned shows nothing"
        expected += 0.8**k * sum(losses) / len(losses)
        hits.append(sum(same) / len(same))
    assert float(total) == pytest.approx(expected, rel=1e-4)
    assert right == pytest.approx(hits)


# ---- files --------------------------------------------------------------------------------------


def test_heads_in_the_published_format_load(published: Path, target: Path) -> None:
    head = Eagle3.load(published, target)
    assert head.shape.draft_vocabulary == len(IDS) and head.ids is not None
    assert head.ids.tolist() == IDS
    assert [head.token(i) for i in range(3)] == IDS[:3]
    own = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    weight = load_file(published / "model.safetensors")["midlayer.input_layernorm.weight"]
    rows = torch.stack([norm(row, weight) for row in own])
    torch.testing.assert_close(head.embed, rows, atol=1e-5, rtol=1e-5)


def test_states_that_a_checkpoint_names_are_those_that_are_read(
    published: Path, target: Path, tmp_path: Path
) -> None:
    places = {"eagle_aux_hidden_state_layer_ids": [0, 3, 8]}
    config = eagle3_config(VOCABULARY, len(IDS), eagle_config=places, **SHAPE)
    tensors = load_file(published / "model.safetensors")
    folder = write(tmp_path / "head", config, tensors, "model.safetensors")
    assert read_shape(folder, target).layers == (1, 4, 9)


def _drop(tensors: dict[str, Tensor]) -> None:
    del tensors["midlayer.hidden_norm.weight"]


def _add(tensors: dict[str, Tensor]) -> None:
    tensors["midlayer.self_attn.q_norm.weight"] = torch.ones(4)


def _reshape(tensors: dict[str, Tensor]) -> None:
    tensors["fc.weight"] = torch.zeros(WIDTH, 2 * WIDTH)


def _retype(tensors: dict[str, Tensor]) -> None:
    tensors["t2d"] = tensors["t2d"].long()


def _contradict(tensors: dict[str, Tensor]) -> None:
    tensors["d2t"][2] += 1


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_drop, "missing tensors: midlayer.hidden_norm.weight"),
        (_add, "unknown ones: midlayer.self_attn.q_norm.weight"),
        (_reshape, r"fc.weight has the shape \[16, 32\], not \[16, 48\]"),
        (_retype, "t2d is torch.int64, not torch.bool"),
        (_contradict, "d2t and t2d contradict each other"),
    ],
)
def test_heads_that_do_not_fit_are_refused_in_one_line(
    spoil: Any, told: str, published: Path, target: Path, tmp_path: Path
) -> None:
    tensors = load_file(published / "model.safetensors")
    spoil(tensors)
    config = eagle3_config(VOCABULARY, len(IDS), **SHAPE)
    folder = write(tmp_path / "head", config, tensors, "model.safetensors")
    with pytest.raises(UserError, match=told):
        Eagle3.load(folder, target)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"num_hidden_layers": 2}, "not a standard EAGLE-3 head"),
        ({"medusa_num_heads": 4}, "contains Medusa heads: use draft=medusa"),
        ({"attention_bias": True}, "missing tensors: midlayer.self_attn.k_proj.bias"),
        ({"norm_output": True}, "not a standard EAGLE-3 head .*norm_output"),
        ({"vocab_size": 21}, "drafts for a vocabulary of 21, but the target's has 20"),
        ({"target_hidden_size": 8}, "states of width 8, but the target's have 16"),
        ({"draft_vocab_size": "many"}, "draft_vocab_size='many'"),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 9]}},
            r"the states \[2, 5, 10\] of a target with 9 layers",
        ),
    ],
)
def test_a_head_for_another_target_is_refused(
    more: dict[str, Any], told: str, published: Path, target: Path, tmp_path: Path
) -> None:
    config = eagle3_config(VOCABULARY, len(IDS), **SHAPE) | more
    tensors = load_file(published / "model.safetensors")
    folder = write(tmp_path / "head", config, tensors, "model.safetensors")
    with pytest.raises(UserError, match=told):
        Eagle3.load(folder, target)


def test_pickled_heads_are_not_read(published: Path, target: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((published / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(
        UserError, match=r"pickled heads .* convert it once: python -m semspec\.convert_head"
    ):
        Eagle3.load(tmp_path, target)
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(UserError, match="cannot be read"):
        Eagle3.load(tmp_path, target)
