"""Pass the loop's tokens on to the transcript, and cut the text at stop texts, ends of the thinking, or its budget."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from semspec.decoding.booking import add
from semspec.decoding.stopping import ENDED, Stopping
from semspec.protocols import Plan
from semspec.serve.news import Author, Logprob, Step
from semspec.serve.task import Task
from semspec.serve.transcript import Transcript
from semspec.types import Answer, Context, Query, Read, Round, What


class TokenGate:
    """Passes settled tokens on to the transcript until something cuts the text.

    A *free* text is passed on in runs. Any other text goes token by token, because a stop text, a stopper, a grammar or the
    only allowed call may end the phase at any token, or because the target is asked for log-probabilities.
    """

    def __init__(self, task: Task, transcript: Transcript, prompt_tokens: int) -> None:
        self._task, self._transcript, self._prompt_tokens = task, transcript, prompt_tokens
        followed = task.stops or task.one_call or task.stopping or task.grammar is not None
        self.free = not followed and task.logprobs is None
        self.stopping: Stopping | None = task.stopping() if task.stopping else None
        # the grammar or the call writes the beginning of the answer
        if self.stopping is not None and (task.grammar or task.calls):
            self.stopping.closing = replace(self.stopping.closing, answer="")
        self.cut: Literal["", "stop", "thinking", "thought"] = ""
        # a step of the thinking ends after the last passed token, and the stopper is to be asked:
        # 0, or -1 if it has already read the next token
        self.due: int | None = None
        self._read_ahead = False  # the stopper has already read the first waiting token
        self._asked = Round()  # costs of the stopper's questions that are not booked yet
        self._untold: deque[tuple[Author, int]] = deque()  # tokens that wait

    # ---- input ----------------------------------------------------------------------------------

    def take(self, author: Author, tokens: Sequence[int]) -> None:
        if self.free:
            self._transcript.put_off((author, tokens))
            return
        self._untold.extend((author, token) for token in tokens)
        if self._task.logprobs is None:
            self._flush()

    def step(self, step: Step) -> None:
        if self._task.steps and self.free:
            self._transcript.put_off(step)
        elif self._task.steps and not self.cut:
            self._transcript.add_step(step)

    def book_questions(self, done: Round) -> None:
        """Add the costs of the stopper's questions since the last call to a round."""
        add(self._asked, done)
        done.stop |= self._asked.stop
        self._asked = Round()

    # ---- output ---------------------------------------------------------------------------------

    def tell_all(self, context: Context) -> Plan[None]:
        """Pass on all waiting tokens; ask the stopper at each end of a step before going on."""
        yield from self._tell_new(context)
        while self.due is not None and not self.cut:
            yield from self._ask_stopper(context, self.due)
            yield from self._tell_new(context)

    def _ask_stopper(self, context: Context, back: int) -> Plan[None]:
        assert self.stopping is not None
        yield from self.stopping.ask(self._told(context), self._asked, back)
        self.due = None
        if self.stopping.why:
            self.cut = "thinking"
            self._untold.clear()

    def _told(self, context: Context) -> Context:
        """Return the prompt and the tokens that were passed on."""
        prompt = context.tokens[: self._prompt_tokens]
        return Context(context.key, [*prompt, *self._transcript.tokens])

    def _tell_new(self, context: Context) -> Plan[None]:
        """Pass on waiting tokens up to the next end of a step; first read their log-probabilities if the request wants them."""
        if self._task.logprobs is not None and self._untold:
            tokens = [token for _, token in self._untold]
            k = self._task.logprobs
            reads = (Read(What.LOGPROBS), *((Read(What.TOP_K, k=k),) if k else ()))
            prefix, sampling = self._told(context), self._task.solver.config.sampling
            answer: Answer = yield Query(
                "target", prefix, sampling, random.Random(0), tokens=tokens, reads=reads
            )
            values = answer[reads[0]].tolist()
            ids, best = (part.tolist() for part in answer[reads[1]]) if k else ([], [])
            for i, token in enumerate(tokens):
                rivals = tuple(zip(ids[i], best[i], strict=True)) if k else ()
                author, _ = self._untold.popleft()
                self.tell(author, token, Logprob(token, values[i], rivals))
                if self.cut:
                    self._untold.clear()
                    return
                if self.due is not None:
                    return
        self._flush()
        self._transcript.notify()

    def _flush(self) -> None:
        if self.cut:  # the client gets nothing after the cut
            self._untold.clear()
            return
        while self._untold and self.due is None:
            author, token = self._untold.popleft()
            self.tell(author, token)
            if self.cut:
                self._untold.clear()

    def tell(self, author: Author, token: int, logprob: Logprob | None = None) -> None:
        """Pass on one token, unless the budget is spent; set ``cut`` or ``due`` where it ends something."""
        if len(self._transcript.tokens) >= self._task.budget:
            return
        listened = self.stopping is not None and self.stopping.listening
        ended = self._read_thinking(token) if author != "server" else None
        spent = listened and self.stopping is not None and bool(self.stopping.why)
        if author != "server" and self.cut:  # the model ended its text while still thinking
            return
        if ended == -1:  # this token begins the next step: ask the stopper first
            self.due, self._read_ahead = ended, True
            self._untold.appendleft((author, token))
            return
        reader = self._transcript.reader
        thought = reader.thinks
        self._transcript.add(author, token, logprob)
        if reader.stopped:
            self.cut = "stop"
        elif author != "server" and spent:
            self.cut = "thinking"
        elif (
            author != "server" and self._task.grammar is not None and thought and not reader.thinks
        ):
            self.cut = "thought"
        else:
            self.due = ended

    def _read_thinking(self, token: int) -> int | None:
        """Feed a token to the stopper; return what ``Stopping.feed`` does."""
        if self._read_ahead or self.stopping is None:
            self._read_ahead = False
            return None
        listened = self.stopping.listening
        ended = self.stopping.feed(token)
        if listened and self.stopping.why == ENDED:
            self.cut = "thinking"
        return ended
