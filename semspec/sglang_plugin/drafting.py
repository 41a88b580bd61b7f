"""Drafters inside SGLang: the tree drafters ``prompt_lookup``, ``suffix`` and ``adapld``, and a small model, ``lm``.

    SEMSPEC_SGLANG='{"drafting": {}}' sglang serve ... --speculative-algorithm SEMSPEC_SUFFIX
    SEMSPEC_SGLANG='{"drafting": {"suffix": {"longest": 20}}}'                with other options
    SEMSPEC_SGLANG='{"drafting": {"lm": {"model": "owner/draft"}}}'           SEMSPEC_LM

SGLang's own NGRAM looks up the end of the text in earlier generations; the first three drafters look it up in the
request's own prompt and output, with one session per request. A tree has ``--speculative-num-draft-tokens`` nodes
including the last token. Nodes that a drafter does not fill are padding, which no rule of ours keeps.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from semspec.protocols import Kit
from semspec.registry import plugin
from semspec.sglang_plugin import compat_speculative as compat
from semspec.sglang_plugin import compat_worker, model_drafts
from semspec.sglang_plugin.answers import Rows, without_missing_reads
from semspec.sglang_plugin.compat import Hook
from semspec.sglang_plugin.drafts import Drafts
from semspec.sglang_plugin.part import Part
from semspec.sglang_plugin.payoff import Payoff
from semspec.sglang_plugin.settings import build
from semspec.splitters.token import TokenBoundary
from semspec.types import Sampling

WIDTHS = {"prompt_lookup": 11, "suffix": 24, "adapld": 32}  # nodes, with the last token


@dataclass(frozen=True, kw_only=True)
class Options:
    """The drafters' options, as outside SGLang; ``--speculative-algorithm`` chooses the drafter."""

    prompt_lookup: Mapping[str, Any] = field(default_factory=dict)
    suffix: Mapping[str, Any] = field(default_factory=dict)
    adapld: Mapping[str, Any] = field(default_factory=dict)
    lm: Mapping[str, Any] = field(default_factory=dict)  # ``model_drafts.ModelOptions``
    adaptive: bool = True  # drop drafts if verifying them takes longer than it saves

    def drafter(self, name: str) -> Any:
        return build(plugin("drafter", name).cls, getattr(self, name), f"drafting.{name}")


def prepare(options: Options) -> None:
    """Register the drafters' names before SGLang checks its arguments against the known names."""
    compat.check_version()
    for name, width in WIDTHS.items():
        drafter = options.drafter(name)

        def worker(drafter: Any = drafter) -> type:
            return compat_worker.tree_worker(
                lambda runner, n: _drafts(drafter, runner, n, options.adaptive)
            )

        compat_worker.register_algorithm(f"SEMSPEC_{name.upper()}", width, worker)
    model_drafts.register(build(model_drafts.ModelOptions, options.lm, "drafting.lm"))


def hooks(options: Options) -> list[Hook]:
    """Return the hook on requests that SGLang retracts from a batch."""
    return [Hook(compat.RETRACTED, compat.take_back, "AFTER")]


PART = Part(Options, hooks, prepare=prepare)


def _drafts(drafter: Any, runner: Any, n: int, adaptive: bool) -> Drafts:
    def no_text(_: Any) -> Any:
        raise AssertionError("drafters of single tokens read no text")

    stop_ids, layers, rng = compat.stop_ids(runner), compat.layers(runner), random.Random(0)
    texts = (no_text, no_text, no_text)  # piece, decode, encode
    kit = Kit("", Sampling(0.0), TokenBoundary, stop_ids, *texts, rng, layers=layers, trees=True)
    drafter = without_missing_reads(drafter, runner)
    payoff = Payoff() if adaptive else None
    rules = compat.rules_of(runner)
    drafts = Drafts(drafter, n, kit, Rows(drafter.open(kit).watches, runner), payoff, rules)
    if rules is not None:
        rules.counted_in(drafts.passes)
    return drafts
