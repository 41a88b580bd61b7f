"""Splitters: difficult cases by hand, invariants by hypothesis."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.decoding.units import unit_ends
from semspec.protocols import Splitter
from semspec.registry import plugin, plugins

CAP = 10_000
NAMES = ("paragraph", "sentence", "token")


def splitter(name: str) -> Splitter:
    made: Splitter = plugin("split", name).cls()
    return made


def stream(name: str, pieces: list[str], cap: int = CAP) -> list[int | None]:
    boundary = splitter(name).open(pieces.__getitem__, cap)
    return [boundary.feed(i) for i in range(len(pieces))]


def units(name: str, pieces: list[str], cap: int = CAP) -> list[str]:
    """The units as text, the unfinished rest last."""
    ends = unit_ends(splitter(name).open(pieces.__getitem__, cap), range(len(pieces)))
    cuts = [0, *ends, len(pieces)]
    texts = ["".join(pieces[a:b]) for a, b in pairwise(cuts)]
    return texts if texts[-1] else texts[:-1]


def words(text: str) -> list[str]:
    """As byte-level BPE does it: the space goes with the word after it, stops stand alone."""
    return re.findall(r" ?[\w]+| ?[^\s\w]|\s+(?!\S)|\s+", text)


def characters(text: str) -> list[str]:
    return list(text)


def pairs(text: str) -> list[str]:
    return [text[i : i + 2] for i in range(0, len(text), 2)]


def gappy(text: str) -> list[str]:
    """Characters with tokens that have no text in between."""
    return [p for c in text for p in (c, "")]


def test_all_splitters_are_registered() -> None:
    assert set(NAMES) <= set(plugins("split"))
    assert all(plugins("split")[name].summary for name in NAMES)


def test_every_token_is_a_unit() -> None:
    assert stream("token", ["a", "", "\n\n", "<|im_end|>"]) == [0, 0, 0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_a_cap_below_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cap"):
        splitter(name).open(str, 0)


# ---- paragraph --------------------------------------------------------------------------------

PARAGRAPHS: list[tuple[list[str], list[int | None]]] = [
    (["We", " go", "\n\n", "On"], [None, None, 0, None]),
    (["We", "\n", "\n", "On"], [None, None, 0, None]),
    (["We", ".\n", "\nOn"], [None, None, 0]),
    (["We", ".\n\n", "On"], [None, 0, None]),
    (["We", "\n\nOn", " and"], [None, 0, None]),
    (["We", "\n\n\n", "On"], [None, 0, None]),
    (["We", "\n\n", "\n", "On", "\n\n"], [None, 0, None, None, 0]),
    (["We", "\n\n", "\n\n", "\n\n", "On", "\n\n"], [None, 0, None, None, None, 0]),
    (["We", "\r\n\r\n", "On"], [None, 0, None]),
    (["We", "\r\n", "\r\n", "On"], [None, None, 0, None]),
    (["We", "\r", "\n", "\r", "\n"], [None, None, None, None, 0]),
    (["We", "\r\r"], [None, None]),
    (["We", "\n", "go", "\n"], [None, None, None, None]),
    (["We", "\n", " ", "\n"], [None, None, None, None]),
    (["We", "\n", "", "\n"], [None, None, None, 0]),
    (["We", "\n", "\ufffd", "\n"], [None, None, None, None]),
    (["\n\n", "We", "\n\n"], [None, None, 0]),
    (["  \n\n ", "We\n\n"], [None, 0]),
    (["\n\nWe\n\nOn\n\n", "x"], [0, None]),
    (["<think>", "\n\n", "x"], [None, 0, None]),
    (["A:\n\n", "x", "\n"], [0, None, None]),  # the first end leaves nothing behind
]


@pytest.mark.parametrize(("pieces", "steps"), PARAGRAPHS)
def test_a_blank_line_ends_a_paragraph(pieces: list[str], steps: list[int | None]) -> None:
    assert stream("paragraph", pieces) == steps


def test_a_cap_ends_a_paragraph() -> None:
    assert stream("paragraph", ["a", "b", "c", "\n\n", "d"], cap=3) == [None, None, 0, None, None]
    assert stream("paragraph", ["\n"] * 5, cap=2) == [None, 0, None, 0, None]


# ---- sentence ---------------------------------------------------------------------------------

SENTENCES = r"""
We add them.| That is five.
Is it so?| Yes!| It is.
It is 3.14 and not 3.| Then we stop.
Some (e.g. Three or four) are odd.| Fine.
It holds, i.e. It is true.| Done.
Here w.r.t. X it holds.| Done.
Ask Dr. Smith and Prof. Jones.| They know.
We take a_1, \ldots, a_n.| Then go.
We take 1, 2, ..., 9 here.| Then go.
Well... let me see.| It is 1 + ... + 9 now.
Well...| Then it ends.
See No. 5 here.| Then go.
No.| That is wrong.
See Fig. 3 and Eq. (4) there.| Then go.
By J. R. Smith and Donald E. Knuth it holds.| Then go.
The answer is C.| Then go.
Choose option (B).| Then go.
See https://a.b.c/d.html?x=1.y for it.| Then go.
Use version 2.0.1 of v3.2.| Then go.
Take f(x).y and g(x).| Then go.
He said "Stop."| Then he went.
He said “Stop!”| Then he went.
He said 'Really?' and left.| Then we went.
(It is so.)| [Then it ends.]| So.
**It is so.**| Then $x = 3.$| Then go.
We get $x = 3$.| $y$ is next.
So x = 3.| y is 4.| Then go.
So 5! - 3! is 114 and n! is more.| Then go.
So 5! = 120.| Then go.
1. Do this.| 2. Do that.
We do:\n1. Do this.\n|2. Do that.
- a. Do this.| Good.
It is ten a.m. now.| It is ten a.m.| Then go.
It is so.\n|Then go.
It is so.  | Then go.
It is so\n\n|Then go.
It is so.\n\n|\n\nThen go.
一加一等于二。|所以是二！|是吗？|对。
他说“好。”|然后走了。
一加一。 |好（对吗？）|是3.14的。
ok so etc., and so on.| Then go.
So approx. 5 of them.| Then go.
Hmm.| I see.| I do.
Wait.| 5 is odd.| 6 is not.
Done.</think>\n\n|So.
Is it?!| Yes.
It is so.| (See above.)| Then go.
""".strip().splitlines()


@pytest.mark.parametrize("tokenise", [words, characters, gappy])
@pytest.mark.parametrize("marked", SENTENCES)
def test_a_sentence_ends_where_marked(marked: str, tokenise: object) -> None:
    assert callable(tokenise)
    expected = marked.replace(r"\n", "\n").split("|")
    pieces = tokenise("".join(expected))
    found = units("sentence", pieces)
    # where exactly the space between two sentences goes depends on the tokens
    assert [u.strip() for u in found] == [u.strip() for u in expected]


SENTENCE_STEPS: list[tuple[list[str], list[int | None]]] = [
    (["It", " is", ".", " So"], [None, None, None, -1]),
    (["It", ".", " ", "So"], [None, None, None, -1]),  # the space stays with the first
    (["It", ".", " ", "\n", " So"], [None, None, None, None, -1]),
    (["It", ".", '"', " So"], [None, None, None, -1]),
    (["It", ".", '" So', " on"], [None, None, 0, None]),  # the end lies within the token
    (["It", " is. So", " on"], [None, 0, None]),
    (["It", ".", "\n\n", "So"], [None, None, 0, None]),
    (["It", ".\n\n", "So"], [None, 0, None]),
    (["It", ".", "\n", "\n", "\n", "So"], [None, None, None, 0, None, None]),
    (["It", ".", "", " So"], [None, None, None, -1]),
    (["It", ".", " \ufffd", "\ufffd"], [None, None, -1, None]),
    (["It", ".", "<|im_end|>"], [None, None, None]),
    (["3", ".", "14", " x"], [None, None, None, None]),
    (["对", "。", "好"], [None, None, -1]),
    (["对", "。", "」", "好"], [None, None, None, -1]),
    (["对。好", "。"], [0, None]),
    # two ends within one token: the second is told at the next
    (["It", ".", " So.\n\n", "Go"], [None, None, -1, -1]),
    (["It", ".", " So. Go", " on", "."], [None, None, -1, -1, None]),
    (["It", ".", " So.\n\n", " So.\n\n", "Go"], [None, None, -1, -1, -1]),
    ([".", " ", "So", "."], [None, None, None, None]),  # a unit has a word
    (["\n\n", "\n\n", "So", "\n\n"], [None, None, None, 0]),
]


@pytest.mark.parametrize(("pieces", "steps"), SENTENCE_STEPS)
def test_sentences_end_at_the_expected_token(pieces: list[str], steps: list[int | None]) -> None:
    assert stream("sentence", pieces) == steps


def test_a_cap_ends_a_sentence() -> None:
    assert stream("sentence", ["a", "b", "c", "d"], cap=2) == [None, 0, None, 0]
    assert stream("sentence", ["It", ".", " B", " c"], cap=3) == [None, None, -1, None]
    assert stream("sentence", ["A", ".", " B", " c"], cap=2) == [None, 0, None, 0]


# ---- all --------------------------------------------------------------------------------------

FRAGMENTS = [
    *(
        "",
        " ",
        "\n",
        "\n\n",
        "\r\n",
        "\n\n\n",
        ".\n\n",
        "\n\nWe",
        ". ",
        ".",
        "...",
        "?",
        "! ",
        "。",
    ),
    *(
        "」",
        '"',
        ")",
        "**",
        " e",
        "e.g",
        "Dr",
        "No",
        " 5",
        "3",
        "A",
        " So",
        " so",
        "So. Go",
        " So.\n\n",
    ),
    *("\ufffd", "<think>", ",", " +", "好", "(", "\\ldots"),
]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=40)
caps = st.integers(1, 12)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=300, deadline=None)
@given(pieces=texts, cap=caps)
def test_units_are_a_partition(name: str, pieces: list[str], cap: int) -> None:
    steps = stream(name, pieces, cap)
    ends = unit_ends(splitter(name).open(pieces.__getitem__, cap), range(len(pieces)))
    assert ends == [i + 1 + s for i, s in enumerate(steps) if s is not None]
    assert ends == sorted(set(ends))
    assert all(0 < end <= len(pieces) for end in ends)
    cuts = [0, *ends]
    assert all(b - a <= cap for a, b in pairwise(cuts))
    assert len(pieces) - cuts[-1] <= cap  # one more only where an end is still to be told
    assert "".join(units(name, pieces, cap)) == "".join(pieces)
    if name != "token" and cap > len(pieces):
        finished = ["".join(pieces[a:b]) for a, b in pairwise(cuts)]
        assert all(u.strip() for u in finished)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=300, deadline=None)
@given(pieces=texts, cap=caps)
def test_a_fresh_boundary_at_each_end_finds_the_same(
    name: str, pieces: list[str], cap: int
) -> None:
    """Generation opens a boundary a unit; scoring streams through. Both must agree."""
    made = splitter(name)
    through = unit_ends(made.open(pieces.__getitem__, cap), range(len(pieces)))
    fresh: list[int] = []
    at = 0
    while at < len(pieces):
        boundary = made.open(pieces.__getitem__, cap)
        step = None
        for index in range(at, len(pieces)):
            step = boundary.feed(index)
            if step is not None:
                at = index + 1 + step
                fresh.append(at)
                break
        if step is None:
            break
    # one token that closes two units tells the second at the next token, if there is one
    assert through in (fresh, fresh[:-1])


@settings(max_examples=200, deadline=None)
@given(pieces=texts, seed=st.integers(0, 2**32))
def test_paragraphs_do_not_depend_on_the_tokens(pieces: list[str], seed: int) -> None:
    """However the text is cut into tokens, as long as no token goes on after a delimiter."""
    text = "".join(pieces)
    by_character = units("paragraph", list(text))
    rng = random.Random(seed)
    cut: list[str] = []
    for unit in by_character:
        while unit:
            size = rng.randint(1, 4)
            cut.append(unit[:size])
            unit = unit[size:]
    assert units("paragraph", cut) == by_character


@pytest.mark.parametrize("name", NAMES)
def test_long_streams_cost_constant_memory(name: str) -> None:
    boundary = splitter(name).open(lambda _: "x" * 50, 10**9)
    assert name == "token" or all(boundary.feed(i) is None for i in range(20_000))
