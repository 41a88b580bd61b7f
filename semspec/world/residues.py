"""Residue chains: "Modulo 100, let x=76, k is x - 2, b is 2 * k, h is b + x. Find h."."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from semspec.world.base import CHECKS, CLOSINGS, DOUBTS, Domain, Form, question_pattern

MODULUS = 100
_SLOTS = {
    **dict.fromkeys("tuv", "[a-z]"),
    **dict.fromkeys("rp", r"\d\d"),
    "E": r"(?:[a-z]|\d) [-+*] (?:[a-z]|\d)",
    "X": r"(?:[a-z]=\d\d|\d) [-+*] (?:[a-z]=\d\d|\d)",
}
_FORMS = {
    "goal": [
        "We are asked to find the value of {t}, so let us go through the definitions one by one.",
        "The goal is to work out {t}, and we do this by following the chain from its first value.",
        "Let us think about what is needed: the question wants {t}, and every definition leads to it.",
        "To answer the question we must know {t}, so we take the given facts in their order.",
    ],
    "start": [
        "The question starts with {v}={r}, so this is the first value that we know and can use.",
        "It is given that {v}={r}, and all the other values will follow from this one.",
        "We begin with what is given at the start of the question, which is that {v}={r}.",
        "First of all, we write down that {v}={r}, because the whole chain is built on it.",
    ],
    "value": [
        "Next we look at {v}, which is defined as {E}; since {X}, we get {v}={r}.",
        "The problem says that {v} is {E}, and because {X} here, it follows that {v}={r}.",
        "To find {v} we need {E}, so we take {X} modulo 100 and obtain {v}={r}.",
        "Now it is time for {v}: using {E} with the known values, {X} gives {v}={r}.",
        "Looking back at the question, {v} equals {E}, and putting in {X} leaves {v}={r}.",
        "We go on with {v}, where {E} is what we have to compute: {X} makes {v}={r}.",
    ],
    "recap": [
        "So far we know that {u}={p} and that {v}={r}, which is enough for what comes next.",
        "To sum up what we have until now, the last two values are {u}={p} and {v}={r}.",
        "Let us check where we are before we go on: {v}={r} was found after {u}={p}.",
        "At this point {v}={r} and {u}={p} are both known, so we can continue with the chain.",
    ],
    "doubt": DOUBTS,
    "check": CHECKS,
    "close": CLOSINGS,
    "final": [
        "All the values are known now, and therefore the answer to the question is {t}={r}.",
        "This was the last definition in the chain, so we are done and the result is {t}={r}.",
        "Since the question asks for {t}, we can stop here and give the value {t}={r}.",
        "Hence we arrive at {t}={r}, which is exactly what we were asked to find.",
    ],
}
_TERM = r"((?:[a-z]|\d)(?:=\d\d)?)"
_EXPRESSION = re.compile(rf"{_TERM} ([-+*]) {_TERM}")


class Residues(Domain):
    name = "residues"
    opening = "Modulo 100, let"
    question = question_pattern(opening, r" ([a-z])=(\d\d), ", r"(.+)\. Find ([a-z])\.")
    forms: ClassVar = {kind: [Form(text, _SLOTS) for text in own] for kind, own in _FORMS.items()}

    def draw_value(self, rng: random.Random) -> str:
        return f"{rng.randrange(MODULUS):02d}"

    def draw_expression(self, rng: random.Random, known: Sequence[str]) -> str:
        latest, draw = known[-1], rng.random()
        if draw < 0.30:
            return f"{rng.randint(2, 9)} * {latest}"
        if draw < 0.55 or len(known) == 1:
            return f"{latest} {rng.choice('+-')} {rng.randint(1, 9)}"
        pair = [latest, rng.choice(known[:-1])]
        if rng.random() < 0.3:
            pair.reverse()
        return f"{pair[0]} {rng.choice('+-')} {pair[1]}"

    def substitute(self, expression: str, values: Mapping[str, str]) -> str:
        return re.sub("[a-z]", lambda m: f"{m[0]}={values[m[0]]}", expression)

    def compute(self, operation: tuple[str, ...], values: Mapping[str, str]) -> str | None:
        sign, *terms = operation
        if any(t.isalpha() and t not in values for t in terms):
            return None
        a, b = (int(values[t]) if t.isalpha() else int(t) for t in terms)
        result = {"+": a + b, "-": a - b, "*": a * b}[sign]
        return f"{result % MODULUS:02d}"

    def read_expression(self, text: str) -> tuple[str, ...] | None:
        found = _EXPRESSION.fullmatch(text)
        if not found:
            return None
        first, sign, second = found.groups()
        # a + b and b + a mean the same
        return (sign, first, second) if sign == "-" else (sign, *sorted((first, second)))
