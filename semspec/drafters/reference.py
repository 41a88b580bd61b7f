"""Copy from texts that come with a problem: a predicted answer, an open file, retrieved documents.

The place to copy from moves along with the output. Where the output leaves the reference, the new
place is the one, among all after the last token, that agrees with the output for most tokens. Ties go
to the nearest place further on: an edited line is skipped, and the next line is found again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import ClassVar, Self

from semspec.drafters._base import DraftSessionBase, MatchingDrafter
from semspec.drafters._first import FirstSession
from semspec.drafters._ngrams import Match
from semspec.drafters._proposal import Proposal
from semspec.errors import UserError
from semspec.protocols import DraftSession, Kit, Plan, Run
from semspec.registry import register
from semspec.results.reuse import REFERENCE as FOUND
from semspec.storage import foreign
from semspec.types import Context, Draft, Room

END = -1  # marks the end of a text among its tokens
SURE = 5  # tokens that must match if there is another drafter
LONGEST = 40  # tokens of a draft by default
LARGEST = 64 * 2**20  # bytes of a file


@register("drafter", "reference")
@dataclass(frozen=True, kw_only=True)
class Reference(MatchingDrafter):
    """Copies from a text that comes with the problem: a predicted answer, a file, documents."""

    longest: int = LONGEST  # tokens in a draft; a step that was begun is copied to its end
    stretch: float = 4.0  # tokens copied for each token that matched
    shortest: int = 1  # tokens that must match
    match: int = 64  # longer matches are cut to this
    guess: int = 4  # tokens copied after one that differs from the reference; 0: none
    candidates: int = 64  # compare this many nearest places
    file: str = ""  # a text file that serves every problem as a reference

    @property
    def refers(self) -> bool:
        return True

    def can_draft(self, references: bool) -> bool:
        return references or bool(self.text)

    def __post_init__(self) -> None:
        self.check_match()
        if self.guess < 0 or self.candidates < 1:
            raise UserError(
                f"guess={self.guess}, candidates={self.candidates}: give guess 0 or more, candidates"
                " at least 1"
            )

    text: ClassVar[str] = ""  # of the file, set by ``bind``

    def bind(self, run: Run) -> Self:
        if not self.file:
            return self
        path = Path(self.file).expanduser()
        if not path.is_file():
            raise UserError(f"file={self.file} does not exist: give a text file")
        return self.bound(text=foreign.read_text(path, LARGEST))

    def open(self, kit: Kit) -> ReferenceSession:
        own = [kit.encode(self.text)] if self.text else []
        return ReferenceSession(self, kit, [*kit.references, *own])

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        (folder / "answer.txt").write_text(
            " It is 1.\n\n It is. 2 is 4. It is.\n\n is 3. It", "utf-8"
        )
        yield cls(file=str(folder / "answer.txt"))


class ReferenceSession(DraftSessionBase):
    """Follows the output token by token, so that its state depends on the text alone."""

    def __init__(self, options: Reference, kit: Kit, texts: Sequence[Sequence[int]]) -> None:
        self.options, self.kit = options, kit
        self.tokens = [token for text in texts for token in (*text, END)]
        self._after: dict[int, list[int]] = {}  # token -> the places right after it
        for place, token in enumerate(self.tokens[:-1], 1):
            self._after.setdefault(token, []).append(place)
        self.expected = 0  # the place where the text should go on
        self.agreed = 0  # tokens before it that agree with the output
        self.lost = not self.tokens  # no such place is known
        self._followed = 0  # tokens of the output that were looked at

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        yield from ()
        if self.tokens:
            self._follow(context)
        found = not self.lost and self.tokens[self.expected] != END
        proposal = Proposal(self.kit, room, found=FOUND if found else "none")
        if found:
            proposal.grade = min(self.agreed, 9)
            end = self.tokens.index(END, self.expected)
            proposal.copy(self.tokens[self.expected : end], 0, self._length())
        return proposal.draft()

    def _length(self) -> int:
        options = self.options
        if self.agreed:
            return min(options.longest, ceil(self.agreed * options.stretch))
        return options.longest if not self._followed else min(options.longest, options.guess)

    def _follow(self, context: Context) -> None:
        """Move on with what was written since the last call."""
        for end in range(context.prompt_length + self._followed, len(context)):
            token = context.tokens[end]
            if not self.lost and self.tokens[self.expected] == token:
                self.expected, self.agreed = self.expected + 1, self.agreed + 1
            else:
                start = max(context.prompt_length, end + 1 - self.options.match)
                self._look(context.tokens[start : end + 1])
        self._followed = len(context) - context.prompt_length

    def _look(self, tail: Sequence[int]) -> None:
        """Find a new place after a token that differs; ``tail`` ends with that token."""
        best = Match(0, self.options.shortest - 1)
        for place in self._near(tail[-1]):
            length = self._agreeing(place, tail)
            if length > best.length:
                best = Match(place, length)
        if best.start:
            (self.expected, self.agreed), self.lost = best, False
            return
        # the token may replace the reference's: this is tried once, and not at the start
        replaced = self.agreed and self.options.guess and self.tokens[self.expected] != END
        self.expected += bool(replaced)
        self.agreed, self.lost = 0, not replaced

    def _near(self, token: int) -> Sequence[int]:
        """Return the places after this token that are nearest to the expected one, later places first."""
        places = self._after.get(token, [])
        at, most = bisect_left(places, self.expected), self.options.candidates
        behind = places[at : at + most]
        return [*behind, *reversed(places[max(0, at - most + len(behind)) : at])]

    def _agreeing(self, place: int, tail: Sequence[int]) -> int:
        """Count the tokens before a place that agree with the end of ``tail``."""
        count, most = 0, min(place, len(tail))
        while count < most and self.tokens[place - 1 - count] == tail[-1 - count]:
            count += 1
        return count


def beside(other: DraftSession, kit: Kit, length: int, lends: bool = False) -> DraftSession:
    """Copy from the references of a problem where they match, and draft with the other session elsewhere.

    ``length``: tokens that the other one drafts at a time if the unit is a token. ``lends``: the other one is a model, whose
    steps have other prices and chances than copies.
    """
    referring = Reference(shortest=SURE).open(kit)
    if isinstance(other, FirstSession):  # it copies beside a model already: add one source
        return FirstSession([referring, *other.copying], other.other, kit, other.length)
    return FirstSession([referring], other, kit, length, lends)
