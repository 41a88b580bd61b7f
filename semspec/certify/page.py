"""Render a certificate as one HTML file in the reports' style."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from semspec.certify import relaxed
from semspec.certify.certificate import Certificate, sentences
from semspec.certify.sampled import PLACES, Result, Test
from semspec.report.html import clipped, esc, figure, notes, page, section, table
from semspec.report.svg import Plot
from semspec.report.terminal import number

PARTS = tuple((n.lower(), n) for n in ("Verdict", "Greedy", "Sampled", "Prompts"))
SHOWN = 24  # cells and differences in a table
ABOUT = {
    "cells": "next tokens, prompt {}",
    "all": "next tokens, all prompts",
    "places": "places of token {}",
    "neighbours": "repeats among concurrent requests",
    "rounds": "repeats of earlier requests",
    "outside": "tokens that the model cannot sample",
}


def certificate_page(found: Certificate) -> str:
    body = [
        _head(found),
        section("greedy", "Greedy", _greedy(found.shown)) if found.shown else "",
        section("sampled", "Sampled", _drawn(found, found.sampled)) if found.sampled else "",
        section("prompts", "Prompts", [_prompts(found.prompts)]),
    ]
    return page(f"{found.name}: semspec certificate", "certificate of a server", body, PARTS)


def relaxed_page(found: relaxed.Relaxed) -> str:
    """Return the page of a server that is relaxed on purpose."""
    said, *more = relaxed.sentences(found)
    listed = "".join(f"<p>{esc(line)}</p>" for line in more)
    head = (
        f'<div class="head" id="verdict"><h1>{esc(found.name)}</h1>'
        f'<p class="method">compared with {esc(found.reference)}; {found.problems} problems of {esc(found.benchmark)},'
        f" temperature {found.temperature:g}</p><p><strong>{esc(said)}</strong></p>{listed}</div>"
    )
    rows = [
        [
            esc(one.about), number(one.a, 4), number(one.b, 4), f"{100 * one.difference:+.1f}",
            f"{100 * one.interval[0]:+.1f} to {100 * one.interval[1]:+.1f}", f"{100 * one.margin:g}",
            f"{one.p:.3g}", esc(one.verdict),
        ]
        for one in found.found
    ]  # fmt: skip
    names = ["", "reference", "server", "difference", "90 %", "margin", "TOST p", ""]
    figures = section(
        "figures", "Figures", [table(names, rows, "In points; lengths in % of the reference's")]
    )
    parts = (("verdict", "Verdict"), ("figures", "Figures"))
    return page(
        f"{found.name}: semspec certificate", "certificate of a server", [head, figures], parts
    )


def _head(found: Certificate) -> str:
    s = found.sampling
    drawn = f"temperature {s.temperature:g}, top-p {s.top_p:g}, top-k {s.top_k}, min-p {s.min_p:g}"
    said, *more = sentences(found)
    listed = "".join(f"<p>{esc(line)}</p>" for line in more)
    return (
        f'<div class="head" id="verdict"><h1>{esc(found.name)}</h1>'
        f'<p class="method">compared with {esc(found.reference)}; {esc(drawn)}</p>'
        f"<p><strong>{esc(said)}</strong></p>{listed}</div>"
    )


def _greedy(shown: Mapping[str, Any]) -> list[str]:
    rows = []
    for one in shown["prompts"]:
        first, worst = one["first"], one["worst"]
        rows.append(
            [
                esc(one["prompt"]), f"{one['agreed']} of {one['tokens']}", _difference(first), _difference(worst),
                f"{one['ties']} ties, {one['faults']} faults",
            ]
        )  # fmt: skip
    head = ["prompt", "equal tokens", "first difference", "largest", ""]
    return [table(head, rows, "Greedy texts"), notes(shown["notes"])]


def _difference(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return "-"
    pair = (f"{number(one[name], 4)}" for name in ("wrote_logprob", "expected_logprob"))
    texts = f"{esc(repr(one['wrote_text']))} for {esc(repr(one['expected_text']))}"
    return f"token {one['at']}: {texts} (log-probabilities {' and '.join(pair)})"


def _drawn(found: Certificate, result: Result) -> list[str]:
    parts = [notes(result.notes)]
    if found.places:
        parts.append(f'<div class="charts">{_places(found.places)}</div>')
    tests = sorted(result.tests, key=lambda t: t.found.p)[:SHOWN]
    head = ["test", "outcomes", "statistic", "degrees of freedom", "p", "corrected p", "detectable"]
    parts.append(table(head, [_test(t) for t in tests], "Tests"))
    if found.cells:
        rows = [
            [
                clipped(one["text"], 80) + (" + any other" if one["others"] else ""),
                f"{one['seen']:,}",
                f"{one['expected']:,.1f}",
            ]
            for one in found.cells[:SHOWN]
        ]
        heading = f"<h3>Prompt {found.cells[0]['prompt']}, the least likely of all</h3>"
        parts.append(heading + table(["begins with", "seen", "expected"], rows, "Outcomes"))
    return parts


def _test(test: Test) -> list[str]:
    limit = "-" if test.detectable is None else f"{test.detectable:.3f}"
    assert test.adjusted is not None
    return [
        esc(ABOUT[test.about].format(test.prefix)),
        f"{test.outcomes:,}",
        f"{test.found.statistic:,.1f}",
        f"{test.found.freedom}",
        f"{test.found.p:.3g}",
        f"{test.adjusted:.3g}",
        limit,
    ]


def _places(places: Sequence[Sequence[int]]) -> str:
    """Return a chart of the tokens' places in their distributions, over all tokens of the outcomes."""
    counts = [sum(own) for own in zip(*places, strict=True)]
    total = sum(counts)
    if not total:
        return ""
    even = total / PLACES
    off = 100 * max(abs(count - even) for count in counts) / even
    chance = 100 * 3 / math.sqrt(even)
    alt = (
        "Where the sampled tokens lie in the distributions that they should come from, the likeliest tokens on the left."
        f" Correct sampling makes all bars equal; the largest difference is {off:.1f} %, chance explains up to {chance:.1f} %."
    )
    plot = Plot(
        "Places", "mass of likelier tokens", "tokens", width=420, height=250, titled=False, alt=alt
    )
    middles = [(i + 0.5) / PLACES for i in range(PLACES)]
    plot.bars(middles, [float(c) for c in counts])
    plot.line([0.0, 1.0], [even, even], dashed=True, ink=1)
    return figure("Places.", plot.svg(), esc(alt))


def _prompts(prompts: Sequence[str]) -> str:
    rows = [[esc(i), clipped(text, 300)] for i, text in enumerate(prompts)]
    return table(["number", "text"], rows, "Prompts")
