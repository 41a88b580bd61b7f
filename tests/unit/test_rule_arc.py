"""accept=arc and accept=arc_certified: what they keep, and what they refuse."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from semspec.choices.settle import expand_shorthands
from semspec.decoding.arc_bound import Constants, distance, normalised_entropy
from semspec.decoding.pace import Steady
from semspec.drafters.lm import LanguageModel
from semspec.driver import Driver
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.loop import Speculation, speculate
from semspec.models.location import ModelFacts
from semspec.protocols import Plan
from semspec.results.figures import Solve, problem_line
from semspec.results.metrics import summarise
from semspec.results.schema import SCHEMA
from semspec.rules.arc import Arc
from semspec.rules.arc_certified import ArcCertified
from semspec.rules.lossless import Lossless
from semspec.sglang_plugin.rules import Judged, loosely
from semspec.sglang_plugin.verification import Options, Verification
from semspec.storage.json_schema import check
from semspec.types import Context, Draft, Query, Read, Sampling, Seen, Verdict, What
from tests.support.arc import slow_u, some_calibration
from tests.support.binding import run_of
from tests.support.law import PROMPT, own_rng, toy_kit
from tests.support.pair import configuration

TOY = Toy(vocabulary=9, stop=True, seed=5)
TOY_FACTS = ModelFacts("toy", None, "", 2, 4, "f" * 64)
FACTS: Any = {"target": TOY_FACTS, "draft": TOY_FACTS}
BY = Constants(0.02, 0.3, 0.5)
TREES = {
    "chain": LanguageModel(),
    "dynamic": LanguageModel(tree="dynamic", tree_depth=3, tree_top_k=3, tree_nodes=8),
    "sampled": LanguageModel(tree="sampled", tree_depth=3, tree_top_k=3, tree_nodes=8),
}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    some_calibration(TOY_FACTS, BY, prompts=["4f3a" * 4]).save(tmp_path / "arc")
    return str(tmp_path / "arc")


def outputs(drafter: LanguageModel, rule: Any, temperature: float, count: int = 40) -> list[Any]:
    """Return the outputs, and the share of the draft in every verdict."""
    models = TOY.models()
    found = []
    for seed in range(count):
        kit = toy_kit(rule, models["target"], Sampling(temperature), seed)
        context = Context(seed, PROMPT)
        drafting = drafter.open(own_rng(kit, "draft"))
        plan = speculate(Speculation(context, kit, 24, drafting, rule.open(kit), Steady(4, 1)))
        (done,) = Driver(dict(models)).run([(context, plan)])  # type: ignore[arg-type]
        found.append(done.value)
    return found


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_a_threshold_above_one_is_the_lossless_rule(
    folder: str, tree: str, temperature: float
) -> None:
    rule = Arc(calibration=folder, theta=1.01, allow_mismatch=True).bind(
        run_of(FACTS, "token", 1.0)
    )
    ours = outputs(TREES[tree], rule, temperature)
    theirs = outputs(TREES[tree], Lossless(), temperature)
    assert [o.tokens for o in ours] == [o.tokens for o in theirs]


@pytest.mark.parametrize("tree", TREES)
def test_a_threshold_of_one_keeps_the_likeliest_token(folder: str, tree: str) -> None:
    """theta = 1 is not lossless: U of the likeliest token is 0 whatever the coin says."""
    rule = Arc(calibration=folder, theta=1.0).bind(run_of(FACTS, "token", 1.0))
    lossless = outputs(TREES[tree], Lossless(), 1.0)
    ours = outputs(TREES[tree], rule, 1.0)
    assert [o.tokens for o in ours] != [o.tokens for o in lossless]
    target = TOY.models()["target"]
    table = target._rows(Sampling(1.0))
    for outcome in ours:
        text = list(PROMPT)
        for done in outcome.rounds:
            if done.drafted and done.parents is None:
                first = int(table[text[-2], text[-1]].argmax())
                assert done.drafted[0] != first or done.kept[:1] == [first]
            text += [*done.kept, *done.written, *done.handed]


@pytest.mark.parametrize("tree", TREES)
def test_without_a_threshold_everything_is_kept(folder: str, tree: str) -> None:
    rule = Arc(calibration=folder, theta=-math.inf).bind(run_of(FACTS, "token", 1.0))
    for outcome in outputs(TREES[tree], rule, 1.0):
        for done in outcome.rounds:
            if done.parents is None:
                assert done.kept == done.drafted
            elif done.drafted:  # the first of every family, down to a leaf
                path, node = [], -1
                while node in done.parents:
                    node = done.parents.index(node)
                    path.append(done.drafted[node])
                assert done.kept == path


@dataclass
class ToyBound:
    """Return a server's bounds of the toy's tokens, which a calibration's sigma of 1 does not scale."""

    target: Any

    def constants(self, temperature: float) -> Constants:
        return BY

    def distances(self, drafted: Tensor, likeliest: Tensor) -> Tensor:
        return distance(*(self.target.features[0, ids, 0] for ids in (drafted, likeliest)))

    def ends(self, tokens: Tensor) -> Tensor:
        return torch.isin(tokens, torch.tensor(sorted(self.target.stop_ids)))


@pytest.mark.parametrize(
    "sampling", [Sampling(0.6, top_p=0.9), Sampling(0.6, min_p=0.2)], ids=["top_p", "min_p"]
)
@pytest.mark.parametrize("parents", [None, [-1, -1, 0, 1, 2, 2]], ids=["chain", "tree"])
def test_tokens_that_are_excluded_are_kept_on_request_alone(
    tmp_path: Path, parents: list[int] | None, sampling: Sampling
) -> None:
    """At T = 0.6 with top-p or min-p, node by node, in the loop and in a server alike."""
    some_calibration(TOY_FACTS, BY, (0.6,)).save(tmp_path / "arc")
    target = TOY.models()["target"]
    rules = [
        Arc(calibration=str(tmp_path / "arc"), theta=0.3, keep_excluded=keep_excluded)
        for keep_excluded in (False, True)
    ]
    above = parents or list(range(-1, 5))
    rng, excluded = random.Random(5), 0
    for seed in range(60):
        tokens = [rng.randrange(9) for _ in above]
        context = Context(seed, [0, rng.randrange(8)])
        states = [tuple(context.tokens)]
        for token, parent in zip(tokens, above, strict=True):
            states.append((states[parent + 1][1], token))
        seen = Judged(
            torch.stack([target.logits[state] for state in states]),
            torch.tensor([[context.tokens[-1], *tokens]]),
            torch.tensor([[-1, *(parent + 1 for parent in above)]]),
            sampling,
            ToyBound(target),
        )
        kept = []
        for rule in rules:
            session = rule.bind(run_of(FACTS, "token", 0.6)).open(
                toy_kit(rule, target, sampling, seed)
            )
            draft = Draft(list(tokens), list(range(1, 7)), parents=parents)
            ask(session.judge(context, draft), target, [])
            assert session.loose is not None
            assert loosely(rule, seen)[0, 1:].tolist() == session.loose.tolist()
            kept.append(session.loose)
        possible = seen.p[seen.rows, seen.flat][1:] > 0
        assert torch.equal(kept[0], kept[1] & possible)
        excluded += int((kept[1] & ~possible).sum())
    assert excluded > 20, "the test would not see tokens that are excluded"


@pytest.mark.parametrize("parents", [None, [-1, -1, 0, 1, 2, 2]], ids=["chain", "tree"])
def test_a_floor_binds_the_bound_in_the_loop_and_in_a_server_alike(
    folder: str, parents: list[int] | None
) -> None:
    sampling, target = Sampling(1.0), TOY.models()["target"]
    free, floored = (
        Arc(calibration=folder, theta=0.3, floor=floor).bind(run_of(FACTS, "token", 1.0))
        for floor in (0.0, 0.1)
    )
    above, rng, below = parents or list(range(-1, 5)), random.Random(5), 0
    for seed in range(40):
        tokens = [rng.randrange(9) for _ in above]
        context = Context(seed, [0, rng.randrange(8)])
        states = [tuple(context.tokens)]
        for token, parent in zip(tokens, above, strict=True):
            states.append((states[parent + 1][1], token))
        seen = Judged(
            torch.stack([target.logits[state] for state in states]),
            torch.tensor([[context.tokens[-1], *tokens]]),
            torch.tensor([[-1, *(parent + 1 for parent in above)]]),
            sampling,
            ToyBound(target),
        )
        kept = []
        for rule in (free, floored):
            session = rule.open(toy_kit(rule, target, sampling, seed))
            draft = Draft(list(tokens), list(range(1, 7)), parents=parents)
            ask(session.judge(context, draft), target, [])
            assert session.loose is not None
            assert loosely(rule, seen)[0, 1:].tolist() == session.loose.tolist()
            kept.append(session.loose)
        enough = seen.p[seen.rows, seen.flat][1:] >= 0.1
        assert torch.equal(kept[1], kept[0] & enough)
        below += int((kept[0] & ~enough).sum())
    assert below > 20, "the test would not see a floor"


@pytest.mark.parametrize("tree", TREES)
def test_with_a_floor_of_one_the_rule_is_lossless(folder: str, tree: str) -> None:
    """No token of the toy is certain, so the bound keeps none and every coin is the lossless rule's."""
    rule = Arc(calibration=folder, theta=-math.inf, floor=1.0).bind(run_of(FACTS, "token", 1.0))
    ours, theirs = (outputs(TREES[tree], r, 1.0) for r in (rule, Lossless()))
    assert [o.tokens for o in ours] == [o.tokens for o in theirs]


def test_a_floor_that_is_none_is_refused() -> None:
    for wrong in (-0.1, 1.5, math.nan):
        with pytest.raises(UserError, match=r"accept\.floor=.*give a probability"):
            Arc(floor=wrong)
    with pytest.raises(UserError, match="leave one of them out"):
        Arc(floor=0.1, keep_excluded=True)


@pytest.mark.parametrize("tree", ["chain", "dynamic"])
def test_the_sides_of_the_bound_are_counted_by_node_and_by_what_was_kept(
    folder: str, tree: str
) -> None:
    """Against the slow equations, one node of every round after the other."""
    theta, target = 0.4, TOY.models()["target"]
    rule = Arc(calibration=folder, theta=theta).bind(run_of(FACTS, "token", 1.0))
    table, sigma = target._rows(Sampling(1.0)), [1.0] * 4
    expected: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for outcome in outputs(TREES[tree], rule, 1.0):
        text = list(PROMPT)
        for r in outcome.rounds:
            parents = range(-1, len(r.drafted) - 1) if r.parents is None else r.parents
            states = [tuple(text[-2:])]
            for token, parent in zip(r.drafted, parents, strict=True):
                states.append((states[parent + 1][1], token))
            node = -1
            on = set()
            for token in r.kept:
                node = next(i for i, (t, p) in enumerate(zip(r.drafted, parents, strict=True)) if (t, p) == (token, node))  # fmt: skip
                on.add(node)
            for node, (token, parent) in enumerate(zip(r.drafted, parents, strict=True)):
                p = table[states[parent + 1]]
                best = int(p.argmax())
                if token == best or {token, best} & target.stop_ids:
                    continue
                rows = [target.features[0, t, 0].tolist() for t in (token, best)]
                given = (*rows, sigma, float(p[token]), float(p[best]))
                sides = [
                    1 - slow_u(*given, Constants(*pair, BY.tau)) / BY.tau >= theta  # type: ignore[call-arg]
                    for pair in ((BY.c_s, 1e9), (1e9, BY.alpha_kappa))
                ]
                if any(sides):
                    names = [{(1, 0): "embedding", (0, 1): "logit", (1, 1): "both"}[*sides]]
                    names += ["rare"] if float(p[token]) < 1e-3 else []
                    for part in ("loose", "kept") if node in on else ("loose",):
                        expected.update(f"{part}_{name}" for name in names)
            found.update(r.counts)
            text += [*r.kept, *r.written, *r.handed]
    assert found == expected
    assert {"loose_embedding", "loose_logit", "loose_both", "kept_both"} <= set(found)


def test_nodes_that_are_pruned_are_counted(folder: str) -> None:
    """Both trees of a first round grow alike, so what is missing of the pruned one was dropped."""
    options = {"calibration": folder, "theta": 2.0}
    rules = [Arc(**options, prune=p, eps=0.2).bind(run_of(FACTS, "token", 1.0)) for p in ("none", "entropy")]  # fmt: skip
    whole, pruned = (outputs(TREES["dynamic"], rule, 1.0) for rule in rules)
    dropped = 0
    for a, b in zip(whole, pruned, strict=True):
        first, second = a.rounds[0], b.rounds[0]
        assert first.counts == {}
        grown = len(first.drafted)
        assert second.counts == {"grown": grown, "pruned": grown - len(second.drafted)}
        dropped += second.counts["pruned"]
    assert dropped > 0
    solve = Solve.from_outcome(pruned[0], "")
    sums = [sum(r.counts.get(name, 0) for r in pruned[0].rounds) for name in ("pruned", "grown")]
    figures = summarise([problem_line("a", solve, Solve.from_outcome(whole[0], ""))])
    assert figures["pruned"] == sums[0] / sums[1] and figures["plain"]["pruned"] is None
    assert figures["bound"] is None
    check(
        {k: v for k, v in figures.items() if k in SCHEMA["properties"]}, SCHEMA | {"required": []}
    )


def ask(plan: Plan[Verdict], target: Any, seen: list[Query]) -> Verdict:
    try:
        query = next(plan)
        while True:
            seen.append(query)
            query = plan.send(target.answer([query])[0])
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def test_keeps_what_the_equations_allow(folder: str) -> None:
    """One node after the other by the slow equations; where U is too large, the lossless rule."""
    target = TOY.models()["target"]
    sampling = Sampling(1.0)
    rule = Arc(calibration=folder, theta=0.4, resume=True).bind(run_of(FACTS, "token", 1.0))
    rng = random.Random(3)
    kept_loosely = 0
    for seed in range(200):
        tokens = [rng.randrange(8) for _ in range(4)]
        context = Context(1, [0, rng.randrange(8)])
        kit = toy_kit(rule, target, sampling, seed)
        verdict = ask(rule.open(kit).judge(context, Draft(tokens, [1, 2, 3, 4])), target, [])
        coins = random.Random(seed)
        chances = [coins.random() for _ in tokens]
        text = list(context.tokens)
        keep = 0
        for token, chance in zip(tokens, chances, strict=True):
            p = target._rows(sampling)[text[-2], text[-1]]
            best = int(p.argmax())
            u = slow_u(
                target.features[0, token, 0].tolist(),
                target.features[0, best, 0].tolist(),
                [1.0] * 4,
                float(p[token]),
                float(p[best]),
                BY,
            )
            ends = token != best and bool({token, best} & target.stop_ids)
            loose = not ends and 1 - u / 0.5 >= 0.4
            kept_loosely += loose and not chance < p[token]
            if not loose and not chance < p[token]:
                break
            keep += 1
            text.append(token)
        assert verdict.keep == keep
    assert kept_loosely > 20, "the test would not see a rule that is lossless"


def test_asks_for_each_embedding_once_and_for_no_pass_more(folder: str) -> None:
    target = TOY.models()["target"]
    rule = Arc(calibration=folder).bind(run_of(FACTS, "token", 1.0))
    kit = toy_kit(rule, target, Sampling(1.0), 0)
    seen: list[Query] = []
    for _ in range(3):
        session = rule.open(kit)  # another problem's session knows what the first one asked
        ask(session.judge(Context(1, PROMPT), Draft([3, 4], [1, 2])), target, seen)
    assert [query.passes for query in seen] == [True, False, True, True]


def test_an_end_of_text_is_never_kept_loosely(folder: str) -> None:
    target = TOY.models()["target"]
    (stop,) = target.stop_ids
    rule = Arc(calibration=folder, theta=0.0).bind(run_of(FACTS, "token", 1.0))
    huge = dataclasses.replace(rule.known.setting, constants=Constants(0.0, 0.0, 1.0))
    rule = rule.bound(known=dataclasses.replace(rule.known, setting=huge))
    kept = 0
    for seed in range(50):
        kit = toy_kit(rule, target, Sampling(1.0), seed)
        kept += ask(rule.open(kit).judge(Context(1, PROMPT), Draft([stop], [1])), target, []).keep
        other = ask(rule.open(kit).judge(Context(1, PROMPT), Draft([3], [1])), target, [])
        assert other.keep == 1, "U is 0 for every token here"
    assert kept < 25


def test_sampling_resumes_after_a_kept_token_or_not_as_asked(folder: str) -> None:
    """Without it the bound is not asked again after a token that only the lossless rule kept."""
    made = {r: Arc(calibration=folder, theta=0.3, resume=r).bind(run_of(FACTS, "token", 1.0)) for r in (True, False)}  # fmt: skip
    kept = {r: sum(len(d.kept) for o in outputs(TREES["chain"], rule, 1.0) for d in o.rounds) for r, rule in made.items()}  # fmt: skip
    assert kept[True] > kept[False]


def test_every_pruning_writes_less_than_the_whole_tree(folder: str) -> None:
    options = {"calibration": folder, "theta": 2.0}
    drafter = TREES["dynamic"]
    whole = outputs(drafter, Arc(**options).bind(run_of(FACTS, "token", 1.0)), 1.0)
    for prune in ("entropy", "depth", "depth_exp", "accum_prob"):
        rule = Arc(**options, prune=prune, eps=0.2, prune_share=0.5).bind(
            run_of(FACTS, "token", 1.0)
        )
        pruned = outputs(drafter, rule, 1.0)
        sizes = [[len(d.drafted) for o in found for d in o.rounds] for found in (whole, pruned)]
        assert sum(sizes[1]) / len(sizes[1]) < 0.9 * sum(sizes[0]) / len(sizes[0])


def test_a_tree_of_which_nothing_is_left_is_judged(folder: str) -> None:
    """A rival that favours depth may keep deep nodes alone, and without their ancestors they go, too."""
    options = {"theta": 2.0, "prune": "depth", "prune_share": 0.2, "prune_bias": 5.0}
    rule = Arc(calibration=folder, **options).bind(run_of(FACTS, "token", 1.0))
    found = outputs(TREES["dynamic"], rule, 1.0)
    assert any(not r.drafted for outcome in found for r in outcome.rounds)


class Watching:
    """A drafter's session that watches the target's rows."""

    recalls = True

    def __init__(self, inner: Any) -> None:
        self.inner, self.watches, self.rows = inner, (Read(What.PROBS),), 0

    def draft(self, context: Context, room: Any) -> Plan[Draft]:
        return self.inner.draft(context, room)  # type: ignore[no-any-return]

    def see(self, seen: Seen) -> None:
        self.rows += seen.count

    def observe(self, context: Context, done: Any) -> None: ...


def test_watchers_see_pruned_trees(folder: str) -> None:
    models = TOY.models()
    rule = Arc(calibration=folder, prune="entropy", eps=0.3).bind(run_of(FACTS, "token", 1.0))
    kit = toy_kit(rule, models["target"], Sampling(1.0), 1)
    watching = Watching(TREES["dynamic"].open(own_rng(kit, "draft")))
    context = Context(1, PROMPT)
    plan = speculate(Speculation(context, kit, 24, watching, rule.open(kit), Steady(4, 1)))
    (done,) = Driver(dict(models)).run([(context, plan)])  # type: ignore[arg-type]
    assert watching.rows >= len(done.value.rounds)


def test_prune_refuses_trees_that_it_cannot_prune(folder: str) -> None:
    rule = Arc(calibration=folder, prune="entropy", allow_mismatch=True).bind(run_of(FACTS, "token", 1.0))  # fmt: skip
    with pytest.raises(UserError, match="tree=dynamic"):
        outputs(TREES["sampled"], rule, 1.0, 1)
    with pytest.raises(UserError, match="prune=none"):
        outputs(TREES["dynamic"], rule, 0.0, 1)


ARC = ("split=token", "accept=arc", "accept.prune=entropy", "accept.allow_mismatch=true")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("draft.tree=dynamic", "temperature=0"), "drafts at temperature=0 have none"),
        (("draft.tree=sampled",), "use draft.tree=dynamic or draft.tree=static, or accept.prune=none"),
        (("draft=token_recycling",), "draft=token_recycling has none: use accept.prune=none, or"),
    ],
)  # fmt: skip
def test_unprunable_drafts_are_refused_before_any_model_loads(
    given: tuple[str, ...], says: str
) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        configuration(*ARC, *given)
    nested = [g.replace("draft", "nested", 1) for g in ("draft=lm", *given)]
    if given[0].startswith("draft="):
        del nested[0]
    with pytest.raises(UserError, match=re.escape("nested_accept.prune=none")):
        configuration("accept=logprob", "nested_accept=arc", "nested_accept.prune=entropy", *nested)


def test_prunable_drafts_are_accepted() -> None:
    configuration(*ARC, "draft.tree=dynamic")
    configuration(*ARC, "draft.tree=chain", "temperature=0")  # a chain has nothing to prune


def test_at_temperature_0_the_way_out_is_another_rule() -> None:
    told = some_calibration(temperatures=(1.0, 0.6))
    with pytest.raises(UserError, match="use accept=greedy or accept=lossless, or a higher"):
        told.at(0.0)
    assert told.at(0.0, allow_mismatch=True) == 1
    with pytest.raises(UserError, match=r"calibrate it there \(temperatures="):
        told.at(0.3)


def test_published_constants_are_refused_at_temperature_0() -> None:
    """In the loop, and by a server when the request arrives."""
    llama = {"target": ModelFacts("meta-llama/Llama-3.1-8B-Instruct", "c0ffee", "", 32, 4096, "f")}
    words = "does not work at temperature 0, where only one token is possible"
    with pytest.raises(UserError, match=f"^paper-llama-3.1-8b {words}"):
        Arc().bind(run_of(llama, "token", 0.0))
    assert Arc(allow_mismatch=True).bind(run_of(llama, "token", 0.0))
    asked = {"semspec": {"accept": "arc", "theta": 0.5}}
    served = Verification(Options(calibration="paper-qwen3-8b"))
    with pytest.raises(UserError, match=f"^paper-qwen3-8b {words}"):
        served.of(asked, Sampling(0.0))
    assert served.of(asked, Sampling(0.6)) is not None
    loose = Verification(Options(calibration="paper-qwen3-8b", allow_mismatch=True))
    assert loose.of(asked, Sampling(0.0)) is not None


def test_constants_of_a_bucket_are_used(folder: str, tmp_path: Path) -> None:
    never, always = Constants(1.0, 1.0, 0.0), Constants(0.0, 0.0, 1.0)
    told = some_calibration(TOY_FACTS, never)
    told.config["settings"][0]["buckets"] = {
        "depths": [1],
        "entropies": [],
        "constants": [[dataclasses.asdict(always)], [dataclasses.asdict(never)]],
    }
    told.save(tmp_path / "bucketed")
    rule = Arc(calibration=str(tmp_path / "bucketed"), bucketed=True).bind(
        run_of(FACTS, "token", 1.0)
    )
    target = TOY.models()["target"]
    keeps = []
    p = target._rows(Sampling(1.0))[PROMPT[-1], 1]
    second = int(p.topk(2).indices[1])  # not the likeliest one, whose U is 0
    for seed in range(40):
        kit = toy_kit(rule, target, Sampling(1.0), seed)
        draft = Draft([1, second], [1, 2])
        verdict = ask(rule.open(kit).judge(Context(1, PROMPT), draft), target, [])
        keeps.append(verdict.keep)
    assert min(keeps) == 1 and set(keeps) == {1, 2}, (
        "the first is always kept, the second by chance"
    )


@pytest.mark.parametrize("parents", [None, [-1, -1, 0, 1, 2, 2]], ids=["chain", "tree"])
def test_the_root_is_the_row_behind_the_path(tmp_path: Path, parents: list[int] | None) -> None:
    """Its entropy chooses the next draft's bucket, wherever the path before has ended."""
    never, always = Constants(1.0, 1.0, 0.0), Constants(0.0, 0.0, 1.0)
    target = Toy(vocabulary=9, seed=5).models()["target"]
    table = target._rows(Sampling(1.0))
    entropies = normalised_entropy(table)
    edge = float(entropies.median())
    told = some_calibration(TOY_FACTS, never)
    told.config["settings"][0]["buckets"] = {
        "depths": [],
        "entropies": [edge],
        "constants": [[dataclasses.asdict(never), dataclasses.asdict(always)]],
    }
    told.save(tmp_path / "bucketed")
    rule = Arc(calibration=str(tmp_path / "bucketed"), bucketed=True).bind(
        run_of(FACTS, "token", 1.0)
    )
    rng = random.Random(1)
    met = set()
    for seed in range(40):
        session = rule.open(toy_kit(rule, target, Sampling(1.0), seed))
        context, kept = Context(seed, PROMPT), 0
        for number in range(6):
            row = table[context.tokens[-2], context.tokens[-1]]
            tokens = row.topk(6).indices.tolist()[1:]  # not the likeliest one, whose U is 0
            tokens = rng.sample(tokens, 1) + [rng.randrange(9) for _ in parents or range(3)][1:]
            draft = Draft(tokens, parents=parents)
            verdict = ask(session.judge(context, draft), target, [])
            if number:
                before = float(entropies[context.tokens[-3], context.tokens[-2]])
                met.add((kept, before >= edge))
                assert session.loose is not None
                assert bool(session.loose[0]) == (before >= edge)
            kept = verdict.keep
            path = range(kept) if verdict.path is None else verdict.path
            context.extend([*(tokens[i] for i in path), *verdict.write])
    assert met >= {(kept, loose) for kept in (0, 1, 3) for loose in (False, True)}


def test_the_certified_threshold_grows_with_the_allowed_divergence(
    folder: str, tmp_path: Path
) -> None:
    told = some_calibration(TOY_FACTS, BY)
    evidence = told.tensors["evidence"]  # the divergence grows with the bound
    evidence[:, 6] = torch.linspace(0.0, 0.6, len(evidence))
    told.save(tmp_path / "measured")
    strict, loose = (
        ArcCertified(calibration=str(tmp_path / "measured"), js=js).bind(
            run_of(FACTS, "token", 1.0)
        )
        for js in (0.3, 0.5)
    )
    assert 0 < strict.known.setting.constants.tau < loose.known.setting.constants.tau
    with pytest.raises(UserError, match=r"js=0\.001.*cannot be certified"):
        ArcCertified(calibration=str(tmp_path / "measured"), js=0.001).bind(
            run_of(FACTS, "token", 1.0)
        )


def test_published_constants_are_for_their_own_model(folder: str, tmp_path: Path) -> None:
    llama = ModelFacts("meta-llama/Llama-3.1-8B-Instruct", "c0ffee", "", 32, 4096, "f" * 64)
    rule = Arc().bind(run_of({"target": llama}, "token", 0.7))
    assert rule.known.setting.constants == Constants(4.32e-4, 22.75, 3.123)
    assert rule.known.embeddings.scale is None, "sigma comes from the model's own embeddings"
    with pytest.raises(UserError, match="paper-qwen3-8b was calibrated for Qwen/Qwen3-8B"):
        Arc(calibration="paper-qwen3-8b").bind(run_of({"target": llama}, "token", 0.7))
    with pytest.raises(UserError, match="has no calibration"):
        Arc().bind(run_of(FACTS, "token", 1.0))
    with pytest.raises(UserError, match="published constants have none"):
        ArcCertified().bind(run_of({"target": llama}, "token", 0.7))
    with pytest.raises(UserError, match=r"not at 0\.6"):
        Arc(calibration=folder).bind(run_of(FACTS, "token", 0.6))
    with pytest.raises(UserError, match="width=4"):
        Arc(calibration=folder).bind(run_of({"target": llama}, "token", 1.0))
    with pytest.raises(UserError, match="without buckets"):
        Arc(bucketed=True).bind(run_of({"target": llama}, "token", 1.0))
    with pytest.raises(UserError, match=r"unknown accept\.prune=entrophy"):
        Arc(prune="entrophy")


def test_published_sigma_is_measured_on_the_model() -> None:
    target = TOY.models()["target"]
    rule = Arc(calibration="paper-qwen3-8b", allow_mismatch=True).bind(run_of(FACTS, "token", 1.0))
    kit = toy_kit(rule, target, Sampling(1.0), 0)
    ask(rule.open(kit).judge(Context(1, PROMPT), Draft([3, 4], [1, 2])), target, [])
    sigma = target.features[0, :, 0].std(0, correction=0)
    assert rule.known.embeddings.scale is not None
    assert torch.allclose(rule.known.embeddings.scale, 1 / sigma, rtol=1e-4)


def test_prompts_that_were_calibrated_on_are_refused(tmp_path: Path) -> None:
    from semspec.calibration.arc import hashed

    some_calibration(TOY_FACTS, BY, prompts=[hashed("known")]).save(tmp_path / "arc")
    target = TOY.models()["target"]
    rule = Arc(calibration=str(tmp_path / "arc")).bind(run_of(FACTS, "token", 1.0))
    kit = toy_kit(rule, target, Sampling(1.0), 0)
    rule.open(dataclasses.replace(kit, prompt="another"))
    with pytest.raises(UserError, match="part of the calibration"):
        rule.open(dataclasses.replace(kit, prompt="known"))


def test_lambda_is_written_as_it_is_called() -> None:
    given = ["accept=arc", "theta=0.5", "prune=entropy", "lambda=2", "eps=0.1"]
    rule = configuration(*expand_shorthands([*given, "split=token"])).accept
    assert (rule.theta, rule.prune, rule.lambda_, rule.eps) == (0.5, "entropy", 2.0, 0.1)
    assert expand_shorthands(["accept=arc", "accept.lambda=3"])[1] == "accept.lambda_=3"
