"""Run requests as SGLang would with our draft model inside it, on toy models with a known distribution."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from semspec.decoding.sampling import draw, probabilities
from semspec.engines.toy import Toy, ToyEngine
from semspec.protocols import Rule
from semspec.sglang_plugin.answers import Rows
from semspec.sglang_plugin.model_drafts import ModelDrafts, ModelOptions
from semspec.sglang_plugin.steps import Steps
from semspec.types import Sampling
from tests.support.law import toy_kit


@dataclass
class Asked:
    """A request and its output so far."""

    rid: str
    prompt: list[int]
    limit: int
    steps: Steps | None
    sampling: Sampling = field(default_factory=Sampling)
    seed: int | None = None
    output: list[int] = field(default_factory=list)
    off: bool = False

    @property
    def sampling_params(self) -> Any:
        return SimpleNamespace(
            temperature=self.sampling.temperature or 1.0,
            top_k=1 if self.sampling.greedy else self.sampling.top_k or 1 << 30,
            top_p=self.sampling.top_p,
            min_p=self.sampling.min_p,
            max_new_tokens=self.limit,
            sampling_seed=self.seed,
            ignore_eos=False,
            stop_token_ids=None,
            custom_params=self,
        )


class Wanted:
    """The options of requests; each request carries its own."""

    def steps(self, params: Any) -> Steps | None:
        asked: Asked = params.custom_params
        return asked.steps

    def usual(self) -> Steps | None:
        return None

    def off(self, params: Any) -> bool:
        asked: Asked = params.custom_params
        return asked.off


class Counted(ToyEngine):
    """The toy draft model, with a memory size."""

    def memory_bytes(self) -> dict[str, int]:
        return {"weights": 4 * self.logits.numel()}


def drafts_of(toy: Toy, n: int, split: str = "paragraph") -> ModelDrafts:
    models = toy.models()
    draft = Counted(models["draft"].logits, models["draft"].stop_ids)
    kit = toy_kit(None, models["target"], Sampling(0.0), 0)
    options = ModelOptions(model="toy", length=2, split=split)
    rows = Rows((), SimpleNamespace(model_config=SimpleNamespace(hidden_size=draft.width)))
    return ModelDrafts(n, kit, rows, draft, Wanted(), options)


def rows_of(target: ToyEngine, text: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """Return the target's logits [tokens + 1, vocabulary] over a chain after a text."""
    whole = [*text, *tokens]
    states = [whole[i - 2 : i] for i in range(len(text), len(whole) + 1)]
    return torch.stack([target.logits[first, second] for first, second in states])


def run(
    drafts: ModelDrafts,
    target: ToyEngine,
    requests: Sequence[Asked],
    changed: Callable[[Asked, list[int], Tensor], list[int]] = lambda one, gained, rows: gained,
) -> list[list[int]]:
    """Run requests with step rules together to their ends; return their outputs.

    ``changed`` can corrupt the tokens of a pass.
    """
    n, running, coins = drafts.n, list(requests), random.Random(requests[0].rid)
    while running:
        drafts.meet([(one.rid, one, one.prompt, one.output) for one in running])
        rids = [one.rid for one in running]
        tails = [[*one.prompt, *one.output][-2 * n :] for one in running]
        nodes, _ = drafts.batch_get(rids, tails, [len(o.prompt) + len(o.output) for o in running])
        for one, loop, own in zip(running, drafts.loops, nodes.reshape(-1, n), strict=True):
            text = [*one.prompt, *one.output]
            assert own[0] == text[-1]
            if loop is None:  # drafting pauses, and SGLang draws the token
                assert drafts._sessions[one.rid].resting is not None, "nothing judges this draft"
                row = probabilities(rows_of(target, text, [])[0], one.sampling)
                one.output.append(draw(row, coins.random()))
                continue
            drafted = own[1 : 1 + len(loop.verifies.tokens)].tolist()  # type: ignore[union-attr]
            rows = rows_of(target, text, drafted)
            padded = torch.cat([rows, torch.full((n - len(rows), rows.shape[1]), torch.nan)])
            gained = changed(one, loop.verified(padded), rows)
            one.output += gained[: one.limit - len(one.output)]
        over = [one for one in running if _over(one, target)]
        drafts.erase_match_state([one.rid for one in over])
        running = [one for one in running if one not in over]
    return [one.output for one in requests]


def _over(one: Asked, target: ToyEngine) -> bool:
    return len(one.output) >= one.limit or (bool(one.output) and one.output[-1] in target.stop_ids)


def steps(rule: Rule, **changes: Any) -> Steps:
    return Steps(rule=rule, **changes)
