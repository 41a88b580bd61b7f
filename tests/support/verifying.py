"""SGLang's verification in isolation: real verify inputs over random trees, in plain namespaces."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from semspec.types import Sampling

ALL = 1 << 30  # SGLang's value for no top_k


@dataclass
class Tree:
    """A draft tree; node 0 is the last token of the text."""

    tokens: list[int]
    parents: list[int]

    @classmethod
    def grown(cls, rng: random.Random, nodes: int, vocabulary: int, lowest: int = 1) -> Tree:
        """Grow a random tree: parents come first, siblings are different tokens of at least ``lowest``."""
        tree = cls([rng.randrange(vocabulary)], [-1])
        for node in range(1, nodes):
            parent = rng.randrange(max(0, node - 4), node)
            used = {tree.tokens[i] for i in tree.children(parent)}
            tree.parents.append(parent)
            tree.tokens.append(rng.choice([t for t in range(lowest, vocabulary) if t not in used]))
        return tree

    def children(self, node: int) -> list[int]:
        return [i for i, parent in enumerate(self.parents) if parent == node]

    def sees(self) -> Tensor:
        mask = torch.eye(len(self.tokens), dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                mask[node] |= mask[parent]
        return mask


@dataclass
class Request:
    """The part of a request that the verification reads."""

    sampling: Sampling = field(default_factory=lambda: Sampling(0.0))
    asked: Mapping[str, Any] | None = None
    rid: str = "r"

    @property
    def sampling_params(self) -> SimpleNamespace:
        given = self.sampling
        return SimpleNamespace(
            custom_params=None if self.asked is None else {"semspec": dict(self.asked)},
            temperature=1.0 if given.greedy else given.temperature,
            top_k=1 if given.greedy else given.top_k or ALL,
            top_p=given.top_p,
            min_p=given.min_p,
        )


def batch_of(requests: Sequence[Request], lengths: Sequence[int], **info: Any) -> SimpleNamespace:
    def column(values: Sequence[float], kind: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=kind)

    params = [request.sampling_params for request in requests]
    sampling_info = {
        "acc_additive_penalties": None,
        "acc_scaling_penalties": None,
        "logit_bias": None,
        "sampling_seed": None,
        "has_watermark_candidates": False,
        "is_all_greedy": all(request.sampling.greedy for request in requests),
        "temperatures": column([p.temperature for p in params], torch.float32)[:, None],
        "top_ks": column([p.top_k for p in params], torch.int32),
        "top_ps": column([p.top_p for p in params], torch.float32),
        "need_top_k_sampling": any(p.top_k != ALL for p in params),
        "need_top_p_sampling": any(p.top_p < 1 for p in params),
        "min_ps": column([p.min_p for p in params], torch.float32),
        "need_min_p_sampling": any(p.min_p > 0 for p in params),
    }
    return SimpleNamespace(
        device=torch.device("cpu"),
        reqs=list(requests),
        seq_lens=torch.tensor(lengths),
        forward_mode=SimpleNamespace(is_idle=lambda: False),
        return_logprob=False,
        sampling_info=SimpleNamespace(**{**sampling_info, **info}),
    )


def verify_input(drafted: Sequence[Tree], lengths: Sequence[int]) -> Any:
    from sgl_kernel.speculative import reconstruct_indices_from_tree_mask
    from sglang.srt.speculative.ngram_info import NgramVerifyInput

    count, n = len(drafted), len(drafted[0].tokens)
    mask = torch.stack([tree.sees() for tree in drafted]).flatten()
    positions = torch.zeros(count * n, dtype=torch.long)
    index, child, sibling = torch.zeros(3, count, n, dtype=torch.long)
    reconstruct_indices_from_tree_mask(
        mask, torch.tensor(lengths), positions, index, child, sibling, count, n
    )
    return NgramVerifyInput(
        draft_token=torch.tensor([tree.tokens for tree in drafted]).flatten(),
        custom_mask=mask,
        positions=positions,
        retrieve_index=index,
        retrieve_next_token=child,
        retrieve_next_sibling=sibling,
        draft_token_num=n,
    )


@dataclass
class Verified:
    """One request's result: the accepted nodes after node 0, and the token after them."""

    path: list[int]
    following: int


def verified(
    function: Any, drafted: Sequence[Tree], requests: Sequence[Request], logits: Tensor, **info: Any
) -> list[Verified]:
    """Run ``eagle_sample``, or a wrapper of it, on [requests, nodes, vocabulary] logits."""
    lengths = [20 + i for i in range(len(drafted))]
    n = len(drafted[0].tokens)
    mask = info.pop("grammar_mask", None)
    rows = logits.flatten(0, 1).clone()
    output = SimpleNamespace(next_token_logits=rows, customized_info=None)
    held = output.next_token_logits
    predict, accepted, index = function(
        verify_input(drafted, lengths), batch_of(requests, lengths, **info), output, mask
    )
    assert output.next_token_logits is held  # the model's own logits are restored
    if mask is None and not info:
        assert torch.equal(held, logits.flatten(0, 1))
    results = []
    for i, count in enumerate(accepted.tolist()):
        nodes = index[i, :count].tolist()
        tokens = [drafted[i].tokens[node - i * n] for node in nodes[1:]]
        assert [int(predict[node]) for node in nodes[:-1]] == tokens
        results.append(Verified([node - i * n for node in nodes[1:]], int(predict[nodes[-1]])))
    return results


def target_only(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool,
) -> None:
    """Apply the rule of SGLang's sampling kernel (``TreeSpeculativeSamplingTargetOnly``), one request at a time.

    Each node has one uniform number. Its children are tried in order, and the first one at which their summed
    probability exceeds the number is accepted. If none is, the next token is drawn from the other tokens' probability.
    """
    assert threshold_single == threshold_acc == 1.0 and deterministic
    for b in range(len(candidates)):
        tokens, index = candidates[b].tolist(), retrive_index[b].tolist()
        child, sibling = retrive_next_token[b].tolist(), retrive_next_sibling[b].tolist()
        here, way = 0, [index[0]]
        tried: list[int] = []
        while len(way) < accept_index.shape[1]:
            coin, mass, tried = float(uniform_samples[b, here]), 0.0, []
            node = child[here]
            while node >= 0:
                chance = float(target_probs[b, here, tokens[node]])
                mass += chance
                if chance > 0 and coin < mass:
                    break
                tried.append(tokens[node])
                node = sibling[node]
            if node < 0:
                break
            predicts[way[-1]] = tokens[node]
            way.append(index[node])
            here, tried = node, []
        left = target_probs[b, here].double().clone()
        left[tried] = 0.0
        cumulative = left.cumsum(0)
        goal = float(uniform_samples_for_final_sampling[b]) * float(cumulative[-1])
        predicts[way[-1]] = int((cumulative > goal).nonzero()[0])
        accept_index[b, : len(way)] = torch.tensor(way, dtype=accept_index.dtype)
        accept_token_num[b] = len(way) - 1


def top_k_renormalised(p: Tensor, top_k: Tensor) -> Tensor:
    kept = p.clone()
    for row, k in zip(kept, top_k.tolist(), strict=True):
        if k < len(row):
            row[row < row.topk(k).values[-1]] = 0.0
    return kept / kept.sum(-1, keepdim=True)


def top_p_renormalised(p: Tensor, top_p: Tensor) -> Tensor:
    ordered, order = p.sort(-1, descending=True)
    kept = torch.where(ordered.cumsum(-1) - ordered < top_p[:, None], ordered, 0.0)
    spread = torch.zeros_like(p).scatter(-1, order, kept)
    return spread / spread.sum(-1, keepdim=True)
