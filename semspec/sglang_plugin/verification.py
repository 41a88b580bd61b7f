"""Rules inside SGLang's verification: ``arc``, ``typical`` and ``topk_delta``, request by request.

One function verifies drafts for EAGLE, EAGLE3, STANDALONE and NGRAM. Before it runs, every family of
nodes of which a rule keeps one is decided as the package's own walk would decide it, and the logits that
judge the family allow no other token (``trees.only``); the rest is SGLang's own, greedy or sampled.
Afterwards the true logits are restored, so log-probabilities stay the model's. SGLang's own verification
knows no min-p: for a request that asks for it, the logits allow only the tokens that it leaves.

    SEMSPEC_SGLANG='{"verification": {"accept": "topk_delta", "delta": 0.3}}'     for all requests
    "custom_params": {"semspec": {"accept": "typical", "epsilon": 0.1}}           for one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from semspec.decoding.acceptance import point_mass_nodes
from semspec.decoding.sampling import probabilities
from semspec.errors import UserError
from semspec.protocols import Rule
from semspec.rules.arc import Arc
from semspec.sglang_plugin import compat_speculative as compat
from semspec.sglang_plugin import trees
from semspec.sglang_plugin.bound import ModelBound, Source
from semspec.sglang_plugin.compat import CHECKED, Hook
from semspec.sglang_plugin.protocol import rule_options
from semspec.sglang_plugin.rules import Judged, loosely, named
from semspec.storage.screen import LOG, last_line
from semspec.types import Sampling


@dataclass(frozen=True, kw_only=True)
class Options:
    """The rule of requests that name none, and the options that ARC-Decode needs in any case."""

    accept: str = "lossless"
    theta: float | None = None  # arc
    resume: bool | None = None  # arc
    keep_excluded: bool | None = None  # arc
    floor: float | None = None  # arc
    epsilon: float | None = None  # typical
    delta: float | None = None  # typical, topk_delta
    k: int | None = None  # topk_delta
    calibration: str | None = None  # arc: a folder, a Hub repository, or a name from conf/arc.yaml
    allow_mismatch: bool = False  # arc: constants of another model or temperature


@dataclass(frozen=True, slots=True)
class Group:
    """Requests of a batch that share a rule and a sampling."""

    rule: Rule
    sampling: Sampling
    requests: tuple[int, ...]


class Verification:
    """The rules of one server, in each of its processes."""

    def __init__(self, options: Options) -> None:
        self.otherwise = asdict(options)
        self.source: Source | None = None
        if options.calibration is not None:
            self.source = Source(options.calibration, options.allow_mismatch)
        self.bound: ModelBound | None = None  # once the model is loaded
        self.rule = lru_cache(maxsize=4096)(self._rule)
        self.rule((), None)  # check the server's default rule

    def _rule(self, given: tuple[tuple[str, Any], ...], sampling: Sampling | None) -> Rule | None:
        rule = named(dict(given), self.otherwise)
        if isinstance(rule, Arc):
            if self.source is None:
                raise UserError(
                    "accept=arc: this server was started without a calibration; start it with"
                    ' {"verification": {"calibration": ...}} in SEMSPEC_SGLANG'
                )
            if sampling is not None:
                self.source.check(sampling.temperature)
        return rule

    def of(self, custom_params: Any, sampling: Sampling) -> Rule | None:
        """Return the rule for a request; raise UserError or ValueError if it cannot be had."""
        return self.rule(tuple(rule_options(custom_params).items()), sampling)

    def groups(self, requests: Sequence[Any]) -> list[Group]:
        """Group the requests that one of our rules judges, by rule and sampling."""
        found: dict[tuple[Rule, Sampling], list[int]] = {}
        for i, request in enumerate(requests):
            params = compat.params_of(request)
            try:
                sampling = compat.sampling_of(params)
                rule = self.of(compat.asked(params), sampling)
            except (UserError, ValueError) as error:
                # a request's own rule was checked on arrival; the server's rule may not suit it
                _say_once(str(error))
                continue
            if rule is not None:
                found.setdefault((rule, sampling), []).append(i)
        return [Group(*key, tuple(own)) for key, own in found.items()]

    def check_request(self, result: Any, params: Any, *_: Any, **__: Any) -> None:
        """Check a request after SGLang verified its parameters: a ValueError is its 400."""
        given = compat.asked(params)
        if not rule_options(given):  # a request that names no rule is served in any case
            return
        try:
            self.of(given, compat.sampling_of(params))
        except UserError as error:
            raise ValueError(str(error)) from error

    def model_loaded(self, result: Any, runner: Any, *_: Any, **__: Any) -> None:
        if self.source is None or not compat.is_target(runner):
            return
        try:
            self.bound = self.source.bind(runner)
        except UserError as error:  # an exception would reach the user as a page of traceback
            raise last_line(f"semspec's SGLang plugin: {error}") from error

    def sample(
        self, theirs: Any, verify_input: Any, batch: Any, logits_output: Any, *args: Any, **kw: Any
    ) -> Any:
        """Wrap ``eagle_sample``: decide the rules' families first, restore the logits afterwards."""
        mask = args[0] if args else kw.get("grammar_mask")
        call = compat.Verifying(verify_input, batch, logits_output, mask)
        groups = [] if call.idle else self.groups(call.requests)
        floors = {} if call.idle or call.takes_the_likeliest() else _floors(call.requests)
        if not groups and not floors:
            return theirs(verify_input, batch, logits_output, *args, **kw)
        raw, true = call.settle(), call.logits
        shown = _drawable(raw, call, floors) if floors else raw
        if groups:
            shown = trees.only(shown, call.tokens, compat.agreed(self._follows(groups, call)))
        call.show(shown)
        try:
            with call.already_cut([i for own in floors.values() for i in own]):
                return theirs(verify_input, batch, logits_output, *args, **kw)
        finally:
            call.show(true)

    def _follows(self, groups: Sequence[Group], call: compat.Verifying) -> Tensor:
        """Return ``trees.first_accepted`` of all requests, -1 for those in no group."""
        logits, tokens = call.logits, call.tokens
        count, n = tokens.shape
        parents = trees.parents_of(*call.links)
        proposed = call.proposed(parents)
        uniforms = None if call.takes_the_likeliest() else call.coins()
        by_request = logits.view(count, n, -1)
        follows = torch.full_like(parents, -1)
        for group in groups:
            every = len(group.requests) == count
            chosen = None if every else _index(group.requests, logits.device)

            def own(values: Tensor, chosen: Tensor | None = chosen) -> Tensor:
                return values if chosen is None else values.index_select(0, chosen)

            seen = Judged(own(by_request).flatten(0, 1), own(tokens), own(parents), group.sampling)
            loose = loosely(group.rule, seen, self.bound)
            if proposed is not None:
                loose = loose & own(proposed)
            sure = _sure(seen, None if uniforms is None else own(uniforms))
            first = trees.first_accepted(loose, sure, seen.parents)
            follows = first if chosen is None else follows.index_copy(0, chosen, first)
        return follows


def _floors(requests: Sequence[Any]) -> dict[Sampling, list[int]]:
    """Return the requests that ask for min-p, by their sampling."""
    found: dict[Sampling, list[int]] = {}
    for i, request in enumerate(requests):
        sampling = compat.sampling_of(compat.params_of(request))
        if sampling.min_p > 0:
            found.setdefault(sampling, []).append(i)
    return found


def _drawable(
    raw: Tensor, call: compat.Verifying, floors: Mapping[Sampling, Sequence[int]]
) -> Tensor:
    """Return ``raw`` with -inf for what min-p, and top-k and top-p before it, exclude."""
    count, vocabulary = len(call.requests), raw.shape[-1]
    by_request, shown = call.logits.view(count, -1, vocabulary), raw.clone()
    for sampling, own in floors.items():
        chosen = _index(tuple(own), raw.device)
        excluded = probabilities(by_request.index_select(0, chosen), sampling) == 0
        rows = shown.view(count, -1, vocabulary)
        rows[chosen] = rows[chosen].masked_fill(excluded, -torch.inf)
    return shown


@lru_cache(maxsize=256)
def _say_once(trouble: str) -> None:
    LOG.warning("some requests are verified losslessly: %s", trouble)


def _sure(seen: Judged, uniforms: Tensor | None) -> Tensor:
    """Return nodes that speculative sampling keeps; without ``uniforms`` the likeliest ones."""
    if uniforms is None:
        return (seen.logits.argmax(-1)[seen.rows] == seen.flat).view_as(seen.parents)
    px = seen.p[seen.rows, seen.flat].view_as(seen.parents)
    return point_mass_nodes(px, seen.tokens, trees.elder_siblings(seen.parents), uniforms)


@lru_cache(maxsize=256)
def _index(requests: tuple[int, ...], device: torch.device) -> Tensor:
    return compat.on(requests, device)


def prepare(options: Options) -> None:
    """Raise UserError for options that cannot work, before anything is loaded."""
    compat.check_version()
    Verification(options)


def everywhere(options: Options) -> list[Hook]:
    """Return the hook that refuses requests where they arrive, which is not where they run."""
    return [Hook(CHECKED, Verification(options).check_request, "AFTER")]


def hooks(options: Options) -> list[Hook]:
    """Return the hooks for a process that may run a model."""
    rules = Verification(options)
    return [
        Hook(compat.SAMPLE, rules.sample, "AROUND"),
        Hook(compat.LOADED, rules.model_loaded, "AFTER"),
    ]
