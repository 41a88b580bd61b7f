"""Rules around SGLang's own ``eagle_sample``: real verify inputs, random trees, no engine.

The expected results come from the package's own rules on the same trees, as in the loop, and from exact laws where
tokens are drawn. ``test_drafters.py`` tests the same in a running server.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from semspec.calibration.arc import Setting
from semspec.decoding.arc_bound import Constants
from semspec.decoding.sampling import probabilities
from semspec.decoding.whitening import Whitened
from semspec.errors import UserError
from semspec.registry import plugin
from semspec.rules.arc import Known
from semspec.sglang_plugin import trees
from semspec.sglang_plugin.bound import ModelBound
from semspec.sglang_plugin.compat import LOOPS, apply
from semspec.sglang_plugin.drafts import lay_out
from semspec.sglang_plugin.verification import Options, Verification, everywhere
from semspec.types import Answer, Context, Draft, Sampling, What
from tests.support.drafting import kit_for
from tests.support.verifying import (
    Request,
    Tree,
    Verified,
    verified,
    verify_input,
)

pytestmark = pytest.mark.usefixtures("spec")
VOCABULARY, STOP = 12, 3
GREEDY = Sampling(0.0)
BY = Constants(c_s=0.05, alpha_kappa=0.2, tau=1.0)
TABLE = torch.randn(VOCABULARY, 6, generator=torch.Generator().manual_seed(1))
ASKED: tuple[Mapping[str, Any], ...] = (
    {"accept": "topk_delta", "k": 4, "delta": 0.3},
    {"accept": "topk_delta", "k": 12, "delta": 1.0},
    {"accept": "arc", "theta": 0.5, "keep_excluded": True},
    {"accept": "arc", "theta": -1.0, "resume": False, "keep_excluded": True},
    {"accept": "typical", "epsilon": 0.05, "delta": 0.3},
)
STRICT: tuple[Mapping[str, Any] | None, ...] = (
    None,
    {"accept": "lossless"},
    {"accept": "arc", "theta": 2.0},
    {"accept": "arc", "theta": 0.5},  # at temperature 0 only the likeliest token is possible
)


def rules(**options: Any) -> Verification:
    """With a bound for a model of which only the embeddings are there."""
    made = Verification(Options(calibration="paper-qwen3-8b", allow_mismatch=True, **options))
    embedding = torch.nn.Embedding.from_pretrained(TABLE)
    runner = SimpleNamespace(
        model=torch.nn.Sequential(embedding),
        model_config=SimpleNamespace(vocab_size=VOCABULARY, hf_eos_token_id={STOP}),
    )
    runner.model.get_input_embeddings = lambda: embedding
    made.bound = ModelBound(runner, None, BY, False)
    return made


def around(made: Verification) -> Any:
    from sglang.srt.speculative.eagle_utils import eagle_sample

    return lambda *arguments: made.sample(eagle_sample, *arguments)


def forests(seed: int, count: int) -> Iterator[tuple[random.Random, list[Tree], Tensor]]:
    """Batches of trees, as many nodes each, and logits over them."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        requests, nodes = rng.choice([1, 3, 4]), rng.choice([2, 5, 8, 12])
        drafted = [Tree.grown(rng, nodes, VOCABULARY) for _ in range(requests)]
        yield rng, drafted, 2 * torch.randn(requests, nodes, VOCABULARY, generator=generator)


def in_the_loop(asked: Mapping[str, Any] | None, tree: Tree, logits: Tensor) -> Verified:
    """Return the verdict of the package's own rule at temperature 0."""
    told = dict(asked or {})
    rule = plugin("accept", told.pop("accept", "lossless")).cls(**told)
    if asked and asked["accept"] == "arc":
        sigma = TABLE.std(0, correction=0)
        known = Known(Setting(0.0, BY), Whitened(sigma), frozenset())
        rule = rule.bound(known=known)
    kit = replace(kit_for(), stop_ids=frozenset({STOP}))
    session = rule.open(kit)
    draft = Draft(
        tree.tokens[1:],
        list(range(1, len(tree.tokens))),
        parents=[parent - 1 for parent in tree.parents[1:]],
    )
    plan = session.judge(Context(0, [1, 2, tree.tokens[0]]), draft)
    try:
        query = next(plan)
        while True:
            values: dict[Any, Any] = {}
            for read in query.reads:
                if read.what is What.PROBS:
                    values[read] = probabilities(logits, GREEDY)
                elif read.what is What.TOP_K:
                    top = logits.log_softmax(-1).topk(min(read.k, VOCABULARY), -1)
                    values[read] = (top.indices, top.values)
                else:
                    values[read] = TABLE[list(query.tokens)]
            query = plan.send(Answer(values=values))
    except StopIteration as stop:
        verdict = stop.value
    path = [node + 1 for node in verdict.path]
    return Verified(path, verdict.write[0] if verdict.write else -1)


def cut_at_an_end(found: Verified, tree: Tree) -> Verified:
    """As the loop has it, nothing follows an end of text; in a server the request is over there."""
    for i, node in enumerate(found.path):
        if tree.tokens[node] == STOP:
            return Verified(found.path[: i + 1], -1)
    return found


def test_trees_are_rebuilt_from_their_links() -> None:
    for _, drafted, _ in forests(0, 60):
        links = verify_input(drafted, [20] * len(drafted))
        found = trees.parents_of(links.retrieve_next_token, links.retrieve_next_sibling)
        assert found.tolist() == [tree.parents for tree in drafted]
        elder = trees.elder_siblings(found).tolist()
        for tree, own in zip(drafted, elder, strict=True):
            for node, parent in enumerate(tree.parents):
                before = [i for i in tree.children(parent) if i < node] if node else []
                assert [i for i, flag in enumerate(own[node]) if flag] == before


def test_random_trees_are_walked_as_in_the_loop(spec: Any) -> None:
    """At temperature 0, several rules and none in one batch; who asks for none gets SGLang's own."""
    made, relaxed, paths = rules(), 0, 0
    for rng, drafted, logits in forests(1, 400):
        asked = [rng.choice([*ASKED, *STRICT]) for _ in drafted]
        requests = [Request(GREEDY, one) for one in asked]
        found = verified(around(made), drafted, requests, logits)
        plain = verified(spec.eagle_sample, drafted, requests, logits)
        for one, tree, rows, own, theirs in zip(asked, drafted, logits, found, plain, strict=True):
            assert cut_at_an_end(own, tree) == in_the_loop(one, tree, rows)
            if one in STRICT:
                assert own == theirs
            relaxed += own != theirs
            paths += len(own.path) > 1
    assert relaxed > 200 and paths > 100


def test_one_rule_equals_a_brute_force_walk() -> None:
    """Top-k and delta by its definition alone, without any of the package's functions."""
    made = rules(accept="topk_delta", k=4, delta=0.3)
    for _, drafted, logits in forests(2, 100):
        found = verified(around(made), drafted, [Request() for _ in drafted], logits)
        for tree, rows, own in zip(drafted, logits.softmax(-1).tolist(), found, strict=True):
            at, path = 0, []
            while True:
                best = sorted(rows[at], reverse=True)
                kept = (
                    child
                    for child in tree.children(at)
                    if rows[at][tree.tokens[child]] >= max(best[3], best[0] - 0.3 + 1e-7)
                )
                following = next(kept, None)
                if following is None:
                    break
                at = following
                path.append(at)
            assert own == Verified(path, rows[at].index(max(rows[at])))


def test_requests_without_a_looser_rule_are_left_to_sglang(spec: Any) -> None:
    seen = []

    def original(verify_input: Any, batch: Any, output: Any, mask: Any) -> Any:
        seen.append(output.next_token_logits)
        return spec.eagle_sample(verify_input, batch, output, mask)

    made = rules(accept="arc", theta=1.5)
    for _, drafted, logits in forests(3, 20):
        requests = [Request(GREEDY, {"accept": "lossless"}) for _ in drafted]
        held = verified(lambda *a: made.sample(original, *a), drafted, requests, logits)
        assert held == verified(spec.eagle_sample, drafted, requests, logits)
        assert torch.equal(seen.pop(), logits.flatten(0, 1))


def exact(tree: Tree, p: Tensor, kept: set[int]) -> Counter[tuple[int, ...]]:
    """The chance of each path: speculative sampling of point masses, but ``kept`` nodes stay if reached."""
    law: Counter[tuple[int, ...]] = Counter()

    def walk(node: int, path: tuple[int, ...], chance: float) -> None:
        left = 1.0
        for child in tree.children(node):
            own = left if child in kept else float(p[node, tree.tokens[child]])
            walk(child, (*path, child), chance * own)
            left -= own
            if child in kept:
                break
        law[path] += chance * max(left, 0.0)  # type: ignore[assignment]

    walk(0, (), 1.0)
    return law


SAMPLED = (
    ({"accept": "typical", "epsilon": 0.12, "delta": 0.6}, Sampling(0.8)),
    ({"accept": "topk_delta", "k": 3, "delta": 0.2}, Sampling(1.0, top_p=0.9)),
    ({"accept": "typical", "epsilon": 0.12, "delta": 0.6}, Sampling(1.0, min_p=0.25)),
    ({"accept": "lossless"}, Sampling(1.2, top_k=9, top_p=0.9, min_p=0.15)),
    ({"accept": "arc", "theta": 0.5}, Sampling(1.2, top_k=7)),
    ({"accept": "arc", "theta": 0.2}, Sampling(0.6, top_p=0.9)),
    ({"accept": "arc", "theta": 0.2, "keep_excluded": True}, Sampling(0.6, top_p=0.9)),
    ({"accept": "arc", "theta": 0.2, "floor": 0.06}, Sampling(1.0)),
    ({"accept": "arc", "theta": 2.0}, Sampling(0.8)),
)


@pytest.mark.usefixtures("draws")
@pytest.mark.parametrize(("asked", "sampling"), SAMPLED, ids=lambda one: str(one))
def test_the_sampling_branch_has_the_rule_s_law(
    asked: Mapping[str, Any], sampling: Sampling
) -> None:
    """Many copies of a tree in one batch, one greedy request among them, against the exact law."""
    tree, logits, kept = telling(asked, sampling)
    p, copies, made = probabilities(logits, sampling), 3000, rules()
    torch.manual_seed(11)
    requests = [Request(sampling, asked) for _ in range(copies)] + [Request(GREEDY, None)]
    found = verified(
        around(made), [tree] * (copies + 1), requests, logits.expand(copies + 1, -1, -1)
    )
    greedy = in_the_loop(None, tree, logits)
    assert cut_at_an_end(found.pop(), tree) == greedy
    law = {path: chance for path, chance in exact(tree, p, kept).items() if chance > 1e-9}
    counts = Counter(tuple(one.path) for one in found)
    assert set(counts) <= set(law)
    often = [path for path in law if law[path] * copies >= 5]
    rare = [path for path in law if path not in often]
    observed = [counts[path] for path in often] + [sum(counts[path] for path in rare)]
    expected = [law[path] * copies for path in often] + [sum(law[path] for path in rare) * copies]
    shown = [(o, e) for o, e in zip(observed, expected, strict=True) if e > 0]
    scale = sum(o for o, _ in shown) / sum(e for _, e in shown)
    assert chisquare([o for o, _ in shown], [e * scale for _, e in shown]).pvalue > 1e-3
    for path in often:  # what follows is drawn from what the rejected children left
        node = path[-1] if path else 0
        possible = p[node].clone()
        possible[[tree.tokens[child] for child in tree.children(node)]] = 0
        assert all(possible[one.following] > 0 for one in found if tuple(one.path) == path)


@pytest.mark.usefixtures("draws")
def test_sglang_alone_would_write_what_min_p_excludes(spec: Any) -> None:
    """With the rules around it none of it comes out, beside requests that ask for no min-p."""
    logits = torch.randn(1, 8, VOCABULARY, generator=torch.Generator().manual_seed(5))
    tree, copies = Tree.grown(random.Random(5), 8, VOCABULARY), 600
    cut, free = Sampling(1.0, top_p=0.95, min_p=0.4), Sampling(1.0)
    requests = [Request(cut)] * copies + [Request(free)] * copies
    p = probabilities(logits[0], cut)

    def excluded(found: list[Verified]) -> list[int]:
        ends = ((one.path[-1] if one.path else 0, one.following) for one in found)
        wrong = [p[node, token] == 0 for node, token in ends]
        return [sum(map(int, wrong[:copies])), sum(map(int, wrong[copies:]))]

    everything = logits.expand(2 * copies, -1, -1)
    torch.manual_seed(3)
    alone = excluded(verified(spec.eagle_sample, [tree] * 2 * copies, requests, everything))
    ours = excluded(verified(around(rules()), [tree] * 2 * copies, requests, everything))
    assert alone[0] > 20 and alone[1] > 20
    assert ours[0] == 0 and ours[1] > 20


def telling(asked: Mapping[str, Any], sampling: Sampling) -> tuple[Tree, Tensor, set[int]]:
    """A tree of which the rule keeps some nodes, and that can be left in several ways."""
    for seed in range(200):
        tree = Tree.grown(random.Random(seed), 8, VOCABULARY)
        logits = torch.randn(8, VOCABULARY, generator=torch.Generator().manual_seed(seed))
        p = probabilities(logits, sampling)
        kept = kept_nodes(asked, tree, logits, p)
        ways = [chance for chance in exact(tree, p, kept).values() if chance > 0.03]
        strict = asked.get("theta") == 2.0 or asked["accept"] == "lossless"
        if len(ways) > 2 and (kept or strict):
            return tree, logits, kept
    raise AssertionError("no tree tells anything about this rule")


def kept_nodes(asked: Mapping[str, Any], tree: Tree, logits: Tensor, p: Tensor) -> set[int]:
    """By the definitions, one node at a time."""
    kept = set()
    for node in range(1, len(tree.tokens)):
        row, raw = p[tree.parents[node]], logits[tree.parents[node]].softmax(-1)
        token = tree.tokens[node]
        if asked["accept"] == "typical":
            entropy = -sum(x * torch.tensor(x).log().item() for x in row.tolist() if x > 0)
            least = min(asked["epsilon"], asked["delta"] * torch.tensor(-entropy).exp().item())
            flag = float(row[token]) > least
        elif asked["accept"] == "topk_delta":
            among = float(raw[token]) >= float(raw.topk(asked["k"]).values[-1])
            flag = among and float(raw[token]) >= float(raw.max()) - asked["delta"]
        elif asked["accept"] == "lossless":
            flag = False
        else:
            best = int(row.argmax())
            width = TABLE.std(0, correction=0)
            apart = float((((TABLE[token] - TABLE[best]) / width) ** 2).sum())
            ratio = (row[best].clamp_min(1e-10) / row[token].clamp_min(1e-10)).log()
            u = min(BY.c_s * apart, BY.alpha_kappa * float(ratio) ** 2)
            flag = 1 - u / BY.tau >= asked["theta"]
            flag = flag and (token == best or STOP not in (token, best))
            flag = flag and (asked.get("keep_excluded", False) or float(row[token]) > 0)
            flag = flag and float(row[token]) >= asked.get("floor", 0.0)
        if flag:
            kept.add(node)
    return kept


def test_tokens_that_a_request_forbids_are_never_kept(spec: Any) -> None:
    """By bias and by grammar, which the rule sees, and which the answer's log-probabilities show."""
    made = rules(accept="topk_delta", k=12, delta=1.0)

    class Mask:
        def __init__(self, forbidden: Tensor) -> None:
            self.forbidden = forbidden

        def apply(self, logits: Tensor) -> None:
            logits.masked_fill_(self.forbidden, -torch.inf)

    refused = 0
    for rng, drafted, logits in forests(5, 40):
        requests = [Request() for _ in drafted]
        tokens = [tree.tokens[rng.randrange(1, len(tree.tokens))] for tree in drafted]
        bias = torch.zeros(len(drafted), VOCABULARY)
        bias[range(len(drafted)), tokens] = -torch.inf
        free = verified(around(made), drafted, requests, logits)
        biased = verified(around(made), drafted, requests, logits, logit_bias=bias)
        mask = Mask(bias.repeat_interleave(len(drafted[0].tokens), 0) < 0)
        masked = verified(around(made), drafted, requests, logits, grammar_mask=mask)
        assert biased == masked
        for tree, token, own, without in zip(drafted, tokens, biased, free, strict=True):
            way = [tree.tokens[node] for node in own.path]
            assert token not in [*way, own.following]
            refused += token in [tree.tokens[node] for node in without.path]
    assert refused > 10


@pytest.mark.parametrize("wish", ["logit_bias", "acc_additive_penalties", "acc_scaling_penalties"])
def test_biases_and_penalties_count_once(spec: Any, wish: str) -> None:
    """For a request without a rule, for one whose rule keeps nothing, and in what comes back.

    The favourite, 9, leads by so much that 8 passes it when the wish is granted twice, not once.
    """
    drafted = [Tree([5, 6, 7], [-1, 0, 0])] * 2
    logits = torch.zeros(2, 3, VOCABULARY)
    logits[..., 9], logits[..., 8] = 1.0, 0.6
    given = torch.zeros(2, VOCABULARY)
    if wish == "logit_bias":
        given[:, 8] = 0.3
    elif wish == "acc_additive_penalties":
        given[:, 9] = -0.3
    else:
        given += 1.0
        given[:, 9] = 1.5
    nothing = {"accept": "typical", "epsilon": 1.0, "delta": 1e9}
    seen: list[Tensor] = []

    def recorded(function: Any) -> Any:
        def call(links: Any, batch: Any, output: Any, *rest: Any) -> Any:
            done = function(links, batch, output, *rest)
            seen.append(output.next_token_logits)
            return done

        return call

    for asked in (None, nothing):
        requests = [Request(), Request(asked=nothing)]
        alone = verified(
            recorded(spec.eagle_sample), drafted, requests, logits, **{wish: given.clone()}
        )
        made = rules(**asked) if asked else Verification(Options())
        ours = verified(recorded(around(made)), drafted, requests, logits, **{wish: given.clone()})
        assert ours == alone == [Verified([], 9)] * 2
        assert torch.equal(*seen[-2:])  # log-probabilities are read from it
    # and a rule judges by what was asked for: the bias makes 6 the likeliest
    given = torch.zeros(2, VOCABULARY)
    given[:, 6] = 5.0
    greedy = rules(accept="topk_delta", k=1, delta=0.0)
    found = verified(around(greedy), drafted, requests, logits, logit_bias=given)
    assert found == [Verified([1], 6)] * 2


def test_padding_is_never_kept(spec: Any) -> None:
    """Neither SGLang's own, token 0 under the root, nor ours, which is counted."""
    made = rules(accept="topk_delta", k=12, delta=1.0)  # keeps whatever is drafted
    logits = torch.zeros(1, 4, VOCABULARY)
    logits[..., 9] = 1.0
    padded = Tree([5, 0, 0, 7], [-1, 0, 0, 1])
    assert verified(around(made), [padded], [Request()], logits) == [Verified([], 9)]
    ours = Tree([5, 6, 0, 0], [-1, 0, 1, 2])
    assert verified(around(made), [ours], [Request()], logits) == [Verified([1, 2, 3], 9)]

    def counted(links: Any, *arguments: Any) -> Any:
        links.semspec_drafted = torch.tensor([2])
        return made.sample(spec.eagle_sample, links, *arguments)

    assert verified(counted, [ours], [Request()], logits) == [Verified([1], 9)]


def test_requests_choose_their_rule_and_senseless_ones_are_refused() -> None:
    made = rules(accept="typical", epsilon=0.2)
    assert made.of(None, GREEDY) == made.of({"semspec": {"accept": "typical"}}, GREEDY)
    mixed = made.of({"semspec": {"delta": 0.5}}, GREEDY)
    assert (mixed.epsilon, mixed.delta) == (0.2, 0.5)  # type: ignore[union-attr]
    other = made.of({"semspec": {"accept": "topk_delta"}}, GREEDY)
    assert other.delta == 0.6  # type: ignore[union-attr]
    assert made.of({"semspec": {"spans": [[0, 1]], "accept": "lossless"}}, GREEDY) is None
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"accept": "greedy"}, "this server has only arc, logprob, lossless"),
        ({"accept": "lossless", "delta": 1}, "it has no options"),
        ({"accept": "topk_delta", "theta": 1}, "its options are delta, k"),
        ({"accept": "topk_delta", "k": 0}, "give k of at least 1"),
        ({"accept": "topk_delta", "k": 1.5}, "k=1.5: give a whole number"),
        ({"accept": "arc", "resume": 1}, "resume=1: give true or false"),
        ({"accept": "arc", "theta": "0.3"}, "theta='0.3': give a number"),
        ({"theta": [0.3]}, "theta=a list: give a number"),
        ({"thetta": 0.3}, "has no option 'thetta'"),
    ]
    for asked, words in wrong:
        with pytest.raises((UserError, ValueError)) as error:
            made.of({"semspec": asked}, GREEDY)
        assert words in str(error.value) and "\n" not in str(error.value)
        params = SimpleNamespace(
            custom_params={"semspec": asked}, temperature=1.0, top_k=1, top_p=1.0
        )
        with pytest.raises(ValueError, match=re.escape(words)):
            made.check_request(None, params, 100)


def test_a_request_is_refused_where_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang turns a ValueError there into the request's 400."""
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.sampling.sampling_params import SamplingParams

    monkeypatch.setattr(HookRegistry, "_hooks", defaultdict(list))
    monkeypatch.setattr(HookRegistry, "_patched", set())
    monkeypatch.setattr(HookRegistry, "apply_hooks", HookRegistry.apply_hooks)
    monkeypatch.setattr(SamplingParams, "verify", SamplingParams.verify)
    apply(everywhere(Options()))
    HookRegistry.apply_hooks()
    SamplingParams(custom_params={"semspec": {"accept": "typical"}}).verify(100)
    SamplingParams(custom_params={"theta": "of another plugin"}).verify(100)
    with pytest.raises(ValueError, match="accept=greedy: this server has only arc, logprob"):
        SamplingParams(custom_params={"semspec": {"accept": "greedy"}}).verify(100)


def test_arc_needs_a_calibration_for_the_temperature() -> None:
    with pytest.raises(UserError, match="started without a calibration"):
        Verification(Options()).of({"semspec": {"accept": "arc"}}, Sampling(1.0))
    with pytest.raises(UserError, match="started without a calibration"):
        Verification(Options(accept="arc"))
    made = Verification(Options(calibration="embedded/arc-tiny"))
    asked = {"semspec": {"accept": "arc", "theta": 0.5}}
    assert made.of(asked, Sampling(1.0)) is not None
    with pytest.raises(UserError, match=r"was calibrated at temperature 1.*, not at 0.5"):
        made.of(asked, Sampling(0.5))
    with pytest.raises(
        UserError, match="does not work at temperature 0, where only one token is possible"
    ):
        made.of(asked, GREEDY)
    # the server's own rule is not for everybody: a request that asks for nothing is served losslessly
    ours = Verification(Options(accept="arc", calibration="embedded/arc-tiny"))
    groups = ours.groups([Request(GREEDY), Request(Sampling(1.0))])
    assert [group.requests for group in groups] == [(1,)]
    for params in (None, {"semspec": {"spans": [[0, 1]], "probe": "c0ffee"}}):
        asks_for_no_rule = Request(GREEDY).sampling_params
        asks_for_no_rule.custom_params = params
        ours.check_request(None, asks_for_no_rule, 100)
    loose = Verification(Options(calibration="embedded/arc-tiny", allow_mismatch=True))
    assert loose.of(asked, Sampling(0.5)) is not None


class Told:
    """A loop that has decided already which tokens follow."""

    def __init__(self, text: list[int]) -> None:
        self.text, self.rows = text, torch.empty(0)

    def verified(self, rows: Tensor) -> list[int]:
        self.rows = rows.clone()
        return self.text

    def report(self) -> None:
        return None


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.9), Sampling(1.2, top_k=4, min_p=0.1)])
@pytest.mark.parametrize("branch", ["likeliest", "draws"])
def test_what_a_loop_decides_is_kept_to_the_token(
    sampling: Sampling, branch: str, spec: Any, request: pytest.FixtureRequest
) -> None:
    """Each length of a text between one token and one more than the draft, beside requests without a loop."""
    if branch == "draws":
        request.getfixturevalue("draws")
    made, rng, n = rules(), random.Random(8), 7
    generator = torch.Generator().manual_seed(8)
    for _ in range(40):
        count, logits = 5, 2 * torch.randn(5, n, VOCABULARY, generator=generator)
        chains, told = [], []
        for i in range(count):
            drafted = [rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, n))]
            nodes, sees = np.zeros(n, np.int64), np.zeros((n, n), np.bool_)
            lay_out(5, drafted, range(-1, len(drafted) - 1), nodes, sees)
            above = [-1, *(max(a for a in range(node) if sees[node][a]) for node in range(1, n))]
            chains.append(Tree(nodes.tolist(), above))
            kept = rng.randrange(len(drafted) + 1)
            # up to the end of a step, or followed by a token of the loop's, which padding may have, too
            whole = rng.random() < 0.5 and kept
            text = drafted[:kept] if whole else [*drafted[:kept], rng.randrange(VOCABULARY)]
            told.append(Told(text) if i != 2 else None)

        def around_loops(verify: Any, *rest: Any, told: Any = told) -> Any:
            setattr(verify, LOOPS, told)
            held = verify.retrieve_next_token
            try:
                return around(made)(verify, *rest)
            finally:
                assert verify.retrieve_next_token is held

        asked = [Request(sampling, None) for _ in range(count)]
        torch.manual_seed(1)
        found = verified(around_loops, chains, asked, logits)
        for chain, loop, own, rows in zip(chains, told, found, logits, strict=True):
            if loop is None:
                continue
            assert [*(chain.tokens[node] for node in own.path), own.following] == loop.text
            assert torch.equal(loop.rows, rows)
        if branch == "likeliest":
            plain = verified(spec.eagle_sample, chains, asked, logits)
            assert found[2] == plain[2]
