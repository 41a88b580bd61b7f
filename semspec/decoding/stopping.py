"""Close a thinking early: ask a stopper at ends of steps, and write closing words.

The loop (``loop.speculate``) and the server (``serve.token_gate``) feed what was written to a ``Stopping``. The text
before a stop does not depend on the stopper: its queries come between rounds, after the text, and use their own
random numbers. If a round has gone past the end of the step, the rest of it is dropped.
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
    """Return the text that closes a thinking; ``at_end``: an empty line already precedes it."""
    words = f"{closing.words}\n" if closing.words else ""
    if not at_end:
        words = f"\n\n{words}" if words else "\n"
    return f"{words}{CLOSE}\n\n{closing.answer}"


def kept_back(closing: Closing, budget: int) -> int:
    """Return how many tokens are kept for the answer."""
    return closing.tokens or max(1, min(256, budget // 4))


class Thought:
    """Follows a text from the tag that opens the thinking to the one that closes it."""

    def __init__(self, piece: Callable[[int], str], opened: bool) -> None:
        """``opened``: the prompt has opened the thinking."""
        self._piece = piece
        self._tail = ""
        self.thinks, self.over = opened, False
        self.tokens = 0  # of the thinking, tags included

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
    """A boundary without ends: only a limit closes the thinking."""

    def feed(self, token: int) -> int | None:
        return None


@dataclass(slots=True, kw_only=True)
class Stopping:
    """Finds the end of one problem's thinking: who decides, and what was read so far."""

    session: StopSession
    name: str  # of the stopper
    thought: Thought
    boundary: Boundary  # finds ends of steps
    closing: Closing
    encode: Callable[[str], list[int]]
    stop_ids: Collection[int]
    most: int  # most tokens of thinking, whatever the stopper says
    why: str = field(default="", init=False)  # why the thinking has to be closed; "": it goes on
    at_end: bool = field(default=False, init=False)  # close after the end of a step
    hopeless: bool = field(default=False, init=False)  # the problem is given up

    @classmethod
    def of(
        cls, stop: Stopper, name: str, kit: Kit, steps: Callable[[], Boundary], most: int
    ) -> Self:
        """Begin one problem whose thinking may take ``most`` tokens; ``steps`` makes a boundary of steps.

        A stopper that never stops anything is not asked; then only the limit closes the thinking.
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
        """True while the stopper is asked at ends of steps, and not only the limit counts."""
        return self.listening and not isinstance(self.boundary, Endless)

    @property
    def listening(self) -> bool:
        """True while the thinking may still be closed."""
        return not self.thought.over and not self.why

    def feed(self, token: int) -> int | None:
        """Read a token; return 0 if a step of the thinking ends with it, -1 if before it, else None.

        Sets ``why`` if the thinking has to be closed at once: ``ENDED`` before this token, ``SPENT`` after it.
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
        end = self.boundary.feed(token) if thought else None  # an opening tag is not a step
        if end is None and self.thought.tokens >= self.most:
            self.why = SPENT
        return end

    def ask(self, context: Context, done: Round, back: int = 0) -> Plan[None]:
        """Ask the stopper at the end of a step, and book the query in ``done``; ``back``: -1 if one token more was read, else 0."""
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
        """Read a finished round; return it, cut where the thinking has to be closed."""
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
        """Return the round that closes the thinking, with at most ``room`` tokens."""
        written = self.encode(closing_text(self.closing, self.at_end))[:room]
        name = HOPELESS if self.hopeless else self.name
        name = name if self.at_end and self.why != SPENT else "limit"
        return Round(written=written, note=self.why or SPENT, stop={"closed": name})


def room_to_think(
    closing: Closing, encode: Callable[[str], list[int]], budget: int, kept: int | None = None
) -> int:
    """Return how many tokens the thinking may take if ``kept`` tokens of answer follow; 0 or less: none.

    ``kept`` defaults to what the closing says.
    """
    kept = kept_back(closing, budget) if kept is None else kept
    return budget - len(encode(closing_text(closing, at_end=False))) - kept


def closed(
    thinking: Plan[Outcome],
    stopping: Stopping,
    room: int,
    answering: Callable[[list[int], list[Round]], Plan[Outcome]],
) -> Plan[Outcome]:
    """Run a plan that ends where its thinking has to be closed; close it, then write the answer.

    ``room``: most tokens of the output. ``answering`` gets the output and the rounds so far, including the closing
    one, and returns the plan that continues after them.
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
    """Return the first ``length`` tokens of a context, with the same engine session."""
    return behind(context, context.tokens[context.prompt_length : length])


def behind(context: Context, written: Sequence[int]) -> Context:
    """Return a context with the same prompt and engine session, but another output so far."""
    made = Context(context.key, context.tokens[: context.prompt_length], context.draft_prompt)
    made.extend(written)
    return made


def shortened(rounds: Sequence[Round], tokens: int) -> list[Round]:
    """Return rounds cut to their first ``tokens`` tokens; their drafts stay recorded in full."""
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
