"""Show transcripts as HTML: who wrote each step, what was rejected, and what replaced it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semspec.report.html import clipped, esc
from semspec.report.rounds import Decode
from semspec.report.terminal import number, seconds
from semspec.report.transcript import BESIDE, Line, Piece, gathered, lines, pieces
from semspec.results.metrics import ratio

HANDS = {"D": "draft", "T": "target", "D+T": "both"}
SPOKEN = {"draft": "Draft", "target": "Target", "both": "Draft and target", "gone": "Rejected"}
_SALVAGED = '<li><span class="by-salvaged">salvaged</span>: the start of a rejected step, kept losslessly</li>'


def legend(salvage: bool) -> str:
    return f"""\
<ul class="legend" aria-label="Who wrote what">
<li><span class="who draft">D</span> <span class="by-draft">the draft</span>, accepted</li>
<li><span class="who target">T</span> <span class="by-target">the target</span></li>
<li><span class="who both">D+T</span> both in one step</li>
<li><span class="who gone">x</span> <del>a rejected draft</del>, above its replacement</li>
{_SALVAGED if salvage else ""}</ul>
"""


@dataclass(frozen=True)
class Limits:
    """Limits on the size of the transcripts."""

    problems: int = 24
    size: int = 1_200_000  # characters of all transcripts together
    lines: int = 120  # of one problem
    text: int = 1_500  # characters of one piece
    whole: int = 12_000  # characters of a whole solution or question


def choose(solved: Sequence[Mapping[str, Any]], most: int) -> list[tuple[str, str]]:
    """Return ids with the reason to show them: first problems right in one mode only, then wrong and other ones.

    ``solved``: dicts with id, correct and plain (correct with the target alone), in order.
    """
    reasons = {(False, True): "right only by the target alone"}
    reasons[True, False] = "right only with the draft"
    sides = {line["id"]: reasons.get((line["correct"], line["plain"])) for line in solved}
    why = {name: reason for name, reason in sides.items() if reason}
    changed = list(why)[: max(1, most * 2 // 3)]
    wrong = [line["id"] for line in solved if line["correct"] is False and line["id"] not in why]
    wrong = wrong[: max(0, (most - len(changed)) // 2)]
    left = [line["id"] for line in solved if line["id"] not in {*changed, *wrong}]
    room = min(len(left), max(0, most - len(changed) - len(wrong)))
    spread = [left[i * len(left) // room] for i in range(room)]
    order = [line["id"] for line in solved]
    rest = sorted({*wrong, *spread}, key=order.index)
    return [(name, why.get(name, "")) for name in [*changed, *rest]]


def mark(correct: bool | None) -> str:
    """Name the grade in words."""
    if correct is None:
        return '<span class="verdict">not graded</span>'
    word = "right" if correct else "wrong"
    return f'<span class="verdict {word}">{word}</span>'


def problem(
    line: Mapping[str, Any],
    rounds: Sequence[Mapping[str, Any]],
    decode: Decode | None,
    steps: bool,
    limits: Limits,
    *,
    why: str = "",
    opened: bool = False,
) -> str:
    """Return the HTML of one problem: question, both answers, and the solution step by step."""
    plain = line.get("plain") or {}
    facts = [mark(line["correct"]), f"{seconds(line['seconds'])} s"]
    faster = ratio(plain.get("wall", 0.0), line["wall"])
    facts += [f"{number(faster, 2)}× the target alone"] if plain and faster else []
    facts += [f"{line['tokens']:,} tokens"]
    facts += [f'<span class="why">{esc(why)}</span>'] if why else []
    if decode is not None and rounds:
        parts = list(pieces(rounds, decode, "steps" if steps else "tokens"))
        solution = steps_of(parts, steps, limits)
    else:
        solution = _whole(line.get("text") or "", "whole", limits)
    out = [
        f'<details class="problem"{" open" if opened else ""}>',
        f'<summary><b>{esc(line["id"])}</b> <span class="facts">{" · ".join(facts)}</span></summary>',
        _whole(line["question"], "question", limits) if line.get("question") else "",
        solution,
        '<dl class="answers">',
        _answer("answer", line.get("answer"), f" {mark(line['correct'])}"),
    ]
    if plain:
        out += [_answer("the target alone", plain.get("answer"), f" {mark(plain.get('correct'))}")]
    if line.get("gold") is not None:
        out += [_answer("expected", line["gold"])]
    out += ["</dl>"]
    if plain.get("text"):
        out += [
            '<details class="alone"><summary>What the target alone wrote'
            f" ({seconds(plain.get('seconds'))} s)</summary>"
            f"{_whole(plain['text'], 'whole', limits)}</details>"
        ]
    return "\n".join([*filter(None, out), "</details>"])


def _whole(text: str, kind: str, limits: Limits) -> str:
    return f'<p class="{kind}" dir="auto">{clipped(text, limits.whole)}</p>'


def _answer(whose: str, text: str | None, verdict: str = "") -> str:
    quote = f'<q dir="auto">{clipped(text, 200)}</q>' if text else "none"
    return f"<div><dt>{whose}</dt><dd>{quote}{verdict}</dd></div>"


def steps_of(parts: Sequence[Piece], steps: bool, limits: Limits) -> str:
    """Return the solution as a list with one item per step."""
    whole = list(lines(parts))
    scored = any(p.score is not None for p in parts)
    half = limits.lines // 2
    gone = len(whole) - 2 * half if len(whole) > limits.lines else 0
    shown = [*whole[:half], *whole[-half:]] if gone else whole
    items = [_item(line, scored, steps, limits) for line in shown]
    if gone:
        unit = "steps" if steps else "paragraphs"
        items.insert(half, f'<li class="cut">… {gone:,} {unit} left out …</li>')
    return f'<ol class="steps{" scored" if scored else ""}">\n' + "\n".join(items) + "\n</ol>"


def _item(line: Line, scored: bool, steps: bool, limits: Limits) -> str:
    out = [_rejected(line, scored, steps, limits)]
    if line.body:
        shown = ((clipped(text, limits.text), style) for text, style in line.body)
        body = "".join(f'<span class="by-{style}">{text}</span>' for text, style in shown)
        if line.rejected and line.target and steps:
            body = f'<span class="instead">The target wrote instead:</span> {body}'
        out.append(_row(HANDS.get(line.mark, "target"), line.mark, line.score, body, scored))
    small = list(dict.fromkeys(line.notes))
    if line.nodes[1]:
        small.append(f"trees: {line.nodes[0]:,} of {line.nodes[1]:,} nodes kept")
    if line.nested:
        small.append(f"{line.nested} of the target's tokens were drafted within the step (nested)")
    if line.ahead:
        small.append("drafted ahead, while the steps before it were being verified")
    out += [f'<p class="note">{esc(note)}</p>' for note in small]
    return f"<li>{''.join(out)}</li>"


def _rejected(line: Line, scored: bool, steps: bool, limits: Limits) -> str:
    rows = ""
    for at, piece in enumerate(gathered(line.rejected) if steps else _joined(line.rejected)):
        why = f'<span class="instead">{_why_gone(at, piece, steps)}</span>'
        rows += _row("gone", "x", piece.score, f"{why} {_struck(piece, limits)}", scored)
    return f'<div class="rejected">{rows}</div>' if line.rejected else ""


def _struck(piece: Piece, limits: Limits) -> str:
    """Strike out a rejected text, except the separators between branches and places."""
    text = piece.text.strip()
    if not piece.nodes[1]:
        return f"<del>{clipped(text, limits.text)}</del>"
    parts = re.split(f"({re.escape(BESIDE)}| / )", text[: limits.text])
    struck = (esc(p) if i % 2 else f"<del>{esc(p)}</del>" for i, p in enumerate(parts))
    return "".join(struck) + (" …" if len(text) > limits.text else "")


def _joined(rejected: Iterable[Piece]) -> list[Piece]:
    """Join rejected single tokens, whatever their scores, and the branches of trees in one row."""
    rows = []
    for of_trees in (False, True):
        own = [piece.text.strip() for piece in rejected if bool(piece.nodes[1]) == of_trees]
        if own:
            rows.append(Piece("draft", " / ".join(own), rejected=True, nodes=(0, int(of_trees))))
    return rows


def _why_gone(number: int, piece: Piece, steps: bool) -> str:
    if piece.nodes[1]:
        return "Rejected branches, where the target wrote its own tokens:"
    if not steps:
        return "Rejected drafts in this paragraph:"
    return "Rejected:" if number == 0 or piece.score is not None else "Discarded with it:"


def _row(who: str, letter: str, score: float | None, body: str, scored: bool) -> str:
    figure = "" if score is None else format(score, ".2f")
    shown = f'<span class="score">{figure}</span>' if scored else ""
    return (
        f'<div class="step {who}"><span class="who {who}" title="{SPOKEN[who]}">{letter}</span>{shown}'
        f'<div class="said" dir="auto">{body}</div></div>'
    )
