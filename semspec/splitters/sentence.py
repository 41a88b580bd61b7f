r"""A unit is a sentence, recognised by its text alone.

A sentence ends

* after ``. ? !`` and closing marks (quotes, brackets, ``**``, ``$``), when whitespace and then something
  that can open a sentence follow;
* after ``。！？｡`` and closing marks, when anything else follows;
* at an empty line, as in ``paragraph``.

Only the following text shows that a stop was the last one, so most ends are known one token late (-1).
Whitespace between two sentences belongs to the first. Ambiguous text stays one unit: too long a unit
costs a little speed, but half a unit cannot be judged. These do *not* end a sentence: a stop inside a
word (3.14, f(x).y, a URL, v1.2); before a lower-case letter, a comma or an operator (except after a
number: "x = 3. y is"); after an abbreviation (e.g., Dr., "No." before a number), an initial or a list
marker ("1." first in a line); an ellipsis unless a capital follows; a factorial.

Look-ahead and exactness: a token that revealed an end was already drawn. Drawing it again would make
openings of sentences too rare, so a lossless rule must keep it in the draft.

A character whose bytes are spread over several tokens reaches a splitter as U+FFFD and counts as a
letter, so a CJK stop in such pieces is missed; the vocabularies in use have these stops as single tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from semspec.decoding.units import check_cap
from semspec.protocols import Splitter
from semspec.registry import register
from semspec.types import Boundary, Stops

STOPS = frozenset(".?!…。！？｡")
CJK_STOPS = frozenset("。！？｡")
CLOSERS = frozenset("\"'”’»)]}*_`$\\」』）】》〉〕｣")
NO_OPENERS = frozenset(",;:+=<>/^&|%")  # a stop before one of these did not end a sentence

TITLES = frozenset("Mr Mrs Ms Dr Prof St Mt Rev Gen Sen Rep Gov Capt Lt Col Sgt Hon Pres".split())
ABBREVIATIONS = frozenset("vs viz cf al approx resp ca".split())
NUMBERED = frozenset(  # abbreviations if a number follows; before a word they may end a sentence
    "no nos nr fig figs eq eqs eqn sec secs ch vol p pp art thm lem prop cor def ex ref".split()
)
# after one of these a lone capital is a quantity or an option, otherwise a person's initial
NAMES_A_LETTER = frozenset("is be option choice answer case point equals".split())

_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")  # e.g, i.e, w.r.t, U.S
_CLOCK = frozenset({"a.m", "p.m"})
_MARKER = re.compile(r"\d{1,3}|[A-Za-z]|[ivx]{1,4}")  # 1. a. iv.
_WRAPPING = "([{<\"'“‘*_`#$\\-"
_WORD = 16  # characters kept of a word; no abbreviation is longer

# every place where ``_ends`` may judge a stop; most of them do not end a sentence
_TAIL = re.escape("".join(sorted(STOPS | CLOSERS)))
# (bounded, because a server looks back as far as a pattern can reach)
_MAY_END = (
    rf"[.?!…][{_TAIL}]{{0,6}}\s{{1,4}}\S",
    rf"[。！？｡][{_TAIL}]{{0,6}}\s{{0,4}}[^\s{_TAIL}]",
)

TEXT, STOP, CLOSED, SPACE = range(4)  # in a word; after its stop; after a closer; after whitespace


class SentenceBoundary:
    """A state machine over characters, in constant memory."""

    def __init__(self, piece: Callable[[int], str], cap: int) -> None:
        self._piece = piece
        self._cap = check_cap(cap)
        self._owed = False  # one token gave -1 and the next unit's end, which is yet to be reported
        self._start()

    @property
    def stops(self) -> Stops:
        return Stops(texts=("\n\n", "\n\r\n"), patterns=_MAY_END, cap=self._cap)

    def _start(self) -> None:
        self._count = 0  # tokens of this unit
        self._newlines = 0  # at the end of the text so far
        self._text = False  # the unit has something besides whitespace
        self._words = False  # the unit has a letter or a digit
        self._phase = TEXT
        self._word = ""  # the beginning of the current word
        self._previous = ""  # the word before it
        self._first = True  # only marks so far in this line
        self._first_in_line = True  # ``_first`` when the word began
        self._stop = ""  # the stops that may end the sentence
        self._before = ""  # the character before them
        self._gap = False  # a newline after them

    def feed(self, token: int) -> Literal[0, -1] | None:
        text = self._piece(token)
        if self._owed:
            self._reopen(text)
            return -1
        self._count += 1
        end = self._scan(text)
        if end == -1:
            self._reopen(text)
        elif end == 0 or self._count >= self._cap:
            self._start()
            return 0
        return end

    def _reopen(self, text: str) -> None:
        """Start a new unit with this token; the previous one ended before it."""
        self._start()
        self._count = 1
        self._owed = self._scan(text) == 0

    def _scan(self, text: str) -> Literal[0, -1] | None:
        """Scan a token's text up to the first end; return 0 if it is in the token, -1 if before it."""
        here = False  # the stop or a closing mark is in this token
        for char in text:
            if char.isspace():
                if char == "\n":
                    self._newlines += 1
                    if self._newlines >= 2 and self._text:
                        return 0
                elif char != "\r":
                    self._newlines = 0
                self._space(char)
                continue
            self._newlines = 0
            if self._phase != TEXT:
                if self._phase != SPACE and char in STOPS:
                    self._stop += char if len(self._stop) < 4 else ""
                    self._phase, here = STOP, True
                elif self._phase != SPACE and char in CLOSERS:
                    self._phase, here = CLOSED, True
                elif self._ends(char):
                    return 0 if here else -1
                else:
                    self._go_on(char)
            elif char in STOPS:
                self._phase, self._stop, self._gap, here = STOP, char, False, True
                if not self._word:
                    self._before = ""
                    self._first_in_line = self._first
            else:
                self._letter(char)
            self._text = True
        return None

    def _space(self, char: str) -> None:
        if self._phase in (STOP, CLOSED):
            self._phase = SPACE
        elif self._phase == TEXT and self._word:
            self._leave_word(self._word)
        if char == "\n":
            self._gap = True
            if self._phase == TEXT:
                self._first = True

    def _leave_word(self, word: str) -> None:
        self._previous, self._word = word, ""
        self._first = self._first and not any(c.isalnum() for c in word)

    def _letter(self, char: str) -> None:
        if not self._word:
            self._first_in_line = self._first
        if len(self._word) < _WORD:
            self._word += char
        self._before = char
        self._words = self._words or char.isalnum()

    def _go_on(self, char: str) -> None:
        """Continue after a stop that ended nothing, with the same word or a new one."""
        if self._phase == SPACE:
            self._leave_word(self._word + self._stop)
            self._first = self._gap
        elif len(self._word) < _WORD:
            self._word += self._stop
        self._phase = TEXT
        self._stop = ""
        self._letter(char)

    def _ends(self, following: str) -> bool:
        """Return whether the stop just seen ended the sentence, given the next character."""
        if not self._words:
            return False
        if self._stop[-1] in CJK_STOPS:
            return True
        if self._phase != SPACE or following in NO_OPENERS:
            return False
        after_number = self._before.isdigit() or self._before in CLOSERS
        if following.islower() and not (after_number and self._stop == "."):
            return False
        opens = self._gap or (following.isalpha() and not following.islower())
        word = self._word.lstrip(_WRAPPING)
        if self._stop == "!" and (after_number or len(word) == 1):
            return opens  # 5! - 3!, n! \cdot m!
        if "?" in self._stop or "!" in self._stop:
            return True
        if len(self._stop) > 1 or self._stop == "…":
            return opens and bool(word)
        return self._full_stop(word, following)

    def _full_stop(self, word: str, following: str) -> bool:
        if self._first_in_line and _MARKER.fullmatch(word):
            return False
        if _DOTTED.fullmatch(word):
            return word.lower() in _CLOCK
        if word in TITLES or word.lower() in ABBREVIATIONS:
            return False
        if word.lower() in NUMBERED:
            return not (following.isdigit() or following in "(#$\\[")
        if len(word) == 1 and word.isupper() and following.isupper() and not self._gap:
            previous = self._previous.lstrip(_WRAPPING)
            return previous.lower() in NAMES_A_LETTER or not any(c.isalpha() for c in previous)
        return True


@register("split", "sentence")
@dataclass(frozen=True, kw_only=True)
class Sentence(Splitter):
    """A unit ends with a sentence, or with an empty line."""

    def open(self, piece: Callable[[int], str], cap: int) -> Boundary:
        return SentenceBoundary(piece, cap)
