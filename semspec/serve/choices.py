"""One choice of one request: its plan, and what is heard of it while it runs.

The plan is the loop's own (``loop.speculate``, ``loop.decode_plainly``), in slices so that a long step holds up
nobody. It is watched from outside: kept steps are told whole when the verdict is there, the target's tokens as
they are written. A stop text, a limit on the thinking or a drafter that is gone ends a *phase*; the next one goes
on behind what has been told.

Everything here runs in the driver's thread, but for ``take``. A text in which nothing can end the phase is read there, too:
who takes it decodes at once what has come since the last time, and the driver's thread has its hands free.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from semspec.decoding.booking import add, book
from semspec.decoding.slices import sliced
from semspec.decoding.stopping import ENDED, SPENT, Stopping, shortened
from semspec.driver import Finished
from semspec.errors import RefusedError, UserError
from semspec.loop import Speculation, decode_plainly, speculate
from semspec.models.text import OPEN, opening
from semspec.protocols import Plan
from semspec.results import reuse
from semspec.serve.calls.base import Call, CallReader
from semspec.serve.errors import refused
from semspec.serve.reading import Reader, Said
from semspec.solver import Solver
from semspec.types import (
    Answer,
    Context,
    Generate,
    Grammar,
    Outcome,
    Query,
    Read,
    Role,
    Round,
    What,
)

Author = Literal[
    "draft", "target", "server"
]  # the server closes a thinking that has run out of its budget
Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was decided."""

    author: Author
    accepted: bool
    tokens: int
    score: float | None = None
    text: str = ""  # of a rejected step, which stands nowhere else
    drafted: int | None = (
        None  # of a draft by tokens: how many it had, of which ``tokens`` are kept
    )


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log-probability under the target, at temperature 1, and those of its likeliest rivals."""

    token: int
    value: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class News:
    """What has happened since the last news."""

    items: list[tuple[Author, Said] | Step] = field(
        default_factory=list
    )  # in the order of the text
    logprobs: list[Logprob] = field(default_factory=list)
    tokens: int = 0  # so far
    ended: bool = False


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a choice is to be."""

    solver: Solver
    name: str  # its random numbers depend on it, and on the solver's seed
    prompt: str
    budget: int
    off: bool = False  # the target alone
    deprived: bool = False  # of drafts, which could not be had when it was asked for
    chat: bool = True
    stops: tuple[str, ...] = ()
    # what finds the end of the thinking before its own; None: nothing does
    stopping: Callable[[], Stopping] | None = None
    references: tuple[tuple[int, ...], ...] = ()  # texts that the answer is expected to repeat
    ignore_eos: bool = False
    logprobs: int | None = None
    grammar: Grammar | None = None  # the answer is held to it, the thinking is free
    held_by: str = "response_format"  # the field of the request that wants that
    calls: Callable[[], CallReader] | None = (
        None  # what finds calls in the answer; None: it has none
    )
    one_call: bool = False  # the answer ends behind its first call
    steps: bool = False
    live: bool = False  # somebody reads along
    slice: int = 16  # tokens written at a time
    tenant: str = ""  # under whom the answer is kept for drafts of later ones; "": it is not


class Choice:
    """One answer while it is written."""

    def __init__(
        self,
        task: Task,
        context: Context,
        adopt: Callable[[Context], None] = lambda context: None,
        lost: Callable[[str], None] = lambda why: None,
        alone: Callable[[], bool] = lambda: False,
    ) -> None:
        """``adopt`` is called before the first question, ``lost`` where drafts cannot be had any more.

        ``alone``: True as long as nobody waits for this choice to pause, so that no slice need end.
        """
        self.task, self.context = task, context
        self._adopt, self._lost, self._alone = adopt, lost, alone
        self.prompt_tokens = context.prompt_length
        self.cached: int | None = None  # tokens of the prompt that had been read before
        self.tokens: list[int] = []  # all that was told
        self.rounds: list[Round] = []
        self._predicted = -1, (0, 0)  # rounds that were looked at, and what was found in them
        self.finish: Finish = "length"
        self.error: Exception | None = None
        self.reasoning: list[str] = []
        self.content: list[str] = []
        self.calls: list[Call] = []
        self.all_logprobs: list[Logprob] = []
        self.reader = Reader(
            task.solver.said,
            opened=bool(opening(task.prompt)),
            chat=task.chat,
            stops=task.stops,
            calls=task.calls() if task.calls else None,
            one_call=task.one_call,
        )
        self.drafting = not task.off and (task.solver.drafts or bool(task.references))
        self.degraded = False  # True where it went on without drafts
        self.steps: list[Step] = []  # that were told
        # stop texts, closed thinkings, grammars, single calls and log-probabilities are followed token by token
        followed = task.stops or task.one_call or task.stopping or task.grammar is not None
        self._free = not followed and task.logprobs is None
        self._unread: deque[tuple[Author, Sequence[int]] | Step] = deque()  # of a free text
        self._news, self._lock = News(), threading.RLock()  # which guards the reader of a free text
        self.wake: Callable[[bool], None] = lambda ended: None  # there is news, or the end
        # of the phase
        self._stopping = task.stopping() if task.stopping else None
        if self._stopping is not None and (task.grammar or task.calls):  # these begin the answer
            self._stopping.closing = replace(self._stopping.closing, answer="")
        self._due: int | None = (
            None  # a step has ended here, or so many tokens before: a stopper is to be asked
        )
        self._read_ahead = False  # by the stopper, the first token that is not told
        self._asked = Round()  # what the stopper's questions cost
        self._problem: Speculation | None = None
        self._base = 0  # tokens told before it
        self._begin = 0  # the context's length
        self._start = 0  # of its tokens, those of rounds that are over
        self._over = 0  # rounds that are over
        self._judged: Round | None = None
        self._untold: deque[tuple[Author, int]] = deque()
        self._heard = 0  # tokens of the phase that are told, or about to be
        self._cut: Literal["", "stop", "thinking", "thought"] = ""

    @property
    def predicted(self) -> tuple[int, int]:
        """Tokens of the prediction that the answer has taken over so far, and all others."""
        if (count := len(self.rounds)) != self._predicted[0]:
            found = reuse.predicted(self.rounds[:count], self.task.references)
            self._predicted = count, found
        return self._predicted[1]

    # ---- the plan -------------------------------------------------------------------------------

    def plan(self) -> Plan[None]:
        """Write the answer."""
        self._adopt(self.context)
        context = self.context
        if self._stopping is not None and self.reader.thinks and self._stopping.most <= 0:
            context = self._close_thinking(self._stopping)
        elif self.task.grammar is not None and self.reader.begins:
            context = yield from self._begun(context)
        while len(self.tokens) < self.task.budget:
            outcome = yield from self._phase(context)
            if self._cut == "stop":
                self.finish = "stop"
                break
            if self._cut == "thinking":
                assert self._stopping is not None
                context = self._close_thinking(self._stopping)
            elif (
                self._cut == "thought"
                or outcome is None
                or (self.task.ignore_eos and len(self.tokens) < self.task.budget)
            ):
                context = self._behind()
            else:
                self.finish = "stop" if outcome.finish == "eos" else "length"
                break
        self._say(self.reader.flush(), "target")
        if self.task.tenant:
            prompt = self.context.tokens[: self.prompt_tokens]
            self.task.solver.keep(self.task.tenant, prompt, self.tokens)

    def _phase(self, context: Context) -> Plan[Outcome | None]:
        """Run the loop until it ends or is cut; None where it is to go on without drafts."""
        task = self.task
        self._base, self._start, self._over, self._heard = len(self.tokens), 0, 0, 0
        self._begin = len(context)
        self._problem, self._judged, self._cut = None, None, ""
        name = task.name if not self._base else f"{task.name}, from {self._base}"
        grammar = None if self.reader.thinks else task.grammar
        if self.drafting and grammar is None:
            try:
                problem = task.solver.speculation(
                    context, name, task.prompt, task.budget, [], task.references, task.tenant
                )
            except UserError as error:  # the rule has nothing to go by in this prompt
                raise refused("semspec.rule", str(error)) from error
            problem.piecewise = True
            asks = self._stopping is not None and self._stopping.asks
            problem.stepwise = asks or task.logprobs is not None
            self._problem, loop = problem, speculate(problem)
        else:
            kit = task.solver.kit(name, task.prompt, "plain")
            loop = decode_plainly(context, kit, task.budget, grammar=grammar)
        heard = self._hear if task.live or not self._free else None  # else it is read at the end
        inner = sliced(loop, task.slice, heard, self._pause, self._at_once())
        outcome: Outcome | None = None
        try:
            asked = next(inner)
            while not self._cut:
                try:
                    reply = yield asked
                except UserError as error:
                    if all(one.model == "target" for one in _queries(asked)):
                        if grammar is not None and isinstance(error, RefusedError):
                            raise refused(task.held_by, str(error)) from error
                        raise
                    inner.close()  # the drafter is gone: the target goes on alone
                    self.drafting, self.degraded = False, True
                    self._lost(str(error))
                    break
                self._note(asked, reply)
                asked = inner.send(reply)
                self._look(context)
                if not self._free:
                    yield from self._tell_all(context)
        except StopIteration as stop:
            outcome = stop.value
            self._look(context, ended=True)
            yield from self._tell_all(context)
        inner.close()
        self._keep_rounds(outcome)
        return outcome

    def _begun(self, context: Context) -> Plan[Context]:
        """Let the model say by its first token whether it thinks first, where the prompt leaves that to it."""
        task = self.task
        if OPEN not in task.solver.text.added:
            return context
        kit = task.solver.kit(f"{task.name}, begun", task.prompt, "plain")
        asked = Query(
            "target", context, kit.sampling, kit.rng, generate=Generate(1), purpose="write"
        )
        answer: Answer = yield asked
        self._note(asked, answer)
        if kit.decode(answer.tokens).strip() != OPEN:  # it is asked again, for the answer
            return context
        self._tell("target", answer.tokens[0])
        done = Round(handed=answer.tokens)
        book(asked, answer, done)
        self.rounds.append(done)
        return self._behind()

    def _pause(self) -> bool:
        """Return True where a slice is to end: for others, or to see to what the tokens so far have brought about."""
        if self._free:
            return not self._alone()
        told_later = self.task.logprobs is not None  # when the target has been asked for them
        return told_later or bool(self._cut) or self._due is not None or not self._alone()

    def _at_once(self) -> Container[Role]:
        """Return the models whose answers need no slices: a server answers others meanwhile, and nobody reads along."""
        if not self.task.solver.free:
            return ()
        task = self.task
        cut = bool(task.stops) or task.one_call or task.grammar is not None
        cut = cut or self._stopping is not None
        heard = self.task.live or cut
        return ("draft",) if heard else ("draft", "target")

    def _behind(self) -> Context:
        """Return a context that goes on behind what was told, in the same session of the engines."""
        return self.task.solver.behind(self.context, self.tokens)

    def _close_thinking(self, stopping: Stopping) -> Context:
        """Close the thinking in words, as a turn of the server's."""
        done = stopping.closes(self.task.budget - len(self.tokens))
        stopping.why = stopping.why or SPENT  # it has nothing more to read
        for token in done.written:
            self._tell("server", token)
        self.rounds.append(done)
        return self._behind()

    def _keep_rounds(self, outcome: Outcome | None) -> None:
        """Keep the rounds of a phase, cut to what was told."""
        self._read()
        told = len(self.tokens) - self._base
        if self._problem is None:
            whole = outcome.rounds if outcome else [Round(handed=self.tokens[self._base :])]
        else:
            whole = list(self._problem.rounds)
            now = self._problem.now
            if now is not None and not any(now is one for one in whole):
                missing = told - sum(len(one.tokens) for one in whole)
                if missing > len(now.tokens):  # heard, and not committed before it was cut
                    more = self.tokens[len(self.tokens) - missing + len(now.tokens) :]
                    now = replace(now, handed=[*now.handed, *more])
                whole.append(now)
        self.rounds += shortened(whole, told)
        if self.rounds:
            add(self._asked, self.rounds[-1])
            self.rounds[-1].stop |= self._asked.stop
            self._asked = Round()

    # ---- what is heard --------------------------------------------------------------------------

    def _note(self, asked: Query | tuple[Query, ...], reply: Any) -> None:
        """Note how much of the prompt the target had in its cache at the first question."""
        if self.cached is None:
            answers = reply if isinstance(reply, tuple) else (reply,)
            for query, answer in zip(_queries(asked), answers, strict=True):
                if query.model == "target":
                    self.cached = min(answer.cached, self.prompt_tokens)
                    return

    def _hear(self, query: Query, token: int) -> None:
        """Take a token that the target has just written behind the context."""
        if query.model == "target" and not query.tokens and not self._cut:
            self._take("target", (token,))
            self._call()

    def _look(self, context: Context, ended: bool = False) -> None:
        """Take what the loop has committed meanwhile."""
        problem = self._problem
        if problem is None:
            if ended:
                self._take("target", context.tokens[self._begin + self._heard :])
            return
        while self._over < len(problem.rounds):
            done = problem.rounds[self._over]
            self._read_round(done)
            if done.written or done.handed:
                self._step(Step("target", True, len(done.written) + len(done.handed)))
            self._start += len(done.tokens)
            self._over += 1
        now = problem.now
        if now is not None and not (problem.rounds and problem.rounds[-1] is now):
            self._read_round(now)
        self._call()

    def _take(self, author: Author, tokens: Sequence[int]) -> None:
        self._heard += len(tokens)
        if self._free:
            self._unread.append((author, tokens))
            return
        self._untold.extend((author, token) for token in tokens)
        if self.task.logprobs is None:
            self._flush()

    def _read_round(self, done: Round) -> None:
        """Take the tokens of a round that are new, and tell its drafted steps once it is judged."""
        if done is not self._judged and (done.kept or done.written or done.drafted):
            self._judged = done
            self._read_draft(done)
        at = self._start + len(done.kept)
        for part in (done.written, done.handed):
            if at + len(part) > self._heard:
                self._take("target", part[max(0, self._heard - at) :])
            at += len(part)

    def _read_draft(self, done: Round) -> None:
        by_step = self.task.solver.config.split != "token" and done.parents is None
        if not by_step:
            self._take("draft", done.kept)
            if done.drafted:
                step = Step("draft", bool(done.kept), len(done.kept), drafted=len(done.drafted))
                self._step(step)
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
                if gone and self.task.steps:
                    text = self.task.solver.said(gone)
                    self._step(Step("draft", False, len(gone), score, text))
                return
            self._step(Step("draft", True, len(kept), score))
            start = end

    def _step(self, step: Step) -> None:
        if self.task.steps and self._free:
            self._unread.append(step)
        elif self.task.steps and not self._cut:
            self._tell_step(step)

    # ---- telling --------------------------------------------------------------------------------

    def _tell_all(self, context: Context) -> Plan[None]:
        """Tell what is new; at the end of a step of the thinking only once a stopper has been asked."""
        yield from self._tell_new(context)
        while self._due is not None and not self._cut:
            yield from self._ask_stopper(context, self._due)
            yield from self._tell_new(context)

    def _ask_stopper(self, context: Context, back: int) -> Plan[None]:
        assert self._stopping is not None
        prefix = Context(context.key, [*context.tokens[: self.prompt_tokens], *self.tokens])
        yield from self._stopping.ask(prefix, self._asked, back)
        self._due = None
        if self._stopping.why:
            self._cut = "thinking"
            self._untold.clear()

    def _tell_new(self, context: Context) -> Plan[None]:
        """Tell what is new; with log-probabilities, once the target has been asked for them."""
        if self.task.logprobs is not None and self._untold:
            tokens = [token for _, token in self._untold]
            k = self.task.logprobs
            reads = (Read(What.LOGPROBS), *((Read(What.TOP_K, k=k),) if k else ()))
            prefix = Context(context.key, [*context.tokens[: self.prompt_tokens], *self.tokens])
            sampling = self.task.solver.config.sampling
            answer: Answer = yield Query(
                "target", prefix, sampling, random.Random(0), tokens=tokens, reads=reads
            )
            values = answer[reads[0]].tolist()
            ids, best = (part.tolist() for part in answer[reads[1]]) if k else ([], [])
            for i, token in enumerate(tokens):
                rivals = tuple(zip(ids[i], best[i], strict=True)) if k else ()
                author, _ = self._untold.popleft()
                self._tell(author, token, Logprob(token, values[i], rivals))
                if self._cut:
                    self._untold.clear()
                    return
                if self._due is not None:
                    return
        self._flush()
        self._call()

    def _flush(self) -> None:
        if self._cut:  # what is behind the cut is not told
            self._untold.clear()
            return
        while self._untold and self._due is None:
            author, token = self._untold.popleft()
            self._tell(author, token)
            if self._cut:
                self._untold.clear()

    def _read(self) -> None:
        """Read and tell what has come of a free text, what one author has written in one piece; for both threads."""
        with self._lock:
            while self._unread:
                first = self._unread.popleft()
                if isinstance(first, Step):
                    self._tell_step(first)
                    continue
                author, run = first[0], list(first[1])
                while self._unread and not isinstance(then := self._unread[0], Step):
                    if then[0] != author:
                        break
                    run += then[1]
                    self._unread.popleft()
                run = run[: self.task.budget - len(self.tokens)]
                self.tokens += run
                self._say(self.reader.feed_run(run), author)

    def _call(self) -> None:
        """Let who reads along know that there is news: after a step as a whole, and after each of the target's tokens."""
        if self.task.live and (self._unread or self._news.items or self._news.logprobs):
            self.wake(False)

    def _tell_step(self, step: Step) -> None:
        self.steps.append(step)
        if self.task.live:
            with self._lock:
                self._news.items.append(step)

    def _tell(self, author: Author, token: int, logprob: Logprob | None = None) -> None:
        if len(self.tokens) >= self.task.budget:
            return
        listened = self._stopping is not None and self._stopping.listening
        ended = self._read_thinking(token) if author != "server" else None
        spent = listened and self._stopping is not None and bool(self._stopping.why)
        if author != "server" and self._cut:  # the text has ended within its thinking
            return
        if ended == -1:  # this token is the next step's: it is told once the stopper has been asked
            self._due, self._read_ahead = ended, True
            self._untold.appendleft((author, token))
            return
        self.tokens.append(token)
        thought = self.reader.thinks
        self._say(self.reader.feed(token), author, logprob)
        if self.reader.stopped:
            self._cut = "stop"
        elif author != "server" and spent:
            self._cut = "thinking"
        elif (
            author != "server"
            and self.task.grammar is not None
            and thought
            and not self.reader.thinks
        ):
            self._cut = "thought"
        else:
            self._due = ended

    def _read_thinking(self, token: int) -> int | None:
        """Let the stopper read a token; return where a step of the thinking has ended, as ``Stopping.feed`` does."""
        if self._read_ahead or self._stopping is None:
            self._read_ahead = False
            return None
        listened = self._stopping.listening
        ended = self._stopping.feed(token)
        if listened and self._stopping.why == ENDED:
            self._cut = "thinking"
        return ended

    def _say(self, said: Sequence[Said], author: Author, logprob: Logprob | None = None) -> None:
        for one in said:
            if isinstance(one, Call):
                self.calls.append(one)
            else:
                (self.reasoning if one[0] == "reasoning" else self.content).append(one[1])
        if logprob is not None:
            self.all_logprobs.append(logprob)
        with self._lock:
            self._news.tokens = len(self.tokens)
            if self.task.live:
                self._news.items += [(author, one) for one in said]
                self._news.logprobs += [logprob] if logprob is not None else []

    def end(self, finished: Finished[None]) -> None:
        """Take note that the plan has ended."""
        self.error = finished.error
        with self._lock:
            self._news.ended = True
        self.wake(True)

    def take(self) -> News:
        """Return the news since the last call; for the thread of who reads along."""
        with self._lock:
            self._read()
            news, self._news = self._news, News(tokens=self._news.tokens, ended=self._news.ended)
        return news


def _queries(asked: Query | tuple[Query, ...]) -> tuple[Query, ...]:
    return asked if isinstance(asked, tuple) else (asked,)
