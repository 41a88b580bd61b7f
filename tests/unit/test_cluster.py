"""Clustering by meaning: what each clusterer considers the same, and the shipped entailment model."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from semspec import world
from semspec.errors import UserError
from semspec.models.location import ModelConfig
from semspec.probes.cluster import (
    Entailment,
    Exact,
    Nli,
    Oracle,
    agreement,
    clusterer,
    normal,
    shares,
)
from semspec.probes.cluster.entailment import entailment_label
from semspec.probes.cluster.greedy import lockstep

TINY = ModelConfig(path="embedded/tiny-nli").fetch()
CONTEXT = (
    "<|im_start|>user\nModulo 100, let x=76, k is x - 2, b is 2 * k. Find b.<|im_end|>\n"
    "<|im_start|>assistant\n<think>\nThe goal is to work out b, and we do this by following the "
    "chain from its first value.\n\nIt is given that x=76, and all the other values will follow "
    "from this one.\n\n"
)
STEPS = [
    "Next we look at k, which is defined as x - 2; since x=76 - 2, we get k=74.\n\n",
    "To find k we need x - 2, so we take x=76 - 2 modulo 100 and obtain k=74.\n\n",
    "To find k we need x - 2, so we take x=76 - 2 modulo 100 and obtain k=75.\n\n",
    "Next we look at k, which is defined as x - 2; since x=76 - 2, we get k=74.",
    "Next we look at b, which is defined as 2 * k; since 2 * k=74, we get b=48.\n\n",
    "We go on with k, where x - 2 is what we have to compute: x=76 - 2 makes k=75.\n\n",
]


@cache
def tiny() -> Nli:
    return Nli(model="embedded/tiny-nli")


def fresh(seed: int, count: int) -> list[tuple[str, list[str]]]:
    """Contexts and wordings of their next step, some with a wrong digit or day."""
    items = []
    for i in range(count):
        rng = random.Random(f"{seed} {i}")
        domain = world.DOMAINS[("residues", "weekdays")[i % 2]]
        problem = domain.make(rng)
        solution = world.split_steps(
            world.render_solution(problem, domain.solve(rng, problem, world.Style(recap=0)))
        )
        at = rng.randrange(len(solution) - 1)
        steps = []
        for _ in range(8):
            step = domain.solve(rng, problem, world.Style(recap=0))[at]
            if rng.random() < 0.4:
                cut = step.rindex("=") + 1 if "=" in step else len(step)
                said = step[cut:].split(",")[0].rstrip(".")
                wrong = f"{rng.randrange(100):02d}" if said.isdigit() else "Friday"
                step = step[:cut] + wrong + step[cut + len(said) :]
            steps.append(step + ("\n</think>\n\n" if at == len(solution) - 2 else "\n\n"))
        prompt = f"<|im_start|>user\n{problem.question}<|im_end|>\n<|im_start|>assistant\n<think>\n"
        items.append((prompt + "".join(solution[:at]), steps))
    return items


# ---- what is the same -------------------------------------------------------------------------


def test_exact_sees_through_white_space_and_the_opening_tag_only() -> None:
    steps = ["a b\n\n", "<think>\na  b", "a\nb", "A b", "a b\n</think>\n\n", "a b</think>", ""]
    assert Exact().cluster("", steps) == [0, 0, 0, 1, 2, 2, 3]


def test_oracle_sees_meaning_and_takes_what_it_cannot_read_by_its_text() -> None:
    steps = [*STEPS, "Hm.\n\n", "Hm.", "Well.", STEPS[0].rstrip() + "\n</think>\n\n"]
    assert Oracle().cluster(CONTEXT, steps) == [0, 0, 1, 0, 2, 1, 3, 3, 4, 5]


def test_nli_sees_what_the_oracle_sees() -> None:
    assert tiny().cluster(CONTEXT, STEPS) == Oracle().cluster(CONTEXT, STEPS)


@pytest.mark.parametrize("name", ["exact", "oracle", "nli"])
def test_nothing_has_no_clusters_and_empty_texts_share_one(name: str) -> None:
    kind = clusterer(name, **({"model": "embedded/tiny-nli"} if name == "nli" else {}))
    assert kind.cluster(CONTEXT, []) == []
    assert kind.cluster(CONTEXT, ["", STEPS[0], "\n\n", "  "]) == [0, 1, 0, 0]
    assert list(kind.cluster_many([])) == []
    assert list(kind.cluster_many([(CONTEXT, []), (CONTEXT, [""])])) == [[], [0]]


# ---- the greedy procedure ---------------------------------------------------------------------


def near(pairs: Sequence[tuple[str, str, str]]) -> list[bool]:
    """A relation that is not transitive: numbers at most 1 apart."""
    return [abs(int(a) - int(b)) <= 1 for _, a, b in pairs]


def test_a_step_is_compared_with_first_members_in_order() -> None:
    # 2 joins 1; 3 is near 2, but 1 is the cluster's first member; 2 is then known by its text
    assert next(lockstep([("", ["1", "2", "3", "2"])], near, lanes=4)) == [0, 0, 1, 0]
    # 2 is near both first members: the earlier cluster has it
    assert next(lockstep([("", ["1", "3", "2"])], near, lanes=4)) == [0, 1, 0]
    assert next(lockstep([("", ["2", "1", "3"])], near, lanes=4)) == [0, 0, 0]


def test_equal_texts_are_asked_about_once() -> None:
    asked: list[tuple[str, str]] = []

    def never(pairs: Sequence[tuple[str, str, str]]) -> list[bool]:
        asked.extend((a, b) for _, a, b in pairs)
        return [False] * len(pairs)

    found = next(lockstep([("", ["1", "3", "1 ", "3\n\n", "1", "5"])], never, lanes=1))
    assert found == [0, 1, 0, 1, 0, 2]
    assert asked == [("1", "3"), ("1", "5"), ("3", "5")]


@pytest.mark.parametrize("lanes", [1, 2, 3, 50])
def test_lockstep_equals_one_by_one(lanes: int) -> None:
    rng = random.Random(3)
    items = [("", [str(rng.randrange(9)) for _ in range(rng.randrange(8))]) for _ in range(40)]
    sizes: list[int] = []

    def asked(pairs: Sequence[tuple[str, str, str]]) -> list[bool]:
        sizes.append(len(pairs))
        return near(pairs)

    told: list[int] = []
    alone = [next(lockstep([item], near, lanes=1)) for item in items]
    assert list(lockstep(items, asked, lanes, told.append)) == alone
    assert told == list(range(1, 41))
    assert max(sizes) <= lanes and (lanes > 3 or sizes.count(lanes) > len(sizes) * 0.7)


def test_the_model_in_lockstep_equals_the_model_one_by_one() -> None:
    items = fresh(1, 5)
    small = Nli(model=str(TINY), batch_size=3, lanes=4)
    assert list(small.cluster_many(items)) == [tiny().cluster(*item) for item in items]


def test_contexts_are_not_read_further_ahead_than_there_are_lanes() -> None:
    read = 0

    def source() -> object:
        nonlocal read
        while True:
            read += 1
            yield "", ["1", "5", "9"]

    results = lockstep(source(), near, lanes=3)  # type: ignore[arg-type]
    assert [next(results) for _ in range(5)] == [[0, 1, 2]] * 5
    assert read <= 9


# ---- the entailment model ---------------------------------------------------------------------


def test_the_class_is_found_by_its_name() -> None:
    assert entailment_label({0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}) == 2
    assert entailment_label({0: "Entailment", 1: "neutral", 2: "contradiction"}) == 0
    with pytest.raises(UserError, match=r"no class 'entailment'.*LABEL_0, LABEL_1"):
        entailment_label({0: "LABEL_0", 1: "LABEL_1"})
    with pytest.raises(UserError, match="no class"):
        entailment_label({0: "entailment", 1: "not_entailment", 2: "Entailment"})


def test_another_order_of_classes_gives_the_same_answers(tmp_path: Path) -> None:
    """The last layer's rows and the names are turned round together."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(TINY, tmp_path / "m")
    config = json.loads((TINY / "config.json").read_text())
    names = [config["id2label"][str(2 - i)] for i in range(3)]
    config |= {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    weights = load_file(TINY / "model.safetensors")
    for name in ("classifier.weight", "classifier.bias"):
        weights[name] = weights[name].flip(0).contiguous()
    save_file(weights, tmp_path / "m/model.safetensors", {"format": "pt"})
    turned = Entailment.load(tmp_path / "m")
    assert turned.label == 0
    pairs = [(CONTEXT, a, b) for a in STEPS for b in STEPS]
    assert turned.entails(pairs) == tiny().entailment.entails(pairs)


def test_the_context_is_cut_from_the_left_and_the_steps_survive() -> None:
    entailment = tiny().entailment
    tokenizer = entailment.tokenizer
    long = CONTEXT + STEPS[0] * 50
    rows = entailment._encode([(long, STEPS[1], STEPS[2]), ("", STEPS[1], ""), ("x", "", "")])
    assert [len(ids) <= entailment.max_length for ids in rows["input_ids"]] == [True] * 3
    assert len(rows["input_ids"][0]) >= entailment.max_length - 1  # and no more is cut than must be
    ids = rows["input_ids"][0]
    middle = ids.index(tokenizer.sep_token_id)
    left, right = tokenizer.decode(ids[1:middle]), tokenizer.decode(ids[middle + 1 : -1])
    assert left.endswith("\n\n" + STEPS[1].rstrip())
    assert right.endswith("\n\n" + STEPS[2].rstrip())
    assert long.endswith(left.removesuffix(STEPS[1].rstrip()))
    assert left.removesuffix(STEPS[1].rstrip()) == right.removesuffix(STEPS[2].rstrip()) != ""
    assert entailment.both_ways([(long, STEPS[0], STEPS[1]), (long, STEPS[0], STEPS[2])]) == [
        True,
        False,
    ]


def test_steps_longer_than_the_model_are_cut_and_do_not_fail() -> None:
    monster = " ".join(STEPS) * 4
    rows = tiny().entailment._encode([(CONTEXT, monster, STEPS[0]), (CONTEXT, monster, monster)])
    assert {len(ids) for ids in rows["input_ids"]} == {tiny().entailment.max_length}
    middle = rows["input_ids"][0].index(tiny().entailment.tokenizer.sep_token_id)
    right = tiny().entailment.tokenizer.decode(rows["input_ids"][0][middle + 1 : -1])
    assert right == STEPS[0].rstrip()
    assert tiny().cluster(CONTEXT, [monster, STEPS[0], monster])[::2] == [0, 0]


def test_entailment_is_asked_both_ways() -> None:
    """One direction is not enough: here only what is longer entails what is shorter."""

    class OneWay(Entailment):
        def entails(self, pairs: Sequence[tuple[str, str, str]]) -> list[bool]:
            return [len(a) >= len(b) for _, a, b in pairs]

    source = tiny().entailment
    one_way = OneWay(source.model, source.tokenizer)
    pairs = [("", "aa", "b"), ("", "a", "bb"), ("", "a", "b"), ("", "bb", "aa")]
    assert one_way.both_ways(pairs) == [False, False, True, True]


def test_auto_tokenizer_leaves_the_ids_as_the_file_has_them() -> None:
    """AutoTokenizer rebuilds tokenizers of some model types; deberta-v2 is one."""
    auto = AutoTokenizer.from_pretrained(TINY)
    plain = PreTrainedTokenizerFast(tokenizer_file=str(TINY / "tokenizer.json"))
    pair = PreTrainedTokenizerFast.from_pretrained(ModelConfig(path="embedded/tiny-target").fetch())
    for text in [CONTEXT, *STEPS, "<think>\n</think>\n\n", "3 days before k=Friday é 漢", ""]:
        ids = auto(text, add_special_tokens=False)["input_ids"]
        assert ids == plain(text, add_special_tokens=False)["input_ids"]
        assert ids == pair(text)["input_ids"]
        both = auto(text, STEPS[0])
        assert both["input_ids"] == plain(text, STEPS[0])["input_ids"]
        assert both["token_type_ids"] == [0] * (len(ids) + 2) + [1] * (
            len(both["input_ids"]) - len(ids) - 2
        )
    assert auto.pad_token_id == pair.pad_token_id


def test_the_shipped_model_agrees_with_the_oracle() -> None:
    items = fresh(2, 20)
    found = agreement(list(tiny().cluster_many(items)), list(Oracle().cluster_many(items)))
    assert found.contexts == 20 and found.pairs == 20 * 28
    assert found.accuracy >= 0.98 and found.f1 >= 0.98
    assert found.adjusted_rand >= 0.95 and found.probability_error <= 0.02
    assert sum(f.stat().st_size for f in TINY.iterdir()) <= 4_000_000


# ---- figures ----------------------------------------------------------------------------------


def test_each_step_has_the_share_of_its_cluster() -> None:
    assert shares([0, 1, 0, 0]) == [0.75, 0.25, 0.75, 0.75]
    assert shares([]) == []


def test_agreement_equals_a_count_by_hand() -> None:
    # truth: 01 | 23, found: 0 | 123; of 6 pairs 2 belong together, 3 were put, 1 rightly
    found = agreement([[0, 1, 1, 1]], [[5, 5, 2, 2]])
    assert (found.contexts, found.pairs, found.identical) == (1, 6, 0.0)
    assert found.accuracy == pytest.approx(3 / 6)
    assert found.precision == pytest.approx(1 / 3) and found.recall == pytest.approx(1 / 2)
    assert found.f1 == pytest.approx(0.4)
    assert found.probability_error == pytest.approx(0.25)
    same = agreement([[0, 1, 1], [0], [], [0, 1]], [[2, 0, 0], [7], [], [1, 0]])
    assert same.identical == same.f1 == same.adjusted_rand == same.accuracy == 1.0
    assert same.contexts == 3 and same.probability_error == 0.0


# ---- mistakes ---------------------------------------------------------------------------------


def test_mistakes_end_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown clusterer 'oracel': did you mean oracle"):
        clusterer("oracel")
    with pytest.raises(UserError, match="exact has no option 'model': it has no options"):
        clusterer("exact", model="x")
    with pytest.raises(
        UserError, match=r"nli needs a model: give cluster\.model=embedded/tiny-nli"
    ):
        clusterer("nli")
    with pytest.raises(UserError, match="lanes=0"):
        clusterer("nli", model="embedded/tiny-nli", lanes=0)
    with pytest.raises(UserError, match="works only on the embedded world"):
        Oracle().cluster("What is 2 + 2?", ["4"])
    with pytest.raises(UserError, match="cannot load an entailment model") as caught:
        Nli(model=str(tmp_path)).cluster(CONTEXT, STEPS)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="cannot load an entailment model") as caught:
        Entailment.load(TINY, device="no such device")
    assert "\n" not in str(caught.value)


def test_normalising_twice_changes_nothing() -> None:
    for step in [*STEPS, "<think>\nx</think>", "</think></think>"]:
        assert normal(normal(step)) == normal(step)
