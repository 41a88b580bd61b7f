"""Show one problem's solution step by step with its writers; readable without colour, too.

pieces(rounds, decode, unit)  ->  pieces of text, written or rejected, with their writers
lines(pieces)                 ->  the pieces by unit, rejected text beneath its replacement
Transcript(pieces)            ->  a renderable that rich prints at any width
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import takewhile
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from semspec.models.spelling import Spelling
from semspec.storage.screen import visible
from semspec.types import Round, Writer

STYLES = {"draft": "cyan", "salvaged": "cyan underline", "target": "bold yellow"}
STYLES |= {"rejected": "dim strike", "note": "dim italic"}
_STOPS = tuple(".?!…。？！")
_CLOSERS = ")]\"'”’*"
BESIDE = " | "  # between branches of one tree
MOST = 3  # branches shown at one place: a tree can have a dozen
LONGEST = 6  # tokens shown per branch

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Piece:
    """A text of one writer within one unit."""

    writer: Writer
    text: str
    rejected: bool = False
    score: float | None = None  # of the drafted unit that it is or was part of
    note: str = ""
    ends: bool = False  # True if a unit ends after it
    salvaged: bool = False  # part of a rejected step that lossless verification kept
    nested: int = 0  # how many of the target's tokens a nested drafter proposed
    ahead: bool = False  # drafted while the units before it were judged
    nodes: tuple[int, int] = (0, 0)  # of a tree: kept, drafted

    @property
    def style(self) -> str:
        return "salvaged" if self.salvaged else self.writer


def pieces(
    rounds: Iterable[Round | Mapping[str, Any]],
    decode: Decode,
    unit: Literal["steps", "tokens"] = "steps",
) -> Iterator[Piece]:
    """Turn rounds (objects, or lines of rounds.jsonl) into pieces; ``decode`` omits stop tokens.

    With ``unit="tokens"`` pieces have no ends of units and no scores, since a token is not a line. Of a
    tree, only the branches rejected where the target continued are shown, and the nodes are counted.
    """
    decoder = Spelling(decode)
    for one in rounds:
        r = one if isinstance(one, Mapping) else {f.name: getattr(one, f.name) for f in fields(one)}
        yield from _of_round(r, decoder, decode, unit == "steps")
    if rest := decoder.flush():
        yield Piece("target", rest)


def _of_round(
    r: Mapping[str, Any], decoder: Spelling, decode: Decode, steps: bool
) -> Iterator[Piece]:
    drafted, kept, lost = r["drafted"], r["kept"], list[Piece]()
    parents = r.get("parents")
    if parents is not None or drafted[: len(kept)] != kept:  # a tree
        yield Piece("draft", decoder.feed(kept))
        branches = (decoder.peek(branch) for branch in refused(drafted, parents or (), kept))
        proposed = BESIDE.join(" ".join(text.split()) or "¶" for text in branches if text)
        lost.append(Piece("draft", proposed, rejected=True, nodes=(len(kept), len(drafted))))
    else:
        ends = list(r["ends"]) if steps else []
        scores = r["scores"] if len(r["scores"]) <= len(ends) else []  # otherwise one per token
        start = 0
        for i, end in enumerate(dict.fromkeys([*ends, len(drafted)])):
            score = scores[i] if i < len(scores) else None
            if kept[start:end]:
                whole = end in ends and len(kept) >= end
                text = decoder.feed(kept[start:end])
                yield Piece("draft", text, score=score, ends=whole, ahead=bool(r.get("ahead")))
            gone = drafted[max(start, len(kept)) : end]
            if gone:
                text = decode(gone) if lost else decoder.peek(gone)
                lost.append(Piece("draft", text, rejected=True, score=score))
            start = end
    yield from lost
    written = r["written"]
    saved = _salvaged(r) if steps else 0
    if saved:
        over = saved == len(written) and not r["handed"]
        yield Piece("draft", decoder.feed(written[:saved]), salvaged=True, ends=over)
    text = decoder.feed([*written[saved:], *r["handed"]])
    if text or r["note"]:
        # rounds do not record where the units of a handover end, so look at the text
        over = steps and bool(r["handed"]) and _looks_over(text)
        nested = r.get("nested_kept", 0)
        yield Piece("target", text, note=r["note"], ends=over, nested=nested)


def refused(drafted: Sequence[int], parents: Sequence[int], kept: Sequence[int]) -> list[list[int]]:
    """Return the tokens of the branches after the last kept node, in the drafter's order.

    A branch follows first children. Branches beside the kept path are left out: there the draft
    itself also proposed the tokens that were kept.
    """
    children: dict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(parents):
        children[parent].append(node)
    places = [-1]  # several if siblings hold the same token
    for token in kept:
        places = [n for place in places for n in children[place] if drafted[n] == token]
    found = []
    for node in [n for place in places for n in children[place]][:MOST]:
        branch = [node]
        while children[branch[-1]] and len(branch) < LONGEST:
            branch.append(children[branch[-1]][0])
        found.append([drafted[n] for n in branch])
    return found


def _looks_over(text: str) -> bool:
    """Return True if a text ends with a line, or with a sentence and closing quotes or brackets."""
    written = text.rstrip()
    return "\n" in text[len(written) :] or written.rstrip(_CLOSERS).endswith(_STOPS)


def _salvaged(r: Mapping[str, Any]) -> int:
    """Count the written tokens that salvage kept from the rejected step (``StepSession.salvage``)."""
    if r.get("parents") is not None:
        return 0
    rejected = r["drafted"][len(r["kept"]) :]
    pairs = zip(r["written"], rejected, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass(slots=True)
class Line:
    """A unit, or a paragraph if units are tokens or unknown."""

    body: list[tuple[str, str]] = field(default_factory=list)  # text and its style
    draft: bool = False
    target: bool = False
    score: float | None = None
    notes: list[str] = field(default_factory=list)
    rejected: list[Piece] = field(default_factory=list)
    newlines: int = 0  # after the body: two or more make a paragraph
    nested: int = 0
    ahead: bool = False
    nodes: tuple[int, int] = (0, 0)

    @property
    def mark(self) -> str:
        return "+".join(["D"] * self.draft + ["T"] * self.target)

    @property
    def over(self) -> bool:
        return bool(self.body) and self.newlines >= 2

    def write(self, text: str, piece: Piece) -> None:
        text = text if self.body else text.lstrip()
        if text:
            self.body.append(("\n" * min(1, self.newlines) + text, piece.style))
            self.newlines = 0
            self.draft |= piece.writer == "draft"
            self.target |= piece.writer == "target"


def lines(parts: Iterable[Piece]) -> Iterator[Line]:
    """Group pieces by unit; the texts are safe to print on a terminal (``visible``)."""
    line = Line()
    for piece in parts:
        if line.over:
            yield line
            line = Line()
        if piece.rejected:  # shown beneath its replacement
            line.rejected += [piece] if piece.text.strip() else []
            line.nodes = line.nodes[0] + piece.nodes[0], line.nodes[1] + piece.nodes[1]
            continue
        line.nested += piece.nested
        line.ahead |= piece.ahead
        for run in re.findall(r"\n+|[^\n]+", visible(piece.text)):
            if run[0] == "\n":
                line.newlines += len(run) if line.body else 0
                continue
            if line.over and run.strip():
                yield line
                line = Line()
            line.write(run, piece)
            line.score = piece.score if piece.score is not None else line.score
        if piece.note:
            line.notes.append(piece.note)
        if piece.ends and line.body:
            yield line
            line = Line()
    if line.body or line.rejected or line.notes:
        yield line


def gathered(rejected: Sequence[Piece]) -> Sequence[Piece]:
    """Join many small rejections within a line, such as single tokens, into one row."""
    if len(rejected) <= 3 or any(p.score is not None for p in rejected):
        return rejected
    return [Piece("draft", " / ".join(p.text.strip() for p in rejected), rejected=True)]


class Transcript:
    """Renders pieces, one unit per line: the writer in front, rejected text beneath."""

    def __init__(self, parts: Iterable[Piece], rejected: bool = True, legend: bool = True) -> None:
        self.parts, self.rejected, self.legend = list(parts), rejected, legend
        self._scored = any(p.score is not None for p in self.parts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.legend:
            yield self._legend()
        for line in lines(self.parts):
            rows: list[tuple[str, float | None, Text]] = []
            if line.body:
                body = Text.assemble(*((text, STYLES[style]) for text, style in line.body))
                rows.append((line.mark, line.score, body))
            for piece in gathered(line.rejected) if self.rejected else ():
                gone = Text(visible(piece.text).strip(), STYLES["rejected"])
                rows.append(("x", piece.score, gone))
            notes = (Text(visible(note, newline=" "), STYLES["note"]) for note in line.notes)
            for row in (*rows, *(("·", None, note) for note in notes)):
                yield from self._row(console, options, *row)

    def _legend(self) -> Text:
        parts = [("D│ draft", STYLES["draft"]), ("T│ target", STYLES["target"]), ("D+T│ both", "")]
        if any(p.salvaged for p in self.parts):
            parts.append(("D│ salvaged", STYLES["salvaged"]))
        if self.rejected and any(p.rejected for p in self.parts):
            parts.append(("x│ rejected draft", STYLES["rejected"]))
        if self._scored:
            parts.append(("0.00│ its score", ""))
        between = "   " if len(parts) < 6 else "  "  # within 80 columns
        return Text(between).join(Text(*part) for part in parts)

    def _row(
        self, console: Console, options: ConsoleOptions, mark: str, score: float | None, body: Text
    ) -> Iterator[Text]:
        bar = "│" if options.encoding.startswith("utf") else "|"
        gutter = f"{mark:>3}"
        if self._scored:
            gutter += f" {'' if score is None else format(score, '.2f'):>5}"
        width = max(10, options.max_width - len(gutter) - 2)
        body.rstrip()
        for number, part in enumerate(body.wrap(console, width) or [Text()]):
            part.rstrip()
            front = gutter if number == 0 else " " * len(gutter)
            yield Text.assemble((f"{front}{bar} ", "dim"), part)
