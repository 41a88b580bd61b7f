"""One choice of one request: the plan that writes it.

The plan runs the same loop as ``semspec.run`` (``loop.speculate``, ``loop.decode_plainly``), in slices so that a long step
does not block other choices. ``serve.rounds`` watches the loop and ``serve.token_gate`` decides which of its tokens reach
the client's text (``serve.transcript``). A stop text, the end of the thinking or a lost drafter ends a *phase*; the next
phase starts the loop again after the tokens that the client has.

Everything here runs in the driver's thread, except ``take``.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any, Literal

from semspec.decoding.booking import book
from semspec.decoding.slices import sliced
from semspec.decoding.stopping import SPENT, Stopping, shortened
from semspec.driver import Finished
from semspec.errors import RefusedError, UserError
from semspec.loop import Speculation, decode_plainly, speculate
from semspec.models.text import OPEN
from semspec.protocols import Plan
from semspec.results import reuse
from semspec.serve.errors import refused
from semspec.serve.news import News
from semspec.serve.rounds import RoundWatcher
from semspec.serve.task import Task
from semspec.serve.token_gate import TokenGate
from semspec.serve.transcript import Transcript
from semspec.types import Answer, Context, Generate, Outcome, Query, Role, Round

Finish = Literal["stop", "length"]


class Choice:
    """One answer and the plan that writes it."""

    def __init__(
        self,
        task: Task,
        context: Context,
        adopt: Callable[[Context], None] = lambda context: None,
        lost: Callable[[str], None] = lambda why: None,
        alone: Callable[[], bool] = lambda: False,
    ) -> None:
        """Call ``adopt`` before the first query and ``lost`` when the drafter is lost.

        ``alone`` returns True while no other choice waits for its turn, so that a slice need not end.
        """
        self.task, self.context = task, context
        self._adopt, self._lost, self._alone = adopt, lost, alone
        self.prompt_tokens = context.prompt_length
        self.cached: int | None = None  # tokens of the prompt that were in the target's KV cache
        self.rounds: list[Round] = []
        self._predicted = -1, (0, 0)  # how many rounds were counted, and the counts
        self.finish: Finish = "length"
        self.error: Exception | None = None
        self.drafting = not task.off and task.solver.can_draft(bool(task.references))
        self.degraded = False  # the drafter was lost, and the target went on alone
        # called with False for news, with True at the end
        self.wake: Callable[[bool], None] = lambda ended: None
        # the text so far
        told = self._transcript = Transcript(task, lambda ended: self.wake(ended))
        self.tokens, self.steps, self.logprobs = told.tokens, told.steps, told.logprobs
        self.reasoning, self.content, self.calls = told.reasoning, told.content, told.calls
        self.reader = told.reader
        # the current phase
        self._gate = TokenGate(task, told, self.prompt_tokens)
        self._problem: Speculation | None = None
        self._base = 0  # tokens of the text before it

    @property
    def predicted(self) -> tuple[int, int]:
        """Tokens of the request's prediction that the answer has accepted so far, and those it has not."""
        if (count := len(self.rounds)) != self._predicted[0]:
            found = reuse.predicted(self.rounds[:count], self.task.references)
            self._predicted = count, found
        return self._predicted[1]

    def plan(self) -> Plan[None]:
        """Write the answer."""
        self._adopt(self.context)
        context, gate = self.context, self._gate
        if gate.stopping is not None and self.reader.thinks and gate.stopping.most <= 0:
            context = self._close_thinking(gate.stopping)
        elif self.task.grammar is not None and self.reader.begins:
            context = yield from self._begun(context)
        while len(self.tokens) < self.task.budget:
            outcome = yield from self._phase(context)
            if gate.cut == "stop":
                self.finish = "stop"
                break
            if gate.cut == "thinking":
                assert gate.stopping is not None
                context = self._close_thinking(gate.stopping)
            elif (
                gate.cut == "thought"
                or outcome is None
                or (self.task.ignore_eos and len(self.tokens) < self.task.budget)
            ):
                context = self._behind()
            else:
                self.finish = "stop" if outcome.finish == "eos" else "length"
                break
        self._transcript.flush()
        if self.task.tenant:
            prompt = self.context.tokens[: self.prompt_tokens]
            self.task.solver.keep(self.task.tenant, prompt, self.tokens)

    def _phase(self, context: Context) -> Plan[Outcome | None]:
        """Run the loop; return its outcome, or None where it was cut or lost its drafter before its end."""
        task, gate = self.task, self._gate
        self._base, self._problem, gate.cut = len(self.tokens), None, ""
        name = task.name if not self._base else f"{task.name}, from {self._base}"
        grammar = None if self.reader.thinks else task.grammar
        if self.drafting and grammar is None:
            try:
                problem = task.solver.speculation(
                    context, name, task.prompt, task.budget, [], task.references, task.tenant
                )
            except UserError as error:  # the rule cannot judge drafts for this prompt
                raise refused("semspec.rule", str(error)) from error
            problem.piecewise = True
            asks = gate.stopping is not None and gate.stopping.asks
            problem.stepwise = asks or task.logprobs is not None
            self._problem, loop = problem, speculate(problem)
        else:
            kit = task.solver.kit(name, task.prompt, "plain")
            loop = decode_plainly(context, kit, task.budget, grammar=grammar)
        watcher = RoundWatcher(task, gate, self._transcript, context, self._problem)
        # if None, the watcher reads the rounds instead
        heard = watcher.hear if task.live or not gate.free else None
        inner = sliced(loop, task.slice, heard, self._pause, self._at_once())
        outcome: Outcome | None = None
        try:
            asked = next(inner)
            while not gate.cut:
                try:
                    reply = yield asked
                except UserError as error:
                    if all(one.model == "target" for one in _queries(asked)):
                        if grammar is not None and isinstance(error, RefusedError):
                            raise refused(task.held_by, str(error)) from error
                        raise
                    inner.close()  # the drafter is lost: the target goes on alone
                    self.drafting, self.degraded = False, True
                    self._lost(str(error))
                    break
                self._note(asked, reply)
                asked = inner.send(reply)
                watcher.look()
                if not gate.free:
                    yield from gate.tell_all(context)
        except StopIteration as stop:
            outcome = stop.value
            watcher.look(ended=True)
            yield from gate.tell_all(context)
        inner.close()
        self._keep_rounds(outcome)
        return outcome

    def _begun(self, context: Context) -> Plan[Context]:
        """Write the first token, to see whether the model thinks first; return the context to go on from."""
        task = self.task
        if OPEN not in task.solver.text.added:
            return context
        kit = task.solver.kit(f"{task.name}, begun", task.prompt, "plain")
        asked = Query(
            "target", context, kit.sampling, kit.rng, generate=Generate(1), purpose="write"
        )
        answer: Answer = yield asked
        self._note(asked, answer)
        # drop the token: the grammar constrains the answer from its start
        if kit.decode(answer.tokens).strip() != OPEN:
            return context
        self._gate.tell("target", answer.tokens[0])
        done = Round(handed=answer.tokens)
        book(asked, answer, done)
        self.rounds.append(done)
        return self._behind()

    def _note(self, asked: Query | tuple[Query, ...], reply: Any) -> None:
        """Note how much of the prompt the target's first query found in the KV cache."""
        if self.cached is None:
            answers = reply if isinstance(reply, tuple) else (reply,)
            for query, answer in zip(_queries(asked), answers, strict=True):
                if query.model == "target":
                    self.cached = min(answer.cached, self.prompt_tokens)
                    return

    def _pause(self) -> bool:
        """Tell whether to end the slice now: others wait, or the tokens so far need handling."""
        gate = self._gate
        if gate.free:
            return not self._alone()
        told_later = self.task.logprobs is not None  # their log-probabilities come first
        return told_later or bool(gate.cut) or gate.due is not None or not self._alone()

    def _at_once(self) -> Container[Role]:
        """Return the models to query without slices: servers handle others meanwhile, and nothing has to be seen early."""
        task = self.task
        if not task.solver.free:
            return ()
        cut = bool(task.stops) or task.one_call or task.grammar is not None
        cut = cut or self._gate.stopping is not None
        heard = task.live or cut
        return ("draft",) if heard else ("draft", "target")

    def _behind(self) -> Context:
        """Return a context after the text so far, in the same session of the engines."""
        return self.task.solver.behind(self.context, self.tokens)

    def _close_thinking(self, stopping: Stopping) -> Context:
        """Write the words that close the thinking; return the context after them."""
        done = stopping.closes(self.task.budget - len(self.tokens))
        stopping.why = stopping.why or SPENT  # the stopper reads nothing more
        for token in done.written:
            self._gate.tell("server", token)
        self.rounds.append(done)
        return self._behind()

    def _keep_rounds(self, outcome: Outcome | None) -> None:
        """Keep the rounds of a phase, cut to the tokens that the client has."""
        self._transcript.read()
        told = len(self.tokens) - self._base
        if self._problem is None:
            whole = outcome.rounds if outcome else [Round(handed=self.tokens[self._base :])]
        else:
            whole = list(self._problem.rounds)
            now = self._problem.now
            if now is not None and not any(now is one for one in whole):
                missing = told - sum(len(one.tokens) for one in whole)
                # the client has them, but the loop was cut before it added them
                if missing > len(now.tokens):
                    more = self.tokens[len(self.tokens) - missing + len(now.tokens) :]
                    now = replace(now, handed=[*now.handed, *more])
                whole.append(now)
        self.rounds += shortened(whole, told)
        if self.rounds:
            self._gate.book_questions(self.rounds[-1])

    def end(self, finished: Finished[None]) -> None:
        """Record that the plan has ended."""
        self.error = finished.error
        self._transcript.end()

    def take(self) -> News:
        """Return the news since the last call; called from the event loop's thread."""
        return self._transcript.take()


def _queries(asked: Query | tuple[Query, ...]) -> tuple[Query, ...]:
    return asked if isinstance(asked, tuple) else (asked,)
