"""Rules inside SGLang's verification, request by request: ``arc``, ``typical``, ``topk_delta``, and loops that judge steps.

One function of SGLang verifies drafts for EAGLE, EAGLE3, STANDALONE and NGRAM. Before it runs, we decide every
family of siblings of which a rule keeps one, as the package's own walk would, and edit the logits that judge
the family so that they allow no other token (``trees.only``). SGLang decides the rest, greedily or by sampling.
Afterwards the true logits are restored, so log-probabilities stay the model's. SGLang's own verification does
not support min-p: for a request with min-p, the logits are cut to the tokens that it leaves.

    SEMSPEC_SGLANG='{"verification": {"accept": "topk_delta", "delta": 0.3}}'     for all requests
    "custom_params": {"semspec": {"accept": "typical", "epsilon": 0.1}}           for one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from semspec import __version__
from semspec.artifacts.probe import Probe
from semspec.decoding.acceptance import point_mass_nodes
from semspec.decoding.sampling import probabilities
from semspec.errors import UserError
from semspec.protocols import Rule
from semspec.registry import name_of, plugin
from semspec.sglang_plugin import compat_ranks, handed, trees
from semspec.sglang_plugin import compat_speculative as compat
from semspec.sglang_plugin.bound import ModelBound, Source
from semspec.sglang_plugin.compat import CHECKED, KEPT, Hook, by_pass
from semspec.sglang_plugin.handed import HandedLoops
from semspec.sglang_plugin.part import Part
from semspec.sglang_plugin.protocol import (
    KEY,
    PASSES,
    PROMPT_END,
    ROUNDS,
    problem_options,
    rule_options,
)
from semspec.sglang_plugin.rules import (
    OFF,
    Judged,
    judges_steps,
    known_rules,
    loosely,
    named,
    server_options,
)
from semspec.sglang_plugin.steps import Elsewhere, Solving, Steps, lossless_instead
from semspec.storage.screen import last_line
from semspec.types import Sampling, What

Loop = Solving | Elsewhere


class Options:
    """The rule for requests that name none, and options of rules that are set when the server starts.

    ``calibration`` (arc) and the probes of rules are folders, Hub repositories or known names. ``split`` says what a step
    is, unless SEMSPEC_LM drafts, which has its own option for that.
    """

    def __init__(
        self,
        accept: str = "lossless",
        calibration: str | None = None,
        allow_mismatch: bool = False,
        split: str = "paragraph",
        **of_rules: Any,
    ) -> None:
        if unknown := ", ".join(name for name in of_rules if name not in self.option_names()):
            raise UserError(
                f"verification has no option {unknown}: there are {', '.join(self.option_names())}"
            )
        self.calibration, self.allow_mismatch, self.split = calibration, allow_mismatch, split
        plugin("split", split)  # raises UserError for an unknown name
        own = {"accept": accept, "calibration": calibration, "allow_mismatch": allow_mismatch}
        self.given: Mapping[str, Any] = {**own, **of_rules}

    @staticmethod
    def option_names() -> list[str]:
        """Return the option names that ``settings.build`` accepts."""
        return ["accept", "split", *server_options()]


@dataclass(frozen=True, slots=True)
class Group:
    """Requests of a batch that share a rule and a sampling."""

    rule: Rule
    sampling: Sampling
    requests: tuple[int, ...]


class Verification:
    """The rules of a server; each of its processes has one."""

    def __init__(self, options: Options) -> None:
        self.otherwise, self.split = options.given, options.split
        self.source: Source | None = None
        if options.calibration is not None:
            self.source = Source(options.calibration, options.allow_mismatch)
        self.bound: ModelBound | None = None  # once the model is loaded
        self.runner: Any = None  # likewise
        self.drafter: Mapping[str, Any] | None = None  # the small model, if it drafts
        self.passes: Mapping[str, int] = {}
        self.handed: HandedLoops | None = None  # if another drafter drafts
        self.rule = lru_cache(maxsize=4096)(self._rule)
        self.rule((), None)  # check the server's default rule

    def _rule(
        self, given: tuple[tuple[str, Any], ...], sampling: Sampling | None
    ) -> Rule | Steps | None:
        rule = named(dict(given), self.otherwise)
        if rule is not None and not isinstance(rule, Steps) and _bounded(rule):
            if self.source is None:
                raise UserError(
                    f"accept={name_of(rule)}: this server was started without a"
                    ' calibration; start it with {"verification": {"calibration": ...}}'
                    " in SEMSPEC_SGLANG"
                )
            if sampling is not None:
                self.source.check(sampling.temperature)
        return rule

    def of(self, custom_params: Any, sampling: Sampling) -> Rule | Steps | None:
        """Return the rule for a request; raise UserError or ValueError if it is not available."""
        return self.rule(tuple(rule_options(custom_params).items()), sampling)

    def groups(self, requests: Sequence[Any]) -> list[Group]:
        """Group the requests that one of our token rules judges, by rule and sampling."""
        found: dict[tuple[Rule, Sampling], list[int]] = {}
        for i, request in enumerate(requests):
            params = compat.params_of(request)
            try:
                sampling = compat.sampling_of(params)
                rule = self.of(compat.asked(params), sampling)
            except (UserError, ValueError) as error:
                # a request's own rule was checked on arrival, but the server's rule may not suit it
                lossless_instead(str(error))
                continue
            if rule is not None and not isinstance(rule, Steps):
                found.setdefault((rule, sampling), []).append(i)
        return [Group(*key, tuple(own)) for key, own in found.items()]

    def check_request(self, result: Any, params: Any, *args: Any, **given_too: Any) -> None:
        """Check a request after SGLang has checked its parameters; a ValueError becomes a 400."""
        given = compat.asked(params)
        if (last := problem_options(given).get(PROMPT_END)) is not None:
            vocabulary = args[0] if args else given_too.get("vocab_size")
            self._check_prompt_end(last, vocabulary)
        if not rule_options(given):  # a request that names no rule is always served
            return
        try:
            rule = self.of(given, compat.sampling_of(params))
            if isinstance(rule, Steps):
                handed.check(rule, compat.algorithm())
        except UserError as error:
            raise ValueError(str(error)) from error
        if isinstance(rule, Steps) and compat.constrained(params):
            raise ValueError(
                "a rule for whole steps does not support a grammar: leave one of them out,"
                " or ask for accept=lossless"
            )

    def _check_prompt_end(self, token: int, vocabulary: Any) -> None:
        if compat.algorithm() != compat.SMALL_MODEL:
            raise ValueError(
                f"{PROMPT_END} works only on servers that draft with {compat.SMALL_MODEL}"
            )
        if isinstance(vocabulary, int) and token >= vocabulary:
            raise ValueError(f"{PROMPT_END}={token}: the vocabulary has {vocabulary} tokens")

    def drafted_by(self, drafter: Mapping[str, Any]) -> None:
        """Record the small model that drafts, to be reported by ``describe``."""
        self.drafter = drafter

    def counted_in(self, passes: Mapping[str, int]) -> None:
        """Record where the target's passes are counted, to be reported by ``describe``."""
        self.passes = passes

    def describe(self, state: Any, *_: Any, **__: Any) -> None:
        """Report in /server_info which rules for steps the server has, and which model drafts."""
        if self.drafter is not None:
            compat.tell_server_info(
                state, KEY, {"version": __version__, **self.drafter, **self._described}
            )
        if self.passes:
            compat.tell_server_info(state, PASSES, dict(self.passes))

    @cached_property
    def _described(self) -> Mapping[str, Any]:
        states = compat.reads_verification(self.runner)
        steps = {name: cls for name, cls in known_rules().items() if judges_steps(cls)}
        probes = {
            role: Probe.load(place).digest if place else ""  # "": looked up in the index
            for role in ("target", "draft")
            for place in [self.otherwise.get(f"{role}_probe")]
        }
        usable = [name for name, cls in steps.items() if states or What.POOLED not in cls.needs]
        return {"rules": usable, "probes": probes}

    def steps(self, params: Any) -> Steps | None:
        """Return a request's rule for whole steps; None if its tokens are verified one by one."""
        try:
            rule = self.of(compat.asked(params), compat.sampling_of(params))
        except (UserError, ValueError):  # ``groups`` reports it
            return None
        return rule if isinstance(rule, Steps) and not compat.constrained(params) else None

    @property
    def loops_here(self) -> bool:
        """Whether requests of this server may have rules for whole steps."""
        return self.drafter is not None or self.handed is not None

    def usual(self) -> Steps | None:
        """Return the server's own rule, if it judges whole steps."""
        rule = self.rule((), None)
        return rule if isinstance(rule, Steps) else None

    def off(self, params: Any) -> bool:
        """Return whether a request wants no drafts."""
        return self._named(compat.asked(params)) == OFF

    def _named(self, custom_params: Any) -> str:
        try:
            asked = rule_options(custom_params).get("accept")
        except ValueError:
            asked = None
        return str(asked or self.otherwise["accept"])

    def model_loaded(self, result: Any, runner: Any, *_: Any, **__: Any) -> None:
        if not compat.is_target(runner):
            return
        compat.share_rules(runner, self)
        self.runner = runner
        try:
            if (drafter := compat.algorithm()) not in ("", compat.SMALL_MODEL):
                self.handed = HandedLoops(runner, self.split, self.steps, drafter)
                if (usual := self.usual()) is not None:
                    self.handed.check(usual)
            if self.source is None:
                return
            self.bound = self.source.bind(runner)
        except UserError as error:  # any other exception reaches the user as a page of traceback
            raise last_line(f"semspec's SGLang plugin: {error}") from error

    def sample(
        self, theirs: Any, verify_input: Any, batch: Any, logits_output: Any, *args: Any, **kw: Any
    ) -> Any:
        """Wrap ``eagle_sample``: apply the rules first, restore the logits afterwards."""
        mask = args[0] if args else kw.get("grammar_mask")
        call = compat.Verifying(verify_input, batch, logits_output, mask)
        groups = [] if call.idle else self.groups(call.requests)
        floors = {} if call.idle or call.takes_the_likeliest() else _floors(call.requests)
        loops, paths = ({}, {}) if call.idle else self._loops(call)
        if not groups and not floors and not loops:
            return theirs(verify_input, batch, logits_output, *args, **kw)
        raw, true = call.settle(), call.logits
        shown = _drawable(raw, call, floors) if floors else raw
        if groups:
            shown = trees.only(shown, call.tokens, compat_ranks.agreed(self._follows(groups, call)))
        texts = self._written(loops, paths, call)
        if texts:
            shown = trees.written(shown, *_places(texts, paths, call))
            told = {
                i: loop.report() for i, loop in loops.items() if not isinstance(loop, Elsewhere)
            }
            call.tell(ROUNDS, told)
        call.show(shown)
        ends = {i: paths[i][len(tokens) - 1] for i, tokens in texts.items()}
        cut = [i for own in floors.values() for i in own]
        try:
            with call.already_cut(cut), call.ending(ends):
                return theirs(verify_input, batch, logits_output, *args, **kw)
        finally:
            call.show(true)

    def _loops(self, call: compat.Verifying) -> tuple[dict[int, Loop], dict[int, Sequence[int]]]:
        """Return, by request, the loop that judges its draft, and the draft's nodes from the root on."""
        loops: dict[int, Loop] = call.loops
        paths: dict[int, Sequence[int]] = {i: range(call.n) for i in loops}
        others = {} if self.handed is None else self.handed.of(call)
        loops |= {i: loop for i, (loop, _) in others.items()}
        return loops, paths | {i: path for i, (_, path) in others.items()}

    def _written(
        self,
        loops: Mapping[int, Loop],
        paths: Mapping[int, Sequence[int]],
        call: compat.Verifying,
    ) -> dict[int, list[int]]:
        """Return, by request, the tokens that its loop adds to the text after this pass over its draft."""
        if not loops:
            return {}
        rows = call.logits.view(len(call.requests), call.n, -1)
        found = {}
        for i, loop in loops.items():
            if not isinstance(loop, Elsewhere):
                # for a chain take all rows without copying them, as they are large
                own = rows[i] if isinstance(paths[i], range) else rows[i][list(paths[i])]
                found[i] = loop.verified(own)
        agreed: dict[int, list[int]] = compat_ranks.agreed_object(found)
        return agreed

    def _follows(self, groups: Sequence[Group], call: compat.Verifying) -> Tensor:
        """Return ``trees.first_accepted`` for all requests; -1 for those in no group."""
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

            rows = own(by_request).flatten(0, 1)
            seen = Judged(rows, own(tokens), own(parents), group.sampling, self.bound)
            loose = loosely(group.rule, seen)
            if proposed is not None:
                loose = loose & own(proposed)
            sure = _sure(seen, None if uniforms is None else own(uniforms))
            first = trees.first_accepted(loose, sure, seen.parents)
            follows = first if chosen is None else follows.index_copy(0, chosen, first)
        return follows


def _bounded(rule: Rule) -> bool:
    """Return whether a rule needs ARC-Decode's bound."""
    return rule.in_server is not None and rule.in_server.bound


def _places(
    texts: Mapping[int, Sequence[int]],
    paths: Mapping[int, Sequence[int]],
    call: compat.Verifying,
) -> tuple[Tensor, Tensor]:
    """Return the rows of a pass that the tokens of ``texts`` follow, and these tokens."""
    rows = [i * call.n + node for i, text in texts.items() for node in paths[i][: len(text)]]
    tokens = [token for text in texts.values() for token in text]
    return compat.on(rows, call.logits.device), compat.on(tokens, call.logits.device)


def _floors(requests: Sequence[Any]) -> dict[Sampling, list[int]]:
    """Return the requests with min-p, by sampling."""
    found: dict[Sampling, list[int]] = {}
    for i, request in enumerate(requests):
        sampling = compat.sampling_of(compat.params_of(request))
        if sampling.min_p > 0:
            found.setdefault(sampling, []).append(i)
    return found


def _drawable(
    raw: Tensor, call: compat.Verifying, floors: Mapping[Sampling, Sequence[int]]
) -> Tensor:
    """Return ``raw`` with -inf for tokens that top-k, top-p or min-p exclude."""
    count, vocabulary = len(call.requests), raw.shape[-1]
    by_request, shown = call.logits.view(count, -1, vocabulary), raw.clone()
    for sampling, own in floors.items():
        chosen = _index(tuple(own), raw.device)
        excluded = probabilities(by_request.index_select(0, chosen), sampling) == 0
        rows = shown.view(count, -1, vocabulary)
        rows[chosen] = rows[chosen].masked_fill(excluded, -torch.inf)
    return shown


def _sure(seen: Judged, uniforms: Tensor | None) -> Tensor:
    """Return the nodes that speculative sampling keeps; without ``uniforms``, those with the most likely tokens."""
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
    """Return the hook that refuses bad requests in the process where they arrive, not where they run."""
    return [Hook(CHECKED, Verification(options).check_request, "AFTER")]


def hooks(options: Options) -> list[Hook]:
    """Return the hooks for a process that may run a model."""
    rules = Verification(options)
    return [
        Hook(compat.SAMPLE, rules.sample, "AROUND"),
        Hook(compat.LOADED, rules.model_loaded, "AFTER"),
        Hook(KEPT, by_pass(ROUNDS, lambda: rules.loops_here), "AFTER"),
        Hook(compat.ASKED, rules.describe, "AFTER"),
    ]


PART = Part(
    Options, hooks, everywhere=everywhere, prepare=prepare, option_names=Options.option_names
)
