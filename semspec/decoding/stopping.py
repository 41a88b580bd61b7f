"""The end of a thinking before its own: a stopper is asked at ends of steps, and the thinking is closed in words.

Whoever writes feeds a ``Stopping`` what was written, in the loop (``loop.speculate``) as in the server
(``serve.choices``). Nothing of the text before a stop depends on the stopper: its questions come between rounds,
stand behind the text and draw from random numbers of their own. Where a round has gone beyond the end of the step, the
rest of it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from semspec.decoding.booking import booked
from semspec.decoding.hopeless import HOPELESS
from semspec.models.text import CLOSE, OPEN, opening
from semspec.protocols import Closing, Kit, Plan, Stopper, StopSession
from semspec.types import Boundary, Context, Opinion, Outcome, Round

WORDS = "My time for thinking is over, so I answer now with what I have."
SPENT = "the thinking's budget is spent"
ENDED = "the text ended within its thinking"


def closing_text(closing: Closing, at_end: bool) -> str:
    """Return what closes a thinking; ``at_end``: an empty line stands before it."""
    words = f"{closing.words}\n" if closing.words else ""
    if not at_end:
        words = f"\n\n{words}" if words else "\n"
    return f"{words}{CLOSE}\n\n{closing.answer}"


def kept_back(closing: Closing, budget: int) -> int:
    """Return the tokens that are kept for the answer."""
    return closing.tokens or max(1, min(256, budget // 4))


class Thought:
    """Follows a text from the tag that opens its thinking to the one that closes it."""

    def __init__(self, piece: Callable[[int], str], opened: bool) -> None:
        """``opened``: the prompt has opened the thinking."""
        self._piece = piece
        self._tail = ""
        self.thinks, self.over = opened, False
        self.tokens = 0  # of the thinking, its tag included

    def feed(self, token: int) -> None:
        if self.over:
            return
        self._tail += self._piece(token)
        if not self.thinks:
            begun = self._tail.lstrip()
            if begun.startswith(OPEN):
                self.thinks, self._tail = True, begun[len(OPEN) :]
            else:
                self.over = not OPEN.startswith(begun)
        if self.thinks:
            self.tokens += 1
            self.thinks = CLOSE not in self._tail
            self.over = not self.thinks
            self._tail = self._tail[-len(CLOSE) :]


class Endless:
    """A boundary of steps that never end: only a limit closes the thinking."""

    def feed(self, token: int) -> int | None:
        return None


@dataclass(slots=True, kw_only=True)
class Stopping:
    """The end of one problem's thinking: who decides it, and what has been read so far."""

    session: StopSession
    name: str  # of the stopper
    thought: Thought
    boundary: Boundary  # of steps
    closing: Closing
    encode: Callable[[str], list[int]]
    stop_ids: Collection[int]
    most: int  # tokens that the thinking may take, whatever the stopper says
    why: str = field(default="", init=False)  # the thinking is to be closed
    at_end: bool = field(default=False, init=False)  # behind the end of a step
    hopeless: bool = field(default=False, init=False)  # the problem is given up

    @classmethod
    def of(
        cls, stop: Stopper, name: str, kit: Kit, steps: Callable[[], Boundary], most: int
    ) -> Self:
        """Begin one problem whose thinking may take ``most`` tokens; ``steps`` makes what finds the ends of steps.

        A stopper that never stops anything is not asked: only the limit closes the thinking.
        """
        return cls(
            session=stop.open(kit),
            name=name,
            thought=Thought(kit.piece, opened=bool(opening(kit.prompt))),
            boundary=Endless() if stop.plain else steps(),
            closing=stop.closing,
            encode=kit.encode,
            stop_ids=() if stop.plain else kit.stop_ids,
            most=most,
        )

    @property
    def asks(self) -> bool:
        """True while the stopper is asked at ends of steps: where only a limit closes the thinking it is not."""
        return self.listening and not isinstance(self.boundary, Endless)

    @property
    def listening(self) -> bool:
        """True while the thinking may still be closed."""
        return not self.thought.over and not self.why

    def feed(self, token: int) -> int | None:
        """Read a token; return 0 where a step of the thinking ends with it, -1 before it, else None.

        Sets ``why`` where the thinking has to be closed at once: ``ENDED`` before this token, ``SPENT`` behind it.
        """
        if not self.listening:
            return None
        thought = self.thought.thinks
        self.thought.feed(token)
        if not self.thought.thinks:
            return None
        if token in self.stop_ids:
            self.why = ENDED
            return None
        end = self.boundary.feed(token) if thought else None  # a tag is no step
        if end is None and self.thought.tokens >= self.most:
            self.why = SPENT
        return end

    def ask(self, context: Context, done: Round, back: int = 0) -> Plan[None]:
        """Ask the stopper behind a step, ``back`` tokens before what was read; booked in ``done``."""
        thought = self.thought.tokens + back
        opinion: Opinion = yield from booked(self.session.consider(context, thought), done)
        if opinion.score is not None:
            done.stop.setdefault("asked", []).append([thought, opinion.score])
        if opinion.done:
            self.why, self.at_end = opinion.why or self.name, True
            self.hopeless = opinion.hopeless
        elif self.thought.tokens >= self.most:
            self.why, self.at_end = SPENT, True

    def considered(self, context: Context, done: Round) -> Plan[Round]:
        """Read a round that is over; return it, cut where the thinking is to be closed behind it."""
        tokens = done.tokens
        start = len(context) - len(tokens)
        for count, token in enumerate(tokens, start=1):
            back = self.feed(token)
            if back is not None:
                end = start + count + back
                text = context if end == len(context) else cut_to(context, end)
                yield from self.ask(text, done, back)
            if self.why:
                dropped = 1 if self.why == ENDED else -(back or 0)
                return shortened([done], count - dropped)[0]
        return done

    def closes(self, room: int) -> Round:
        """Return the round in which the thinking is closed, in ``room`` tokens at most."""
        written = self.encode(closing_text(self.closing, self.at_end))[:room]
        name = HOPELESS if self.hopeless else self.name
        name = name if self.at_end and self.why != SPENT else "limit"
        return Round(written=written, note=self.why or SPENT, stop={"closed": name})


def room_to_think(
    closing: Closing, encode: Callable[[str], list[int]], budget: int, kept: int | None = None
) -> int:
    """Return how many tokens the thinking may take if an answer of ``kept`` tokens is to follow; 0 or less: none.

    By default ``kept`` is what the closing says.
    """
    kept = kept_back(closing, budget) if kept is None else kept
    return budget - len(encode(closing_text(closing, at_end=False))) - kept


def closed(
    thinking: Plan[Outcome],
    stopping: Stopping,
    room: int,
    answering: Callable[[list[int], list[Round]], Plan[Outcome]],
) -> Plan[Outcome]:
    """Run a plan that ends where its thinking is to be closed; close it, and let the answer be written.

    ``room``: tokens of the output at most. ``answering`` gets the output and the rounds so far, the closing one
    included, and returns the plan that goes on behind them.
    """
    outcome = yield from thinking
    if not stopping.why:
        return outcome
    rounds = outcome.rounds
    left = room - sum(len(done.tokens) for done in rounds)
    rounds.append(stopping.closes(left))
    written = [token for done in rounds for token in done.tokens]
    answer: Outcome = yield from answering(written, rounds)
    if answer.rounds is not rounds:
        rounds += answer.rounds
    return replace(answer, rounds=rounds)


def cut_to(context: Context, length: int) -> Context:
    """Return a copy of the beginning of a context, in the same session of the engines."""
    return behind(context, context.tokens[context.prompt_length : length])


def behind(context: Context, written: Sequence[int]) -> Context:
    """Return a context for what follows another output to the same prompt, in the same session of the engines."""
    made = Context(context.key, context.tokens[: context.prompt_length], context.draft_prompt)
    made.extend(written)
    return made


def shortened(rounds: Sequence[Round], tokens: int) -> list[Round]:
    """Return rounds cut to their first ``tokens`` tokens; what they drafted stays as it was."""
    found: list[Round] = []
    for done in rounds:
        if len(done.tokens) <= tokens:
            found.append(done)
            tokens -= len(done.tokens)
            continue
        kept = done.kept[:tokens]
        written = done.written[: max(0, tokens - len(kept))]
        handed = done.handed[: max(0, tokens - len(kept) - len(written))]
        found.append(
            replace(
                done,
                kept=kept,
                written=written,
                handed=handed,
                handed_ends=[end for end in done.handed_ends if end <= len(handed)],
                units_kept=min(done.units_kept, sum(end <= len(kept) for end in done.ends)),
            )
        )
        break
    return found
