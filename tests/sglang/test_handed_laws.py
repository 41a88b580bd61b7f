"""Rules for whole steps on trees from other drafters, through SGLang's own ``eagle_sample``, have the exact law.

Each tree's first path is what the toy draft model finds likeliest, two steps of it; its other nodes are siblings, which a
rule for steps must not keep. Texts of four tokens are counted and compared with the loop's law, summed exactly, in the
branch that a GPU takes above temperature 0.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from semspec.engines.toy import Toy, ToyEngine
from semspec.sglang_plugin import compat_speculative as compat
from semspec.sglang_plugin.handed import HandedLoops
from semspec.sglang_plugin.verification import Options, Verification
from semspec.types import Sampling
from tests.support.law import PROMPT, Unit, fit, toy_kit
from tests.support.verifying import ALL, Tree, batch_of, verify_input

SAMPLES = 1_000
CAP, STEPS, LENGTH, NODES, THRESHOLD = 2, 2, 4, 9, -1.6  # no step of two tokens ends before its cap
TOY = Toy(vocabulary=4, seed=3, likeness=0.3)
STOPPING = Toy(vocabulary=4, seed=3, stop=True, likeness=0.3)


class Writing:
    """A request of SGLang's. Its first token is there: it is the prompt's last one."""

    def __init__(self, sampling: Sampling, rule: Mapping[str, Any] | None, seed: int) -> None:
        self.rid, self.sampling = str(seed), sampling
        self.origin_input_ids, self.output_ids = [*PROMPT[:-1]], [PROMPT[-1]]
        self.sampling_params = SimpleNamespace(
            custom_params=None if rule is None else {"semspec": rule},
            temperature=sampling.temperature or 1.0,
            top_k=1 if sampling.greedy else sampling.top_k or ALL,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            max_new_tokens=1 + LENGTH,
            sampling_seed=seed,
            ignore_eos=False,
            stop_token_ids=None,
        )

    @property
    def text(self) -> list[int]:
        return self.origin_input_ids + self.output_ids


def likeliest(draft: ToyEngine, text: Sequence[int], count: int) -> list[int]:
    """The draft model's greedy tokens, up to an end."""
    text, start = list(text), len(text)
    while len(text) < start + count and (len(text) == start or text[-1] not in draft.stop_ids):
        text.append(int(draft.logits[text[-2], text[-1]].argmax()))
    return text[start:]


def grown(rng: random.Random, chain: Sequence[int], root: int, vocabulary: int, nodes: int) -> Tree:
    """A tree of so many nodes whose first path is ``chain``, with other nodes between and behind."""
    tree, path = Tree([root], [-1]), [0]
    for token in chain:
        tree.tokens.append(token)
        tree.parents.append(path[-1])
        path.append(len(tree.tokens) - 1)
        if rng.random() < 0.5:
            _other(rng, tree, path[-1], vocabulary)
    while len(tree.tokens) < nodes:
        _other(rng, tree, path[-1], vocabulary)
    return tree


def _other(rng: random.Random, tree: Tree, end: int, vocabulary: int) -> None:
    """Add a node anywhere but behind the end of the first path, if there is room."""
    parent = rng.choice([node for node in range(len(tree.tokens)) if node != end])
    used = {tree.tokens[i] for i in tree.children(parent)}
    free = [token for token in range(vocabulary) if token not in used]
    if free:
        tree.tokens.append(rng.choice(free))
        tree.parents.append(parent)


def law_of(toy: Toy, sampling: Sampling) -> dict[Unit, float]:
    """The likeliest step of the draft where the rule accepts it, else one of the target's."""
    models = toy.models()
    target, draft = models["target"], models["draft"]
    law: Counter[Unit] = Counter()

    def go(output: Unit, chance: float) -> None:
        if len(output) >= LENGTH or (output and output[-1] in target.stop_ids):
            law[output] += chance  # type: ignore[assignment]
            return
        text = [*PROMPT, *output]
        step = likeliest(draft, text, CAP)
        whole = [*text, *step]
        chances = [
            float(target.logits[whole[i - 2], whole[i - 1]].log_softmax(-1)[whole[i]])
            for i in range(len(text), len(whole))
        ]
        if min(chances) >= THRESHOLD:
            go((*output, *step), chance)
            return
        for unit, own in target.law(text, CAP, sampling).items():
            go((*output, *unit), chance * own)

    go((), 1.0)
    return {output: chance for output, chance in law.items() if chance > 0}


def serving(toy: Toy) -> Verification:
    """The plugin's rules in a server where another drafter drafts."""
    made = Verification(Options())
    runner = SimpleNamespace(server_args=SimpleNamespace(tp_size=1))
    made.handed = HandedLoops(runner, "paragraph", made.steps, "EAGLE3")
    made.handed.kit = toy_kit(None, toy.models()["target"], Sampling(0.0), 0, "paragraph")
    return made


def write(made: Verification, toy: Toy, requests: Sequence[Writing]) -> None:
    """Run requests to their ends, all together, as SGLang does."""
    from sglang.srt.speculative.eagle_utils import eagle_sample

    models, rng = toy.models(), random.Random(5)
    target, draft = models["target"], models["draft"]
    running = list(requests)
    while running:
        nodes = NODES + rng.choice((0, 2))  # as with SGLang's --speculative-adaptive
        drafted = [
            grown(rng, likeliest(draft, one.text, STEPS * CAP), one.text[-1], toy.vocabulary, nodes)
            for one in running
        ]
        rows = torch.stack([rows_of(target, one, t) for one, t in zip(running, drafted, strict=True)])  # fmt: skip
        lengths = [len(one.text) - 1 for one in running]
        batch = batch_of(running, lengths)  # type: ignore[arg-type]
        output = SimpleNamespace(next_token_logits=rows.flatten(0, 1), customized_info=None)
        verify = verify_input(drafted, lengths)
        # no node is padding, as of EAGLE: a draft that begins with token 0 would look like NGRAM's
        setattr(verify, compat.DRAFTED, torch.full((len(drafted),), nodes))
        tokens, accepted, index = made.sample(eagle_sample, verify, batch, output, None)
        for i, (one, count) in enumerate(zip(running, accepted.tolist(), strict=True)):
            gained = [int(tokens[node]) for node in index[i, :count]]
            one.output_ids += gained[: 1 + LENGTH - len(one.output_ids)]
        running = [
            one
            for one in running
            if len(one.output_ids) <= LENGTH and one.output_ids[-1] not in target.stop_ids
        ]


def rows_of(target: ToyEngine, one: Writing, tree: Tree) -> torch.Tensor:
    rows = []
    for node, parent in enumerate(tree.parents):
        before = tree.tokens[parent] if node else one.text[-2]
        rows.append(target.logits[before, tree.tokens[node]])
    return torch.stack(rows)


def p_value(made: Verification, toy: Toy, sampling: Sampling) -> float:
    rule = {"accept": "logprob", "threshold": THRESHOLD, "step_cap": CAP}
    law = law_of(toy, sampling)
    requests = [Writing(sampling, rule, seed) for seed in range(SAMPLES)]
    plain = Writing(Sampling(0.0), None, SAMPLES)  # beside them, SGLang's own greedy
    write(made, toy, [*requests, plain])
    assert plain.output_ids[1:] == likeliest(toy.models()["target"], PROMPT, LENGTH)
    counts = Counter(tuple(one.output_ids[1:]) for one in requests)
    return fit(counts, law, SAMPLES)


@pytest.mark.usefixtures("draws")
@pytest.mark.parametrize(
    ("toy", "sampling"),
    [(TOY, Sampling(0.8)), (STOPPING, Sampling(1.2, min_p=0.2)), (TOY, Sampling(1.0, top_p=0.9))],
    ids=["alone", "stops", "top-p"],
)
def test_texts_have_the_law_of_the_loop(toy: Toy, sampling: Sampling) -> None:
    assert p_value(serving(toy), toy, sampling) > 1e-4


@pytest.mark.usefixtures("draws")
def test_a_path_that_takes_siblings_along_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes in the order in which they stand, as in a chain: here that is another law."""

    def all_nodes(call: compat.Verifying) -> list[list[int]]:
        return [list(range(call.n)) for _ in call.requests]

    monkeypatch.setattr(compat.Verifying, "first_paths", all_nodes)
    assert p_value(serving(TOY), TOY, Sampling(0.8)) < 1e-12


@pytest.mark.usefixtures("spec")
def test_greedy_texts_are_those_of_the_loop() -> None:
    """On the CPU's branch, which verifies by the likeliest token."""
    for toy in (TOY, STOPPING):
        (expected,) = law_of(toy, Sampling(0.0))
        one = Writing(Sampling(0.0), {"accept": "logprob", "threshold": THRESHOLD, "step_cap": CAP}, 0)  # fmt: skip
        write(serving(toy), toy, [one])
        assert tuple(one.output_ids[1:]) == expected
