"""What a client sees of a model's tokens: thinking and answer, stop strings, whole characters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semspec.models.spelling import Spelling
from semspec.serve.reading import Reader


def decode(tokens: Sequence[int]) -> str:
    """Each token is a byte, as the bytes of a byte-level vocabulary are."""
    return bytes(tokens).decode("utf-8", "replace")


def read(text: str, *, size: int = 1, **options: object) -> tuple[str, str, Reader]:
    reader = Reader(decode, **{"opened": True, **options})  # type: ignore[arg-type]
    said = [one for token in text.encode() for one in reader.feed(token)] + reader.flush()
    parts = {"reasoning": "", "content": ""}
    for channel, part in said:
        assert part and "\N{REPLACEMENT CHARACTER}" not in part
        parts[channel] += part
    return parts["reasoning"], parts["content"], reader


@pytest.mark.parametrize(
    ("text", "opened", "thought", "answer"),
    [
        ("\nI think.\n\n</think>\n\nSo: 4.", True, "I think.", "So: 4."),
        ("<think>\nI think.\n</think>So", False, "I think.", "So"),
        ("  \n<think>x</think>y", False, "x", "y"),
        ("No thinking </think> here", False, "", "No thinking </think> here"),
        ("<thin", False, "", "<thin"),
        ("all of it", True, "all of it", ""),
        ("a </thin b", True, "a </thin b", ""),
        ("漢字 🙂 </think> é", True, "漢字 🙂", "é"),
        ("</think>", True, "", ""),
    ],
)
def test_thinking_and_answer_are_told_apart(text: str, opened: bool, thought: str, answer: str) -> None:  # fmt: skip
    assert read(text, opened=opened)[:2] == (thought, answer)


def test_tokens_of_the_thinking_are_counted_to_its_closing_tag() -> None:
    *_, reader = read("abc</think>def")
    assert reader.thinking_tokens == len("abc</think>")
    *_, reader = read("abc", opened=False)
    assert reader.thinking_tokens == 0


def test_stop_texts_are_of_the_answer_alone() -> None:
    thought, answer, reader = read("one END two</think>three END four", stops=("END", "xyz"))
    assert (thought, answer) == ("one END two", "three ")
    assert reader.stopped
    _, answer, reader = read("a EN b E", opened=False, stops=("END",))
    assert answer == "a EN b E" and not reader.stopped  # what had been held back comes at the end
    assert read("<think>x END y", opened=False, chat=False, stops=("END",))[1] == "<think>x "


@given(
    st.text(st.sampled_from("ab</think>é🙂 \n"), max_size=40),
    st.booleans(),
    st.lists(st.text(st.sampled_from("ab</é"), min_size=1, max_size=3), max_size=3),
)
def test_nothing_is_lost_and_nothing_behind_a_stop_is_told(text: str, opened: bool, stops: list[str]) -> None:  # fmt: skip
    thought, answer, reader = read(text, opened=opened, stops=tuple(stops))
    if not stops:
        kept = [c for c in thought + answer if not c.isspace()]
        begun = not opened and text.lstrip().startswith("<think>")
        tags = text.replace("<think>", "", 1) if begun else text
        tags = tags.replace("</think>", "", 1) if reader.thinking_tokens else tags
        assert kept == [c for c in tags if not c.isspace()]
    assert not any(stop in answer for stop in stops)


@given(
    st.text(st.sampled_from("ab</think>é🙂 \n"), max_size=60),
    st.booleans(),
    st.lists(st.integers(1, 9), max_size=60),
    st.sampled_from([(), ("b a",)]),
)
def test_tokens_read_in_runs_say_what_they_say_one_by_one(text: str, opened: bool, runs: list[int], stops: tuple[str, ...]) -> None:  # fmt: skip
    thought, answer, alone = read(text, opened=opened, stops=stops)
    reader, left, said = Reader(decode, opened=opened, stops=stops), list(text.encode()), []
    while left:
        size = runs.pop() if runs else 3
        run, left = left[:size], left[size:]
        said += reader.feed_run(run)
    parts = {"reasoning": "", "content": ""}
    for channel, part in [*said, *reader.flush()]:
        parts[channel] += part
    assert (parts["reasoning"], parts["content"]) == (thought, answer)
    assert (reader.thinking_tokens, reader.stopped) == (alone.thinking_tokens, alone.stopped)


def test_half_a_character_waits_but_not_for_ever() -> None:
    spelling = Spelling(decode)
    assert [spelling.feed([byte]) for byte in "é".encode()] == ["", "é"]
    broken = Spelling(decode)
    told = "".join(broken.feed([0xF0]) for _ in range(40))
    assert told + broken.flush() == "\N{REPLACEMENT CHARACTER}" * 40
