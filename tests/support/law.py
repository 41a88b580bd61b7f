"""Statistical help: many short runs over the toy engine, counted and held against the exact law."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from scipy.stats import chisquare

from semspec.drafters.none import NoDrafter
from semspec.driver import Driver
from semspec.engines.toy import Toy, ToyEngine
from semspec.loop import decode_plainly, speculate
from semspec.protocols import Drafter, Kit, Plan, Rule
from semspec.rules.lossless import Lossless
from semspec.splitters.paragraph import Paragraph
from semspec.splitters.sentence import Sentence
from semspec.splitters.token import TokenSplit
from semspec.types import Context, Outcome, Sampling

PROMPT = (0, 1)
SPLITTERS = {"token": TokenSplit, "paragraph": Paragraph, "sentence": Sentence}


PIECES = (" It", " is", "\n\n", ".")


def piece(token: int) -> str:
    """In the toy world token 2 ends a paragraph, and token 3 a sentence if a word follows."""
    return PIECES[token % len(PIECES)]


def toy_kit(
    rule: Rule | None,
    engine: ToyEngine,
    sampling: Sampling,
    seed: int,
    split: str = "token",
    draft_length: int = 2,
    step_cap: int = 4,
) -> Kit:
    splitter = SPLITTERS[split]()
    return Kit(
        prompt="",
        sampling=sampling,
        draft_length=draft_length,
        boundary=lambda: splitter.open(piece, step_cap),
        stop_ids=engine.stop_ids,
        piece=piece,
        decode=lambda tokens: "".join(map(piece, tokens)),
        rng=random.Random(seed),
        step_cap=step_cap,
        evidence=rule.evidence() if rule is not None else (),
    )


def plain_plan(context: Context, kit: Kit, length: int) -> Plan[Outcome]:
    return decode_plainly(context, kit, length)


def speculative_plan(drafter: Drafter, rule: Rule) -> Callable[[Context, Kit, int], Plan[Outcome]]:
    def plan(context: Context, kit: Kit, length: int) -> Plan[Outcome]:
        return speculate(context, kit, drafter.open(kit), rule.open(kit), length)

    return plan


def p_value(
    toy: Toy,
    plan: Callable[[Context, Kit, int], Plan[Outcome]],
    rule: Rule | None,
    sampling: Sampling,
    samples: int = 100_000,
    length: int = 3,
    **options: object,
) -> float:
    """Chi-square p-value of ``samples`` outputs of ``length`` tokens against the target's law."""
    models = toy.models()
    target = models["target"]
    driver = Driver(dict(models))  # type: ignore[arg-type]

    def plans():  # type: ignore[no-untyped-def]
        for sample in range(samples):
            context = Context(sample, PROMPT)
            kit = toy_kit(rule, target, sampling, sample, **options)  # type: ignore[arg-type]
            yield context, plan(context, kit, length)

    counts = Counter(tuple(done.value.tokens) for done in driver.run(plans()))
    law = {o: p for o, p in target.law(PROMPT, length, sampling).items() if p > 0}
    assert set(counts) <= set(law), "an output came out that the target never writes"
    # outputs expected less than 5 times are pooled, as the chi-square approximation asks
    common = [o for o, p in law.items() if p * samples >= 5]
    rare = [o for o in law if o not in set(common)]
    observed = [counts[o] for o in common] + [sum(counts[o] for o in rare)] * bool(rare)
    expected = [law[o] * samples for o in common]
    expected += [sum(law[o] for o in rare) * samples] * bool(rare)
    scale = sum(observed) / sum(expected)
    return float(chisquare(observed, [e * scale for e in expected]).pvalue)


def handover_plan(context: Context, kit: Kit, length: int) -> Plan[Outcome]:
    """Never drafts, so that every round is a handover of one unit."""
    rule = Lossless()
    return speculate(context, kit, NoDrafter().open(kit), rule.open(kit), length)
