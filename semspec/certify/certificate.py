"""Make a certificate: greedy texts first, then drawn tokens, then the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from semspec.certify import greedy, sampled
from semspec.certify.endpoints.base import Drafting, Drafts, Reference, Writer
from semspec.certify.laws import END, Token, Tokens
from semspec.certify.record import Record, tokens_of
from semspec.certify.sampled import Ask, Test
from semspec.report.progress import Steps
from semspec.types import Sampling

Verdict = Literal["faulty", "as the model", "undecided", "not tested"]
SUSPICIONS = {
    "cells": "the next tokens after a prefix do not follow the model's distribution",
    "all": "the next tokens do not follow the model's distribution, over all prefixes together",
    "places": "tokens at this place are not drawn from the distribution after their prefix",
    "neighbours": "concurrent requests write the same too often: do they share a seed?",
    "rounds": "requests repeat what earlier ones wrote too often: do they share a seed?",
    "outside": "the server writes tokens that the model cannot sample: another temperature, top-p or top-k on one side only, or another model",
}


@dataclass
class Certificate:
    """All findings about one server."""

    name: str
    reference: str
    sampling: Sampling
    prompts: list[str]
    greedy: greedy.Result | None = None
    sampled: sampled.Result | None = None
    places: list[list[int]] = field(default_factory=list)
    cells: list[dict[str, Any]] = field(default_factory=list)  # of the prefix with the smallest p
    shown: dict[str, Any] = field(default_factory=dict)  # the greedy part, with texts
    drafts: Drafts | None = None  # while tokens were drawn; None: the server does not say

    @property
    def verdict(self) -> Verdict:
        parts = [part for part in (self.greedy, self.sampled) if part is not None]
        if any(part.faulty for part in parts):
            return "faulty"
        if self.greedy is not None and self.greedy.undecided:
            return "undecided"
        return "as the model" if parts else "not tested"

    def suspicions(self) -> list[tuple[Test, str]]:
        """Return the tests that failed, the most telling first, each with what it suggests."""
        if self.sampled is None or not self.sampled.faulty:
            return []
        limit = self.sampled.alpha * (1 - sampled.EARLY)
        failed = [t for t in self.sampled.tests if t.adjusted is not None and t.adjusted <= limit]
        # tests that would explain the others come first
        order = ("outside", "neighbours", "rounds", "places", "cells", "all")
        failed.sort(key=lambda t: (order.index(t.about), t.adjusted, t.prefix or 0))
        return [(t, SUSPICIONS[t.about]) for t in failed]


def make(
    writer: Writer,
    reference: Reference | None,
    other: Writer | None,
    prompts: Sequence[str],
    ask: Ask,
    record: Record,
    steps: Steps,
    *,
    checks: Sequence[str],
    length: int,
    tie: float,
) -> Certificate:
    """Run the checks and return the certificate.

    ``reference`` gives the model's distributions, ``other`` only writes text; at least one of them must be given.
    """
    held = reference if reference is not None else other
    assert held is not None
    certificate = Certificate(writer.name, held.name, ask.sampling, list(prompts))
    prefixes = tokens_of(record.once("prefixes", lambda: [writer.encode(p) for p in prompts]))
    if "greedy" in checks:
        certificate.greedy = _greedy(writer, reference, other, prefixes, record, steps, length, tie)
        certificate.shown = greedy.as_json(certificate.greedy, writer.show)
    if "sampled" in checks:
        _sampled(certificate, writer, reference, other, prefixes, ask, record, steps)
    return certificate


def _greedy(
    writer: Writer,
    reference: Reference | None,
    other: Writer | None,
    prefixes: Sequence[Tokens],
    record: Record,
    steps: Steps,
    length: int,
    tie: float,
) -> greedy.Result:
    result = greedy.Result(tie, [])
    with steps.stage("greedy texts", len(prefixes)) as stage:
        for number, prefix in enumerate(prefixes):

            def ask(who: Writer, prefix: Tokens = prefix) -> list[Tokens]:
                return greedy.texts_of(who, [prefix], length)

            (text,) = tokens_of(record.once(f"greedy {number}", lambda ask=ask: ask(writer)))  # type: ignore[misc]
            if reference is not None:
                found = greedy.read_by(reference, number, prefix, text, tie)
            else:
                assert other is not None
                (rival,) = tokens_of(
                    record.once(f"greedy {number} of the reference", lambda ask=ask: ask(other))  # type: ignore[misc]
                )
                tells = _logprobs_of(other) if isinstance(other, Reference) else None
                found = greedy.beside(number, prefix, text, rival, tells, tie)
            result.compared.append(found)
            stage.by(1)
    if any(len(prefix) > 0 and one.tokens < length for prefix, one in zip(prefixes, result.compared, strict=True)):  # fmt: skip
        result.notes.append(
            "some texts ended, or diverged from the reference's, before the requested length"
        )
    return result


def _logprobs_of(reference: Reference) -> Callable[[Tokens, Token], Mapping[Token, float]]:
    """Return a function that gives the log-probabilities after one prefix."""
    return lambda prefix, also: reference.logprobs([prefix], [also])[0]


def _sampled(
    certificate: Certificate,
    writer: Writer,
    reference: Reference | None,
    other: Writer | None,
    prefixes: Sequence[Tokens],
    ask: Ask,
    record: Record,
    steps: Steps,
) -> None:
    counted: sampled.AgainstLaw | sampled.AgainstSample
    if reference is not None:
        known = sampled.KnownLaws(dict(record.laws), record.keep_laws)
        counted = sampled.AgainstLaw(prefixes, reference, ask, known)
    else:
        counted = sampled.AgainstSample(prefixes, ask)
    asking = sampled.rounds_of(writer, prefixes, ask, other if reference is None else None)

    drafts = writer.drafts if isinstance(writer, Drafting) else None
    if drafts is not None:
        drafts()  # discard the counts of the greedy texts

    def source(number: int) -> tuple[list[Tokens], list[Tokens]]:
        own, others = record.once(f"round {number}", lambda: asking(number))
        if drafts is not None:
            told = Drafts(*record.once(f"drafts {number}", drafts))
            certificate.drafts = (
                told if certificate.drafts is None else certificate.drafts.plus(told)
            )
        return tokens_of(own), tokens_of(others)

    with steps.stage("sampled tokens", sampled.plan(counted, ask)) as stage:
        result = sampled.examine(counted, ask, source, stage.to)
    certificate.sampled = result
    if isinstance(counted, sampled.AgainstLaw):
        certificate.places = [list(one.counts) for one in counted.places]
        worst = min(
            (t for t in result.tests if t.about == "cells"),
            key=lambda t: (t.found.p, -t.found.statistic),
        )
        assert worst.prefix is not None
        certificate.cells = _cells(counted, worst.prefix, writer)


def _cells(counted: sampled.AgainstLaw, at: int, writer: Writer) -> list[dict[str, Any]]:
    partition, counts = counted.partitions[at], counted.cells[at].counts
    total, rows = sum(counts), []
    for cell, (count, p) in enumerate(zip(counts, partition.probs, strict=True)):
        tokens, others = partition.name(cell)
        text = writer.show(tuple(t for t in tokens if t != END))
        text += "(end)" if tokens and tokens[-1] == END else ""
        row: dict[str, Any] = {"prompt": at, "tokens": list(tokens), "text": text, "others": others}
        rows.append(row | {"seen": count, "expected": float(total * p)})
    rows.sort(key=lambda row: -abs(row["seen"] - row["expected"]) / math.sqrt(row["expected"] + 1))
    return rows


def sentences(certificate: Certificate) -> list[str]:
    """Return the findings as sentences that claim no more than was tested."""
    said = {
        "faulty": "FAULTY: the output does not follow the model's distribution.",
        "as the model": "No fault found: as far as tested, the output follows the model's distribution.",
        "undecided": "Undecided: greedy texts differ, and their log-probabilities are unknown.",
        "not tested": "Nothing was tested.",
    }
    lines = [said[certificate.verdict]]
    if certificate.greedy is not None:
        lines.append(f"Greedy: {_greedy_said(certificate.greedy, certificate.shown)}")
    if certificate.sampled is not None:
        lines += [f"Sampled: {line}" for line in _sampled_said(certificate, certificate.sampled)]
    if certificate.drafts is not None:
        lines.append(f"Drafts: {certificate.drafts.said()}")
    return lines


def _greedy_said(found: greedy.Result, shown: Mapping[str, Any]) -> str:
    tokens, agreed = shown["tokens"], shown["agreed"]
    if tokens == agreed:
        return f"all {tokens:,} tokens are the reference's likeliest."
    line = f"{agreed:,} of {tokens:,} tokens are the reference's likeliest"
    worst = [one["worst"] for one in shown["prompts"] if one["worst"]]
    if found.faulty:
        one = max(worst, key=lambda d: math.inf if d["gap"] is None else d["gap"])
        gap = "more than it lists" if one["gap"] is None else f"{one['gap']:.3g} nats"
        return (
            f"{line}; at token {one['at']} it wrote {one['wrote_text']!r} where {one['expected_text']!r} is"
            f" likelier by {gap} (more than tie={found.tie:g}: a fault)."
        )
    if worst:
        gap = max(one["gap"] for one in worst)
        return f"{line}; the others are ties, {gap:.3g} nats apart at most (tie={found.tie:g})."
    return f"{line}; the log-probabilities of the others are unknown."


def _sampled_said(certificate: Certificate, found: sampled.Result) -> list[str]:
    n = len(certificate.prompts)
    base = f"{found.outcomes:,} outcomes after each of {n} prefix{'' if n == 1 else 'es'}, {found.tokens:,} tokens"
    if found.stopped == "evidence":
        odds = min(found.log_evidence / math.log(10), 300.0)
        lines = [f"{base}; stopped early: evidence of 10^{odds:.1f} to 1 against an honest server."]
    elif found.faulty:
        lines = [f"{base}; a test failed after correction for {len(found.tests)} tests."]
    else:
        rest = "" if found.stopped == "complete" else " (stopped by the budget)"
        by_place = found.detectable_place
        places = f", or by {by_place:.3f} at one place of all outcomes," if by_place else ""
        lines = [
            f"{base}; none of {len(found.tests)} tests failed{rest}. A next-token"
            f" distribution that differs by a total variation of {found.detectable:.3f} at one prefix{places} would have been"
            f" found with probability {100 * found.power:.0f} %; {100 * found.alpha:g} % of all certificates call an honest server faulty."
        ]
    for test, why in certificate.suspicions()[:3]:
        where = {"cells": "prompt", "places": "token"}.get(test.about)
        place = f" ({where} {test.prefix})" if where and test.prefix is not None else ""
        lines.append(f"{why}{place}: p {_p(test.adjusted)}, corrected.")
    return lines


def _p(value: float | None) -> str:
    assert value is not None
    return f"= {value:.3g}" if value >= 1e-3 else "< 0.001"


def as_json(certificate: Certificate) -> dict[str, Any]:
    """Return the content of certificate.json."""
    found = certificate.sampled
    return {
        "verdict": certificate.verdict,
        "server": certificate.name,
        "reference": certificate.reference,
        "sampling": asdict(certificate.sampling),
        "prompts": certificate.prompts,
        "sentences": sentences(certificate),
        "greedy": certificate.shown or None,
        "sampled": None if found is None else sampled.as_json(found),
        "drafts": None if certificate.drafts is None else certificate.drafts._asdict(),
        "places": certificate.places,
        "cells": certificate.cells,
    }
