"""Rules for whole steps with drafts from elsewhere: SGLang's drafters (EAGLE, EAGLE3, STANDALONE, NGRAM) or our copying ones.

A request's loop (``steps``) is the same as with a small model, but its drafter asks no model: after the target has read a
tree, it is handed the tree's path of first children. The rule judges the whole steps in the path and the unfinished one at
its end. The target finishes a rejected step, with the next paths as nested drafts. Only token rules use the other branches.

Such a path must not have been drawn at random (EAGLE's and STANDALONE's are the most likely tokens, NGRAM's and ours are
copies), because the loop treats each of its tokens as a point mass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from semspec.drafters.handed import Handed
from semspec.errors import UserError
from semspec.models.text import Text
from semspec.protocols import Kit
from semspec.registry import plugin
from semspec.sglang_plugin import compat_ranks
from semspec.sglang_plugin import compat_speculative as compat
from semspec.sglang_plugin.drafts import kit_of
from semspec.sglang_plugin.steps import (
    Elsewhere,
    Solving,
    Start,
    Steps,
    begin,
    lossless_instead,
)
from semspec.types import Answer, Context, What


def hand(loop: Solving, proposed: Sequence[int]) -> None:
    """Answer all of a loop's draft queries before its next target pass with the proposed tokens."""
    while (query := loop.drafts) is not None:
        assert query.generate is not None
        loop.drafted(Answer(list(proposed[: query.generate.limit])))


class HandedLoops:
    """The loops of a server's requests, each kept with its request."""

    def __init__(
        self, runner: Any, split: str, steps_of: Callable[[Any], Steps | None], algorithm: str
    ) -> None:
        """``steps_of``: returns a request's rule for steps, given its parameters."""
        self.runner, self.split, self.steps_of, self.algorithm = runner, split, steps_of, algorithm

    @cached_property
    def kit(self) -> Kit:
        """The kit that loops share; raises UserError if the tokenizer cannot be read."""
        _, revision, tokenizer = compat.place(self.runner)
        return kit_of(self.runner, Text(tokenizer, revision))

    def check(self, asked: Steps) -> None:
        """Raise UserError for a rule that cannot judge here."""
        check(asked, self.algorithm)
        if compat_ranks.splits_batches(self.runner):
            raise UserError("rules for whole steps do not support --enable-dp-attention: leave it out")  # fmt: skip

    def of(self, call: compat.Verifying) -> Mapping[int, tuple[Solving | Elsewhere, Sequence[int]]]:
        """Return, by request, the loop that judges its draft, and the nodes of the path that it was handed.

        With several ranks, the first one runs the loops.
        """
        wanted = {}
        for i, request in enumerate(call.requests):
            asked = self.steps_of(compat.params_of(request))
            if asked is None:
                continue
            try:
                self.check(asked)
                self.kit  # noqa: B018 - read now, where its error can be reported
            except UserError as error:
                lossless_instead(str(error))
                continue
            wanted[i] = asked
        if not wanted:
            return {}
        found = self._handed(call, wanted) if compat_ranks.leads() else {}
        paths = compat_ranks.agreed_object({i: path for i, (_, path) in found.items()})
        return (
            found if compat_ranks.leads() else {i: (Elsewhere(), path) for i, path in paths.items()}
        )

    def _handed(
        self, call: compat.Verifying, wanted: Mapping[int, Steps]
    ) -> dict[int, tuple[Solving, Sequence[int]]]:
        paths, texts = call.first_paths(), call.tokens.tolist()
        found: dict[int, tuple[Solving, Sequence[int]]] = {}
        for i, asked in wanted.items():
            loop = self._loop(call, i, asked, texts[i][0])
            if loop is None:
                continue
            hand(loop, [texts[i][node] for node in paths[i][1:]])
            if loop.verifies is not None:
                found[i] = loop, paths[i]
        return found

    def _loop(self, call: compat.Verifying, i: int, asked: Steps, root: int) -> Solving | None:
        """Return the loop of a request, whose text ends in ``root``; start or restart it if necessary."""
        request, length = call.requests[i], call.length(i)
        loop: Solving | None = compat.loop_of(request)
        if loop is not None and loop.asked is None:
            return None
        if loop is not None and loop.known == length and loop.context.tokens[-1] == root:
            return loop
        opened = 0
        if loop is not None and loop.known < length and (begun := loop.opened()):
            opened = begun + length - loop.known  # SGLang has extended the text without the loop
        prompt, output = compat.text_of(request)
        if len(prompt) + len(output) == length - 1:  # SGLang has not recorded the last pass yet
            output.append(root)
        if len(prompt) + len(output) != length or output[-1:] != [root]:
            return None
        params = compat.params_of(request)
        kit = replace(
            self.kit,
            sampling=compat.sampling_of(params),
            stop_ids=compat.ends_of(params, self.kit.stop_ids),
        )
        context = Context(id(request), prompt)
        context.extend(output)
        start = Start(
            context=context,
            budget=compat.budget_of(params),
            seed=compat.seed_of(params),
            opened=opened,
        )
        split = partial(plugin("split", self.split).cls().open, kit.piece)
        made = begin(asked, start, kit, split, asked.along(), Handed())
        compat.keep_loop(request, made)
        return made


def check(asked: Steps, algorithm: str) -> None:
    """Raise UserError for a rule that needs another drafter than this server has."""
    if not algorithm:
        raise UserError(
            "a rule for whole steps needs drafts, and this server does not draft: start it"
            f" with SEMSPEC_LM=MODEL and --speculative-algorithm {compat.SMALL_MODEL}, or"
            " with any other drafter"
        )
    if algorithm != compat.SMALL_MODEL and What.POOLED in asked.rule.needs:
        raise UserError(
            "rules with a probe work only with drafts of a small model, and this server"
            f" drafts with {algorithm}: start it with SEMSPEC_LM=MODEL and"
            f" --speculative-algorithm {compat.SMALL_MODEL}, or ask for accept=logprob"
        )
