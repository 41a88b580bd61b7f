"""The bridge: maps between real tokenizers, and an engine of known law behind one."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
import torch
from scipy.stats import chisquare  # type: ignore[import-untyped,unused-ignore]

from semspec.decoding.pace import Steady
from semspec.decoding.sampling import probabilities
from semspec.drafters.lm import LanguageModel
from semspec.driver import Driver
from semspec.engines.bridge import NONE, Bridge, BridgedEngine, build_bridge
from semspec.engines.toy import ToyEngine
from semspec.errors import UserError
from semspec.loop import Speculation, speculate
from semspec.models.text import Text
from semspec.protocols import Drafter, Plan, Rule
from semspec.rules.lossless import Lossless
from semspec.types import (
    Answer,
    Context,
    Generate,
    Outcome,
    Query,
    Read,
    Sampling,
    What,
)
from tests.support import tokenizers as small
from tests.support.law import toy_kit

SAMPLING = Sampling(temperature=1.0)


# ---- the maps ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Text, Text]:
    target = small.qwq(
        tmp_path_factory.mktemp("qwq"), generation_config={"eos_token_id": [302, 300]}
    )
    return Text(target), Text(small.r1(tmp_path_factory.mktemp("r1")))


def test_tokens_of_qwq_and_r1_map_to_each_other(pair: tuple[Text, Text]) -> None:
    target, draft = pair
    bridge = build_bridge(target, draft, target_vocabulary=320, draft_vocabulary=310)
    assert bridge is not None
    assert (len(bridge.to_draft), len(bridge.to_target)) == (320, 310)
    ours, theirs = target.added, draft.added
    ids = target.encode("We add 3.14.\n\nÄ😀")
    assert [bridge.to_draft[i] for i in ids] == draft.encode("We add 3.14.\n\nÄ😀")
    for content in ("<think>", "</think>"):
        assert ours[content] != theirs[content]
        assert bridge.to_draft[ours[content]] == theirs[content]
        assert bridge.to_target[theirs[content]] == ours[content]
    # end of text by role: the turn's end pairs, the document's end is only read as one
    assert bridge.to_draft[ours["<|im_end|>"]] == draft.eos
    assert bridge.to_draft[ours["<|endoftext|>"]] == draft.eos
    assert bridge.to_target[theirs[small.R1[0]]] == ours["<|im_end|>"] == bridge.stop
    # without counterpart
    newline = draft.encode("\n")
    assert [bridge.to_draft[ours["<|im_start|>"]]] == newline == [bridge.filler]
    assert bridge.to_draft[319] == bridge.filler
    for content in ("<｜User｜>", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>", "<|EOT|>"):
        assert bridge.to_target[theirs[content]] == NONE
    forbidden = {d for d, t in enumerate(bridge.to_target) if t == NONE}
    assert forbidden == {301, 302, 303, 304, 307, 308, 309}
    assert {*range(320)} - {*bridge.to_target} == {300, 301, 303, *range(306, 320)}


def test_bridges_in_both_directions_invert_each_other(pair: tuple[Text, Text]) -> None:
    target, draft = pair
    there, back = build_bridge(target, draft), build_bridge(draft, target)
    assert there is not None
    assert back is not None
    for t, d in enumerate(there.to_draft):
        if there.to_target[d] == t:
            assert back.to_draft[d] == t
            assert back.to_target[t] == d


def test_a_chosen_filler_replaces_untranslatable_tokens(pair: tuple[Text, Text]) -> None:
    bridge = build_bridge(*pair, filler=7)
    assert bridge is not None
    assert bridge.to_draft[pair[0].added["<|im_start|>"]] == 7
    with pytest.raises(UserError, match=r"filler 999 .*choose 0\.\."):
        build_bridge(*pair, filler=999)


def test_equal_tokenizers_need_no_bridge(pair: tuple[Text, Text], tmp_path: Path) -> None:
    target = pair[0]
    twin = Text(small.qwq(tmp_path))
    assert build_bridge(target, twin) is None
    assert build_bridge(target, twin, target_vocabulary=320, draft_vocabulary=320) is None


def test_padding_alone_needs_a_bridge(pair: tuple[Text, Text]) -> None:
    target = pair[0]
    bridge = build_bridge(target, target, target_vocabulary=312, draft_vocabulary=320)
    assert bridge is not None
    assert bridge.to_target == [*range(306), *[NONE] * 14]
    assert bridge.to_draft[:306] == list(range(306))


def test_other_ordinary_tokens_are_refused(pair: tuple[Text, Text], tmp_path: Path) -> None:
    other = small.bpe(["completely different words were learned from here"] * 9)
    draft = Text(small.save(tmp_path, other, small.R1, small.R1_TEMPLATE, small.R1[0]))
    with pytest.raises(UserError, match="differ") as caught:
        build_bridge(pair[0], draft)
    said = str(caught.value)
    assert "\n" not in said
    assert "'Ġanswer'" in said or "only" in said
    assert "choose a draft model of the target's family" in said


def test_permuted_ordinary_tokens_are_mapped(pair: tuple[Text, Text], tmp_path: Path) -> None:
    folder = Path(small.r1(tmp_path))
    whole = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = whole["model"]["vocab"]
    whole["model"]["vocab"] = {token: 299 - index for token, index in vocabulary.items()}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    draft = Text(str(folder))
    bridge = build_bridge(pair[0], draft)
    assert bridge is not None
    ids = pair[0].encode("We add the numbers.\n\n")
    assert [bridge.to_draft[i] for i in ids] == draft.encode("We add the numbers.\n\n")


# ---- an engine behind it ----------------------------------------------------------------------
# Five target tokens, 4 the end of text, 3 unknown to the draft; six of the draft's, 3 and 4 unknown
# to the target.

STOP = 4
BRIDGE = Bridge(to_draft=[1, 0, 2, 2, 5], to_target=[1, 0, 2, NONE, NONE, 4], stop=STOP, filler=2)
WIDTH = 6


def draft_engine(seed: int = 0) -> ToyEngine:
    generator = torch.Generator().manual_seed(seed)
    return ToyEngine(torch.randn((WIDTH,) * 3, generator=generator), frozenset({5}))


class Spy(ToyEngine):
    """The exact engine, remembering what it was asked."""

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        self.asked = list(queries)
        return super().answer(queries)

    def forget(self, context: Context) -> None:
        self.forgotten = context


def spied(seed: int = 0) -> Spy:
    engine = draft_engine(seed)
    return Spy(engine.logits, engine.stop_ids)


def ask(engine: BridgedEngine, context: Context, **options: object) -> Answer:
    rng = random.Random(0)
    query = Query("draft", context, SAMPLING, rng)
    for name, value in options.items():
        setattr(query, name, value)
    return engine.answer([query])[0]


def row_of(engine: ToyEngine, first: int, second: int) -> torch.Tensor:
    """The draft's law after two draft tokens, in the target's columns."""
    q = probabilities(engine.logits[first, second], SAMPLING)
    allowed = torch.stack([q[1], q[0], q[2], torch.tensor(0.0), q[5]])
    return allowed / allowed.sum()


def test_a_bridged_engine_looks_like_one_of_the_targets_tokens() -> None:
    engine = BridgedEngine(draft_engine(), BRIDGE)
    assert engine.vocabulary == 5
    assert engine.stop_ids == {STOP}
    assert engine.context_limit == draft_engine().context_limit
    assert engine.offers == draft_engine().offers


def test_scored_rows_are_the_draft_law_in_the_targets_columns() -> None:
    inner = draft_engine()
    engine = BridgedEngine(inner, BRIDGE)
    kinds = (What.PROBS, What.LOGITS, What.LOGPROBS)
    reads = tuple(Read(what) for what in kinds)
    answer = ask(engine, Context(1, [0, 1]), tokens=[2, 3, 0], reads=reads)
    states = [(1, 0), (0, 2), (2, 2), (2, 1)]  # 3 is read as the filler, 2
    probs, logits, logprobs = (answer[read] for read in reads)
    torch.testing.assert_close(probs, torch.stack([row_of(inner, *s) for s in states]))
    for row, state in zip(logits, states, strict=True):
        raw = inner.logits[state]
        expected = torch.stack([raw[1], raw[0], raw[2], torch.tensor(-torch.inf), raw[5]])
        assert torch.equal(row, expected)
    assert torch.isfinite(logprobs).tolist() == [True, False, True]  # 3 it cannot say
    assert float(logprobs[0]) == pytest.approx(float(inner.logits[1, 0].log_softmax(-1)[2]))


def test_top_k_has_only_target_tokens_in_order() -> None:
    inner = draft_engine()
    read = Read(What.TOP_K, k=4)
    other = Read(What.TOP_K, k=2)
    answer = ask(BridgedEngine(inner, BRIDGE), Context(1, [0, 1]), tokens=[2], reads=(read, other))
    ids, logprobs = answer[read]
    assert ids.shape == logprobs.shape == (2, 4)
    for row, values, state in zip(ids, logprobs, [(1, 0), (0, 2)], strict=True):
        raw = inner.logits[state].log_softmax(-1)
        assert sorted(row.tolist()) == [0, 1, 2, 4]
        assert values.tolist() == sorted(values.tolist(), reverse=True)
        assert torch.equal(values, raw[torch.tensor([BRIDGE.to_draft[t] for t in row.tolist()])])
    assert torch.equal(answer[other][0], ids[:, :2])


def test_top_k_marks_missing_entries() -> None:
    read = Read(What.TOP_K, k=6)
    ids, logprobs = ask(BridgedEngine(draft_engine(), BRIDGE), Context(1, [0, 1]), reads=(read,))[
        read
    ]
    assert torch.isinf(logprobs[0]).tolist() == [False] * 4 + [True] * 2
    assert int(ids.max()) < 5


def test_rows_without_forbidden_mass_are_untouched() -> None:
    logits = draft_engine().logits.clone()
    logits[..., 3:5] = -torch.inf
    inner = ToyEngine(logits, frozenset({5}))
    read = Read(What.PROBS)
    got = ask(BridgedEngine(inner, BRIDGE), Context(1, [0, 1]), reads=(read,))[read]
    raw = probabilities(logits[1, 0], SAMPLING)
    assert torch.equal(got[0, [1, 0, 2, 4]], raw[[0, 1, 2, 5]])


def test_a_row_of_forbidden_tokens_alone_becomes_end_of_text() -> None:
    logits = draft_engine().logits.clone()
    logits[1, 0, 3] = 99.0
    engine = BridgedEngine(ToyEngine(logits), BRIDGE)
    read = Read(What.PROBS)
    got = ask(engine, Context(1, [0, 1]), reads=(read,), sampling=Sampling(temperature=0.0))[read]
    assert got[0].tolist() == [0, 0, 0, 0, 1]
    answer = ask(
        engine,
        Context(2, [0, 1]),
        reads=(read,),
        sampling=Sampling(temperature=0.0),
        generate=Generate(5),
    )
    assert (answer.tokens, answer.finish, len(answer[read])) == ([], "limit", 0)


def test_a_tree_keeps_its_shape() -> None:
    inner = draft_engine()
    read = Read(What.PROBS)
    parents = [-1, -1, 0]
    answer = ask(
        BridgedEngine(inner, BRIDGE), Context(1, [0, 1]), tokens=[0, 2, 1], parents=parents,
        reads=(read,),
    )  # fmt: skip
    states = [(1, 0), (0, 1), (0, 2), (1, 0)]
    torch.testing.assert_close(answer[read], torch.stack([row_of(inner, *s) for s in states]))


def test_generated_tokens_end_before_what_the_target_lacks() -> None:
    inner = spied()
    engine = BridgedEngine(inner, BRIDGE)
    reads = (Read(What.PROBS), Read(What.LOGPROBS), Read(What.EMBEDDINGS), Read(What.HIDDEN))
    cut = whole = 0
    for seed in range(200):
        plain = draft_engine().answer(
            [
                Query(
                    "draft", Context(1, [1, 0]), SAMPLING, random.Random(seed),
                    generate=Generate(6),
                )
            ]
        )[0]  # fmt: skip
        answer = ask(
            engine, Context(seed, [0, 1]), rng=random.Random(seed), reads=reads,
            generate=Generate(6),
        )  # fmt: skip
        allowed = [BRIDGE.to_target[d] for d in plain.tokens]
        if NONE in allowed:
            allowed = allowed[: allowed.index(NONE)]
            assert answer.finish == "limit"
            cut += 1
        else:
            assert answer.finish == plain.finish
            whole += 1
        assert answer.tokens == allowed
        assert all(len(answer[read]) == len(allowed) for read in reads)
    assert cut > 20
    assert whole > 20


def test_drawn_tokens_have_the_reported_law() -> None:
    """Whenever the draft goes on, its next token is distributed as the row that is reported."""
    engine = BridgedEngine(draft_engine(), BRIDGE)
    read = Read(What.PROBS)
    counts: Counter[int] = Counter()
    for seed in range(3000):
        answer = ask(
            engine, Context(0, [0, 1]), rng=random.Random(seed), reads=(read,), generate=Generate(1)
        )
        counts.update(answer.tokens)
    row = row_of(engine.engine, 1, 0)  # type: ignore[arg-type]
    drawn = [0, 1, 2, 4]
    total = counts.total()
    assert total < 3000
    expected = [float(row[t]) * total for t in drawn]
    scale = total / sum(expected)
    p = chisquare([counts[t] for t in drawn], [e * scale for e in expected]).pvalue
    assert p > 1e-3


class Recorder:
    """A boundary that ends units after a token, and writes down what it is fed."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.fed: list[int] = []

    def feed(self, token: int) -> int | None:
        self.fed.append(token)
        return 0 if token == self.end else None


def test_the_boundary_is_fed_the_targets_tokens() -> None:
    engine = BridgedEngine(draft_engine(), BRIDGE)
    pooled = Read(What.POOLED)
    finishes: Counter[str] = Counter()
    for seed in range(200):
        boundary = Recorder(end=0)
        answer = ask(
            engine, Context(seed, [0, 1]), rng=random.Random(seed), reads=(pooled,),
            generate=Generate(12, boundary, 2),
        )  # fmt: skip
        assert boundary.fed == answer.tokens
        assert answer.ends == [i + 1 for i, t in enumerate(answer.tokens) if t == 0]
        assert len(answer[pooled]) == len(answer.unit_ends())
        assert (answer.finish == "units") == (len(answer.ends) == 2)
        finishes[answer.finish] += 1
    assert min(finishes[f] for f in ("units", "limit", "eos")) > 5


def test_the_mirror_reads_only_new_tokens() -> None:
    inner = spied()
    engine = BridgedEngine(inner, BRIDGE)
    context = Context(7, [0, 1, 3])
    ask(engine, context)
    mirror = inner.asked[0].context
    assert (mirror.tokens, mirror.prompt_length) == ([1, 0, 2], 3)
    context.extend([4, 2])
    ask(engine, context, rows_from=3)
    assert inner.asked[0].context is mirror  # so that the session behind it stays alive
    assert mirror.tokens == [1, 0, 2, 5, 2]
    assert inner.asked[0].rows_from == 3
    context.tokens[0] = 2  # an append-only context is not read again
    context.extend([0])
    ask(engine, context)
    assert mirror.tokens == [1, 0, 2, 5, 2, 1]
    engine.forget(context)
    assert inner.forgotten is mirror
    ask(engine, Context(7, [2]))
    assert inner.asked[0].context.tokens == [2]


def test_the_draft_reads_a_prompt_of_its_own() -> None:
    inner = spied()
    engine = BridgedEngine(inner, BRIDGE, own_prompt=True)
    context = Context(7, [0, 1], [3, 3, 3, 4])
    context.extend([1, 2])
    ask(engine, context, rows_from=2)
    mirror = inner.asked[0].context
    assert (mirror.tokens, mirror.prompt_length) == ([3, 3, 3, 4, 0, 2], 4)
    assert inner.asked[0].rows_from == 4
    assert What.ATTENTION not in engine.offers
    with pytest.raises(ValueError, match="prompt of its own"):
        ask(engine, context, rows_from=0)


def test_an_engine_smaller_than_its_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match="fewer"):
        BridgedEngine(ToyEngine(torch.zeros(4, 4, 4)), BRIDGE)


def test_padding_beyond_the_bridge_is_cut() -> None:
    engine = BridgedEngine(ToyEngine(torch.zeros(9, 9, 9)), BRIDGE)
    read = Read(What.PROBS)
    got = ask(engine, Context(1, [0, 1]), reads=(read,))[read]
    assert got[0].tolist() == pytest.approx([0.25, 0.25, 0.25, 0, 0.25])


def test_speculation_over_a_bridge_is_lossless() -> None:
    """End to end: a draft of other ids, with forbidden tokens, and the target's exact law."""
    generator = torch.Generator().manual_seed(3)
    target = ToyEngine(torch.randn((5, 5, 5), generator=generator), frozenset({STOP}))
    engine = BridgedEngine(draft_engine(), BRIDGE)
    driver = Driver({"target": target, "draft": engine})
    rule = cast(Rule, Lossless())
    drafter = cast(Drafter, LanguageModel())
    prompt = (0, 1)

    def plans() -> Iterator[tuple[Context, Plan[Outcome]]]:
        for sample in range(3000):
            context = Context(sample, prompt)
            kit = toy_kit(rule, target, SAMPLING, sample)
            drafting, judging = drafter.open(kit), rule.open(kit)
            yield context, speculate(Speculation(context, kit, 3, drafting, judging, Steady(2, 4)))

    counts = Counter(tuple(done.value.tokens) for done in driver.run(plans()))
    law = target.law(prompt, 3, SAMPLING)
    total = counts.total()
    common = [o for o, p in law.items() if p * total >= 5]
    rest = total - sum(counts[o] for o in common)
    observed = [*(counts[o] for o in common), rest]
    expected = [law[o] * total for o in common]
    expected.append(total - sum(expected))
    assert set(counts) <= set(law)
    assert chisquare(observed, expected).pvalue > 1e-3
