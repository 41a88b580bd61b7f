"""Weekday chains: "Counting weekdays, let x=Tuesday, k is 9 days after x, b is 4 days before k. Find b."."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from semspec.world.base import CHECKS, CLOSINGS, DOUBTS, Domain, Form, question_pattern

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FURTHEST = 9  # days that one line may count
_DAY = "|".join(WEEKDAYS)
_SLOTS = {
    **dict.fromkeys("tuv", "[a-z]"),
    **dict.fromkeys("rp", f"(?:{_DAY})"),
    "E": r"\d days (?:after|before) [a-z]",
    "X": rf"\d days (?:after|before) [a-z]=(?:{_DAY})",
}
_FORMS = {
    "goal": [
        "We are asked on which day {t} falls, so let us follow the days one by one.",
        "The goal is the weekday of {t}, and we reach it by counting from the first day.",
        "Let us think about what is needed: the question wants the day {t}, and every line leads to it.",
        "To answer the question we must know {t}, so we take the given days in their order.",
    ],
    "start": [
        "The question starts with {v}={r}, so this is the first day that we know and can use.",
        "It is given that {v}={r}, and all the other days will follow from this one.",
        "We begin with what is given at the start of the question, which is that {v}={r}.",
        "First of all, we write down that {v}={r}, because we count every day from it.",
    ],
    "value": [
        "Next we look at {v}, which is {E}; counting {X}, we get {v}={r}.",
        "The problem says that {v} is {E}, and as {X} is the same, {v}={r}.",
        "To find {v} we need {E}, so we count {X} and obtain {v}={r}.",
        "Now it is time for {v}: it comes {E}, and {X} gives {v}={r}.",
        "Looking back at the question, {v} falls {E}, and {X} leaves {v}={r}.",
        "We go on with {v}, where {E} is what we have to count: {X} makes {v}={r}.",
    ],
    "recap": [
        "So far we know that {u}={p} and that {v}={r}, which is enough for what comes next.",
        "To sum up what we have until now, the last two days are {u}={p} and {v}={r}.",
        "Let us check where we are before we go on: {v}={r} was found after {u}={p}.",
        "At this point {v}={r} and {u}={p} are both known, so we can continue to count.",
    ],
    "doubt": DOUBTS,
    "check": CHECKS,
    "close": CLOSINGS,
    "final": [
        "All the days are known now, and therefore the answer to the question is {t}={r}.",
        "This was the last line of the question, so we are done and the result is {t}={r}.",
        "Since the question asks for {t}, we can stop here and give the day {t}={r}.",
        "Hence we arrive at {t}={r}, which is exactly what we were asked to find.",
    ],
}
_EXPRESSION = re.compile(rf"(\d) days (after|before) ([a-z](?:=(?:{_DAY}))?)")


class Weekdays(Domain):
    name = "weekdays"
    opening = "Counting weekdays, let"
    question = question_pattern(opening, rf" ([a-z])=({_DAY}), ", r"(.+)\. Find ([a-z])\.")
    forms: ClassVar = {kind: [Form(text, _SLOTS) for text in own] for kind, own in _FORMS.items()}

    def draw_value(self, rng: random.Random) -> str:
        return rng.choice(WEEKDAYS)

    def draw_expression(self, rng: random.Random, known: Sequence[str]) -> str:
        anchor = known[-1] if rng.random() < 0.6 else rng.choice(known)
        return f"{rng.randint(2, FURTHEST)} days {rng.choice(('after', 'before'))} {anchor}"

    def substitute(self, expression: str, values: Mapping[str, str]) -> str:
        return f"{expression}={values[expression[-1]]}"

    def compute(self, operation: tuple[str, ...], values: Mapping[str, str]) -> str | None:
        side, days, anchor = operation
        if anchor not in values:
            return None
        shift = int(days) if side == "after" else -int(days)
        return WEEKDAYS[(WEEKDAYS.index(values[anchor]) + shift) % len(WEEKDAYS)]

    def read_expression(self, text: str) -> tuple[str, ...] | None:
        found = _EXPRESSION.fullmatch(text)
        return (found[2], found[1], found[3]) if found else None
