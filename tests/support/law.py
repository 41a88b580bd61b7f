"""Compare the distribution of many short runs on the toy engine with the exact law (its output distribution)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scipy.stats import chisquare

from semspec import registry
from semspec.decoding.pace import Pace, Steady
from semspec.decoding.thinking import CLOSE, Thinking
from semspec.decoding.writing import Pen
from semspec.drafters.none import NoDrafter
from semspec.driver import Driver
from semspec.engines.toy import Toy, ToyEngine
from semspec.loop import Speculation, decode_plainly, speculate
from semspec.protocols import Drafter, Kit, Plan, Rule
from semspec.rules.lossless import Lossless
from semspec.splitters.token import TokenBoundary
from semspec.types import Context, Outcome, Sampling

PROMPT = (0, 1)
REFERENCES = ((0, 1, 3, 0, 2, 1, 0, 1, 2, 3),)  # for the drafter that copies from reference texts
SPLITTERS = {name: plugin.cls for name, plugin in registry.plugins("split").items()}


PIECES = (" It", " is", "\n\n", ".")


def piece(token: int) -> str:
    """Return a token's text: token 2 ends a paragraph, token 3 a sentence if a word follows."""
    return PIECES[token % len(PIECES)]


def encode(text: str) -> list[int]:
    """Encode a text greedily by the pieces; skip characters that start none."""
    tokens = []
    while text:
        token = next((t for t, p in enumerate(PIECES) if text.startswith(p)), None)
        if token is None:
            text = text[1:]
        else:
            tokens.append(token)
            text = text[len(PIECES[token]) :]
    return tokens


def aside(question: str, prefill: str) -> list[int]:
    """Return the tokens of a question in the toy world: two, and the prefilled digit, if any."""
    return [0, 1, *(int(c) for c in prefill[-1:] if c.isdigit())]


def toy_kit(
    rule: Rule | None,
    engine: ToyEngine,
    sampling: Sampling,
    seed: int,
    split: str = "token",
    step_cap: int = 4,
    salvage: bool = False,
) -> Kit:
    splitter = SPLITTERS[split]()
    return Kit(
        prompt="",
        sampling=sampling,
        boundary=lambda: splitter.open(piece, step_cap),
        stop_ids=engine.stop_ids,
        piece=piece,
        decode=lambda tokens: "".join(map(piece, tokens)),
        encode=encode,
        aside=aside,
        rng=random.Random(seed),
        evidence=rule.evidence() if rule is not None else (),
        gate=rule.gate() if rule is not None else None,
        salvage=salvage,
        trees=rule is not None and rule.trees and split == "token",
        layers=engine.layers,
        references=REFERENCES,
    )


MakePlan = Callable[[Context, Kit, int, Pace], Plan[Outcome]]


def plain_plan(context: Context, kit: Kit, length: int, pace: Pace) -> Plan[Outcome]:
    return decode_plainly(context, kit, length)


def own_rng(kit: Kit, who: str) -> Kit:
    """Return the kit with its own random numbers, as the solver gives each plugin its own."""
    return replace(kit, rng=random.Random(f"{kit.rng.getstate()[1][:4]} {who}"))


def speculative_plan(
    drafter: Drafter,
    rule: Rule,
    nested: Drafter | None = None,
    ahead: bool = False,
    closing: int | None = None,
    pen: Callable[[int, int], Pace] = Steady,
) -> MakePlan:
    """Return how to plan a speculative run; after the token ``closing``, which ends the thinking, the target writes alone."""
    pen_pace = pen

    def plan(context: Context, kit: Kit, length: int, pace: Pace) -> Plan[Outcome]:
        pen = None
        if nested is not None:
            inner = replace(
                own_rng(kit, "nested"),
                boundary=TokenBoundary,
                evidence=Lossless().evidence(),
                trees=True,
            )
            pen = Pen(nested.open(inner), Lossless().open(inner), pen_pace(2, 1))
        drafting, judging = drafter.open(own_rng(kit, "draft")), rule.open(kit)
        options: dict[str, Any] = {"pen": pen, "ahead": ahead, "thinking": _thinking(closing)}
        return speculate(Speculation(context, kit, length, drafting, judging, pace, **options))

    return plan


def _thinking(closing: int | None) -> Thinking | None:
    return None if closing is None else Thinking(lambda t: CLOSE if t == closing else piece(t))


def p_value(
    toy: Toy,
    plan: MakePlan,
    rule: Rule | None,
    sampling: Sampling,
    samples: int,
    length: int = 3,
    draft_length: int = 2,
    step_cap: int = 4,
    concurrency: int = 1,
    law: Mapping[tuple[int, ...], float] | None = None,
    prompt: Sequence[int] = PROMPT,
    pace: Callable[[int, int], Pace] = Steady,
    **options: Any,
) -> float:
    """Return the chi-square p-value of ``samples`` outputs of ``length`` tokens against ``law``, by default the target's."""
    models = toy.models()
    target = models["target"]
    driver = Driver(dict(models))  # type: ignore[arg-type]

    def plans():  # type: ignore[no-untyped-def]
        for sample in range(samples):
            context = Context(sample, prompt)
            kit = toy_kit(rule, target, sampling, sample, step_cap=step_cap, **options)
            yield context, plan(context, kit, length, pace(draft_length, step_cap))

    counts = Counter(tuple(done.value.tokens) for done in driver.run(plans(), concurrency))
    if law is None:
        law = target.law(prompt, length, sampling)
    law = {o: p for o, p in law.items() if p > 0}
    assert set(counts) <= set(law), "an output came out that the target never writes"
    return fit(counts, law, samples)


def fit(counts: Counter[Unit], law: Mapping[Unit, float], samples: int) -> float:
    """Return the chi-square p-value of the counts under a law; 0 if an output is impossible."""
    if not set(counts) <= set(law):
        return 0.0
    # pool outputs expected less than 5 times, as the chi-square approximation requires
    common = [o for o, p in law.items() if p * samples >= 5]
    rare = [o for o in law if o not in set(common)]
    observed = [counts[o] for o in common] + [sum(counts[o] for o in rare)] * bool(rare)
    expected = [law[o] * samples for o in common]
    expected += [sum(law[o] for o in rare) * samples] * bool(rare)
    scale = sum(observed) / sum(expected)
    return float(chisquare(observed, [e * scale for e in expected]).pvalue)


def handover_plan(context: Context, kit: Kit, length: int, pace: Pace) -> Plan[Outcome]:
    """Plan a run that never drafts, so that every round is a handover of one unit."""
    drafter, rule = NoDrafter().open(kit), Lossless().open(kit)
    return speculate(Speculation(context, kit, length, drafter, rule, pace))


Unit = tuple[int, ...]


def step_law(
    toy: Toy,
    accept: Callable[[Unit], bool],
    sampling: Sampling,
    split: str,
    step_cap: int,
    length: int = 3,
) -> dict[Unit, float]:
    """Return the exact law of step-level speculation, unit by unit, cut to ``length`` tokens.

    After a context the next unit s has the probability
        q(s) [accept(s)]  +  (1 - sum of q(s') [accept(s')])  p(s):
    the draft's unit if it is accepted, otherwise a unit of the target's that does not depend on the draft.
    ``accept`` must depend only on a unit's first token, so that a unit cut by the budget is judged like
    the whole one.
    """
    models = toy.models()
    splitter = SPLITTERS[split]()

    def units(engine: ToyEngine, context: Unit) -> dict[Unit, float]:
        law: dict[Unit, float] = {}

        def grow(unit: Unit, probability: float) -> None:
            boundary = splitter.open(piece, step_cap)
            if unit and (
                any(boundary.feed(t) is not None for t in unit) or unit[-1] in engine.stop_ids
            ):
                law[unit] = law.get(unit, 0.0) + probability
                return
            for (token,), p in engine.law((*context, *unit), 1, sampling).items():
                if p > 0:
                    grow((*unit, token), probability * p)

        grow((), 1.0)
        return law

    result: dict[Unit, float] = {}

    def go(output: Unit, probability: float) -> None:
        if len(output) >= length or (output and output[-1] in models["target"].stop_ids):
            cut = output[:length]
            result[cut] = result.get(cut, 0.0) + probability
            return
        q = units(models["draft"], (*PROMPT, *output))
        p = units(models["target"], (*PROMPT, *output))
        rejected = 1 - sum(chance for unit, chance in q.items() if accept(unit))
        for unit in set(q) | set(p):
            own = q.get(unit, 0.0) if accept(unit) else 0.0
            go((*output, *unit), probability * (own + rejected * p.get(unit, 0.0)))

    go((), 1.0)
    return result
