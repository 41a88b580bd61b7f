"""Watch the speculation loop's rounds: which tokens and steps are settled, and who wrote them."""

from __future__ import annotations

from collections.abc import Sequence

from semspec.loop import Speculation
from semspec.serve.news import Author, Step
from semspec.serve.task import Task
from semspec.serve.token_gate import TokenGate
from semspec.serve.transcript import Transcript
from semspec.types import Context, Query, Round


class RoundWatcher:
    """Watches the loop of one phase and passes on what is settled.

    Accepted steps are passed on whole when they are judged, the target's tokens as they are written.
    """

    def __init__(
        self,
        task: Task,
        gate: TokenGate,
        transcript: Transcript,
        context: Context,
        problem: Speculation | None,
    ) -> None:
        """``problem``: the state of the speculation loop; None: the target decodes alone."""
        self._task, self._gate, self._transcript = task, gate, transcript
        self._context, self._problem = context, problem
        self._begin = len(context)
        self._start = 0  # tokens of this phase in finished rounds
        self._over = 0  # finished rounds
        self._judged: Round | None = None  # the last round whose draft was passed on
        self._heard = 0  # tokens of this phase that were passed on

    def hear(self, query: Query, token: int) -> None:
        """Pass on a token that the target has just written after the context."""
        if query.model == "target" and not query.tokens and not self._gate.cut:
            self._take("target", (token,))
            self._transcript.notify()

    def look(self, ended: bool = False) -> None:
        """Pass on what the loop has settled since the last look."""
        problem = self._problem
        if problem is None:
            if ended:
                self._take("target", self._context.tokens[self._begin + self._heard :])
            return
        while self._over < len(problem.rounds):
            done = problem.rounds[self._over]
            self._read_round(done)
            if done.written or done.handed:
                self._gate.step(Step("target", True, len(done.written) + len(done.handed)))
            self._start += len(done.tokens)
            self._over += 1
        now = problem.now
        if now is not None and not (problem.rounds and problem.rounds[-1] is now):
            self._read_round(now)
        self._transcript.notify()

    def _take(self, author: Author, tokens: Sequence[int]) -> None:
        self._heard += len(tokens)
        self._gate.take(author, tokens)

    def _read_round(self, done: Round) -> None:
        """Pass on a round's new tokens, and its drafted steps once they are judged."""
        if done is not self._judged and (done.kept or done.written or done.drafted):
            self._judged = done
            self._read_draft(done)
        at = self._start + len(done.kept)
        for part in (done.written, done.handed):
            if at + len(part) > self._heard:
                self._take("target", part[max(0, self._heard - at) :])
            at += len(part)

    def _read_draft(self, done: Round) -> None:
        by_step = self._task.solver.config.split != "token" and done.parents is None
        if not by_step:
            self._take("draft", done.kept)
            if done.drafted:
                step = Step("draft", bool(done.kept), len(done.kept), drafted=len(done.drafted))
                self._gate.step(step)
            return
        start, ends = 0, list(done.ends)
        if not ends or ends[-1] < len(done.drafted):
            ends.append(len(done.drafted))
        scores = done.scores if len(done.scores) <= len(ends) else []
        for unit, end in enumerate(ends):
            score = scores[unit] if unit < len(scores) else None
            kept = done.kept[start:end]
            self._take("draft", kept)
            if len(done.kept) < end:
                gone = done.drafted[max(start, len(done.kept)) : end]
                if gone and self._task.steps:
                    text = self._task.solver.said(gone)
                    self._gate.step(Step("draft", False, len(gone), score, text))
                return
            self._gate.step(Step("draft", True, len(kept), score))
            start = end
