"""The display of a run, with and without a terminal, at 80 columns and without colour."""

from __future__ import annotations

import io
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import RenderableType

from semspec.report.html_transcript import Limits, steps_of
from semspec.report.terminal import Progress, Screen, duration, notes, result_table
from semspec.report.transcript import Piece, Transcript, pieces
from semspec.results.metrics import summarise
from semspec.results.records import Solve, problem_line
from semspec.types import Round

Line = dict[str, Any]


def a_solve(**changed: Any) -> Solve:
    values: dict[str, Any] = dict.fromkeys(Solve.__dataclass_fields__, 0)
    values |= {
        "text": "",
        "finish": "eos",
        "answer": None,
        "correct": True,
        "details": {},
        "reuse": {},
        "counts": {},
    }
    values |= {"seconds": 2.0, "tokens": 100, "drafts": 4, "drafted_units": 8, "kept_units": 6}
    values |= changed
    return Solve(**{**values, "wall": values["seconds"]})


def a_line(n: int = 0, plain: bool = True, **changed: Any) -> Line:
    other = a_solve(seconds=6.0, drafts=0, drafted_units=0, kept_units=0) if plain else None
    return problem_line(f"p{n}", a_solve(**changed), other)


def shown(what: RenderableType, width: int = 80) -> str:
    console = Screen(width=width, file=io.StringIO(), record=True, force_terminal=True)
    console.print(what)
    return console.export_text()


def coloured(what: RenderableType) -> str:
    file = io.StringIO()
    Screen(width=80, file=file, force_terminal=True, color_system="standard").print(what)
    return file.getvalue()


def ticking(step: float) -> Callable[[], float]:
    clock = itertools.count()
    return lambda: next(clock) * step


# --- progress ---


def test_without_a_terminal_lines_are_few() -> None:
    file = io.StringIO()
    now = [0.0]
    with Progress(100, console=Screen(file=file), every=5.0, clock=lambda: now[0]) as progress:
        for n in range(100):
            progress.begin(f"p{n}", "plain")
            now[0] += 0.2
            progress.advance(a_line(n))
    lines = file.getvalue().splitlines()
    assert 4 <= len(lines) <= 5  # 20 seconds: three or four on the way, one at the end
    assert lines[-1].startswith("100/100  pass@1 1.00 (plain 1.00)  50.0 tok/s (plain 16.7)  3.00x")
    assert "accepted 75 %" in lines[-1] and "eta" not in lines[-1]
    assert "eta 0:" in lines[0]
    assert "\x1b" not in file.getvalue()


def test_quiet_progress_prints_nothing() -> None:
    for live in (False, True):
        file = io.StringIO()
        console = Screen(file=file, force_terminal=live)
        with Progress(1, quiet=True, console=console, live=live, clock=ticking(60)) as progress:
            progress.begin("p0", "plain")
            progress.advance(a_line())
        assert file.getvalue() == ""


def test_live_progress_ends_with_one_line() -> None:
    file = io.StringIO()
    console = Screen(file=file, force_terminal=True, width=80)
    with Progress(2, console=console, live=True) as progress:
        progress.begin("p0", "speculative")
        progress.advance(a_line())
    last = re.sub(r"\x1b\[[?\d]*\w", "", file.getvalue().splitlines()[-1])
    assert last.startswith("1/2  pass@1")
    assert file.getvalue().count("\x1b[?25h") == 1  # the cursor is back


def test_forced_colour_in_a_pipe_is_not_taken_for_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = io.StringIO()
    with Progress(1, console=Screen(file=file), clock=ticking(1)) as progress:
        progress.advance(a_line())
    assert "\x1b[?25" not in file.getvalue() and len(file.getvalue().splitlines()) == 1


def test_the_live_display_fits_80_columns() -> None:
    progress = Progress(500, console=Screen(file=io.StringIO()), clock=ticking(1000))
    for n in range(123):
        progress.advance(a_line(n, tokens=1234567))
    progress.begin("an-identifier-" * 20, "speculative")
    lines = shown(progress.render()).splitlines()
    assert len(lines) == 4 and all(cell_len(line) <= 80 for line in lines)
    assert "123/500" in lines[0] and "plain" in lines[1] and "3.00x" in lines[2]


def test_resumed_problems_count_but_not_for_the_pace() -> None:
    now = [0.0]
    progress = Progress(10, console=Screen(file=io.StringIO()), clock=lambda: now[0])
    progress.resume(a_line(n) for n in range(6))
    assert progress.done == 6 and progress.eta is None
    now[0] = 30.0
    progress.advance(a_line(6))
    assert progress.eta == pytest.approx(90.0)
    assert progress.headline().startswith("7/10  pass@1 1.00")


def test_progress_copes_without_plain_grades_or_total() -> None:
    progress = Progress(None, console=Screen(file=io.StringIO()))
    assert progress.headline() == "0  pass@1 -  - tok/s  accepted -"
    shown(progress.render())
    progress.advance(a_line(plain=False, correct=None))
    assert progress.headline() == "1  pass@1 -  50.0 tok/s  accepted 75 %"
    assert "plain" not in shown(progress.render())


def test_durations_are_in_hours_minutes_and_seconds() -> None:
    assert [duration(s) for s in (0.2, 61, 3599.7, 3661)] == ["0:00", "1:01", "1:00:00", "1:01:01"]


# --- result ---


def test_the_table_has_both_modes_and_intervals() -> None:
    lines = [a_line(n, details={"steps": 4, "steps_true": 3}) for n in range(12)]
    text = shown(result_table(summarise(lines)))
    rows = {line[:25].strip(): line[25:].split() for line in text.splitlines()}
    assert rows["pass@1 [95 %]"] == ["1.000", "[0.76,", "1.00]"] * 2
    assert rows["speed-up [95 %]"] == ["1.00x", "3.00x", "[3.00,", "3.00]"]
    assert rows["tokens per second"] == ["16.7", "50.0"]
    assert rows["steps true"] == ["-", "75", "%"]
    assert rows["units accepted"] == ["-", "75", "%"]
    assert max(map(cell_len, text.splitlines())) <= 80
    assert "note" not in text


def test_a_judges_rating_is_shown_where_there_is_one() -> None:
    lines = [a_line(n, correct=None, details={"rating": r}) for n, r in enumerate((6.0, 9.0))]
    assert "judge's rating" in (text := shown(result_table(summarise(lines))))
    assert "7.50" in text
    assert "judge" not in shown(result_table(summarise([a_line()])))


def test_short_latencies_keep_their_digits() -> None:
    text = shown(result_table(summarise([a_line(seconds=0.01234)])))
    assert "0.0123" in text and "6.00 / 6.00" in text


def test_the_table_leaves_out_the_plain_mode() -> None:
    text = shown(result_table(summarise([a_line(n, plain=False) for n in range(10)])))
    assert "speed-up [95 %]" not in text
    assert "note: the target alone was not run, so there is no speed-up" in text


def test_missing_figures_are_explained_in_notes() -> None:
    def told(*lines: Line) -> str:
        return " | ".join(notes(summarise(lines)))

    assert "1 problem: too few for an interval" in told(a_line())
    assert "2 problems: the intervals are rough" in told(a_line(), a_line(1))
    assert "nothing was graded" in told(a_line(correct=None))
    assert "1 of 2 problems were not graded" in told(a_line(), a_line(1, correct=None))
    assert "over the 1 problems" in told(a_line(), a_line(1, plain=False))
    rare = [a_line(finish="budget"), *(a_line(n) for n in range(1, 20))]  # one of 20
    assert "cut off at the token budget: 0 plain, 1 speculative" in told(*rare)
    assert "correct only when plain: 1, only when speculative: 0" in told(a_line(correct=False))
    assert "nothing was drafted" in told(a_line(drafted_units=0))
    assert told() == "no problem was solved, so there are no figures"
    shown(result_table(summarise([])))


def test_a_budget_that_cuts_many_answers_is_to_be_raised() -> None:
    cut = [a_line(n, finish="budget" if n < 3 else "eos") for n in range(20)]
    result = summarise(cut)
    told = "15 % of the speculative answers were cut off at max_new_tokens=512: raise it"
    assert told in " ".join(shown(result_table(result, budget=512)).split())
    result["plain"]["cut_off"] = 2
    (note,) = (n for n in notes(result, 99) if "cut off" in n)
    assert note.startswith(
        "10 % of the plain answers and 15 % of the speculative answers were cut off at max_new_tokens=99"
    )
    (note,) = (n for n in notes(result) if "cut off" in n)
    assert "cut off at the token budget: raise it" in note


# --- transcript ---

TEXT = ["First, x=76.\n\n", "Next, ", "y=04.\n\n", "No [b]idea[/b].\n\n", "More.\n\n", "So y=04."]


def decode(tokens: Sequence[int]) -> str:
    return "".join(TEXT[t] for t in tokens)


ROUNDS = [
    Round(drafted=[0], ends=[1], kept=[0], scores=[0.93]),
    Round(drafted=[3, 4], ends=[1, 2], scores=[0.1], handed=[1, 2], note="0.10 < 0.50"),
    Round(drafted=[1, 4], ends=[2], kept=[1], written=[5], scores=[0.5]),
]
EXPECTED = """\
D│ draft   T│ target   D+T│ both   x│ rejected draft   0.00│ its score
  D  0.93│ First, x=76.
  T      │ Next, y=04.
  x  0.10│ No [b]idea[/b].
  x      │ More.
  ·      │ 0.10 < 0.50
D+T  0.50│ Next, So y=04.
  x  0.50│ More.
"""


def test_a_transcript_is_the_same_from_rounds_and_from_lines() -> None:
    assert shown(Transcript(pieces(ROUNDS, decode))) == EXPECTED
    stored = [asdict(r) for r in ROUNDS]
    assert shown(Transcript(pieces(stored, decode))) == EXPECTED


def test_salvaged_text_is_the_drafts() -> None:
    rounds = [
        Round(drafted=[1, 3], ends=[2], written=[1, 2], scores=[0.1], note="1 of 2 tokens salvaged")
    ]
    made = list(pieces(rounds, decode))
    assert [(p.writer, p.text, p.salvaged) for p in made if not p.rejected] == [
        ("draft", "Next, ", True),
        ("target", "y=04.\n\n", False),
    ]
    lines = shown(Transcript(made)).splitlines()
    assert "D│ salvaged" in lines[0] and lines[1].startswith("D+T      │ Next, y=04.")
    assert "\x1b[4;36mNext, " in coloured(Transcript(made))  # underlined
    tokens = [Round(drafted=[1], ends=[1], written=[1])]  # no step, so nothing is salvaged
    assert not any(p.salvaged for p in pieces(tokens, decode, "tokens"))


def test_pass_at_1_that_differs_has_a_star() -> None:
    def told(lost: int) -> str:
        lines = [a_line(n, correct=n >= lost) for n in range(20)]
        return shown(result_table(summarise(lines)))

    assert "0.600* [" in told(8) and "(*: more than chance" in told(8)
    assert "*" not in told(3)


def test_rejected_drafts_can_be_left_out() -> None:
    text = shown(Transcript(pieces(ROUNDS, decode), rejected=False))
    assert [line[:3] for line in text.splitlines()] == ["D│ ", "  D", "  T", "  ·", "D+T"]
    assert "rejected" not in text


def test_colours_show_who_wrote() -> None:
    text = coloured(Transcript(pieces(ROUNDS, decode)))
    assert "\x1b[36mFirst, x=76." in text  # the draft's
    assert "\x1b[1;33mNext, y=04." in text  # the target's
    assert "\x1b[2;9mMore." in text  # rejected: dim and struck
    assert "\x1b[36mNext, \x1b[0m\x1b[1;33mSo y=04." in text  # both within the line


def test_a_plain_solution_is_split_into_paragraphs() -> None:
    rounds = [Round(handed=[0, 1, 2, 5])]
    text = shown(Transcript(pieces(rounds, decode)))
    assert text.splitlines()[1:] == ["  T│ First, x=76.", "  T│ Next, y=04.", "  T│ So y=04."]


def test_tokens_of_a_paragraph_share_a_line() -> None:
    tokens = ["Let", " us", " see", ".", "\n", "\n", "Then"]
    rounds = [
        Round(drafted=[0, 1, 3], ends=[1, 2, 3], kept=[0, 1], written=[2], scores=[1, 1, 0]),
        Round(drafted=[3, 4], ends=[1, 2], kept=[3, 4], written=[5]),
        Round(drafted=[0], ends=[1], kept=[], written=[6]),
    ]
    text = shown(
        Transcript(pieces(rounds, lambda ids: "".join(tokens[i] for i in ids), unit="tokens"))
    )
    assert text.splitlines()[1:] == [
        "D+T│ Let us see.",
        "  x│ .",
        "  T│ Then",
        "  x│ Let",
    ]


def test_many_small_rejections_share_a_row() -> None:
    rounds = [Round(drafted=[5], ends=[1], written=[1])] * 4
    text = shown(Transcript(pieces(rounds, decode, unit="tokens")))
    assert text.splitlines()[2:] == ["  x│ So y=04. / So y=04. / So y=04. / So y=04."]


def test_a_tree_shows_what_was_kept_and_what_stood_where_the_target_went_on() -> None:
    words = ["So", " we", " take", " y", " z", " w", " find", " end"]
    tree = Round(
        #        So we|take; below "we": y|z|w|end, below "y": find
        drafted=[0, 1, 2, 3, 4, 5, 7, 6],
        parents=[-1, 0, 0, 1, 1, 1, 1, 3],
        ends=[*range(1, 9)],
        kept=[0, 1],
        written=[2],
    )
    leaf = Round(
        drafted=[3], parents=[-1], ends=[1], kept=[3], written=[6]
    )  # nothing is left of it
    made = list(pieces([tree, leaf], lambda ids: "".join(words[i] for i in ids), unit="tokens"))
    assert "".join(p.text for p in made if not p.rejected) == "So we take y find"
    assert [(p.text, p.nodes) for p in made if p.rejected] == [
        ("y find | z | w", (2, 8)), ("", (1, 1))  # the first three
    ]  # fmt: skip
    assert shown(Transcript(made)).splitlines()[1:] == [
        "D+T│ So we take y find",
        "  x│ y find | z | w",
    ]
    page = steps_of(made, False, Limits())
    assert (
        "<del>y find</del> | <del>z</del> | <del>w</del>" in page
        and "trees: 3 of 9 nodes kept" in page
    )


def test_long_steps_wrap_behind_the_mark() -> None:
    long = "Because of this we find " * 12 + "数学 " * 30
    text = shown(Transcript([Piece("draft", long, score=0.5, ends=True)]))
    rows = text.splitlines()[1:]
    assert len(rows) > 4 and all(cell_len(row) <= 80 for row in rows)
    assert rows[0].startswith("  D  0.50│ ") and all(r.startswith(" " * 9 + "│ ") for r in rows[1:])
    for width in (20, 1):
        shown(Transcript([Piece("target", long)]), width)


def test_text_cannot_control_the_terminal() -> None:
    text = coloured(Transcript([Piece("draft", "a\x1b[2J\x07b\tc\r\nd\x9b\u202e", ends=True)]))
    assert "\x1b[2J" not in text and "\x07" not in text and "\x9b" not in text
    assert "\u202e" not in text and "a␛[2J␇b    c" in text


def test_characters_split_over_pieces_appear_whole() -> None:
    """Byte-level tokens: half a character is nothing until its other half comes."""
    data = "é = 4 数".encode()

    def by_bytes(tokens: Sequence[int]) -> str:
        return bytes(data[t] for t in tokens).decode(errors="replace")

    for cut in range(len(data)):
        rounds = [
            Round(drafted=[*range(cut)], ends=[cut] if cut else [], kept=[*range(cut)]),
            Round(handed=[*range(cut, len(data))]),
        ]
        assert "".join(p.text for p in pieces(rounds, by_bytes)) == "é = 4 数"
    broken = [Round(handed=[0])]
    assert "".join(p.text for p in pieces(broken, by_bytes)) == "\N{REPLACEMENT CHARACTER}"


@given(st.data())
def test_kept_pieces_make_up_the_output(data: st.DataObject) -> None:
    """Whatever the rounds, the pieces that were not rejected are the output."""
    vocabulary = ["a", " b", ".", "\n", "\n\n", "c.\n\n", "é"]
    token = st.integers(0, len(vocabulary) - 1)
    rounds = []
    for _ in range(data.draw(st.integers(0, 5))):
        drafted = data.draw(st.lists(token, max_size=6))
        ends = sorted(data.draw(st.sets(st.integers(1, len(drafted))))) if drafted else []
        kept = drafted[: data.draw(st.integers(0, len(drafted)))]
        written, handed = data.draw(st.lists(token, max_size=2)), data.draw(st.lists(token))
        scores = [0.5] * data.draw(st.integers(0, len(ends)))
        rounds.append(Round(drafted, ends, kept, written, handed, scores=scores))

    def text_of(ids: Sequence[int]) -> str:
        return "".join(vocabulary[i] for i in ids)

    whole = text_of([t for r in rounds for t in [*r.kept, *r.written, *r.handed]])
    unit = data.draw(st.sampled_from(["steps", "tokens"]))
    made = list(pieces(rounds, text_of, unit))  # type: ignore[arg-type]
    assert "".join(p.text for p in made if not p.rejected) == whole
    gone = "".join(p.text for p in made if p.rejected)
    assert gone == text_of([t for r in rounds for t in r.drafted[len(r.kept) :]])
    said = "".join(
        line.partition("│ ")[2] for line in shown(Transcript(made, rejected=False)).splitlines()[1:]
    )
    assert "".join(said.split()) == "".join(whole.split())


def test_a_poor_encoding_shows_question_marks() -> None:
    code = (
        "from semspec.report.terminal import open_console\n"
        "from semspec.report.transcript import Piece, Transcript\n"
        "open_console().print(Transcript([Piece('draft', 'caf\\u00e9')]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        cwd=Path(__file__).resolve().parents[2],
        env={"PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert done.stdout.splitlines()[-1] == b"  D| caf?"
